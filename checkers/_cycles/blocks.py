"""What tasks bring of keys: columns packed by bucket, a row of Spark each, so that nothing of the
size of the history is made of rows.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Ints, pack, unpack
from checkers._cycles.rows import Columns
from checkers._spark.spark_stages import PARTIALS, Batches

BUCKETS = 128  # of keys
TRANSACTIONS = -1  # in place of a bucket

C = TypeVar("C", bound=Columns)


def bucketed(columns: C) -> Callable[[int], C]:
    """The rows of a bucket, in their order; the second column is the key."""
    rows = rows_of_buckets(columns.columns()[1])
    return lambda bucket: columns.at(rows(bucket))


def rows_of_buckets(key: Ints) -> Callable[[int], Ints]:
    """Which rows a bucket has."""
    bucket_of = key % BUCKETS
    order = np.argsort(bucket_of, kind="stable")
    heads = np.searchsorted(bucket_of[order], np.arange(BUCKETS + 1))
    return lambda bucket: order[heads[bucket] : heads[bucket + 1]]


def packed_row(block: int, *columns: Ints) -> pa.RecordBatch:
    """Columns as they travel."""
    data: list[Any] = [[block], [pack(*columns)]]
    return pa.record_batch(data, schema=PARTIALS)


def by_block(partials: Batches) -> Iterator[tuple[int, list[list[Ints]]]]:
    """Sorted partials, gathered by block; in the order of their bytes, whoever came first."""
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
