"""Shapes: pure functions from nodes to sets of directed links.

A link `(source, sink)` in a set is cut: what `source` sends does not arrive at `sink`. Nothing is
implied about the way back, so asymmetric partitions are sets like any other. The names are
Jepsen's (there a set is called a grudge). Every shape takes names in a stable order and a seeded
generator, so the same seed cuts the same links.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from random import Random

Link = tuple[str, str]
Links = frozenset[Link]


def one_way(sources: Iterable[str], sinks: Iterable[str]) -> Links:
    """What sources send to sinks is lost; answers still pass."""
    sinks = tuple(sinks)
    return frozenset((a, b) for a in sources for b in sinks if a != b)


def may_meet(a: Collection[str], b: Collection[str]) -> bool:
    """Whether there is any link between the two."""
    return any(x != y for x in a for y in b)


def between(a: Iterable[str], b: Iterable[str]) -> Links:
    """No packet passes between the two, either way. A node in both keeps its links to itself."""
    a, b = tuple(a), tuple(b)
    return one_way(a, b) | one_way(b, a)


def apart(*sides: Sequence[str]) -> Links:
    """Every side is an island."""
    return frozenset[Link]().union(*(between(a, b) for a, b in combinations(sides, 2)))


def halves(nodes: Sequence[str], rng: Random) -> Links:
    """Two islands of equal size; with an odd number, one of them has a majority."""
    order = shuffled(nodes, rng)
    middle = len(order) // 2
    return apart(order[:middle], order[middle:])


def majority(nodes: Sequence[str], rng: Random) -> Links:
    """The largest minority apart from a majority."""
    order = shuffled(nodes, rng)
    few = (len(order) - 1) // 2
    return apart(order[:few], order[few:])


def one(nodes: Sequence[str], rng: Random) -> Links:
    """One node apart from all the others."""
    order = shuffled(nodes, rng)
    return apart(order[:1], order[1:])


def bridge(nodes: Sequence[str], rng: Random) -> Links:
    """Two islands, and one node between them that sees both."""
    order = shuffled(nodes, rng)
    middle = len(order) // 2
    return apart(order[:middle], order[middle + 1 :])


def ring(nodes: Sequence[str], rng: Random) -> Links:
    """Majorities ring: every node sees a majority, and no two see the same one.

    On a shuffled ring each node keeps its nearest neighbours, as many on either side: the smallest
    odd window that is a majority. Links are cut both ways, because a majority that can hear but
    not answer is of no use to TCP. Three nodes have no such ring.
    """
    order = shuffled(nodes, rng)
    reach = (len(order) // 2 + 1) // 2
    far = range(reach + 1, len(order) - reach)
    return frozenset(
        (order[i], order[(i + step) % len(order)]) for i in range(len(order)) for step in far
    )


def shuffled(nodes: Sequence[str], rng: Random) -> tuple[str, ...]:
    return tuple(rng.sample(nodes, len(nodes)))
