"""Rows of keyed objects brought together by bucket of keys: the two stages that Spark spreads.

Every writer's rows are packed by bucket; the rows of a bucket meet in one task, where all its keys
are judged at once. What comes back is a line for each bucket, of counts and a few words.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Ints, joined, pack, unpack
from checkers._spark.spark_stages import PARTIALS, Batches, Step, Unit, reduced, units_of
from harness.history.reader import OPS, History, batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 64  # of keys
CHUNK_ROWS = 1 << 20
ROW_BITS = 40  # of a place: the number of a file, and the number of a row in it

Rows = Mapping[str, Ints]
Line = dict[str, Any]
# the rows of a batch that count, as columns with `key` among them; the place of its first row
Select = Callable[[pa.RecordBatch, int], Rows]
Tell = Callable[[Rows], Line]


def by_bucket(
    history: History,
    spark: "SparkSession | None",
    columns: Sequence[str],
    select: Select,
    tell: Callable[[], Tell],
) -> list[Line]:
    """What is told of each bucket's rows, in the order of buckets.

    `columns`: those that `select` gives, in its order. `tell` is called once in each task.
    """
    units = units_of(history, "ops")
    numbers = {path: number for number, path in enumerate(history.files("ops"))}
    read = [name for name in columns if name in OPS.names]
    scan, merge = _scan_with(numbers, read, select), _merge_with(columns, tell)
    table = reduced(spark, units, scan, PARTIALS, merge, PARTIALS, ("block",), ("block",))
    rows = zip(table.column("block").to_pylist(), table.column("packed").to_pylist(), strict=True)
    return [json.loads(line) for _, line in sorted(rows)]


def place_of(history: History, place: int) -> str:
    """A row's place in words."""
    file = history.files("ops")[place >> ROW_BITS]
    return f"{file.name} row {place & (1 << ROW_BITS) - 1:,}"


def _scan_with(
    numbers: Mapping[Path, int], read: Sequence[str], select: Select
) -> Callable[[Unit], Batches]:
    def scan(unit: Unit) -> Batches:
        waiting: list[Rows] = []
        count = 0
        for path in unit[1]:
            place = numbers[path] << ROW_BITS
            for batch in batches(path, read):
                waiting.append(select(batch, place))
                place += batch.num_rows
                count += len(waiting[-1]["key"])
                if count >= CHUNK_ROWS:
                    yield from _packed(waiting)
                    waiting, count = [], 0
        yield from _packed(waiting)

    return scan


def _packed(parts: list[Rows]) -> Batches:
    if not any(len(part["key"]) for part in parts):
        return
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    bucket = rows["key"] % BUCKETS
    order = np.argsort(bucket, kind="stable")
    heads = np.searchsorted(bucket[order], np.arange(BUCKETS + 1))
    for number in np.unique(bucket).tolist():
        mine = order[heads[number] : heads[number + 1]]
        data = pack(*(column[mine] for column in rows.values()))
        yield pa.record_batch([[number], [data]], schema=PARTIALS)


def _merge_with(columns: Sequence[str], tell: Callable[[], Tell]) -> Step:
    def merge(partials: Batches) -> Batches:
        """Sorted partials in, a line for each bucket out."""
        told = tell()
        for number, parts in _each(partials):
            rows = dict(zip(columns, joined(parts, len(columns)), strict=True))
            line = json.dumps(told(rows)).encode()
            yield pa.record_batch([[number], [line]], schema=PARTIALS)

    return merge


def _each(partials: Batches) -> Iterator[tuple[int, list[list[Ints]]]]:
    """The packs of each bucket, in the order of their bytes, whoever came first."""
    bucket = -1
    waiting: list[bytes] = []
    for batch in partials:
        rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        for number, data in rows:
            if number != bucket and waiting:
                yield bucket, [unpack(packed) for packed in sorted(waiting)]
                waiting = []
            bucket = number
            waiting.append(data)
    if waiting:
        yield bucket, [unpack(packed) for packed in sorted(waiting)]
