"""Shapes of partitions, against networkx."""

from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemesis._network import shapes as _links
from nemesis._network.shapes import Links

SEEDS = st.integers(0, 2**32)


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def sees(count: int, cut: Links) -> "nx.Graph[str]":
    """The pairs of nodes that reach each other: a link must be open in both directions."""
    graph = nx.complete_graph(names(count))
    graph.remove_edges_from(cut)
    return graph


def islands(count: int, cut: Links) -> list[int]:
    return sorted(len(island) for island in nx.connected_components(sees(count, cut)))


def is_clique_of_islands(count: int, cut: Links) -> bool:
    """Whether inside each island nothing is cut."""
    graph = sees(count, cut)
    return all(
        graph.has_edge(a, b)
        for island in nx.connected_components(graph)
        for a in island
        for b in island
        if a != b
    )


@given(count=st.integers(2, 12), seed=SEEDS)
def test_halves_are_two_islands_of_equal_size(count: int, seed: int) -> None:
    """Two islands whose sizes differ by at most one, whole inside."""
    cut = _links.halves(names(count), Random(seed))
    assert islands(count, cut) == [count // 2, count - count // 2]
    assert is_clique_of_islands(count, cut)


@given(count=st.integers(3, 12), seed=SEEDS)
def test_majority_keeps_more_than_half_together(count: int, seed: int) -> None:
    """Two islands, one of which is a majority by as little as possible."""
    cut = _links.majority(names(count), Random(seed))
    small, large = islands(count, cut)
    assert large > count / 2
    assert large - 1 <= count / 2
    assert small + large == count


@given(count=st.integers(2, 12), seed=SEEDS)
def test_one_is_alone(count: int, seed: int) -> None:
    """One node reaches no other, the others reach each other."""
    cut = _links.one(names(count), Random(seed))
    assert islands(count, cut) == sorted([1, count - 1])
    assert is_clique_of_islands(count, cut)


@given(count=st.integers(3, 12), seed=SEEDS)
def test_a_bridge_holds_two_islands_together(count: int, seed: int) -> None:
    """Exactly one node reaches all others; without it the network has two components."""
    graph = sees(count, _links.bridge(names(count), Random(seed)))
    everybody = [node for node in graph if graph.degree(node) == count - 1]
    assert nx.is_connected(graph)
    assert len(everybody) == 1
    graph.remove_nodes_from(everybody)
    assert nx.number_connected_components(graph) == 2


@given(count=st.integers(4, 12), seed=SEEDS)
def test_ring_of_majorities(count: int, seed: int) -> None:
    """Every node reaches a majority, no two the same one, and all cuts are both ways."""
    cut = _links.ring(names(count), Random(seed))
    graph = sees(count, cut)
    views = [frozenset({node, *graph[node]}) for node in graph]
    assert all(len(view) > count / 2 for view in views)
    assert len(set(views)) == count
    assert cut == {(b, a) for a, b in cut}


def test_three_nodes_have_no_ring() -> None:
    """Among three nodes, a window that is a majority contains all of them."""
    assert not _links.ring(names(3), Random(1))


@given(st.sets(st.sampled_from(names(6))), st.sets(st.sampled_from(names(6))))
def test_between_cuts_both_ways_and_one_way_one(a: set[str], b: set[str]) -> None:
    """`between` is `one_way` there and back; a node never loses itself."""
    there = _links.one_way(a, b)
    assert there == {(x, y) for x in a for y in b if x != y}
    assert _links.between(a, b) == there | {(y, x) for x, y in there}


@pytest.mark.parametrize("shape", ["halves", "majority", "one", "bridge", "ring"])
def test_the_seed_decides(shape: str) -> None:
    """The same seed cuts the same links; among many seeds some differ."""
    draw = getattr(_links, shape)
    assert draw(names(7), Random(3)) == draw(names(7), Random(3))
    assert len({draw(names(7), Random(seed)) for seed in range(20)}) > 1
