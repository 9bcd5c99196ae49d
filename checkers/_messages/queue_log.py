"""One sweep over the log of every queue: the Spark job that order, linearizable and offsets share.

It follows the census, which knows what is gone from the logs. Writers' rows become bounds by offset
(`log_bounds`); all blocks of a queue meet in one task, in order, and are swept one at a time; the
result is one row for each queue. In an imported history the irregular steps of processes
(`poll_steps`) travel with the blocks of their queue, and are judged when it has been swept. What a
task finds within its own rows has no key, and passes through.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers._messages.blocks import (
    BLOCK_BITS,
    MAX_BLOCKS,
    OFFSET_BITS,
    Blocks,
    merged,
    pack,
)
from checkers._messages.log_bounds import (
    LOG_FIELDS,
    Inversion,
    LogBounds,
    LogContext,
    QueueSweep,
    absorb,
)
from checkers._messages.message_census import message_census
from checkers._messages.messages import COLUMNS, OpColumns
from checkers._messages.poll_steps import (
    MarkedOffsets,
    OwnRead,
    PollStep,
    StepKind,
    StepsOver,
    assignments_of,
    joined_steps,
    judge_steps,
)
from checkers._run.evidence import rows_kept, seconds
from checkers._spark.spark_stages import (
    BYTES,
    INT,
    INTS,
    Batches,
    Unit,
    arrays,
    in_batches,
    per_history,
    reduced,
    row_type,
    stored,
    units_of,
)
from harness.history.reader import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "offset", "epoch", "arg")
STEPS = pa.list_(row_type(PollStep))
INVERSIONS = pa.list_(row_type(Inversion))


class LogCounts(NamedTuple):
    """Counts over all queues.

    length      entries
    pairs       neighbours
    conflicts   offsets with two messages
    restamped   entries with two epochs or store times
    reordered   entries behind one that was sent after their acknowledgement
    impossible  entries that no order of the log explains
    holes       offsets that the final reader did not receive
    echoes      steps over what is lost
    own         messages that their own transaction received
    """

    length: int
    pairs: int
    conflicts: int
    restamped: int
    reordered: int
    impossible: int
    holes: int
    echoes: int
    own: int


# a task's own findings
OWN_FINDINGS = {
    StepKind.BACKWARDS.value: INT,
    f"{StepKind.BACKWARDS}_rows": STEPS,
    "own": INT,
    "own_rows": pa.list_(row_type(OwnRead)),
}
PARTIALS = pa.schema(
    [
        ("key", INT),  # null: a task's own findings
        ("block", INT),
        ("packed", BYTES),  # the block's bounds, or null ...
        ("steps", BYTES),  # ... irregular steps, as rows of poll_steps.COLUMNS
        *OWN_FINDINGS.items(),
    ]
)
QUEUES = pa.schema(
    [
        ("key", INT),  # null: a task's own findings
        *((name, INT) for name in LogCounts._fields),
        *((kind.value, INT) for kind in StepKind),
        *((f"{kind}_rows", STEPS) for kind in StepKind),
        ("conflict_offsets", INTS),
        ("restamped_offsets", INTS),
        ("reorderings", INVERSIONS),
        ("contradictions", INVERSIONS),
        ("own_rows", OWN_FINDINGS["own_rows"]),
        ("over", pa.list_(row_type(StepsOver))),
    ]
)


class StepFindings(NamedTuple):
    """Steps of one kind: how many, and the first of them."""

    total: int = 0
    rows: tuple[PollStep, ...] = ()


@dataclass(frozen=True)
class QueueLog:
    """What the sweeps of all queues found: counts of all, and the first of each kind.

    conflicts, restamped  key and offset
    missed_at             key and offset of lost messages -> steps over it
    """

    counts: LogCounts
    steps: Mapping[StepKind, StepFindings]
    conflicts: tuple[tuple[int, int], ...] = ()
    restamped: tuple[tuple[int, int], ...] = ()
    reorderings: tuple[Inversion, ...] = ()
    contradictions: tuple[Inversion, ...] = ()
    own: tuple[OwnRead, ...] = ()
    missed_at: Mapping[tuple[int, int], int] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)

    def queue(self, key: int) -> str:
        keys = self.names.get("keys", ())
        return str(keys[key]) if 0 <= key < len(keys) else "?"

    def inversion_row(self, inversion: Inversion) -> dict[str, Any]:
        """Return an inversion as evidence."""
        return {
            "queue": self.queue(inversion.key),
            "offset": inversion.offset,
            "value": inversion.value,
            "there_by_s": seconds(inversion.until),
            "lower_offset": inversion.lower,
            "lower_value": inversion.lower_value,
            "only_invoked_at_s": seconds(inversion.since),
        }


@per_history
def queue_log(history: History, spark: "SparkSession | None") -> QueueLog:
    """Return the sweep of all queues of a history."""
    census = message_census(history, spark)
    imported = census.scope.imported
    assignments = assignments_of(history, census.gone, census.unsure) if imported else None
    known = LogContext(census.gone, census.late, census.unsure, assignments)
    job, by, within = LogJob(known, rows_kept(history.faults)), ("key",), ("key", "block")
    units = units_of(history, "ops")
    table = reduced(spark, units, job.scan, PARTIALS, job.merge, QUEUES, by, within)
    return added_up(table.sort_by("key"), history.names, job.rows)


def compared_pairs(history: History, log: QueueLog) -> int:
    """Return how many pairs of neighbours were compared. An imported history may be about a single
    message, which is in order by itself."""
    return log.counts.length if "imported" in history.state else log.counts.pairs


@dataclass(frozen=True)
class LogJob:
    """The two stages of the sweep. `rows`: how many rows of a kind are kept."""

    known: LogContext
    rows: int

    def scan(self, unit: Unit) -> Batches:
        """Reduce a writer's rows to bounds and to findings of its own."""
        bounds, imported = LogBounds(self.known), self.known.assignments is not None
        for rows in arrays(unit[1], COLUMNS) if imported else stored(unit[1], READ_COLUMNS):
            bounds.observe(OpColumns(rows))
            if len(bounds.offsets) > MAX_BLOCKS:
                yield from _packed(bounds.offsets)
                bounds.offsets = Blocks(LOG_FIELDS)
        yield from _packed(bounds.offsets)
        own = bounds.steps.own if bounds.steps else []
        if bounds.steps:
            for key, steps in bounds.steps.steps():
                yield from in_batches([{"key": key, "steps": steps.tobytes()}], PARTIALS)
        back = bounds.polls.backwards
        if back or own:
            found = len(back), [row._asdict() for row in back[: self.rows]]
            found_own = len(own), [row._asdict() for row in own[: self.rows]]
            row = dict(zip(OWN_FINDINGS, (*found, *found_own), strict=True))
            yield from in_batches([row], PARTIALS)

    def merge(self, partials: Batches) -> Batches:
        """Sweep the queues, whose blocks and steps come sorted, and yield a row for each."""
        return in_batches(self._queues(partials), QUEUES)

    def _queues(self, partials: Batches) -> Iterator[dict[str, Any]]:
        rows = (row for batch in partials for row in batch.to_pylist())
        for key, some in groupby(rows, key=lambda row: row["key"]):
            if key is None:
                yield from ({name: row[name] for name in OWN_FINDINGS} for row in some)
            else:
                yield self._queue(key, some)

    def _queue(self, key: int, partials: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
        marks = MarkedOffsets() if self.known.assignments is not None else None
        sweep, steps = QueueSweep(self.rows, key, marks), []

        def blocks() -> Iterator[tuple[int, bytes]]:
            for row in partials:
                if row["steps"] is not None:
                    steps.append(row["steps"])
                else:
                    yield row["block"], row["packed"]

        for number, block in merged(blocks(), LOG_FIELDS, absorb):
            sweep.add(number, block)
        judged = judge_steps(key, joined_steps(steps), marks, self.rows) if marks else {}
        return {"key": key, **sweep.findings(), **judged}


def _packed(offsets: Blocks) -> Batches:
    """Yield a row of PARTIALS for each block."""
    for number, block in offsets.items():
        key, data = number >> (OFFSET_BITS - BLOCK_BITS), pack(block, offsets.fields)
        yield from in_batches([{"key": key, "block": number, "packed": data}], PARTIALS)


def added_up(queues: pa.Table, names: Mapping[str, Any], most: int) -> QueueLog:
    """Return all queues' rows, in order of keys, as one result with so many rows of a kind."""

    def total(name: str) -> int:
        return pc.sum(queues.column(name)).as_py() or 0

    def rows(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = queues.column(name).combine_chunks().flatten().to_pylist()
        return found

    def places(name: str) -> tuple[tuple[int, int], ...]:
        columns = (queues.column(column).to_pylist() for column in ("key", name))
        pairs = zip(*columns, strict=True)
        return tuple((key, offset) for key, some in pairs for offset in some or ())[:most]

    def first_steps(kind: StepKind) -> StepFindings:
        steps = sorted(
            (PollStep(**row) for row in rows(f"{kind}_rows")),
            key=lambda s: (s.t, s.op, s.key, s.offset),
        )
        return StepFindings(total(kind.value), tuple(steps[:most]))

    columns = (queues.column(column).to_pylist() for column in ("key", "over"))
    own = [OwnRead(**row) for row in rows("own_rows")]
    return QueueLog(
        counts=LogCounts(*map(total, LogCounts._fields)),
        steps={kind: first_steps(kind) for kind in StepKind},
        conflicts=places("conflict_offsets"),
        restamped=places("restamped_offsets"),
        reorderings=tuple(Inversion(**row) for row in rows("reorderings")[:most]),
        contradictions=tuple(Inversion(**row) for row in rows("contradictions")[:most]),
        own=tuple(sorted(own, key=lambda o: (o.t, o.op, o.value))[:most]),
        missed_at={
            (key, step["offset"]): step["times"]
            for key, over in zip(*columns, strict=True)
            for step in over or ()
        },
        names=names,
    )
