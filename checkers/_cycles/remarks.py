"""Remarks: what is wrong without any cycle, found where rows or keys are looked at.

A remark names the transaction to blame (`op`), the key and value, and another transaction that
proves it. What counts as one root cause is in `ROOTS`: the columns that tell two causes apart.
"""

from enum import IntEnum

import numpy as np

from checkers._cycles.arrays import Ints


class Remark(IntEnum):
    """What is wrong; the numbers only have to differ."""

    UNSEEN_OWN = 0  # a transaction did not see its own writes as it made them
    PHANTOM = 1  # a value came out that nobody wrote
    DUPLICATE = 2  # a value stood twice in a list
    ABORTED = 3  # G1a
    INTERMEDIATE = 4  # G1b
    INCOMPATIBLE = 5  # two reads of a list, neither of which is a prefix of the other
    LOST_OWN = 6  # an append that its own transaction saw, and nobody else who read on
    READ_TWICE = 7  # a transaction read one key in two states
    LOST_UPDATE = 8  # two transactions read one version and both replaced it
    NOT_UNIQUE = 9  # a value was written twice to one key: the key can not be judged
    SHUFFLED = 10  # appends of a transaction stand in another order than it made them


ROOTS = {
    Remark.UNSEEN_OWN: ("op",),
    Remark.PHANTOM: ("key", "value"),
    Remark.DUPLICATE: ("key", "value"),
    Remark.ABORTED: ("op",),
    Remark.INTERMEDIATE: ("op",),
    Remark.INCOMPATIBLE: ("key",),
    Remark.LOST_OWN: ("key", "value"),
    Remark.READ_TWICE: ("op",),
    Remark.LOST_UPDATE: ("op", "key"),
    Remark.NOT_UNIQUE: ("key",),
    Remark.SHUFFLED: ("op",),
}
NAMES = ("code", "op", "key", "value", "other")


class Remarks:
    """Remarks as columns, added many at a time."""

    def __init__(self) -> None:
        self._parts: list[list[Ints]] = []

    def add(self, code: Remark, op: Ints, key: Ints, value: Ints | int, other: Ints | int) -> None:
        count = len(op)
        if count:
            filled = [np.broadcast_to(np.asarray(c, np.int64), count) for c in (value, other)]
            self._parts.append([np.full(count, int(code), np.int64), op, key, *filled])

    def columns(self) -> list[Ints]:
        empty = np.empty(0, np.int64)
        return [np.concatenate([empty, *(p[i] for p in self._parts)]) for i in range(len(NAMES))]


def roots(columns: list[Ints], code: Remark) -> tuple[int, list[dict[str, int]]]:
    """How many root causes of a kind there are, and a remark on each, in a total order."""
    rows = np.flatnonzero(columns[0] == int(code))
    table = {name: column[rows] for name, column in zip(NAMES, columns, strict=True)}
    by = [*ROOTS[code], *(name for name in NAMES if name not in ROOTS[code])]
    order = np.lexsort([table[name] for name in reversed(by)])
    table = {name: column[order] for name, column in table.items()}
    first = np.ones(len(order), np.bool_)
    if len(order):
        same = np.ones(len(order) - 1, np.bool_)
        for name in ROOTS[code]:
            same &= table[name][1:] == table[name][:-1]
        first[1:] = ~same
    chosen = np.flatnonzero(first)
    names = [name for name in NAMES if name != "code"]
    return len(chosen), [{n: int(table[n][row]) for n in names} for row in chosen.tolist()]
