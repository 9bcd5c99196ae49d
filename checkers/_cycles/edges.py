"""Edges: which transaction came before which, and the observation that proves it.

`src` and `dst` are operations; negative numbers are *relays*, points that many edges share, for
instance one to all writers from some place on. A path through relays is one dependency, of the kind
of its first edge. `a` is the earlier value and `b` the later one, NULL where there is none. `layer`
is the weakest promise under which it is an edge.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from checkers._cycles.arrays import NULL, Ints
from checkers._cycles.rows import ColumnTable


class EdgeKind(IntEnum):
    WW = 0
    WR = 1
    RW = 2
    LINK = 3  # from a relay on
    PROCESS = 4
    REALTIME = 5


class OrderLayer(IntEnum):
    """The promises that the edges of a graph depend on."""

    DATA = 0  # what was read
    PROCESS = 1  # ... and the order of each process
    REALTIME = 2  # ... and real time


@dataclass(frozen=True)
class Edges(ColumnTable):
    src: Ints
    dst: Ints
    kind: Ints
    layer: Ints
    key: Ints
    a: Ints
    b: Ints


def make_edges(
    src: Ints,
    dst: Ints,
    kind: EdgeKind,
    key: Ints | int,
    a: Ints | int = NULL,
    b: Ints | int = NULL,
    layer: OrderLayer = OrderLayer.DATA,
) -> Edges:
    """Return edges of one kind, without edges from a transaction to itself."""
    count = len(src)
    given = (int(kind), int(layer), key, a, b)
    filled = (np.broadcast_to(np.asarray(column, np.int64), count) for column in given)
    return Edges(src, dst, *filled).at(src != dst)


def concat_edges(parts: list[Edges]) -> Edges:
    """Concatenate tables of edges."""
    empty = [np.empty(0, np.int64)]
    columns = [part.columns() for part in parts]
    width = Edges.width()
    return Edges(*(np.concatenate(empty + [c[i] for c in columns]) for i in range(width)))


# ---------------------------------------------------------------------------------------- relays

UP, DOWN, SINCE = 0, 1, 2  # by begin, in either direction; by first access
MISSING_UP, MISSING_DOWN = 3, 4  # to appends that no read has
PLACE_BITS, DIRECTION_BITS = 28, 3


def relay(key: Ints, place: Ints, direction: int) -> Ints:
    """Return the relay of a key that leads to its writers from some place up, or from there
    down."""
    number: Ints = -1 - ((key << PLACE_BITS | place) << DIRECTION_BITS | direction)
    return number


@dataclass(frozen=True)
class RelayChain:
    """The chain of each relay, and its nearness to the end of the chain: a relay leads to all
    relays of its chain that are at least as near."""

    chain: Ints
    nearness: Ints

    @classmethod
    def of(cls, relays: Ints) -> "RelayChain":
        number = -1 - relays
        direction = number & ((1 << DIRECTION_BITS) - 1)
        place = (number >> DIRECTION_BITS) & ((1 << PLACE_BITS) - 1)
        key = number >> (PLACE_BITS + DIRECTION_BITS)
        down = (direction == DOWN) | (direction == MISSING_DOWN)
        return cls(key << DIRECTION_BITS | direction, np.where(down, -place, place))


def relay_edges(key: Ints, place: Ints, op: Ints, value: Ints, direction: int) -> Edges:
    """Return edges from each place to its writer, and to the next place. Rows by key, then place
    from 0."""
    here = relay(key, place, direction)
    on = make_edges(here, op, EdgeKind.LINK, key, b=value)
    same = np.flatnonzero(key[1:] == key[:-1])
    behind, ahead = (same + 1, same) if direction in (DOWN, MISSING_DOWN) else (same, same + 1)
    return concat_edges([on, make_edges(here[behind], here[ahead], EdgeKind.LINK, key[same])])
