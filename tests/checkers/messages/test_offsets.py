"""Offsets of messages, in clients' answers and in the replicas' own logs: dense, unique, and the
same on all replicas."""

from typing import Any

import numpy as np
import pytest

from checkers import offsets, replicas
from checkers._messages.log_bounds import CONFLICT, FINAL, LOG_FIELDS, RESTAMPED, absorb
from checkers._messages.message_rows import MAX_OFFSETS, MAX_QUEUES, Block
from checkers._spark import spark_stages as _units
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.judge.judge import judge_in_process
from harness.judge.verdict import Judgement, Result
from harness.trial import Trial

ROW = tuple[int, int, int, int, int, int]  # node, key, offset, value, epoch, crc
SENT = "\n".join(f"send {at} ok@{at}" for at in range(5)) + "\nread 0@0 1@1 2@2 3@3 4@4\ndrained"
BACK = (5, "", "recovery", '{"redundant": true, "took_s": 1.0}')


def entry(node: int, offset: int, value: int | None = None, epoch: int = 1, key: int = 0) -> ROW:
    return node, key, offset, offset if value is None else value, epoch, 77


SAME = [entry(node, at) for node in (0, 1) for at in range(5)]


def stored(written: Any, rows: list[ROW], files: int = 1) -> History:
    """A run in which five messages were sent and read, with these logs at its end."""
    run = written(SENT).run
    for number in range(files):
        write(run, "replicas", f"runner-{number + 1}", rows[number::files])
    write(run, "events", "runner", [BACK])
    return History.open(run)


def write(run: Any, table: str, writer: str, rows: list[Any]) -> None:
    journal = TableJournal(run.journal, table, writer)
    for row in rows:
        journal.append(row)
    journal.close()


def codes(result: Result) -> dict[str, int]:
    return {finding.code: finding.count for finding in result.findings if finding.demand}


def judged(history: History) -> dict[str, int]:
    return codes(offsets.check(history, Trial(), None))


def test_dense_logs_convict_nobody(written: Any) -> None:
    result = offsets.check(stored(written, SAME), Trial(), None)
    assert result.judgement is Judgement.VALID
    assert not result.findings


@pytest.mark.parametrize("files", [1, 4])
def test_a_log_that_gives_an_offset_twice(written: Any, files: int) -> None:
    """OFFSET_CONFLICT (apache/rocketmq#7689), in all replicas alike; the copies do not differ."""
    history = stored(written, [*SAME, entry(0, 4, 99), entry(1, 4, 99)], files)
    assert judged(history) == {"OFFSET_CONFLICT": 1}
    [finding] = offsets.check(history, Trial(), None).findings
    assert finding.evidence == ({"queue": "orders-0", "offset": 4},)
    assert "1 in a replica's own log" in finding.message
    assert codes(replicas.check(history, Trial(), None)) == {}


@pytest.mark.parametrize("crews", [1, 2])
@pytest.mark.parametrize("read", ["1@1/2/900", "1@1/1/901"])
def test_a_record_keeps_its_epoch_and_its_store_time(written: Any, read: str, crews: int) -> None:
    """RECORD_CHANGED: a reader is given another epoch or store time than a consumer was, whether
    one crew recorded both or two."""
    text = "send 0 ok@0\nsend 1 ok@1\npoll 0@0/1/899 1@1/1/900\nread 0@0/1/899 {}\ndrained"
    assert judged(written(text.format("1@1/1/900"), crews=crews)) == {}
    result = offsets.check(written(text.format(read), crews=crews), Trial(), None)
    assert codes(result) == {"RECORD_CHANGED": 1}
    assert result.findings[0].evidence == ({"queue": "orders-0", "offset": 1},)


def block(**fields: int) -> Block:
    """A block of one offset; fields that are not given are as in a new one."""
    return {
        name: np.array([fields.get(name, initial)], dtype)
        for name, (dtype, initial) in LOG_FIELDS.items()
    }


def test_an_offset_that_is_too_large_is_no_offset_of_another_queue(written: Any) -> None:
    """Places of queues are 2**44 apart, so such an offset of queue 0 would be one of queue 1."""
    beyond = f"2@{MAX_OFFSETS + 3}"
    history = written(f"send 0 ok@3 q1\nsend 1 ok@3 q1\nread {beyond}\nread 0@3 q1")
    assert judged(history) == {"OFFSET_CONFLICT": 1}


def test_more_queues_than_can_be_told_apart_are_refused(written: Any) -> None:
    """A place has 19 bits for the queue; beyond these the run is unknown, and never valid."""
    most = MAX_QUEUES - 1
    assert judged(written(f"send 0 ok@3 q{most}\nsend 1 ok@3 q{most}")) == {"OFFSET_CONFLICT": 1}
    verdict = judge_in_process(written(f"send 0 ok@3 q{most + 1}\nread 0@3 q{most + 1}").run)
    failed = {
        c.checker: reason.message
        for c in verdict.checkers
        for reason in c.reasons
        if reason.code == "CHECKER_FAILED"
    }
    assert verdict.verdict is Judgement.UNKNOWN
    assert failed.keys() >= {"loss", "phantom", "duplicates", "order", "linearizable", "offsets"}
    assert all("a row names queue number 524,288" in said for said in failed.values()), failed


def test_a_replica_with_too_many_queues_is_refused(written: Any) -> None:
    beyond = stored(written, [entry(0, 0, key=MAX_QUEUES), entry(1, 0, key=MAX_QUEUES)])
    with pytest.raises(ValueError, match="a row names queue number 524,288"):
        replicas.check(beyond, Trial(), None)


@pytest.mark.parametrize(
    ("other", "marks"),
    [
        ({"value": 7, "epoch": 1, "stored": 900}, 0),
        ({"value": 8, "epoch": 1, "stored": 900}, CONFLICT),
        ({"value": 7, "epoch": 2, "stored": 900}, RESTAMPED),
        ({"value": 7, "epoch": 1, "stored": 901}, RESTAMPED),
        ({"value": 7}, 0),
        ({}, 0),
        ({"marks": FINAL}, FINAL),
    ],
)
def test_what_two_tasks_recorded_of_an_offset_is_compared(
    other: dict[str, int], marks: int
) -> None:
    """Rows of one offset may be in files that different tasks read; their blocks are merged."""
    recorded = {"value": 7, "epoch": 1, "stored": 900}
    for one, two in ((recorded, other), (other, recorded)):
        merged = block(**one)
        absorb(merged, block(**two))
        assert merged["marks"].tolist() == [marks]
        assert merged["value"].tolist() == [7]


def test_the_closest_bounds_of_two_tasks_count() -> None:
    merged = block(invoked=5, acked=20, seen=40)
    absorb(merged, block(invoked=8, acked=30, seen=35))
    assert [merged[name].tolist() for name in ("invoked", "acked", "seen")] == [[8], [20], [35]]


def test_the_epoch_that_was_acknowledged_is_that_of_the_record(written: Any) -> None:
    """RECORD_CHANGED: acknowledged in epoch 1, read from epoch 2. A time that is not told differs
    from none."""
    assert judged(written("send 0 ok@0\nread 0@0/2/900\ndrained")) == {"RECORD_CHANGED": 1}
    assert judged(written("send 0 ok@0\npoll 0@0\nread 0@0/1/900\ndrained")) == {}


@pytest.mark.parametrize("files", [1, 3])
def test_a_log_that_leaves_an_offset_out(written: Any, files: int) -> None:
    """OFFSET_GAP: both logs lack the same two offsets, which is one mistake of two offsets."""
    more = [entry(node, 7) for node in (0, 1)]
    history = stored(written, [*SAME, *more], files)
    assert judged(history) == {"OFFSET_GAP": 2}
    [finding] = offsets.check(history, Trial(), None).findings
    assert finding.evidence == ({"queue": "orders-0", "missing": 2, "node": "broker-2"},)


def test_a_gap_over_many_blocks(written: Any) -> None:
    """Blocks of 8,192 offsets add up, each queue for itself."""
    far = [entry(0, 20_000 + at, 900 + at) for at in range(3)]
    other = [entry(0, at, 990 + at, key=1) for at in range(3)]
    history = stored(written, [*SAME, *far, *other])
    assert judged(history) == {"OFFSET_GAP": 20_000 - 5}


def test_a_log_may_begin_anywhere_and_end_early(written: Any) -> None:
    """Retention deletes from the front, and a slave may lag."""
    assert judged(stored(written, [*SAME[2:5], *SAME[5:8]])) == {}


def test_a_history_with_gaps_shows_none(written: Any) -> None:
    """What is not there may be missing from the record only."""
    history = stored(written, [*SAME, entry(0, 9)])
    history.run.update_state(ended=False)
    assert judged(History.open(history.run)) == {}


@pytest.mark.spark
def test_spark_and_the_kernel_agree_on_offsets(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files, a task each."""
    from harness.spark.session import session

    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    history = stored(written, [*SAME, entry(0, 4, 99), entry(1, 9)], files=3)
    with session() as spark:
        spread = offsets.check(history, Trial(), spark)
    assert spread == offsets.check(History.open(history.run), Trial(), None)
    assert codes(spread) == {"OFFSET_CONFLICT": 1, "OFFSET_GAP": 4}
