"""Edges: who came before whom, and what was seen that says so.

`src` and `dst` are operations; negative numbers are *relays*, points that many edges share: one to
all writers from some place on, for instance. A path through relays is one dependency, of the kind
of its first edge. `a` is the value that came before and `b` the one that came after, NULL where
there is none. `layer` is the least promise that makes it an edge.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from checkers._cycles.arrays import NULL, Ints
from checkers._cycles.rows import Columns


class Kind(IntEnum):
    WW = 0
    WR = 1
    RW = 2
    LINK = 3  # onwards from a relay
    PROCESS = 4
    REALTIME = 5


class Layer(IntEnum):
    """What the edges of a graph rest on."""

    DATA = 0  # on what was read alone
    PROCESS = 1  # ... and on the order of each process
    REALTIME = 2  # ... and on real time


@dataclass(frozen=True)
class Edges(Columns):
    src: Ints
    dst: Ints
    kind: Ints
    layer: Ints
    key: Ints
    a: Ints
    b: Ints


def edges(
    src: Ints,
    dst: Ints,
    kind: Kind,
    key: Ints | int,
    a: Ints | int = NULL,
    b: Ints | int = NULL,
    layer: Layer = Layer.DATA,
) -> Edges:
    """Edges of one kind; none from a transaction to itself."""
    count = len(src)
    given = (int(kind), int(layer), key, a, b)
    filled = (np.broadcast_to(np.asarray(column, np.int64), count) for column in given)
    return Edges(src, dst, *filled).at(src != dst)


def together(parts: list[Edges]) -> Edges:
    empty = [np.empty(0, np.int64)]
    columns = [part.columns() for part in parts]
    width = Edges.width()
    return Edges(*(np.concatenate(empty + [c[i] for c in columns]) for i in range(width)))


# ---------------------------------------------------------------------------------------- relays

UP, DOWN, SINCE = 0, 1, 2  # by when they began, either way; by when they were touched first
MISSING_UP, MISSING_DOWN = 3, 4  # to appends that no read shows
PLACE_BITS, DIRECTION_BITS = 28, 3


def relay(key: Ints, place: Ints, direction: int) -> Ints:
    """The relay of a key that leads to its writers from some place up, or from there down."""
    number: Ints = -1 - ((key << PLACE_BITS | place) << DIRECTION_BITS | direction)
    return number


@dataclass(frozen=True)
class Chained:
    """Of some relays: the chain that each is on, and how near it is to the end that the chain
    leads to: whoever is on a chain leads to all that are as near or nearer."""

    chain: Ints
    nearness: Ints

    @classmethod
    def of(cls, relays: Ints) -> "Chained":
        number = -1 - relays
        direction = number & ((1 << DIRECTION_BITS) - 1)
        place = (number >> DIRECTION_BITS) & ((1 << PLACE_BITS) - 1)
        key = number >> (PLACE_BITS + DIRECTION_BITS)
        down = (direction == DOWN) | (direction == MISSING_DOWN)
        return cls(key << DIRECTION_BITS | direction, np.where(down, -place, place))


def relays(key: Ints, place: Ints, op: Ints, value: Ints, direction: int) -> Edges:
    """From each place to its writer, and to the next place. Rows by key, then by place from 0."""
    here = relay(key, place, direction)
    on = edges(here, op, Kind.LINK, key, b=value)
    same = np.flatnonzero(key[1:] == key[:-1])
    behind, ahead = (same + 1, same) if direction in (DOWN, MISSING_DOWN) else (same, same + 1)
    return together([on, edges(here[behind], here[ahead], Kind.LINK, key[same])])
