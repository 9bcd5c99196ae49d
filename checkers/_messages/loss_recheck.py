"""A second pass over a history in which messages are missing: are they lost?

In a run of Seatrial, a message that every replica holds where it was acknowledged is not lost
(`held_by_all`).

In an imported history, a consumer that received an offset of a queue had everything below it to
read, so an acknowledged message that was never seen below it is lost. Three exceptions need rows of
many processes (`recheck`):

    taken      another message was seen at its offset: not lost, but two messages at one offset
    passed     how far a queue was read counts by the lowest offset that was ever reported for each
               message; a higher one may be an error, which must not make others lost
    committed  a transaction is all or nothing: if one part of it was seen, the others are there,
               although they were not acknowledged
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import Ints, Members
from checkers._messages.messages import OpColumns, in_range, key_of, offset_of, place_of
from checkers._spark.spark_stages import INT, INTS, Batches, Unit, arrays, collected
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("op", "type", "f", "key", "value", "offset", "mop")
FINDINGS = pa.schema(
    [
        ("taken", INTS),  # places
        ("tops", INTS),  # the place of the highest offset of each key that was read for certain
        ("values", INTS),  # of an uncertain place ...
        ("places", INTS),  # ... and a place that was reported for each
        ("committed", INTS),  # values
    ]
)


@dataclass(frozen=True)
class Recheck:
    """What the second pass over an imported history found.

    taken      places of missing messages at which others were seen
    passed     key -> how far it was read
    committed  the other parts of transactions of which one was seen
    """

    taken: Ints
    passed: dict[int, int]
    committed: Ints


@dataclass(frozen=True)
class RecheckRequest:
    """What the second pass has to look for.

    missed  places of missing messages
    unsure  values whose place is not certain
    late    values of unknown outcome that were seen, sorted
    """

    missed: Ints
    unsure: Members
    late: Ints

    def scan(self, unit: Unit) -> Batches:
        parts = TransactionParts()
        for columns in arrays(unit[1], COLUMNS):
            rows = OpColumns(columns)
            rows = rows.where((rows.key >= 0) & (rows.value >= 0))
            parts.add(rows)
            read = (rows.type == Type.OK) & (rows.f != F.SEND) & in_range(rows.offset)
            unsure = self.unsure.holds(rows.value)
            seen = place_of(rows.key[read], rows.offset[read])
            reported = rows.where((rows.type == Type.OK) & in_range(rows.offset) & unsure)
            found = (
                np.unique(seen[np.isin(seen, self.missed)]),
                _tops(rows.where(read & ~unsure)),
                reported.value,
                place_of(reported.key, reported.offset),
                np.zeros(0, np.int64),
            )
            yield pa.record_batch([[column] for column in found], schema=FINDINGS)
        yield pa.record_batch([[[]]] * 4 + [[parts.committed(self.late)]], schema=FINDINGS)


@dataclass
class TransactionParts:
    """Sends in transactions of unknown outcome: their operations and values."""

    _op: list[Ints] = field(default_factory=lambda: [np.zeros(0, np.int64)])
    _value: list[Ints] = field(default_factory=lambda: [np.zeros(0, np.int64)])

    def add(self, rows: OpColumns) -> None:
        parts = rows.where((rows.f == F.SEND) & (rows.type == Type.INFO) & (rows.mop >= 0))
        self._op.append(parts.op)
        self._value.append(parts.value)

    def committed(self, late: Ints) -> Ints:
        """Return the values that were not seen although another part of their transaction was."""
        op, value = np.concatenate(self._op), np.concatenate(self._value)
        seen = np.isin(value, late)
        others: Ints = value[~seen & np.isin(op, op[seen])]
        return others


def _tops(rows: OpColumns) -> Ints:
    """Return the place with the highest offset of each key."""
    places = np.sort(place_of(rows.key, rows.offset))
    last: Ints = places[np.flatnonzero(np.diff(key_of(places), append=-1))]
    return last


def recheck(units: list[Unit], spark: "SparkSession | None", request: RecheckRequest) -> Recheck:
    """Run the second pass over an imported history."""
    table = collected(spark, units, request.scan, FINDINGS)
    taken, tops, values, places, committed = (
        column.combine_chunks().flatten().to_numpy() for column in table.columns
    )
    order = np.lexsort((places, values))
    _, first = np.unique(values[order], return_index=True)
    certain = np.concatenate([tops, places[order][first]])
    passed: dict[int, int] = {}
    for key, offset in zip(key_of(certain).tolist(), offset_of(certain).tolist(), strict=True):
        passed[key] = max(offset + 1, passed.get(key, 0))
    return Recheck(np.unique(taken), passed, np.unique(committed))


# ------------------------------------------------------------------------------- runs of Seatrial


HELD = pa.schema([("value", INT), ("place", INT), ("node", INT)])


@dataclass(frozen=True)
class HeldRequest:
    """Values, sorted, and the place at which each is looked for in the replicas' logs."""

    values: Ints
    places: Ints

    def scan(self, unit: Unit) -> Batches:
        for rows in arrays(unit[1], ("node", "value", "key", "offset")):
            place = place_of(rows["key"], rows["offset"])
            at = np.minimum(np.searchsorted(self.values, rows["value"]), len(self.values) - 1)
            here = (self.values[at] == rows["value"]) & (self.places[at] == place)
            here &= rows["key"] >= 0
            columns = rows["value"][here], place[here], rows["node"][here]
            yield pa.record_batch([pa.array(column) for column in columns], schema=HELD)


def held_by_all(
    units: list[Unit],
    spark: "SparkSession | None",
    missed: tuple[Ints, Ints],
    replicas: Sequence[int],
) -> Ints:
    """Return those of some values that each replica holds at its place. `missed`: values and
    places; `replicas`: how many must hold a message, by key."""
    order = np.argsort(missed[0], kind="stable")
    request = HeldRequest(missed[0][order], missed[1][order])
    table = collected(spark, units, request.scan, HELD)
    rows = np.unique(np.stack([column.to_numpy() for column in table.columns]), axis=1)
    held, first, nodes = np.unique(rows[0], return_index=True, return_counts=True)
    keys = np.minimum(key_of(rows[1][first]), len(replicas) - 1)
    all_held: Ints = held[nodes >= np.asarray(replicas, np.int64)[keys]]
    return all_held
