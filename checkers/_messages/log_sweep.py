"""The log of every queue, which order, linearizable and offsets share: the sweep of its bounds.

The census knows what is gone from the logs. Writers' rows become bounds by offset (`log_bounds`);
all blocks of a queue meet in one task, in order, and are swept one at a time; the result is one row
for each queue. In an imported history the irregular steps of processes (`poll_steps`) travel with
the blocks of their queue, and are judged when it has been swept. What a task finds within its own
rows has no key, and passes through.

Let t(o) be the instant at which offset o was appended. The producer of o gives a lower bound, its
invocation; every acknowledgement and every read of o gives an upper bound, its return. A log grows
in order, so t rises with o, and the history is linearizable exactly when some t fits: when the
greatest lower bound up to o never exceeds o's upper bound. With unique values that is one running
maximum, where a general search would be exponential (the tests compare it with one).

    order         the same with acknowledgements alone: a's ok came before b's invoke, and yet b
                  has the lower offset
    linearizable  with reads too, and appends of unknown outcome that were seen
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers._messages.log_bounds import (
    CONFLICT,
    FINAL,
    GIVEN,
    LOG_FIELDS,
    LOST,
    RESTAMPED,
    UNSURE,
    LogBounds,
    LogContext,
    absorb,
)
from checkers._messages.message_rows import (
    BLOCK_BITS,
    MAX_BLOCKS,
    NEVER,
    OFFSET_BITS,
    TRIVIAL,
    Array,
    Block,
    Blocks,
    Bools,
    Ints,
    OpColumns,
    SpillingBlocks,
    merged,
    pack,
    queue_rows,
)
from checkers._messages.messages import Members
from checkers._messages.poll_steps import (
    MarkedOffsets,
    OffsetMark,
    OwnRead,
    PollStep,
    StepKind,
    StepsOver,
    joined_steps,
    judge_steps,
    unpacked_steps,
)
from checkers._run.evidence import name_of, seconds
from checkers._spark.spark_stages import (
    BYTES,
    INT,
    INTS,
    Batches,
    Share,
    Unit,
    in_batches,
    row_type,
)

# ------------------------------------------------------------------------ the sweep of a queue


class Inversion(NamedTuple):
    """Two entries of a queue in the wrong order: the one at `offset` was there by `until`, and the
    one at the lower or same offset `lower` was only invoked at `since`, later."""

    key: int
    offset: int
    value: int
    until: int
    lower: int
    lower_value: int
    since: int


def _offset_marks(marks: Array, conflict: Bools) -> dict[OffsetMark, Bools]:
    """Return the marks by which steps over these offsets are judged."""
    doubtful, lost = conflict | ((marks & UNSURE) != 0), (marks & LOST) != 0
    given = ((marks & GIVEN) != 0) & ~doubtful
    excused = (doubtful | lost) & ~given
    return {
        OffsetMark.GIVEN: given,
        OffsetMark.EXCUSED: excused,
        OffsetMark.CONFLICT: conflict,
        OffsetMark.LOST: lost,
    }


@dataclass
class QueueSweep:
    """One pass over a queue's blocks, in order of offsets."""

    sample: int
    key: int = 0
    marks: MarkedOffsets | None = None
    length: int = 0
    conflicts: int = 0
    restamped: int = 0
    reordered: int = 0
    impossible: int = 0
    final: int = 0
    final_first: int = -1
    final_last: int = -1
    conflict_offsets: list[int] = field(default_factory=list)
    restamped_offsets: list[int] = field(default_factory=list)
    reorderings: list[Inversion] = field(default_factory=list)
    contradictions: list[Inversion] = field(default_factory=list)
    _latest: tuple[int, int, int] = (-1, -1, -1)  # greatest lower bound so far: at, offset, value

    def add(self, number: int, block: Block) -> None:
        """Add the next block of the queue."""
        first = (number << BLOCK_BITS) & ((1 << OFFSET_BITS) - 1)
        conflict = (block["marks"] & CONFLICT) != 0
        self._count(block, conflict, first)
        if self.marks is not None:
            self.marks.add(first, _offset_marks(block["marks"], conflict))
        since = np.where(conflict, -1, block["invoked"])
        acked = np.where(conflict, NEVER, block["acked"])
        until = np.minimum(acked, np.where(conflict, NEVER, block["seen"]))
        upto = np.maximum.accumulate(np.maximum(since, self._latest[0]))
        before = np.concatenate([[self._latest[0]], upto[:-1]])
        self._judge(block, first, since, before > acked, acked, inclusive=False)
        self._judge(block, first, since, upto > until, until, inclusive=True)
        best = int(np.argmax(since))
        if since[best] > self._latest[0]:
            self._latest = (int(since[best]), first + best, int(block["value"][best]))

    def _count(self, block: Block, conflict: Bools, first: int) -> None:
        self.length += int((block["value"] >= 0).sum())
        self.conflicts += int(conflict.sum())
        room = self.sample - len(self.conflict_offsets)
        self.conflict_offsets += (first + np.flatnonzero(conflict)[:room]).tolist()
        restamped = np.flatnonzero(((block["marks"] & RESTAMPED) != 0) & ~conflict)
        self.restamped += len(restamped)
        room = self.sample - len(self.restamped_offsets)
        self.restamped_offsets += (first + restamped[:room]).tolist()
        final = np.flatnonzero(block["marks"] & FINAL)
        if len(final):
            self.final += len(final)
            self.final_last = first + int(final[-1])
            if self.final_first < 0:
                self.final_first = first + int(final[0])

    def _judge(
        self, block: Block, first: int, since: Ints, wrong: Bools, until: Ints, inclusive: bool
    ) -> None:
        at = np.flatnonzero(wrong)
        shown = self.contradictions if inclusive else self.reorderings
        if inclusive:
            self.impossible += len(at)
        else:
            self.reordered += len(at)
        for offset in at[: self.sample - len(shown)].tolist():
            lower = self._greatest(block, first, since, offset + inclusive)
            value = int(block["value"][offset])
            shown.append(Inversion(self.key, first + offset, value, int(until[offset]), *lower))

    def _greatest(self, block: Block, first: int, since: Ints, end: int) -> tuple[int, int, int]:
        """Return the greatest lower bound before `end`: offset, value and invocation."""
        latest, offset, value = self._latest
        if end:
            best = int(np.argmax(since[:end]))
            if since[best] > latest:
                return first + best, int(block["value"][best]), int(since[best])
        return offset, value, latest

    def findings(self) -> dict[str, Any]:
        """Return what was found, as fields of `queue_log.QUEUES`."""
        return {
            "length": self.length,
            "pairs": max(0, self.length - 1),
            "conflicts": self.conflicts,
            "restamped": self.restamped,
            "reordered": self.reordered,
            "impossible": self.impossible,
            "holes": self.holes,
            "conflict_offsets": self.conflict_offsets,
            "restamped_offsets": self.restamped_offsets,
            "reorderings": [inversion._asdict() for inversion in self.reorderings],
            "contradictions": [inversion._asdict() for inversion in self.contradictions],
        }

    @property
    def holes(self) -> int:
        """Offsets that the final reader did not receive, between its first and its last."""
        return self.final_last - self.final_first + 1 - self.final if self.final else 0


# ------------------------------------------------------------------------------------ the job

READ_COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "offset", "epoch", "arg")
NO_STEPS: Mapping[int, Sequence[Ints]] = {}
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
        return name_of(self.names, "keys", key)

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


@dataclass(frozen=True)
class LogJob:
    """The two stages of the sweep. `rows`: how many rows of a kind are kept."""

    known: LogContext
    rows: int

    def scan(self, unit: Unit) -> Batches:
        """Reduce a writer's rows to bounds and to findings of its own."""
        bounds = LogBounds(self.known)
        for rows in self._rows_of(unit):
            bounds.observe(rows)
            if len(bounds.offsets) > MAX_BLOCKS:
                yield from _packed(bounds.offsets)
                bounds.offsets.clear()
        yield from _packed(bounds.offsets)
        own = bounds.steps.own if bounds.steps else []
        if bounds.steps:
            for key, steps in bounds.steps.steps():
                yield from in_batches([{"key": key, "steps": steps.tobytes()}], PARTIALS)
        if bounds.polls.backwards or own:
            yield from in_batches([self._own(bounds.polls.backwards, own)], PARTIALS)

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

    def judge(self, units: list[Unit], share: Share) -> Batches:
        """Sweep the queues of a share, and yield a row for each."""
        with closing(SpillingBlocks(LOG_FIELDS)) as offsets:
            writers = []
            steps: dict[int, list[Ints]] = defaultdict(list)
            for unit in units:
                bounds = LogBounds(self.known, offsets, share)
                for rows in self._rows_of(unit):
                    bounds.observe(rows)
                    offsets.spill()
                if bounds.steps is None:
                    writers.append(bounds)
                    continue
                for key, some in bounds.steps.steps():
                    steps[key].append(some)
                if own := bounds.steps.own:
                    yield from in_batches([self._own([], own)], QUEUES)
            yield from in_batches(self._swept(offsets, writers, steps=steps), QUEUES)

    def _rows_of(self, unit: Unit) -> Iterator[OpColumns]:
        """Yield a writer's rows; in an imported history with wide numbers, for they are shifted."""
        imported = self.known.assignments is not None
        columns = (*READ_COLUMNS, "mop") if imported else READ_COLUMNS
        return map(OpColumns, queue_rows(unit[1], columns, narrow=not imported, trivial=TRIVIAL))

    def judge_later(self, offsets: SpillingBlocks, writers: Sequence[LogBounds]) -> Batches | None:
        """The same for bounds that were taken when nothing was known of messages. None if they
        cannot be corrected, since gone messages share offsets with others."""
        gone = self.known.gone
        if gone:
            if not all(_apart(bounds, gone) for bounds in writers):
                return None
            for _, block in offsets.items():  # noqa: PERF102 -- no dict
                self._without_gone(block)
        for bounds in writers:
            bounds.bound_late(*self.known.late)
        return in_batches(self._swept(offsets, writers, self._without_gone), QUEUES)

    def _without_gone(self, block: Block) -> None:
        if self.known.gone and len(at := np.flatnonzero(self.known.gone.holds(block["value"]))):
            for name, (_, fill) in LOG_FIELDS.items():
                block[name][at] = fill

    def _swept(
        self,
        offsets: SpillingBlocks,
        writers: Sequence[LogBounds],
        correct: Callable[[Block], None] | None = None,
        steps: Mapping[int, Sequence[Ints]] = NO_STEPS,
    ) -> Iterator[dict[str, Any]]:
        for bounds in writers:
            if back := bounds.polls.backwards:
                yield self._own(back, [])
        blocks, swept = offsets.whole(absorb, correct), set[int]()
        for key, some in groupby(blocks, key=lambda block: block[0] >> OFFSET_BITS - BLOCK_BITS):
            swept.add(key)
            yield self._sweep(key, some, steps.get(key, ()))
        for key in steps.keys() - swept:  # between offsets that are out of range
            yield self._sweep(key, (), steps[key])

    def _sweep(
        self, key: int, blocks: Iterable[tuple[int, Block]], steps: Sequence[Ints]
    ) -> dict[str, Any]:
        """Sweep a queue. `steps` is complete when the last block has been taken."""
        marks = MarkedOffsets() if self.known.assignments is not None else None
        sweep = QueueSweep(self.rows, key, marks)
        for number, block in blocks:
            sweep.add(number, block)
        judged = judge_steps(key, joined_steps(steps), marks, self.rows) if marks else {}
        return {"key": key, **sweep.findings(), **judged}

    def _own(self, back: list[PollStep], own: list[OwnRead]) -> dict[str, Any]:
        found = len(back), [row._asdict() for row in back[: self.rows]]
        found_own = len(own), [row._asdict() for row in own[: self.rows]]
        return dict(zip(OWN_FINDINGS, (*found, *found_own), strict=True))

    def _queue(self, key: int, partials: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
        steps: list[Ints] = []

        def blocks() -> Iterator[tuple[int, bytes]]:
            for row in partials:
                if row["steps"] is not None:
                    steps.append(unpacked_steps(row["steps"]))
                else:
                    yield row["block"], row["packed"]

        return self._sweep(key, merged(blocks(), LOG_FIELDS, absorb), steps)


def _apart(bounds: LogBounds, gone: Members) -> bool:
    """Whether no gone message shares an offset with another."""
    clashing = bounds.clashing
    return clashing is not None and not gone.holds(np.array(sorted(clashing), np.int64)).any()


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
