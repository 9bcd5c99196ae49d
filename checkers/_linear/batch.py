"""The data of the kernels: a batch of operations by key, all integers.

The time of an event is reduced to its place in the order of its key's events, its *rank*. Ranks are
distinct; of events at the same time, calls come before returns, because the operations may have
overlapped. Values are reduced to their equality: a key's values are numbered 0, 1, 2 ... in order
of appearance, and 0 is the initial one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkers._cycles.arrays import ranges

Array = npt.NDArray[Any]

ABSENT = int(np.iinfo(np.int64).min)  # the value of an empty register
NEVER = int(np.iinfo(np.int32).max)  # the return of an operation of unknown outcome

# columns of operations
KIND, A, B, STATUS, CALL, RET = range(6)
# kinds; a REFUSED compare-and-set observed that the register did not hold its value
READ, WRITE, CAS, REFUSED, APPEND = range(5)
# status: certainly happened, of unknown outcome; GONE is never in a batch
OK, INFO, GONE = range(3)
# verdict on a key; the worst is the greatest
LEGAL, UNKNOWN, ILLEGAL = range(3)


class OperationBatch(NamedTuple):
    """Operations by key: `ops[starts[k]:starts[k + 1]]`, in the order of their calls.

    A and B of an operation are numbers of values: the value read, written or expected, and the
    value that a compare-and-set sets. Number v of key k is `values[value_starts[k] + v]`. `names`:
    the operations' numbers in the history.
    """

    keys: Array
    starts: Array
    ops: Array
    names: Array
    value_starts: Array
    values: Array


def select_key(
    batch: OperationBatch, key: int, keep: Sequence[int] | Array | None = None
) -> OperationBatch:
    """Return a batch of one key, the one at place `key`, with all its operations or those to
    `keep`."""
    first, last = int(batch.starts[key]), int(batch.starts[key + 1])
    chosen = np.arange(first, last) if keep is None else first + np.asarray(keep, np.int64)
    values = batch.values[batch.value_starts[key] : batch.value_starts[key + 1]]
    return OperationBatch(
        batch.keys[key : key + 1],
        np.array([0, len(chosen)]),
        batch.ops[chosen],
        batch.names[chosen],
        np.array([0, len(values)]),
        values,
    )


def select_keys(batch: OperationBatch, which: Array) -> OperationBatch:
    """Return a batch of the keys at these places."""
    lengths, widths = np.diff(batch.starts)[which], np.diff(batch.value_starts)[which]
    rows = ranges(batch.starts[which], lengths)
    return OperationBatch(
        batch.keys[which],
        np.concatenate([[0], np.cumsum(lengths)]),
        batch.ops[rows],
        batch.names[rows],
        np.concatenate([[0], np.cumsum(widths)]),
        batch.values[ranges(batch.value_starts[which], widths)],
    )


def value_of(batch: OperationBatch, key: int, number: int) -> int | None:
    """Return the value of a number; None for the value of an empty register."""
    value = int(batch.values[int(batch.value_starts[key]) + number])
    return None if value == ABSENT else value
