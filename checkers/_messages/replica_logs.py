"""The replicas' logs read side by side at the end: one pass that replicas and offsets share.

An entry is an offset of a queue. Of each is kept what the first copy holds, which replicas have one
(a bit for each node), whether two replicas hold different messages there (*differs*), and whether
one replica holds two entries there (*doubled*): a number that was given out twice. What is doubled
is no difference between replicas, since each of them may have both.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import BLOCK_BITS, OFFSET_BITS, Block, Blocks, Bools, Ints, merged
from checkers._messages.message_census import SAMPLE, rows_kept
from checkers._messages.messages import in_range
from checkers._spark.spark_stages import (
    PARTIALS,
    Batches,
    Unit,
    arrays,
    once,
    packed,
    reduced,
    units_of,
)
from harness.history.reader import History
from harness.run.broker_sets import replicas_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_NODES = 64
HELD = ("value", "crc", "epoch")  # what two copies of an entry have in common
ENTRY_FIELDS: dict[str, tuple[Any, int]] = {
    **dict.fromkeys(HELD, (np.int64, -1)),
    "holders": (np.uint64, 0),  # a bit for each node
    "differs": (np.bool_, 0),
    "doubled": (np.bool_, 0),
}
COLUMNS = ("key", "offset", *HELD)
REPORT = pa.schema([("block", pa.int64()), ("report", pa.string())])
Row = tuple[int, int, int]  # key, offset, value


@dataclass(frozen=True)
class Copies:
    """What the replicas' logs say of each other. `missing`: (key, node) -> offsets that are not
    there between the node's first and last of that queue."""

    files: int
    compared: int = 0
    keys: frozenset[int] = frozenset()  # of which an entry was read
    twice: frozenset[int] = frozenset()  # ... from two replicas
    lacking: int = 0
    differing: int = 0
    doubled: int = 0
    differing_rows: tuple[Row, ...] = ()
    doubled_rows: tuple[Row, ...] = ()
    missing: tuple[tuple[int, int, int], ...] = ()  # key, node, how many


def copies(history: History, spark: "SparkSession | None") -> Copies:
    """The comparison of this history: made once, however many checkers ask."""
    return once(history, "copies", lambda: _copies(history, spark))


def _copies(history: History, spark: "SparkSession | None") -> Copies:
    units = units_of(history, "replicas")
    if not units:
        return Copies(0)
    replicas = replicas_of(history.names)
    by, most = ("block",), rows_kept(history)
    table = reduced(spark, units, scan, PARTIALS, compare(replicas, most), REPORT, by, by)
    rows = sorted(table.to_pylist(), key=lambda row: int(row["block"]))
    return add_up(len(units), [(row["block"], json.loads(row["report"])) for row in rows], most)


# ---------------------------------------------------------------------------------- the two steps


def scan(unit: Unit) -> Batches:
    blocks = Blocks(ENTRY_FIELDS)
    for rows in arrays(unit[1], ("node", *COLUMNS)):
        for node in np.unique(rows["node"]).tolist():
            if 0 <= node < MOST_NODES:
                mine = rows["node"] == node
                observe(blocks, node, *(rows[name][mine] for name in COLUMNS))
    return packed(blocks)


def observe(blocks: Blocks, node: int, key: Ints, offset: Ints, *held: Ints) -> None:
    """Add entries of one replica."""
    here = (key >= 0) & in_range(offset)
    at = blocks.at((key[here] << OFFSET_BITS) | offset[here])
    at, first, times = np.unique(at, return_index=True, return_counts=True)
    values = dict(zip(HELD, (column[here][first] for column in held), strict=True))
    bit, holders = np.uint64(1 << node), blocks["holders"][at]
    again = (holders & bit) != 0
    blocks["doubled"][at[again | (times > 1)]] = True
    known, same = holders != 0, np.ones(len(at), np.bool_)
    for name, column in values.items():
        same &= blocks[name][at] == column
        blocks[name][at] = np.where(known, blocks[name][at], column)
    blocks["differs"][at[known & ~again & ~same]] = True
    blocks["holders"][at] = holders | bit


def absorb(mine: Block, other: Block) -> None:
    """Merge what other files say of the same entries."""
    ours, theirs = mine["holders"], other["holders"]
    both, same = (ours != 0) & (theirs != 0), _same(mine, other)
    mine["doubled"] |= other["doubled"] | ((ours & theirs) != 0)
    mine["differs"] |= other["differs"] | (both & ~same)
    take = (theirs != 0) & (~both | (other["value"] < mine["value"]))
    for name in HELD:
        mine[name] = np.where(take, other[name], mine[name])
    mine["holders"] = ours | theirs


def _same(mine: Block, other: Block) -> Bools:
    equal: Bools = np.logical_and.reduce([mine[name] == other[name] for name in HELD])
    return equal


def compare(replicas: Sequence[int], most: int = SAMPLE) -> Callable[[Batches], Batches]:
    """Merged blocks in; what is wrong in each out. `replicas`: of each key; the last: of others;
    `most`: rows of a kind."""

    def merge(partials: Batches) -> Batches:
        for number, block in merged(partials, ENTRY_FIELDS, absorb):
            key = min(_key(number), len(replicas) - 1)
            report = json.dumps(_report(number, block, replicas[key], most))
            yield pa.record_batch([[number], [report]], schema=REPORT)

    return merge


def _key(number: int) -> int:
    """Of a block's entries."""
    return number >> (OFFSET_BITS - BLOCK_BITS)


def _report(number: int, block: Block, replicas: int, most: int) -> dict[str, Any]:
    held = np.bitwise_count(block["holders"])
    doubled = np.flatnonzero(block["doubled"])
    differing = np.flatnonzero(block["differs"] & ~block["doubled"])
    return {
        "compared": int((held > 0).sum()),
        "twice": bool((held > 1).any()),
        "lacking": int(((held > 0) & (held < replicas)).sum()),
        "differing": len(differing),
        "doubled": len(doubled),
        "differing_rows": _rows(number, block, differing[:most]),
        "doubled_rows": _rows(number, block, doubled[:most]),
        "extents": _extents(number, block),
    }


def _rows(number: int, block: Block, at: Ints) -> list[list[int]]:
    places = (number << BLOCK_BITS) | at
    keys, offsets = places >> OFFSET_BITS, places & ((1 << OFFSET_BITS) - 1)
    rows: list[list[int]] = np.stack([keys, offsets, block["value"][at]], 1).tolist()
    return rows


def _extents(number: int, block: Block) -> list[tuple[int, int, int, int]]:
    """(node, first, last, how many) of the offsets that each node holds here."""
    found = []
    nodes = int(np.bitwise_or.reduce(block["holders"]))
    base = (number << BLOCK_BITS) & ((1 << OFFSET_BITS) - 1)
    for node in (n for n in range(MOST_NODES) if nodes >> n & 1):
        at = np.flatnonzero(block["holders"] & np.uint64(1 << node))
        found.append((node, base + int(at[0]), base + int(at[-1]), len(at)))
    return found


# ------------------------------------------------------------------------------------- adding up


def add_up(files: int, reports: list[tuple[int, dict[str, Any]]], most: int = SAMPLE) -> Copies:
    """The blocks' reports, in order of their numbers, as one."""
    counts: Counter[str] = Counter()
    for _, report in reports:
        counts.update({name: n for name, n in report.items() if isinstance(n, int)})

    def rows(name: str) -> tuple[Row, ...]:
        return tuple((k, o, v) for _, report in reports for k, o, v in report[name])[:most]

    return Copies(
        files,
        counts["compared"],
        frozenset(_key(number) for number, report in reports if report["compared"]),
        frozenset(_key(number) for number, report in reports if report["twice"]),
        counts["lacking"],
        counts["differing"],
        counts["doubled"],
        rows("differing_rows"),
        rows("doubled_rows"),
        _missing(reports),
    )


def _missing(reports: list[tuple[int, dict[str, Any]]]) -> tuple[tuple[int, int, int], ...]:
    extents: dict[tuple[int, int], list[int]] = {}
    for number, report in reports:
        key = _key(number)
        for node, first, last, held in report["extents"]:
            known = extents.setdefault((key, node), [first, last, 0])
            known[1], known[2] = last, known[2] + held
    gaps = ((*who, last - first + 1 - held) for who, (first, last, held) in extents.items())
    return tuple(sorted(gap for gap in gaps if gap[2]))
