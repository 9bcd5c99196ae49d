"""In shares and in stages, a check has one result: what tasks read, hold or put aside is no part
of it."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkers._messages import log_bounds, log_sweep, message_rows, messages
from checkers._messages.log_bounds import LogContext
from checkers._messages.log_sweep import LogJob, QueueLog
from checkers._messages.message_rows import BLOCK
from checkers._messages.messages import CensusJob, CensusScope, added_up
from checkers._messages.one_reading import ANSWER, ReadingJob, table_of
from checkers._messages.poll_steps import OPERATION_BITS, Assignments
from checkers._spark import spark_stages
from checkers._spark.spark_stages import (
    Share,
    Unit,
    in_shares,
    local_cores,
    merge_tasks,
    reduced,
    shares_of,
)
from harness.history.journal import TableJournal
from harness.history.notes import ASSIGN, CRASH, REBALANCE, SUBSCRIBE
from harness.history.schema import OPS
from harness.operation import NONE, F, Type

Row = dict[str, int]
WRITERS, VALUES = 3, [0, BLOCK, 1 << 32, 1]

rows = st.lists(
    st.fixed_dictionaries(
        {
            "process": st.sampled_from([0, 1, 8, 9]),
            "op": st.integers(0, 3),
            "type": st.sampled_from([Type.INVOKE, Type.OK, Type.OK, Type.FAIL, Type.INFO]),
            "f": st.sampled_from([F.SEND, F.SEND, F.POLL, F.READ]),
            "key": st.sampled_from([NONE, 0, 1]),
            "value": st.sampled_from(VALUES),
            "offset": st.sampled_from([NONE, 0, 1, BLOCK]),
            "attempts": st.integers(1, 2),
            "epoch": st.sampled_from([NONE, 1, 1, 2]),
            "arg": st.sampled_from([NONE, 5, 5, 6]),
            "writer": st.integers(0, WRITERS - 1),
        }
    ),
    min_size=10,
    max_size=40,
)


# acknowledged in a queue for which it was not invoked, below a message that was there before
SENT = {
    "process": 0,
    "op": 0,
    "attempts": 1,
    "epoch": NONE,
    "arg": NONE,
    "writer": 0,
    "f": F.SEND,
}
ELSEWHERE: list[Row] = [
    {**SENT, "type": Type.INVOKE, "key": 0, "value": 0, "offset": NONE},
    {**SENT, "type": Type.OK, "key": 0, "value": 0, "offset": 1},
    {**SENT, "type": Type.INVOKE, "key": 1, "value": BLOCK, "offset": NONE},
    {**SENT, "type": Type.OK, "key": 0, "value": BLOCK, "offset": 0},
    {**SENT, "type": Type.OK, "key": 0, "value": 0, "offset": 1, "f": F.READ},
    {**SENT, "type": Type.OK, "key": 0, "value": BLOCK, "offset": 0, "f": F.READ},
]

# a poll that did not end ok, between two others
POLLED = {**SENT, "type": Type.OK, "f": F.POLL, "key": 0}
UNFINISHED: list[Row] = [
    {**POLLED, "op": 0, "value": 0, "offset": 0},
    {**POLLED, "op": 1, "value": 1 << 32, "offset": 1},
    {**POLLED, "op": 1, "value": 0, "offset": NONE, "key": NONE, "type": Type.INFO},
    {**POLLED, "op": 2, "value": 0, "offset": 0},
]


def units_of(drawn: Sequence[Row], folder: Path) -> list[Unit]:
    """Each writer's rows in two files. One writer sends a message."""
    units = []
    for writer in range(WRITERS):
        mine = [{**row, "t": t} for t, row in enumerate(drawn) if _writer_of(row) == writer]
        for part in (mine[: len(mine) // 2], mine[len(mine) // 2 :]):
            journal = TableJournal(folder, "ops", f"client-{writer}")
            for row in part:
                journal.append(tuple(row.get(name, NONE) for name in OPS.names))
            journal.close()
        units.append(("ops", tuple(sorted(folder.glob(f"ops-client-{writer}-*.arrows")))))
    return units


def queue_of(value: int) -> int:
    return VALUES.index(value) % 2


def _writer_of(row: Row) -> int:
    return VALUES.index(row["value"]) % WRITERS if row["f"] == F.SEND else row["writer"]


@example(drawn=ELSEWHERE, shares=2, most=0, until=False)
@example(drawn=ELSEWHERE, shares=2, most=2048, until=False)
@given(drawn=rows, shares=st.integers(1, 3), most=st.sampled_from([0, 2048]), until=st.booleans())
def test_shares_and_stages_find_the_same(
    drawn: list[Row], shares: int, most: int, until: bool
) -> None:
    """Blocks of any rows, sensible or not, all in memory or put aside after every file."""
    scope = CensusScope(
        frozenset({0, 1}),
        {0: 1},
        groups={8: 0},
        group_names=("group-0",),
        until=20 if until else None,
    )
    census = CensusJob.of(scope)
    with tempfile.TemporaryDirectory() as folder:
        units = units_of(drawn, Path(folder))
        reports, queues = in_stages(census, units)
        with ExitStack() as patches:
            for module in (message_rows, log_bounds, log_sweep):
                patches.enter_context(patch.object(module, "MAX_BLOCKS", most))
            assert in_stages(census, units) == (reports, queues)
            shared = in_shares(None, units, census.judge, messages.REPORT, shares)
            assert shared.sort_by("block") == reports
            log = log_job(census.scope, reports)
            swept = in_shares(None, units, log.judge, log_sweep.QUEUES, shares)
            assert added(swept) == queues
            read, read_queues = read_once(ReadingJob(census, 20), units, shares)
            assert (read.sort_by("block"), added(read_queues)) == (reports, queues)


@example(drawn=UNFINISHED, mops=[NONE] * 4, words=[], shares=2, most=2048)
@given(
    drawn=rows,
    mops=st.lists(st.sampled_from([NONE, NONE, 0, 1]), min_size=40, max_size=40),
    words=st.lists(st.sampled_from([ASSIGN, SUBSCRIBE, REBALANCE, CRASH]), max_size=4),
    shares=st.integers(1, 3),
    most=st.sampled_from([0, 2048]),
)
def test_shares_and_stages_find_the_same_in_imported_histories(
    drawn: list[Row], mops: list[int], words: list[str], shares: int, most: int
) -> None:
    """The steps of processes and what transactions received of their own, too. There a message has
    one queue, since its number stands for both."""
    drawn = [
        {**row, "mop": mop, "key": row["key"] if row["key"] == NONE else queue_of(row["value"])}
        for row, mop in zip(drawn, mops, strict=False)
    ]
    places = [(process << OPERATION_BITS | 1, 20) for process in (0, 1, 8, 9)]
    code, t = np.array(places[: len(words)], np.int64).reshape(-1, 2).T
    keys = [frozenset({0})] * len(words)
    census = CensusJob.of(CensusScope(passed={0: 1, 1: BLOCK + 1}, imported=True))
    with tempfile.TemporaryDirectory() as folder:
        units = units_of(drawn, Path(folder))
        assigned = Assignments(code, t, words, keys)
        reports, queues = in_stages(census, units, assigned)
        with ExitStack() as patches:
            for module in (message_rows, log_bounds, log_sweep):
                patches.enter_context(patch.object(module, "MAX_BLOCKS", most))
            assert in_stages(census, units, assigned) == (reports, queues)
            log = log_job(census.scope, reports, assigned)
            swept = in_shares(None, units, log.judge, log_sweep.QUEUES, shares)
            assert added(swept) == queues


def in_stages(
    census: CensusJob, units: list[Unit], assigned: Assignments | None = None
) -> tuple[pa.Table, QueueLog]:
    """The reports on all blocks, and the log of all queues under them."""
    reduced_ = partial(reduced, None, units)
    partials, by = spark_stages.PARTIALS, ("block",)
    reports = reduced_(census.messages.scan, partials, census.merge, messages.REPORT, by, by)
    reports, (by, within) = reports.sort_by("block"), (("key",), ("key", "block"))
    job = log_job(census.scope, reports, assigned)
    partials, answer = log_sweep.PARTIALS, log_sweep.QUEUES
    return reports, added(reduced_(job.scan, partials, job.merge, answer, by, within))


def log_job(scope: CensusScope, reports: pa.Table, assigned: Assignments | None = None) -> LogJob:
    found = added_up(reports, scope)
    if assigned is None:
        return LogJob(LogContext(found.gone, found.late), 20)
    assigned = replace(assigned, nowhere=(found.gone, found.unsure))
    return LogJob(LogContext(found.gone, found.late, found.unsure, assigned), 20)


def added(queues: pa.Table) -> QueueLog:
    return log_sweep.added_up(queues.sort_by("key"), {}, 20)


def read_once(job: ReadingJob, units: list[Unit], shares: int) -> list[pa.Table]:
    """The tables of a reading in so many shares, in threads that exchange what they know."""
    together, known = Barrier(shares), [b""] * shares

    def judge(number: int) -> list[pa.RecordBatch]:
        def exchange(own: bytes) -> list[bytes]:
            known[number] = own
            together.wait()
            return known

        return list(job.judge(units, Share(number, shares), exchange))

    with ThreadPoolExecutor(shares) as threads:
        found = [batch for batches in threads.map(judge, range(shares)) for batch in batches]
    table = pa.Table.from_batches(found, ANSWER)
    return [pa.concat_tables(map(table_of, column.to_pylist())) for column in table.columns]


class Session:
    """What a Spark session says of its master."""

    def __init__(self, master: str) -> None:
        self.conf = {"spark.master": master, "spark.sql.shuffle.partitions": "2"}
        self.sparkContext = SimpleNamespace(defaultParallelism=3)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[2]", 2),
        ("local[16, 3]", 16),  # with attempts
        ("local[*]", 3),
        ("local[*,4]", 3),
        ("local-cluster[2,1,1024]", 0),
        ("spark://host:7077", 0),
        ("yarn", 0),
        ("", 0),
    ],
)
def test_cores_of_this_machine_are_those_of_the_master(master: str, cores: int) -> None:
    """As Spark reads a master; 0 for a cluster, and where a Connect client cannot ask the JVM."""
    session: Any = Session(master)
    assert local_cores(session) == cores
    del session.sparkContext
    assert local_cores(session) == (0 if "*" in master else cores)


@pytest.mark.parametrize(
    ("master", "size", "shares"),  # the size of four writers together
    [
        ("local", 3_000, 1),
        ("local[*]", 3_000, 3),
        ("local[2]", 10, 1),
        ("local[2]", 3_000, 2),
        ("local[2]", 100_000, 2),
        ("local[16]", 3_000, 4),
        ("local[16]", 8_000, 4),
        ("local[16]", 100_000, 0),
        ("spark://host:7077", 10, 1),
        ("spark://host:7077", 3_000, 4),
        ("spark://host:7077", 8_000, 0),
        ("", 100_000, 0),
    ],
)
def test_the_plan_is_chosen_by_size(
    master: str, size: int, shares: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_stages, "ONE_TASK_BYTES", 1_000)
    monkeypatch.setattr(spark_stages, "SHARED_BYTES", 10_000)
    monkeypatch.setattr(spark_stages, "CLUSTER_SHARED_BYTES", 5_000)
    path = tmp_path / "ops-client-0-000.parquet"
    path.write_bytes(bytes(size // 4))
    units: list[Unit] = [("ops", (path,))] * 4
    assert shares_of(Session(master), units) == shares  # type: ignore[arg-type]
    assert shares_of(None, units) == 1


def test_a_cluster_reads_the_files_of_few_writers_in_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage would have fewer tasks: one for each writer."""
    monkeypatch.setattr(spark_stages, "ONE_TASK_BYTES", 1_000)
    monkeypatch.setattr(spark_stages, "CLUSTER_SHARED_BYTES", 5_000)
    path = tmp_path / "ops-client-0-000.parquet"
    path.write_bytes(bytes(8_000))
    cluster: Any = Session("spark://host:7077")
    assert shares_of(cluster, [("ops", (path,))]) == 4
    assert shares_of(cluster, [("ops", (path,))] * 4) == 0


@pytest.mark.parametrize(("size", "tasks"), [(10, 2), (2_999, 2), (50_000, 50)])
def test_a_larger_history_is_merged_by_more_tasks(
    size: int, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would leave the cores of a cluster idle."""
    monkeypatch.setattr(spark_stages, "MERGED_BYTES", 1_000)
    path = tmp_path / "ops-client-0-000.parquet"
    path.write_bytes(bytes(size))
    session = Session("spark://host:7077")
    assert merge_tasks(session, [("ops", (path,))]) == tasks  # type: ignore[arg-type]
