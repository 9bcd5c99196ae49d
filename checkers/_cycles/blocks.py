"""What Spark tasks return about keys: columns packed by bucket, one Spark row each, so that no
object of the size of the history is made of rows."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Ints, pack, unpack
from checkers._cycles.rows import ColumnTable
from checkers._spark.spark_stages import PARTIALS, Batches

BUCKETS = 128  # of keys
TRANSACTIONS = -1  # instead of a bucket

C = TypeVar("C", bound=ColumnTable)


def bucketed(columns: C) -> Callable[[int], C]:
    """Return a function to the rows of a bucket, in their order; the second column is the key."""
    rows = rows_of_buckets(columns.columns()[1])
    return lambda bucket: columns.at(rows(bucket))


def rows_of_buckets(key: Ints) -> Callable[[int], Ints]:
    """Return a function to the row numbers of a bucket."""
    bucket_of = key % BUCKETS
    order = np.argsort(bucket_of, kind="stable")
    heads = np.searchsorted(bucket_of[order], np.arange(BUCKETS + 1))
    return lambda bucket: order[heads[bucket] : heads[bucket + 1]]


def packed_row(block: int, *columns: Ints) -> pa.RecordBatch:
    """Return columns as one row of Spark."""
    data: list[Any] = [[block], [pack(*columns)]]
    return pa.record_batch(data, schema=PARTIALS)


def by_block(partials: Batches) -> Iterator[tuple[int, list[list[Ints]]]]:
    """Group sorted partials by block; within a block in the order of their bytes, to be
    deterministic."""
    block = None
    waiting: list[bytes] = []
    for batch in partials:
        numbers, packed = (batch.column(i).to_pylist() for i in (0, 1))
        for number, data in zip(numbers, packed, strict=True):
            if waiting and number != block:
                yield int(block or 0), [unpack(data) for data in sorted(waiting)]
                waiting = []
            block = number
            waiting.append(data)
    if waiting:
        yield int(block or 0), [unpack(data) for data in sorted(waiting)]
