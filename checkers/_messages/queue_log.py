"""Every queue's log swept once: the Spark job that order and linearizable share.

It comes after the survey, which tells what is gone from the logs. Writers' rows become bounds by
offset (`log_bounds`); all blocks of a queue meet in one task, in order, and are swept one at a
time; what comes back is a few numbers for each queue. In an imported history the odd steps of
processes (`poll_steps`) come along, behind the blocks of their queue, and are judged when it has
been swept.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkers._messages.blocks import (
    BLOCK_BITS,
    MOST_BLOCKS,
    NEVER,
    OFFSET_BITS,
    Blocks,
    merged,
    pack,
)
from checkers._messages.log_bounds import LOG_FIELDS, Bounds, Inversion, Known, Sweep, absorb
from checkers._messages.message_census import SAMPLE, rows_kept, survey
from checkers._messages.messages import COLUMNS, Rows
from checkers._messages.poll_steps import WRONG, Shelf, judge, readings_of, together
from checkers._messages.witness import seconds
from checkers._spark.spark_stages import (
    Batches,
    Step,
    Unit,
    arrays,
    once,
    reduced,
    stored,
    units_of,
)
from harness.history.reader import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS_OF_KEY = OFFSET_BITS - BLOCK_BITS
REMARK = -1  # in place of a block's number: what a task found out by itself
STEPS = NEVER  # in place of a block's number: odd steps, which sort behind the blocks
# columns of ops
ASKED = ("t", "process", "op", "type", "f", "key", "value", "offset", "epoch", "arg")
PARTIALS = pa.schema([("key", pa.int64()), ("block", pa.int64()), ("packed", pa.binary())])
LINES = pa.schema([("line", pa.string())])


@dataclass(frozen=True)
class Backwards:
    """A poll that was given an offset after a greater or equal one."""

    key: int
    op: int
    offset: int
    before: int
    process: int
    t: int


@dataclass(frozen=True)
class Odd:
    """A step of a process in a queue that is wrong: from one offset to another, and how many
    messages lie between them."""

    key: int
    before: int
    offset: int
    op: int
    process: int
    t: int
    skipped: int


@dataclass(frozen=True)
class Own:
    """A message that a transaction was given although it had sent it itself."""

    key: int
    value: int
    op: int
    process: int
    t: int


@dataclass(frozen=True)
class Logbook:
    """What the sweeps of all queues found: counts in all, and samples by queue."""

    counts: Mapping[str, int]
    conflicts: tuple[tuple[int, int], ...] = ()  # key, offset
    restamped: tuple[tuple[int, int], ...] = ()  # the same
    reorderings: tuple[tuple[int, Inversion], ...] = ()  # key, entries
    contradictions: tuple[tuple[int, Inversion], ...] = ()
    backwards: tuple[Backwards, ...] = ()
    odd: Mapping[str, tuple[Odd, ...]] = field(default_factory=dict)  # by what is wrong with them
    own: tuple[Own, ...] = ()
    missed_at: Mapping[tuple[int, int], int] = field(default_factory=dict)  # lost: steps over it
    names: Mapping[str, Any] = field(default_factory=dict)

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def queue(self, key: int) -> str:
        keys = self.names.get("keys", ())
        return str(keys[key]) if 0 <= key < len(keys) else "?"

    def told(self, key: int, inversion: Inversion) -> dict[str, Any]:
        """An inversion as evidence."""
        return {
            "queue": self.queue(key),
            "offset": inversion.offset,
            "value": inversion.value,
            "there_by_s": seconds(inversion.until),
            "lower_offset": inversion.lower,
            "lower_value": inversion.lower_value,
            "only_invoked_at_s": seconds(inversion.since),
        }


def logbook(history: History, spark: "SparkSession | None") -> Logbook:
    """The logbook of this history: made once, however many checkers ask."""
    return once(history, "logbook", lambda: _logbook(history, spark))


def compared(history: History, book: Logbook) -> int:
    """Pairs of neighbours in the queues. What somebody else recorded may be about one message: it
    is in order by itself."""
    return book.count("length" if "imported" in history.state else "pairs")


def _logbook(history: History, spark: "SparkSession | None") -> Logbook:
    found = survey(history, spark)
    readings = readings_of(history, found.gone, found.unsure) if found.scope.imported else None
    known = Known(found.gone, found.late, found.unsure, readings)
    units = units_of(history, "ops")
    most = rows_kept(history)
    scan, merge = scan_with(known, most), sweep_with(found.scope.imported, most)
    by, within = ("key",), ("key", "block")
    table = reduced(spark, units, scan, PARTIALS, merge, LINES, by, within)
    lines = [json.loads(line) for line in sorted(table.column("line").to_pylist())]
    return add_up(lines, history.names, most)


def scan_with(known: Known, most: int = SAMPLE) -> Callable[[Unit], Batches]:
    def scan(unit: Unit) -> Batches:
        bounds = Bounds(known)
        read = stored(unit[1], ASKED) if known.readings is None else arrays(unit[1], COLUMNS)
        for rows in read:
            bounds.observe(Rows(rows))
            if len(bounds.offsets) > MOST_BLOCKS:
                yield from _packed(bounds)
        yield from _packed(bounds)
        if bounds.backwards:
            yield _remark("backwards", bounds.backwards, most)
        if bounds.walks is not None:
            for key, steps in bounds.walks.steps():
                yield pa.record_batch([[key], [STEPS], [steps.tobytes()]], schema=PARTIALS)
            own = bounds.walks.own
            if own:
                yield _remark("own", own, most)

    return scan


def _packed(bounds: Bounds) -> Batches:
    """What is known of the offsets so far, for whoever merges it."""
    offsets, bounds.offsets = bounds.offsets, Blocks(LOG_FIELDS)
    for number, block in offsets.items():
        row = [[number >> BLOCKS_OF_KEY], [number], [pack(block, offsets.fields)]]
        yield pa.record_batch(row, schema=PARTIALS)


def _remark(name: str, rows: list[tuple[int, ...]], most: int) -> pa.RecordBatch:
    told = json.dumps({name: [len(rows), rows[:most]]}).encode()
    return pa.record_batch([[REMARK], [REMARK], [told]], schema=PARTIALS)


def sweep_with(imported: bool, most: int = SAMPLE) -> Step:
    """Sorted partials in, one line for each queue out, with so many rows of each kind."""

    def sweep_all(partials: Batches) -> Batches:
        apart = Apart()
        key, sweep = -1, _fresh(imported, most)
        for number, block in merged(apart.blocks(partials), LOG_FIELDS, absorb):
            if number >> BLOCKS_OF_KEY != key:
                if key >= 0:
                    yield _line(_swept(key, sweep, apart))
                key, sweep = number >> BLOCKS_OF_KEY, _fresh(imported, most)
            sweep.add(number, block)
        if key >= 0:
            yield _line(_swept(key, sweep, apart))
        for left in sorted(apart.steps):
            yield _line(_swept(left, _fresh(imported, most), apart))
        for remark in apart.remarks:
            yield _line(json.loads(remark))

    return sweep_all


def _fresh(imported: bool, most: int) -> Sweep:
    return Sweep(most, Shelf() if imported else None)


def _swept(key: int, sweep: Sweep, apart: "Apart") -> dict[str, Any]:
    told = {"key": key, **sweep.told()}
    if sweep.shelf is not None:
        told |= judge(together(apart.steps.pop(key, [])), sweep.shelf, sweep.sample)
    return told


class Apart:
    """What comes among the blocks and is none: remarks before them, steps behind those of a key."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.steps: dict[int, list[bytes]] = {}

    def blocks(self, partials: Batches) -> Iterator[pa.RecordBatch]:
        for batch in partials:
            kept = []
            for at, number in enumerate(batch.column(1).to_pylist()):
                if number == REMARK:
                    self.remarks.append(batch.column(2)[at].as_py().decode())
                elif number == STEPS:
                    key = batch.column(0)[at].as_py()
                    self.steps.setdefault(key, []).append(batch.column(2)[at].as_py())
                else:
                    kept.append(at)
            yield (batch if len(kept) == batch.num_rows else batch.take(kept)).select([1, 2])


def _line(fields: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.record_batch([[json.dumps(fields)]], schema=LINES)


def add_up(lines: list[dict[str, Any]], names: Mapping[str, Any], most: int = SAMPLE) -> Logbook:
    """The queues' lines as one logbook; samples in order of queues."""
    counts: Counter[str] = Counter()
    backwards: list[Backwards] = []
    own: list[Own] = []
    queues = sorted((line for line in lines if "key" in line), key=lambda line: int(line["key"]))
    for queue in queues:
        counts.update({name: n for name, n in queue.items() if isinstance(n, int)})
    for line in lines:
        if "key" in line:
            continue
        for name, (number, rows) in line.items():
            counts[name] += number
            if name == "own":
                own += [Own(*row) for row in rows]
            else:
                backwards += [Backwards(*row) for row in rows]
    odd = {name: _odd(queues, name, most) for name in WRONG}
    backwards += [
        Backwards(o.key, o.op, o.offset, o.before, o.process, o.t) for o in odd["backwards"]
    ]

    def shown(name: str) -> tuple[tuple[int, Any], ...]:
        return tuple((q["key"], item) for q in queues for item in q[name])[:most]

    return Logbook(
        counts=dict(counts),
        conflicts=shown("conflict_offsets"),
        restamped=shown("restamped_offsets"),
        reorderings=tuple((key, Inversion(**i)) for key, i in shown("reorderings")),
        contradictions=tuple((key, Inversion(**i)) for key, i in shown("contradictions")),
        backwards=tuple(sorted(backwards, key=lambda b: (b.t, b.op, b.offset))[:most]),
        odd=odd,
        own=tuple(sorted(own, key=lambda o: (o.t, o.op, o.value))[:most]),
        missed_at={(q["key"], at): n for q in queues for at, n in q.get("over", ())},
        names=names,
    )


def _odd(queues: list[dict[str, Any]], name: str, most: int) -> tuple[Odd, ...]:
    """The first steps of a kind, over all queues."""
    rows = [Odd(q["key"], *row) for q in queues for row in q.get(f"{name}_rows", ())]
    return tuple(sorted(rows, key=lambda o: (o.t, o.op, o.key, o.offset))[:most])
