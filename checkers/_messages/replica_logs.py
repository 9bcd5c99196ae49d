"""Comparison of the replicas' logs at the end of a run: one job that replicas and offsets share.

An entry is an offset of a queue. For each are kept: the first copy, which replicas have one (a bit
for each node), whether two replicas hold different messages there (*differs*), or one message with
different epochs (*dated*), and whether one replica holds two entries there (*doubled*): an offset
that was assigned twice. A doubled entry is not a difference between replicas, since each of them
may have both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers._messages.message_rows import (
    BLOCK_BITS,
    OFFSET_BITS,
    Block,
    Blocks,
    Bools,
    Ints,
    in_range,
    queue_rows,
    reports,
)
from checkers._run.evidence import SAMPLE, rows_kept
from checkers._spark.spark_stages import (
    INT,
    PARTIALS,
    Batches,
    Unit,
    per_history,
    reduced,
    row_type,
    units_of,
)
from harness.history.reader import History
from harness.run.broker_sets import replica_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_NODES = 64
CONTENT = ("value", "crc")
HELD = (*CONTENT, "epoch")  # what two copies of an entry have in common
ENTRY_FIELDS: dict[str, tuple[Any, int]] = {
    **dict.fromkeys(HELD, (np.int64, -1)),
    "holders": (np.uint64, 0),  # a bit for each node
    "differs": (np.bool_, 0),
    "dated": (np.bool_, 0),
    "doubled": (np.bool_, 0),
}
COLUMNS = ("key", "offset", *HELD)


class ReplicaLogEntry(NamedTuple):
    """An entry of a queue."""

    key: int
    offset: int
    value: int


class NodeExtent(NamedTuple):
    """The offsets of a block that a node holds: the first, the last, and how many."""

    node: int
    first: int
    last: int
    held: int


class NodeGap(NamedTuple):
    """Offsets of a queue that are missing between the first and the last one that a node holds."""

    key: int
    node: int
    missing: int


ENTRIES = pa.list_(row_type(ReplicaLogEntry))
REPORT = pa.schema(
    [
        ("block", INT),
        ("compared", INT),  # entries
        ("twice", INT),  # of these, those that two replicas hold
        ("lacking", INT),  # ... and that some replica lacks
        ("differing", INT),
        ("dated", INT),
        ("doubled", INT),
        ("differing_rows", ENTRIES),
        ("dated_rows", ENTRIES),
        ("doubled_rows", ENTRIES),
        ("extents", pa.list_(row_type(NodeExtent))),
    ]
)


@dataclass(frozen=True)
class ReplicaLogs:
    """What the comparison of the replicas' logs found.

    keys   of which an entry was read
    twice  of which an entry was read from two replicas
    """

    files: int
    compared: int = 0
    keys: frozenset[int] = frozenset()
    twice: frozenset[int] = frozenset()
    lacking: int = 0
    differing: int = 0
    dated: int = 0
    doubled: int = 0
    differing_rows: tuple[ReplicaLogEntry, ...] = ()
    dated_rows: tuple[ReplicaLogEntry, ...] = ()
    doubled_rows: tuple[ReplicaLogEntry, ...] = ()
    gaps: tuple[NodeGap, ...] = ()


@per_history
def replica_logs(history: History, spark: "SparkSession | None") -> ReplicaLogs:
    """Return the comparison of the replicas' logs of a history."""
    units = units_of(history, "replicas")
    if not units:
        return ReplicaLogs(0)
    job, by = (
        ReplicaJob(tuple(replica_counts(history.names)), rows_kept(history.faults)),
        ("block",),
    )
    table = reduced(spark, units, job.scan, PARTIALS, job.merge, REPORT, by, by)
    return added_up(len(units), table.sort_by("block"), job.rows)


# ---------------------------------------------------------------------------------- the two stages


@dataclass(frozen=True)
class ReplicaJob:
    """The two stages of the comparison. `replicas`: how many must hold an entry, by key; the last
    one is for all other keys. `rows`: how many rows of a kind are kept."""

    replicas: tuple[int, ...]
    rows: int = SAMPLE

    def scan(self, unit: Unit) -> Batches:
        """Reduce a file of entries to blocks."""
        blocks = Blocks(ENTRY_FIELDS)
        for rows in queue_rows(unit[1], ("node", *COLUMNS)):
            for node in np.unique(rows["node"]).tolist():
                if 0 <= node < MAX_NODES:
                    mine = rows["node"] == node
                    observe(blocks, node, *(rows[name][mine] for name in COLUMNS))
        return blocks.packed()

    def merge(self, partials: Batches) -> Batches:
        """Merge the versions of each block, and report on it."""
        return reports(partials, ENTRY_FIELDS, absorb, self._report, REPORT)

    def _report(self, number: int, block: Block) -> dict[str, Any]:
        replicas = self.replicas[min(_key(number), len(self.replicas) - 1)]
        held = np.bitwise_count(block["holders"])
        doubled = np.flatnonzero(block["doubled"])
        differing = np.flatnonzero(block["differs"] & ~block["doubled"])
        dated = np.flatnonzero(block["dated"] & ~block["differs"] & ~block["doubled"])
        return {
            "block": number,
            "compared": int((held > 0).sum()),
            "twice": int((held > 1).sum()),
            "lacking": int(((held > 0) & (held < replicas)).sum()),
            "differing": len(differing),
            "dated": len(dated),
            "doubled": len(doubled),
            "differing_rows": _entries(number, block, differing[: self.rows]),
            "dated_rows": _entries(number, block, dated[: self.rows]),
            "doubled_rows": _entries(number, block, doubled[: self.rows]),
            "extents": [extent._asdict() for extent in _extents(number, block)],
        }


def observe(blocks: Blocks, node: int, key: Ints, offset: Ints, *held: Ints) -> None:
    """Add entries of one replica."""
    here = (key >= 0) & in_range(offset)
    at = blocks.at((key[here] << OFFSET_BITS) | offset[here])
    at, first, times = np.unique(at, return_index=True, return_counts=True)
    values = dict(zip(HELD, (column[here][first] for column in held), strict=True))
    bit, holders = np.uint64(1 << node), blocks["holders"][at]
    again = (holders & bit) != 0
    blocks["doubled"][at[again | (times > 1)]] = True
    known, equal = holders != 0, {name: blocks[name][at] == values[name] for name in HELD}
    same = np.logical_and.reduce([equal[name] for name in CONTENT])
    for name, column in values.items():
        blocks[name][at] = np.where(known, blocks[name][at], column)
    blocks["differs"][at[known & ~again & ~same]] = True
    blocks["dated"][at[known & ~again & same & ~equal["epoch"]]] = True
    blocks["holders"][at] = holders | bit


def absorb(mine: Block, other: Block) -> None:
    """Merge another task's version of the same block into `mine`."""
    ours, theirs = mine["holders"], other["holders"]
    both, same = (ours != 0) & (theirs != 0), _same(mine, other)
    redated = mine["epoch"] != other["epoch"]
    mine["doubled"] |= other["doubled"] | ((ours & theirs) != 0)
    mine["differs"] |= other["differs"] | (both & ~same)
    mine["dated"] |= other["dated"] | (both & same & redated)
    take = (theirs != 0) & (~both | (other["value"] < mine["value"]))
    for name in HELD:
        mine[name] = np.where(take, other[name], mine[name])
    mine["holders"] = ours | theirs


def _same(mine: Block, other: Block) -> Bools:
    equal: Bools = np.logical_and.reduce([mine[name] == other[name] for name in CONTENT])
    return equal


def _key(number: int) -> int:
    """Return the key of a block's entries."""
    return number >> (OFFSET_BITS - BLOCK_BITS)


def _entries(number: int, block: Block, at: Ints) -> list[dict[str, int]]:
    places = (number << BLOCK_BITS) | at
    keys, offsets = places >> OFFSET_BITS, places & ((1 << OFFSET_BITS) - 1)
    rows = np.stack([keys, offsets, block["value"][at]], 1).tolist()
    return [ReplicaLogEntry(*row)._asdict() for row in rows]


def _extents(number: int, block: Block) -> Iterator[NodeExtent]:
    nodes = int(np.bitwise_or.reduce(block["holders"]))
    base = (number << BLOCK_BITS) & ((1 << OFFSET_BITS) - 1)
    for node in (n for n in range(MAX_NODES) if nodes >> n & 1):
        at = np.flatnonzero(block["holders"] & np.uint64(1 << node))
        yield NodeExtent(node, base + int(at[0]), base + int(at[-1]), len(at))


# ------------------------------------------------------------------------------------- adding up


def added_up(files: int, reports: pa.Table, most: int = SAMPLE) -> ReplicaLogs:
    """Return the blocks' reports, in order of their numbers, as one."""

    def total(name: str) -> int:
        return pc.sum(reports.column(name)).as_py() or 0

    def keys(name: str) -> frozenset[int]:
        blocks = reports.filter(pc.greater(reports.column(name), 0)).column("block")
        return frozenset(map(_key, blocks.to_pylist()))

    def entries(name: str) -> tuple[ReplicaLogEntry, ...]:
        rows = reports.column(name).combine_chunks().flatten().to_pylist()
        return tuple(ReplicaLogEntry(**row) for row in rows[:most])

    return ReplicaLogs(
        files,
        total("compared"),
        keys("compared"),
        keys("twice"),
        total("lacking"),
        total("differing"),
        total("dated"),
        total("doubled"),
        entries("differing_rows"),
        entries("dated_rows"),
        entries("doubled_rows"),
        _gaps(reports),
    )


def _gaps(reports: pa.Table) -> tuple[NodeGap, ...]:
    known: dict[tuple[int, int], NodeExtent] = {}
    columns = (reports.column(name).to_pylist() for name in ("block", "extents"))
    for number, extents in zip(*columns, strict=True):
        for extent in (NodeExtent(**row) for row in extents):
            which = _key(number), extent.node
            before = known.get(which, extent._replace(held=0))
            known[which] = before._replace(last=extent.last, held=before.held + extent.held)
    gaps = (NodeGap(*which, e.last - e.first + 1 - e.held) for which, e in known.items())
    return tuple(sorted(gap for gap in gaps if gap.missing))
