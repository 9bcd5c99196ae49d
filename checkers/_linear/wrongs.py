"""What can be wrong with an object, and the few operations that contradict each other.

A row of `Wrongs` is one root cause on one key. Where an accident shows from two sides (one element
overtook many, or many overtook one) the fewer are told.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints

WITNESSES = 4  # operations at most


class Code(StrEnum):
    NOT_LINEARIZABLE = "NOT_LINEARIZABLE"
    PHANTOM_ELEMENT = "PHANTOM_ELEMENT"
    DUPLICATE_ELEMENT = "DUPLICATE_ELEMENT"
    ELEMENT_LOST = "ELEMENT_LOST"
    QUEUE_ORDER = "QUEUE_ORDER"
    NOT_EMPTY = "NOT_EMPTY"
    STALE_READ = "STALE_READ"
    OFFSET_CONFLICT = "OFFSET_CONFLICT"
    LOG_HOLE = "LOG_HOLE"
    COUNTER_OUT_OF_RANGE = "COUNTER_OUT_OF_RANGE"
    LOCK_HELD_TWICE = "LOCK_HELD_TWICE"
    LOCK_NOT_HELD = "LOCK_NOT_HELD"
    LOCK_LOST = "LOCK_LOST"
    FENCING_BROKEN = "FENCING_BROKEN"


class Wrongs(NamedTuple):
    """`ops`: places of the operations that contradict each other, -1 where there are fewer.
    `value`: what it is about, where the first of them does not say it."""

    code: Code
    key: Ints
    ops: Ints
    value: Ints | None = None


class Judged(NamedTuple):
    """What is wrong, and keys that could not be decided this way."""

    wrongs: list[Wrongs]
    undecided: Bools


def wrongs(code: Code, key: Ints, *ops: Ints, value: Ints | None = None) -> Wrongs:
    """One row for each key given, with its operations, and values."""
    table = np.full((len(key), WITNESSES), -1, np.int64)
    for column, places in enumerate(ops):
        table[:, column] = places
    return Wrongs(code, key, table, value)


def one_each(found: Wrongs) -> Wrongs:
    """Of rows with the same first operation only the first."""
    _, heads = np.unique(found.ops[:, 0], return_index=True)
    return Wrongs(found.code, found.key[heads], found.ops[heads])


def spoilt(count: int, found: Iterable[Wrongs]) -> Bools:
    """By key: is anything wrong with it?"""
    marks = np.zeros(count, np.bool_)
    for each in found:
        marks[each.key] = True
    return marks
