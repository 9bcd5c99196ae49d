"""Shapes of partitions: pure functions from nodes to sets of directed links.

A link `(source, sink)` in a set is cut: packets from `source` do not arrive at `sink`. The opposite
direction is a link of its own, so asymmetric partitions are sets like any other. The names are
Jepsen's (there a set is called a grudge). Every shape takes names in a stable order and a seeded
generator, so the same seed cuts the same links.

Shapes that divide nodes are graphs of networkx: the links that a partition into sides cuts are the
edges of a complete multipartite graph, and a majorities ring keeps a circulant graph. The library
takes 0.16 s to import, so only these shapes import it.
"""

from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx

Link = tuple[str, str]
Links = frozenset[Link]


def one_way(sources: Iterable[str], sinks: Iterable[str]) -> Links:
    """Cut what sources send to sinks; answers still pass."""
    sinks = tuple(sinks)
    return frozenset((a, b) for a in sources for b in sinks if a != b)


def sources_by_sink(links: Iterable[Link]) -> dict[str, list[str]]:
    """Return, for each node, the nodes from which links lead to it, all in order."""
    found: dict[str, list[str]] = {}
    for source, sink in sorted(links):
        found.setdefault(sink, []).append(source)
    return found


def have_link(a: Collection[str], b: Collection[str]) -> bool:
    """Return whether there is any link between the two groups."""
    return any(x != y for x in a for y in b)


def between(a: Iterable[str], b: Iterable[str]) -> Links:
    """Cut the two groups from each other in both directions."""
    a, b = tuple(a), tuple(b)
    return one_way(a, b) | one_way(b, a)


def cut_between_all(*sides: Sequence[str]) -> Links:
    """Cut every side from all others."""
    import networkx as nx

    return _both_ways(nx.complete_multipartite_graph(*sides))


def halves(nodes: Sequence[str], rng: Random) -> Links:
    """Divide the nodes into two sides of equal size; of an odd number, one side is a majority."""
    order = shuffled(nodes, rng)
    middle = len(order) // 2
    return cut_between_all(order[:middle], order[middle:])


def majority(nodes: Sequence[str], rng: Random) -> Links:
    """Cut the largest minority from a majority."""
    order = shuffled(nodes, rng)
    few = (len(order) - 1) // 2
    return cut_between_all(order[:few], order[few:])


def one(nodes: Sequence[str], rng: Random) -> Links:
    """Cut one node from all others."""
    order = shuffled(nodes, rng)
    return cut_between_all(order[:1], order[1:])


def bridge(nodes: Sequence[str], rng: Random) -> Links:
    """Divide the nodes into two sides, and one node that reaches both."""
    order = shuffled(nodes, rng)
    middle = len(order) // 2
    return cut_between_all(order[:middle], order[middle + 1 :])


def ring(nodes: Sequence[str], rng: Random) -> Links:
    """Majorities ring: every node reaches a majority, and no two reach the same one.

    On a shuffled ring each node keeps its nearest neighbours, equally many on both sides: the
    smallest odd window that is a majority. Links are cut in both directions, because TCP needs
    answers. Three nodes have no such ring.
    """
    import networkx as nx

    order = shuffled(nodes, rng)
    reach = (len(order) // 2 + 1) // 2
    kept = nx.circulant_graph(len(order), range(1, reach + 1))
    return _both_ways(nx.relabel_nodes(nx.complement(kept), dict(enumerate(order))))


def _both_ways(cut: "networkx.Graph") -> Links:
    return frozenset(cut.to_directed().edges)


def shuffled(nodes: Sequence[str], rng: Random) -> tuple[str, ...]:
    return tuple(rng.sample(nodes, len(nodes)))
