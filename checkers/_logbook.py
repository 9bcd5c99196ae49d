"""Every queue's log swept once: the Spark job that order and linearizable share.

It comes after the survey, which tells what is gone from the logs. Writers' rows become bounds by
offset (`_log`); all blocks of a queue meet in one task, in order, and are swept one at a time; what
comes back is a few numbers for each queue.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkers._blocks import BLOCK_BITS, OFFSET_BITS, merged, pack
from checkers._log import LOG_FIELDS, Bounds, Inversion, Known, Sweep, absorb
from checkers._messages import COLUMNS, Rows
from checkers._survey import SAMPLE, survey
from checkers._units import Batches, Unit, arrays, once, reduced, units_of
from checkers._witness import seconds
from harness.history import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS_OF_KEY = OFFSET_BITS - BLOCK_BITS
REMARK = -1  # in place of a block's number: what a task found out by itself
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
class Logbook:
    """What the sweeps of all queues found: counts in all, and samples by queue."""

    counts: Mapping[str, int]
    conflicts: tuple[tuple[int, int], ...] = ()  # key, offset
    reorderings: tuple[tuple[int, Inversion], ...] = ()  # key, entries
    contradictions: tuple[tuple[int, Inversion], ...] = ()
    backwards: tuple[Backwards, ...] = ()
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


def _logbook(history: History, spark: "SparkSession | None") -> Logbook:
    found = survey(history, spark)
    known = Known(found.gone, found.late)
    units = units_of(history, "ops")
    table = reduced(
        spark, units, scan_with(known), PARTIALS, sweep_all, LINES, ("key",), ("key", "block")
    )
    lines = [json.loads(line) for line in sorted(table.column("line").to_pylist())]
    return add_up(lines, history.names)


def scan_with(known: Known) -> Callable[[Unit], Batches]:
    def scan(unit: Unit) -> Batches:
        bounds = Bounds(known)
        for rows in arrays(unit[1], COLUMNS):
            bounds.observe(Rows(rows))
        for number, block in bounds.offsets.items():
            row = [[number >> BLOCKS_OF_KEY], [number], [pack(block)]]
            yield pa.record_batch(row, schema=PARTIALS)
        if bounds.backwards:
            told = json.dumps([len(bounds.backwards), bounds.backwards[:SAMPLE]]).encode()
            yield pa.record_batch([[REMARK], [REMARK], [told]], schema=PARTIALS)

    return scan


def sweep_all(partials: Batches) -> Batches:
    """Sorted partials in, one line for each queue out."""
    remarks: list[str] = []
    key, sweep = -1, Sweep(SAMPLE)
    for number, block in merged(_without_remarks(partials, remarks), LOG_FIELDS, absorb):
        if number >> BLOCKS_OF_KEY != key:
            if key >= 0:
                yield _line({"key": key, **sweep.told()})
            key, sweep = number >> BLOCKS_OF_KEY, Sweep(SAMPLE)
        sweep.add(number, block)
    if key >= 0:
        yield _line({"key": key, **sweep.told()})
    for remark in remarks:
        yield _line({"backwards": json.loads(remark)})


def _without_remarks(partials: Batches, remarks: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in partials:
        keys = batch.column(0).to_pylist()
        first = sum(1 for key in keys if key == REMARK)  # they sort first
        remarks += [text.decode() for text in batch.column(2).slice(0, first).to_pylist()]
        yield batch.slice(first).select([1, 2])


def _line(fields: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.record_batch([[json.dumps(fields)]], schema=LINES)


def add_up(lines: list[dict[str, Any]], names: Mapping[str, Any]) -> Logbook:
    """The queues' lines as one logbook; samples in order of queues."""
    counts: Counter[str] = Counter()
    backwards: list[Backwards] = []
    queues = sorted((line for line in lines if "key" in line), key=lambda line: int(line["key"]))
    for queue in queues:
        counts.update({name: n for name, n in queue.items() if isinstance(n, int)})
    for line in lines:
        if "backwards" in line:
            number, rows = line["backwards"]
            counts["backwards"] += number
            backwards += [Backwards(*row) for row in rows]

    def shown(name: str) -> tuple[tuple[int, Any], ...]:
        return tuple((q["key"], item) for q in queues for item in q[name])[:SAMPLE]

    return Logbook(
        counts=dict(counts),
        conflicts=shown("conflict_offsets"),
        reorderings=tuple((key, Inversion(**i)) for key, i in shown("reorderings")),
        contradictions=tuple((key, Inversion(**i)) for key, i in shown("contradictions")),
        backwards=tuple(sorted(backwards, key=lambda b: (b.t, b.op, b.offset))[:SAMPLE]),
        names=names,
    )
