"""Replicas' logs against each other, on hand-written copies; also spread over files, as Spark
would have them."""

import re
from typing import Any

import pytest

from checkers import replicas
from checkers._spark import spark_stages as _units
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.judge.verdict import Result
from harness.trial import Trial

BACK = (5, "", "recovery", '{"redundant": true, "took_s": 1.0}')
NOT_BACK = (5, "", "recovery", '{"redundant": false, "took_s": 1.0}')
ROW = tuple[int, int, int, int, int, int]  # node, key, offset, value, epoch, crc
SAME: list[ROW] = [(node, 0, at, at + 10, 1, 77) for node in (0, 1) for at in range(5)]


def history(
    written: Any, rows: list[ROW], event: tuple[Any, ...] = BACK, files: int = 1
) -> History:
    """A run at whose end the replicas held these entries."""
    run = written("").run
    for number in range(files):
        _write(run, "replicas", f"runner-{number}", rows[number::files])
    _write(run, "events", "runner", [event])
    return History.open(run)


def _write(run: Any, table: str, writer: str, rows: list[Any]) -> None:
    journal = TableJournal(run.journal, table, writer)
    for row in rows:
        journal.append(row)
    journal.close()


def judged(told: History) -> Result:
    return replicas.check(told, Trial(), None)


@pytest.mark.parametrize("files", [1, 3])
def test_equal_copies_convict_nobody(written: Any, files: int) -> None:
    """Same message, same check sum, at every offset of every replica."""
    result = judged(history(written, SAME, files=files))
    assert not result.findings
    assert result.stats == {"compared": 5, "lacking": 0}


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("other", [(1, 0, 5, 99, 1, 77), (1, 0, 5, 15, 1, 78)])
def test_one_offset_with_two_messages_convicts(written: Any, files: int, other: ROW) -> None:
    """REPLICAS_DIFFER, by value or by check sum; the trial's contract can not waive it."""
    result = judged(history(written, [*SAME, (0, 0, 5, 15, 1, 77), other], files=files))
    [finding] = result.findings
    assert (finding.code, finding.count, finding.demand) == ("REPLICAS_DIFFER", 1, "integrity")
    assert finding.evidence == ({"queue": "orders-0", "offset": 5, "value": 15},)


@pytest.mark.parametrize("values", [(15, 99), (99, 15)])
def test_the_evidence_is_the_same_whichever_file_comes_first(
    written: Any, values: tuple[int, int]
) -> None:
    """Of two messages at one offset the smaller one is told."""
    rows: list[ROW] = [(node, 0, 5, value, 1, value) for node, value in enumerate(values)]
    [finding] = judged(history(written, rows, files=2)).findings
    assert finding.evidence == ({"queue": "orders-0", "offset": 5, "value": 15},)


LOOK = '{"stretch": %d, "sets": {"a": {"digests": {"broker-1": "x", "broker-2": "%s"}}}}'


@pytest.mark.parametrize("end", [BACK, NOT_BACK])
def test_replicas_that_were_unlike_in_between_convict(written: Any, end: tuple[Any, ...]) -> None:
    """DIGESTS_DIFFER, though they hold the same at the end, or nobody knows what; looks count."""
    run = history(written, SAME, end).run
    looks = [(t, "", "compared", LOOK % (t, found)) for t, found in enumerate(("x", "y", "x"))]
    _write(run, "events", "looks", looks)
    result = judged(History.open(run))
    [finding] = result.findings
    assert (finding.code, finding.count, finding.demand) == ("DIGESTS_DIFFER", 1, "integrity")
    assert finding.evidence == ({"at_s": 0.0, "set": "a", "broker-1": "x", "broker-2": "y"},)
    assert result.stats["looks"] == 3


@pytest.mark.parametrize(
    ("look", "note", "says"),
    [
        ("", "", "its cluster was never whole there"),
        ("", "NOT_COMPARED stretch 3: no answer", "failed, in stretch 3: no answer"),
        ('{"stretch": 0, "sets": {"a": {"digests": {"broker-1": "x"}}}}', "", "never whole"),
        (LOOK % (0, "x"), "", ""),
    ],
)
@pytest.mark.parametrize("end", [BACK, NOT_BACK])
def test_replicas_that_nobody_looked_at_in_between_prove_nothing(
    written: Any, end: tuple[Any, ...], look: str, note: str, says: str
) -> None:
    """Where it was asked for, of several replicas, and in a world that does not look by itself."""
    run = history(written, SAME, end).run
    if look:
        _write(run, "events", "looks", [(1, "", "compared", look)])
    if note:
        _write(run, "notes", "looks", [(1, None, None, note)])
    asked = Trial(compare_replicas=True)
    reasons = replicas.check(History.open(run), asked, None).reasons
    assert [reason.code for reason in reasons] == ["REPLICAS_NOT_COMPARED"] * bool(says)
    assert all(re.search(says, reason.message) for reason in reasons)
    assert not judged(History.open(run)).reasons
    run.update_state(simulated={})
    assert not replicas.check(History.open(run), asked, None).reasons


@pytest.mark.spark
def test_spark_and_the_kernel_agree(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files, a task each: the same result, evidence too."""
    from harness.spark.session import session

    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    rows = [*SAME, (0, 0, 5, 15, 1, 77), (1, 0, 5, 99, 1, 77), (0, 1, 9, 5, 1, 1)]
    told = history(written, rows, files=3)
    with session() as spark:
        assert replicas.check(told, Trial(), spark) == judged(told)


def test_an_entry_that_one_replica_lacks_is_counted(written: Any) -> None:
    """Copying may lag behind; only a contradiction convicts."""
    result = judged(history(written, [*SAME, (0, 1, 0, 15, 1, 77)]))
    assert not result.findings
    assert result.stats == {"compared": 6, "lacking": 1}


def test_another_broker_set_has_other_entries(written: Any) -> None:
    """Only those of a queue's own set must hold what is in it."""
    told = history(written, [*SAME, (2, 1, 0, 15, 1, 77), (3, 1, 0, 15, 1, 77)])
    sets = {
        "a": {"nodes": ["broker-1", "broker-2"], "full": 2, "keys": ["orders-0"]},
        "b": {"nodes": ["broker-3", "broker-4"], "full": 2, "keys": ["orders-1"]},
    }
    nodes = [node for of in sets.values() for node in of["nodes"]]
    roles = dict.fromkeys(nodes, "broker")
    told.run.write_names({**told.names, "nodes": nodes, "roles": roles, "sets": sets})
    assert judged(History.open(told.run)).stats == {"compared": 6, "lacking": 0}


OTHERS: list[ROW] = [(node, 1, 0, 15, 1, 77) for node in (2, 3)]


def two_sets(written: Any, rows: list[ROW], text: str = "") -> History:
    """A run of two sets of two replicas, with a queue each; `text`: what clients did."""
    run = written(text).run
    _write(run, "replicas", "runner-0", rows)
    _write(run, "events", "runner", [BACK])
    sets = {
        "a": {"nodes": ["broker-1", "broker-2"], "full": 2, "keys": ["orders-0"]},
        "b": {"nodes": ["broker-3", "broker-4"], "full": 2, "keys": ["orders-1"]},
    }
    nodes = [f"broker-{n}" for n in (1, 2, 3, 4)]
    roles = dict.fromkeys(nodes, "broker")
    run.write_names({**run.names(), "nodes": nodes, "roles": roles, "sets": sets})
    return History.open(run)


@pytest.mark.parametrize(
    ("rows", "text", "says"),
    [
        ([*SAME, *OTHERS], "", ""),
        ([*SAME, *OTHERS[:1]], "", "log of b was"),
        (SAME, "send 5 q1 ok@0", "log of b was"),  # there must be one, and nobody was read
        (SAME, "send 5 q1 info", ""),  # nothing was written to it
        ([], "send 5 q1 ok@0", "log of b was"),
        ([], "", "log was"),
        ([SAME[0], *OTHERS[:1]], "", "log of a, b was"),
    ],
)
def test_each_broker_set_is_compared(written: Any, rows: list[ROW], text: str, says: str) -> None:
    """What another set's replicas hold shows nothing of its own."""
    reasons = judged(two_sets(written, rows, text)).reasons
    assert [reason.code for reason in reasons] == ["NOTHING_COMPARED"] * bool(says)
    assert all(f"No entry of the {says} read" in reason.message for reason in reasons)


def test_each_broker_set_is_looked_at_in_between(written: Any) -> None:
    """One that nothing was written to need not be; nor all of them at one look."""
    asked = Trial(compare_replicas=True)
    look = '{"sets": {"%s": {"digests": {"x": "1", "y": "1"}}}}'
    history = two_sets(written, [*SAME, *OTHERS])
    _write(history.run, "events", "looks-a", [(1, "", "compared", look % "a")])
    [reason] = replicas.check(History.open(history.run), asked, None).reasons
    assert reason.code == "REPLICAS_NOT_COMPARED"
    assert reason.message.startswith("The replicas of b were never compared between faults")
    _write(history.run, "events", "looks-b", [(2, "", "compared", look % "b")])
    assert not replicas.check(History.open(history.run), asked, None).reasons
    idle = two_sets(written, SAME)
    _write(idle.run, "events", "looks-a", [(1, "", "compared", look % "a")])
    assert not replicas.check(History.open(idle.run), asked, None).reasons


def test_nothing_is_concluded_before_the_cluster_came_back(written: Any) -> None:
    """A deposed master that nobody told keeps its fork lawfully."""
    result = judged(history(written, [*SAME, (0, 0, 5, 15, 1, 77), (1, 0, 5, 99, 1, 77)], NOT_BACK))
    assert not result.findings
    assert result.stats == {"compared": 0}


@pytest.mark.parametrize(
    ("rows", "event", "codes"),
    [
        ([], BACK, ["NOTHING_COMPARED"]),
        ([row for row in SAME if row[0] == 0], BACK, ["NOTHING_COMPARED"]),
        (SAME, BACK, []),
        ([], NOT_BACK, []),  # that it did not come back is said by others
    ],
)
def test_nothing_was_compared(written: Any, rows: list[ROW], event: Any, codes: list[str]) -> None:
    """A run of several replicas that came back, and the log of one at most was read."""
    told = history(written, rows, event)
    assert [reason.code for reason in judged(told).reasons] == codes
    told.run.write_names({**told.names, "roles": {"broker-1": "broker"}})
    assert judged(History.open(told.run)).reasons == ()


DIGESTS = '{"at_end": %s, "sets": {"a": {"digests": {"broker-1": "x", "broker-2": "%s"}}}}'


@pytest.mark.parametrize(
    ("at_end", "other", "findings", "reasons"),
    [
        ("true", "x", [], []),
        ("true", "y", ["DIGESTS_DIFFER"], []),
        ("false", "x", [], ["NOTHING_COMPARED"]),  # between faults: nothing is known of the end
    ],
)
def test_digests_at_the_end_decide(
    written: Any, at_end: str, other: str, findings: list[str], reasons: list[str]
) -> None:
    """Of a system whose replicas' entries cannot be read, such as a store of keys and values."""
    run = history(written, []).run
    _write(run, "events", "looks", [(6, "", "compared", DIGESTS % (at_end, other))])
    result = judged(History.open(run))
    assert [finding.code for finding in result.findings] == findings
    assert [reason.code for reason in result.reasons] == reasons
    assert result.decided["integrity"] == (0 if reasons else 1)


def test_one_message_of_two_epochs_convicts(written: Any) -> None:
    """The same bytes, written again by another master, or by replicas that do not agree on where an
    epoch began: either way the replicas' logs part at the next election."""
    told = history(written, [*SAME, (0, 0, 5, 15, 1, 77), (1, 0, 5, 15, 2, 77)])
    (finding,) = judged(told).findings
    assert (finding.code, finding.count) == ("EPOCHS_DIFFER", 1)
    assert finding.evidence == ({"queue": "orders-0", "offset": 5, "value": 15},)


@pytest.mark.parametrize(("other", "codes"), [("set-1", ["EPOCHS_DIFFER"]), ("set-2", [])])
def test_each_set_counts_its_epochs(written: Any, other: str, codes: list[str]) -> None:
    """Epoch 6 of another set begins where it begins; of the same set, where it began."""
    told = history(written, SAME)
    rows = [
        (1, "broker-1", "role", '{"role": "master", "brokerName": "set-1"}'),
        (1, "broker-2", "role", f'{{"role": "master", "brokerName": "{other}"}}'),
        (2, "broker-1", "epoch", '{"epoch": 6, "start": 200}'),
        (3, "broker-2", "epoch", '{"epoch": 6, "start": 300}'),
    ]
    _write(told.run, "events", "runner-2", rows)
    assert [finding.code for finding in judged(History.open(told.run)).findings] == codes


@pytest.mark.parametrize(("start", "codes"), [(1200, []), (1300, ["EPOCHS_DIFFER"])])
def test_an_epoch_begins_at_one_place(written: Any, start: int, codes: list[str]) -> None:
    """Spec 7.3: tables whose epochs begin at different places part there. Whoever tells last."""
    told = history(written, SAME)
    rows = [
        (1, "broker-1", "epoch", '{"epoch": 6, "start": 200}'),
        (2, "broker-1", "epoch", '{"epoch": 7, "start": 1200}'),
        (3, "broker-2", "epoch", '{"epoch": 6, "start": 200}'),
        (4, "broker-2", "epoch", f'{{"epoch": 7, "start": {start}}}'),
    ]
    _write(told.run, "events", "runner-2", rows)
    result = judged(History.open(told.run))
    assert [finding.code for finding in result.findings] == codes
    if codes:
        row = {"epoch": 7, "start": 1200, "told_by": "broker-1"}
        other = {"other": 1300, "told_by_other": "broker-2"}
        assert result.findings[0].evidence == (row | other,)
