"""Who acknowledged in which epoch: one pass over the acknowledged sends.

A send's answer says which broker gave it, and in which epoch of its set. What comes back is a row
for each broker, epoch and set: how many, the first and the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._spark.spark_stages import Batches, Unit, arrays, reduced, units_of
from harness.history.reader import History
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("t", "type", "f", "key", "epoch", "node")
WHO = ("set", "epoch", "node")
WRITERS = pa.schema([(name, pa.int64()) for name in (*WHO, "first", "last", "acks")])


@dataclass(frozen=True)
class Writer:
    """A broker that acknowledged in an epoch; times of the answers in ns since the run's start."""

    set: int  # its number
    epoch: int
    node: int
    first: int
    last: int
    acks: int


def writers(
    history: History, set_of_key: Sequence[int], spark: "SparkSession | None"
) -> tuple[Writer, ...]:
    """All of them, by set, epoch and node. Keys without a set belong to the first one."""
    units = units_of(history, "ops")
    scan = scan_with(set_of_key)
    table = reduced(spark, units, scan, WRITERS, merge, WRITERS, WHO[:1], WHO)
    return tuple(sorted((Writer(**row) for row in table.to_pylist()), key=_who))


def scan_with(set_of_key: Sequence[int]) -> Callable[[Unit], Batches]:
    sets = np.maximum(np.asarray(set_of_key or [0], np.int64), 0)

    def scan(unit: Unit) -> Batches:
        for rows in arrays(unit[1], COLUMNS):
            acked = (rows["f"] == F.SEND) & (rows["type"] == Type.OK)
            acked &= (rows["epoch"] >= 0) & (rows["node"] >= 0)
            t, key, epoch, node = (rows[name][acked] for name in ("t", "key", "epoch", "node"))
            place = np.where((key >= 0) & (key < len(sets)), key, 0)
            who, inverse = np.unique(
                np.stack([sets[place], epoch, node]), axis=1, return_inverse=True
            )
            count = who.shape[1]
            first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
            np.minimum.at(first, inverse.ravel(), t)
            np.maximum.at(last, inverse.ravel(), t)
            acks = np.bincount(inverse.ravel(), minlength=count)
            yield pa.record_batch([*who, first, last, acks], schema=WRITERS)

    return scan


def merge(partials: Batches) -> Batches:
    """Rows of the same writer, which are neighbours, as one."""
    rows = (Writer(**row) for batch in partials for row in batch.to_pylist())
    for (group, epoch, node), same in groupby(rows, key=_who):
        parts = list(same)
        first, last = min(part.first for part in parts), max(part.last for part in parts)
        acks = sum(part.acks for part in parts)
        values = (group, epoch, node, first, last, acks)
        yield pa.record_batch([[value] for value in values], schema=WRITERS)


def _who(writer: Writer) -> tuple[int, int, int]:
    return writer.set, writer.epoch, writer.node
