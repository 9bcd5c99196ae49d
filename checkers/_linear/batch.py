"""The words of the kernels: a batch of operations by key, all integers.

Of an instant only its place in the order of its key's events is kept, its *rank*: ranks are
distinct, and at one time calls come before returns, since operations that touch may have
overlapped. Of values only their equality is kept: a key's values are numbered 0, 1, 2 ... in order
of appearance, and 0 is the initial one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkers._cycles.arrays import ranges

Array = npt.NDArray[Any]

ABSENT = int(np.iinfo(np.int64).min)  # the value of a register that has none
NEVER = int(np.iinfo(np.int32).max)  # the return of an operation of unknown outcome

# columns of operations
KIND, A, B, STATUS, CALL, RET = range(6)
# kinds: a compare-and-set that was refused by its comparison observed that its value was not there
READ, WRITE, CAS, REFUSED, APPEND = range(5)
# whether it happened for certain; GONE is never in a batch
OK, INFO, GONE = range(3)
# what became of a key; in this order the worst is the greatest
LEGAL, UNKNOWN, ILLEGAL = range(3)


class Batch(NamedTuple):
    """Operations by key: `ops[starts[k]:starts[k + 1]]`, in the order of their calls.

    A and B of an operation are numbers of values: what was read, written or expected, and what a
    compare-and-set sets. Number v of key k is `values[value_starts[k] + v]`. `names`: the numbers
    by which the history knows the operations.
    """

    keys: Array
    starts: Array
    ops: Array
    names: Array
    value_starts: Array
    values: Array


def only(batch: Batch, key: int, keep: Sequence[int] | Array | None = None) -> Batch:
    """A batch of one key, the one at place `key`, with all its operations or those to `keep`."""
    first, last = int(batch.starts[key]), int(batch.starts[key + 1])
    chosen = np.arange(first, last) if keep is None else first + np.asarray(keep, np.int64)
    values = batch.values[batch.value_starts[key] : batch.value_starts[key + 1]]
    return Batch(
        batch.keys[key : key + 1],
        np.array([0, len(chosen)]),
        batch.ops[chosen],
        batch.names[chosen],
        np.array([0, len(values)]),
        values,
    )


def some(batch: Batch, which: Array) -> Batch:
    """A batch of the keys at these places."""
    lengths, widths = np.diff(batch.starts)[which], np.diff(batch.value_starts)[which]
    rows = ranges(batch.starts[which], lengths)
    return Batch(
        batch.keys[which],
        np.concatenate([[0], np.cumsum(lengths)]),
        batch.ops[rows],
        batch.names[rows],
        np.concatenate([[0], np.cumsum(widths)]),
        batch.values[ranges(batch.value_starts[which], widths)],
    )


def value_of(batch: Batch, key: int, number: int) -> int | None:
    """The value behind a number; None for that of a register that has none."""
    value = int(batch.values[int(batch.value_starts[key]) + number])
    return None if value == ABSENT else value
