"""Direct anomalies: errors that show without any cycle, found in rows or keys.

An anomaly names the transaction that it is attributed to (`op`), the key and value, and another
transaction that proves it. `ROOTS` lists the columns that distinguish two root causes.
"""

from enum import IntEnum

import numpy as np

from checkers._cycles.arrays import Ints


class DirectAnomaly(IntEnum):
    """The kinds; the numbers only have to differ."""

    UNSEEN_OWN = 0  # a transaction did not read its own writes
    PHANTOM = 1  # a value was read that was never written
    DUPLICATE = 2  # a value was twice in a list
    ABORTED = 3  # G1a
    INTERMEDIATE = 4  # G1b
    INCOMPATIBLE = 5  # two reads of a list, neither of which is a prefix of the other
    LOST_OWN = 6  # an append that its own transaction read, and no later reader
    READ_TWICE = 7  # a transaction read one key in two states
    LOST_UPDATE = 8  # two transactions read one version and both replaced it
    NOT_UNIQUE = 9  # a value was written twice to one key: the key cannot be judged
    SHUFFLED = 10  # appends of a transaction are not in its order


ROOTS = {
    DirectAnomaly.UNSEEN_OWN: ("op",),
    DirectAnomaly.PHANTOM: ("key", "value"),
    DirectAnomaly.DUPLICATE: ("key", "value"),
    DirectAnomaly.ABORTED: ("op",),
    DirectAnomaly.INTERMEDIATE: ("op",),
    DirectAnomaly.INCOMPATIBLE: ("key",),
    DirectAnomaly.LOST_OWN: ("key", "value"),
    DirectAnomaly.READ_TWICE: ("op",),
    DirectAnomaly.LOST_UPDATE: ("op", "key"),
    DirectAnomaly.NOT_UNIQUE: ("key",),
    DirectAnomaly.SHUFFLED: ("op",),
}
NAMES = ("code", "op", "key", "value", "other")


class DirectAnomalies:
    """Anomalies as columns, added many at a time."""

    def __init__(self) -> None:
        self._parts: list[list[Ints]] = []

    def add(
        self, code: DirectAnomaly, op: Ints, key: Ints, value: Ints | int, other: Ints | int
    ) -> None:
        count = len(op)
        if count:
            filled = [np.broadcast_to(np.asarray(c, np.int64), count) for c in (value, other)]
            self._parts.append([np.full(count, int(code), np.int64), op, key, *filled])

    def columns(self) -> list[Ints]:
        empty = np.empty(0, np.int64)
        return [np.concatenate([empty, *(p[i] for p in self._parts)]) for i in range(len(NAMES))]


def roots(columns: list[Ints], code: DirectAnomaly) -> tuple[int, list[dict[str, int]]]:
    """Return the number of root causes of a kind, and one anomaly of each, in a total order."""
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
