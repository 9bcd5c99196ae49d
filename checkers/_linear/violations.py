"""Violations of objects, with the few operations that contradict each other.

A row of `Violations` is one root cause on one key. If an error shows from two sides (one element
overtook many, or many overtook one), the side with fewer rows is reported.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints

WITNESSES = 4  # maximum number of operations


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


class Violations(NamedTuple):
    """`ops`: places of the operations that contradict each other, padded with -1. `value`: the
    value concerned, where the first operation does not have it."""

    code: Code
    key: Ints
    ops: Ints
    value: Ints | None = None


class MethodResult(NamedTuple):
    """Violations, and the keys that the method could not decide."""

    violations: list[Violations]
    undecided: Bools


def violations(code: Code, key: Ints, *ops: Ints, value: Ints | None = None) -> Violations:
    """Return one row for each key given, with its operations and values."""
    table = np.full((len(key), WITNESSES), -1, np.int64)
    for column, places in enumerate(ops):
        table[:, column] = places
    return Violations(code, key, table, value)


def first_per_operation(found: Violations) -> Violations:
    """Keep, of rows with the same first operation, the first."""
    _, heads = np.unique(found.ops[:, 0], return_index=True)
    return Violations(found.code, found.key[heads], found.ops[heads])


def keys_with_violations(count: int, found: Iterable[Violations]) -> Bools:
    """Return by key whether it has a violation."""
    marks = np.zeros(count, np.bool_)
    for each in found:
        marks[each.key] = True
    return marks
