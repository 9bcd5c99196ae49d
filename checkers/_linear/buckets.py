"""Rows of keyed objects, grouped by bucket of keys in two Spark stages.

The first stage packs each writer's rows by bucket. The second stage gets all rows of a bucket in
one task, judges all its keys at once, and returns one row for each bucket: counts and a few texts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Ints, concat_packs, pack
from checkers._cycles.blocks import by_block
from checkers._spark.spark_stages import (
    PARTIALS,
    Batches,
    Step,
    Unit,
    column,
    reduced,
    units_of,
)
from harness.history.reader import OPS, History, batches
from harness.operation import F

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 64  # of keys
CHUNK_ROWS = 1 << 20
ROW_BITS = 40  # a place is the number of a file and the number of a row in it

Rows = Mapping[str, Ints]
BucketResult = dict[str, Any]
# from a batch and the place of its first row: the relevant rows, as columns with `key` among them
Select = Callable[[pa.RecordBatch, int], Rows]
MapBucket = Callable[[Rows], BucketResult]


def map_buckets(
    history: History,
    spark: "SparkSession | None",
    columns: Sequence[str],
    select: Select,
    map_bucket: Callable[[], MapBucket],
) -> list[BucketResult]:
    """Return the result of `map_bucket` for each bucket's rows, in the order of buckets.

    `columns`: those that `select` returns, in its order. `map_bucket` is called once in each task.
    """
    units = units_of(history, "ops")
    numbers = {path: number for number, path in enumerate(history.files["ops"])}
    read = [name for name in columns if name in OPS.names]
    scan, merge = _scan_with(numbers, read, select), _merge_with(columns, map_bucket)
    table = reduced(spark, units, scan, PARTIALS, merge, PARTIALS, ("block",), ("block",))
    rows = zip(table.column("block").to_pylist(), table.column("packed").to_pylist(), strict=True)
    return [json.loads(line) for _, line in sorted(rows)]


def rows_of(batch: pa.RecordBatch, names: Sequence[str], kinds: Sequence[F]) -> Rows:
    """Return these columns of a batch, of operations of these kinds that have a key."""
    rows = {name: column(batch, name).astype(np.int64) for name in names}
    mine = np.isin(rows["f"], kinds) & (rows["key"] >= 0)
    return {name: values[mine] for name, values in rows.items()}


def row_location(history: History, place: int) -> str:
    """Return a row's place as text."""
    file = history.files["ops"][place >> ROW_BITS]
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


def _merge_with(columns: Sequence[str], map_bucket: Callable[[], MapBucket]) -> Step:
    def merge(partials: Batches) -> Batches:
        """Turn sorted partials into one row for each bucket."""
        run = map_bucket()
        for number, parts in by_block(partials):
            rows = dict(zip(columns, concat_packs(parts, len(columns)), strict=True))
            line = json.dumps(run(rows)).encode()
            yield pa.record_batch([[number], [line]], schema=PARTIALS)

    return merge
