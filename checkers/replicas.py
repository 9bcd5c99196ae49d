"""All replicas hold the same log, once the cluster has come back.

Two replicas that hold different messages at one offset of a queue (`REPLICAS_DIFFER`) have parted
without noticing it. Readers see nothing of that: they read the master's log, until another replica
is elected, and then what they read changes. A copy with another check sum counts as different too.

A fork is lawful while a deposed master has not yet been told. So nothing is concluded unless the
runner saw full redundancy at the end. An entry that a replica lacks convicts nobody, since copying
may lag behind; it is counted.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._blocks import (
    BLOCK_BITS,
    OFFSET_BITS,
    Block,
    Blocks,
    Ints,
    merged,
)
from checkers._messages import in_range
from checkers._survey import SAMPLE
from checkers._units import PARTIALS, Batches, Unit, arrays, packed, reduced, units_of
from harness.history import History
from harness.intervals import events
from harness.trial import Trial
from harness.verdict import Finding, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY = "integrity"
ENTRY_FIELDS: dict[str, tuple[Any, int]] = {
    "value": (np.int64, -1),
    "crc": (np.int64, -1),
    "copies": (np.uint8, 0),
    "differs": (np.bool_, 0),
}
COLUMNS = ("key", "offset", "value", "crc")
REPORT = pa.schema([("block", pa.int64()), ("report", pa.string())])


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    units = units_of(history, "replicas")
    if not units or not _came_back(history):
        return Result("replicas", stats={"compared": 0})
    replicas = sum(role == "broker" for role in history.names.get("roles", {}).values())
    by = ("block",)
    table = reduced(spark, units, scan, PARTIALS, compare(replicas), REPORT, by, by)
    reports = [json.loads(row["report"]) for row in sorted(table.to_pylist(), key=_number)]
    differing = sum(report["differing"] for report in reports)
    stats = {
        "compared": sum(report["compared"] for report in reports),
        "lacking": sum(report["lacking"] for report in reports),
    }
    if not differing:
        return Result("replicas", stats=stats)
    rows = [row for report in reports for row in report["sample"]][:SAMPLE]
    return Result("replicas", (_finding(differing, rows, history),), stats=stats)


def _number(row: dict[str, Any]) -> int:
    return int(row["block"])


def _came_back(history: History) -> bool:
    """Whether the runner saw every replica in step after the last healing."""
    asked = [event for event in events(history.read("events")) if event.kind == "recovery"]
    return history.complete and bool(asked) and bool(asked[-1].fields.get("redundant"))


def _finding(count: int, rows: list[list[int]], history: History) -> Finding:
    keys = history.names.get("keys", ())
    evidence = tuple(
        {"queue": keys[key] if key < len(keys) else "?", "offset": offset, "value": value}
        for key, offset, value in rows
    )
    what = "1 offset holds" if count == 1 else f"{count:,} offsets hold"
    message = f"{what} different messages in the logs of different replicas at the end"
    return Finding("REPLICAS_DIFFER", count, message, INTEGRITY, evidence)


# ---------------------------------------------------------------------------------- the two steps


def scan(unit: Unit) -> Batches:
    blocks = Blocks(ENTRY_FIELDS)
    for rows in arrays(unit[1], ("node", *COLUMNS)):
        for one in np.unique(rows["node"]).tolist():  # a replica holds an offset once
            mine = rows["node"] == one
            observe(blocks, *(rows[name][mine] for name in COLUMNS))
    return packed(blocks)


def observe(blocks: Blocks, key: Ints, offset: Ints, value: Ints, crc: Ints) -> None:
    """Add entries of one replica."""
    here = (key >= 0) & in_range(offset)
    key, offset, value, crc = key[here], offset[here], value[here], crc[here]
    at = blocks.at((key << OFFSET_BITS) | offset)
    known = blocks["copies"][at] > 0
    same = (blocks["value"][at] == value) & (blocks["crc"][at] == crc)
    blocks["differs"][at[known & ~same]] = True
    blocks["value"][at] = np.where(known, blocks["value"][at], value)
    blocks["crc"][at] = np.where(known, blocks["crc"][at], crc)
    blocks["copies"][at] += np.uint8(1)


def absorb(mine: Block, other: Block) -> None:
    """Merge what other files say of the same entries."""
    both = (mine["copies"] > 0) & (other["copies"] > 0)
    same = (mine["value"] == other["value"]) & (mine["crc"] == other["crc"])
    mine["differs"] |= other["differs"] | (both & ~same)
    take = (other["copies"] > 0) & (~both | (other["value"] < mine["value"]))
    for name in ("value", "crc"):
        mine[name] = np.where(take, other[name], mine[name])
    mine["copies"] += other["copies"]


def compare(replicas: int) -> Callable[[Batches], Batches]:
    """Merged blocks in; what is wrong in each out."""

    def merge(partials: Batches) -> Batches:
        for number, block in merged(partials, ENTRY_FIELDS, absorb):
            report = json.dumps(_report(number, block, replicas))
            yield pa.record_batch([[number], [report]], schema=REPORT)

    return merge


def _report(number: int, block: Block, replicas: int) -> dict[str, Any]:
    held, wrong = block["copies"] > 0, np.flatnonzero(block["differs"])
    places = (number << BLOCK_BITS) | wrong[:SAMPLE]
    keys, offsets = places >> OFFSET_BITS, places & ((1 << OFFSET_BITS) - 1)
    values = block["value"][wrong[:SAMPLE]]
    return {
        "compared": int(held.sum()),
        "lacking": int((held & (block["copies"] < replicas)).sum()),
        "differing": len(wrong),
        "sample": np.stack([keys, offsets, values], axis=1).tolist(),
    }
