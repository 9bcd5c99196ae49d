"""A second look at a history in which something is missing: is it lost?

In a run of ours, what every replica holds where it was acknowledged is not lost (`held_by_all`).

In an imported history, whoever read an offset of a queue had all before it to read, so an
acknowledged message that was never seen below it is lost. Three things speak for more care, and
each needs rows of many processes:

    taken      another message was seen at its offset: not lost, but two messages at one offset
    passed     how far a queue was read counts by the least offset that each message was ever said
               to be at; the greatest may be a slip, which must not make others lost
    committed  a transaction is all or nothing: when one part of it was seen, the others are there,
               though nobody acknowledged them
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import Ints, Members
from checkers._messages.messages import Rows, in_range, key_of, offset_of, place_of
from checkers._spark.spark_stages import Batches, Unit, arrays, collected
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = pa.schema([("line", pa.string())])
ASKED = ("op", "type", "f", "key", "value", "offset", "mop")


@dataclass(frozen=True)
class Doubts:
    """What to look at: missing values and their places, values whose place is not certain, and
    values of unknown outcome that were seen, sorted."""

    missed: tuple[Ints, Ints]
    unsure: Members
    late: Ints


@dataclass(frozen=True)
class Look:
    """What was seen: places of missing messages that others were seen at, how far each queue was
    read, and the other parts of transactions of which one was seen."""

    taken: Ints
    passed: dict[int, int]
    committed: Ints


def look(units: list[Unit], spark: "SparkSession | None", doubts: Doubts) -> Look:
    table = collected(spark, units, scan_with(doubts), LINES)
    return together([json.loads(line) for line in table.column("line").to_pylist()])


def scan_with(doubts: Doubts) -> Callable[[Unit], Batches]:
    def scan(unit: Unit) -> Batches:
        parts = Parts()
        found = [said(Rows(rows), doubts, parts) for rows in arrays(unit[1], ASKED)]
        found.append({"committed": parts.committed(doubts.late)})
        yield pa.record_batch([[json.dumps(line) for line in found]], schema=LINES)

    return scan


class Parts:
    """Sends in transactions of unknown outcome: their operations and values."""

    def __init__(self) -> None:
        self._op: list[Ints] = [np.zeros(0, np.int64)]
        self._value: list[Ints] = [np.zeros(0, np.int64)]

    def add(self, rows: Rows) -> None:
        parts = rows.where((rows.f == F.SEND) & (rows.type == Type.INFO) & (rows.mop >= 0))
        self._op.append(parts.op)
        self._value.append(parts.value)

    def committed(self, late: Ints) -> list[int]:
        """Those that nobody saw, though another part of their transaction was seen."""
        op, value = np.concatenate(self._op), np.concatenate(self._value)
        seen = np.isin(value, late)
        others: list[int] = value[~seen & np.isin(op, op[seen])].tolist()
        return others


def said(rows: Rows, doubts: Doubts, parts: Parts) -> dict[str, Any]:
    """What some rows say, as lists."""
    rows = rows.where((rows.key >= 0) & (rows.value >= 0))
    read = (rows.type == Type.OK) & (rows.f != F.SEND) & in_range(rows.offset)
    unsure = doubts.unsure.holds(rows.value)
    seen = place_of(rows.key[read], rows.offset[read])
    told = (rows.type == Type.OK) & in_range(rows.offset) & unsure
    parts.add(rows)
    return {
        "taken": np.unique(seen[np.isin(seen, doubts.missed[1])]).tolist(),
        "top": _greatest(rows.where(read & ~unsure)),
        "least": np.stack([rows.value[told], place_of(rows.key[told], rows.offset[told])]).tolist(),
    }


def _greatest(rows: Rows) -> list[list[int]]:
    """Keys and the greatest offset in each."""
    order = np.lexsort((rows.offset, rows.key))
    key, offset = rows.key[order], rows.offset[order]
    last = np.flatnonzero(np.diff(key, append=-1))
    return [key[last].tolist(), offset[last].tolist()]


def together(lines: list[dict[str, Any]]) -> Look:
    """What all rows said."""
    least: dict[int, int] = {}
    for line in lines:
        for value, place in zip(*line.get("least", ()), strict=True):
            least[value] = min(place, least.get(value, place))
    places = np.array(list(least.values()), np.int64)
    tops = [pair for line in lines for pair in zip(*line.get("top", ()), strict=True)]
    tops += list(zip(key_of(places).tolist(), offset_of(places).tolist(), strict=True))
    passed: dict[int, int] = {}
    for key, offset in tops:
        passed[key] = max(offset + 1, passed.get(key, 0))
    taken = {place for line in lines for place in line.get("taken", ())}
    committed = {value for line in lines for value in line.get("committed", ())}
    return Look(np.array(sorted(taken), np.int64), passed, np.array(sorted(committed), np.int64))


# ------------------------------------------------------------------------------- runs of ours


HELD = pa.schema([("value", pa.int64()), ("place", pa.int64()), ("node", pa.int64())])


def held_by_all(
    units: list[Unit],
    spark: "SparkSession | None",
    values: Ints,
    places: Ints,
    replicas: Sequence[int],
) -> Ints:
    """Return those of the values that each replica holds at its place. `replicas`: how many must
    hold a message, by key."""
    order = np.argsort(values, kind="stable")
    values, places = values[order], places[order]

    def scan(unit: Unit) -> Batches:
        for rows in arrays(unit[1], ("node", "value", "key", "offset")):
            place = place_of(rows["key"], rows["offset"])
            at = np.minimum(np.searchsorted(values, rows["value"]), len(values) - 1)
            here = (values[at] == rows["value"]) & (places[at] == place) & (rows["key"] >= 0)
            columns = rows["value"][here], place[here], rows["node"][here]
            yield pa.record_batch([pa.array(column) for column in columns], schema=HELD)

    table = collected(spark, units, scan, HELD)
    rows = np.unique(np.stack([column.to_numpy() for column in table.columns]), axis=1)
    held, first, nodes = np.unique(rows[0], return_index=True, return_counts=True)
    keys = np.minimum(key_of(rows[1][first]), len(replicas) - 1)
    all_held: Ints = held[nodes >= np.asarray(replicas, np.int64)[keys]]
    return all_held
