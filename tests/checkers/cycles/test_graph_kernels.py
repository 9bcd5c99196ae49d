"""Kernels of the graph search against naive ones on random graphs."""

from itertools import pairwise
from random import Random

import networkx as nx
import numpy as np
import pytest

from checkers._cycles.arrays import NULL, Lookup, ranges
from checkers._cycles.branches import Lists, find_branches, in_common
from checkers._cycles.graph import Graph, Nodes, cycle_candidates, strong_components
from checkers._cycles.paths import ShortestPaths
from checkers._cycles.reach import Dag
from checkers._cycles.rows import Transactions

NOTHING = np.empty(0, np.int64)


def ints(numbers: object) -> np.ndarray:
    return np.array(list(numbers), np.int64)  # type: ignore[call-overload]


@pytest.mark.parametrize("seed", range(20))
def test_reachability_is_that_of_a_search(seed: int) -> None:
    """Of hundreds of pairs at once: a path of one edge or more leads there, or none does."""
    dice = Random(seed)
    size = dice.randint(2, 120)
    names = dice.sample(range(size), size)  # the order is not that of the numbers
    edges = [tuple(sorted(dice.sample(range(size), 2))) for _ in range(dice.randint(1, 2 * size))]
    edges = [(names[a], names[b]) for a, b in edges]
    truth = nx.DiGraph(edges)
    truth.add_nodes_from(range(size))
    dag = Dag.of(ints(a for a, _ in edges), ints(b for _, b in edges), size)
    starts = [dice.randrange(size) for _ in range(300)]
    goals = [[dice.randrange(size) for _ in range(dice.randint(0, 3))] for _ in starts]
    counts = ints(len(some) for some in goals)
    found = dag.reached(ints(starts), ints(g for some in goals for g in some), counts)
    below = {node: nx.descendants(truth, node) for node in range(size)}
    assert found.tolist() == [bool(below[s] & set(g)) for s, g in zip(starts, goals, strict=True)]


def test_a_cycle_is_no_dag() -> None:
    """It would never end, or answer wrongly."""
    with pytest.raises(ValueError, match="cycle"):
        Dag.of(ints([0, 1, 2]), ints([1, 2, 1]), 3)


def drawn(dice: Random) -> tuple[int, np.ndarray, np.ndarray]:
    size = dice.randint(2, 60)
    pairs = []
    for _ in range(dice.randint(1, 2 * size)):
        a = dice.randrange(size)
        b = min(size - 1, max(0, a + dice.choice([-2, -1, 1, 1, 2, 3, 5])))
        pairs += [(a, b)] if a != b else []
    return size, ints(a for a, _ in pairs), ints(b for _, b in pairs)


@pytest.mark.parametrize("seed", range(40))
def test_parts_are_the_strongly_connected_ones(seed: int) -> None:
    """As networkx finds them; and nothing on a cycle is filtered away, whatever the order."""
    dice = Random(seed)
    size, src, dst = drawn(dice)
    truth = nx.DiGraph(zip(src.tolist(), dst.tolist(), strict=True))
    strong = sorted(sorted(c) for c in nx.strongly_connected_components(truth) if len(c) > 1)
    found = strong_components(src, dst)
    inside = found.of_edge >= 0
    nodes = [
        sorted({*src[found.of_edge == n].tolist(), *dst[found.of_edge == n].tolist()})
        for n in range(found.count)
    ]
    assert nodes == strong
    zero = np.zeros(len(src), np.int64)
    graph = Graph(src, dst, zero, zero, zero, zero, zero, zero - 1, zero)
    order = ints(dice.sample(range(size), size) if seed % 2 else range(size))
    nobody = Transactions(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    kept = cycle_candidates(graph, Nodes(np.arange(size), nobody, order))
    assert set(np.flatnonzero(inside).tolist()) <= set(kept.tolist())


def test_the_filter_leaves_little_of_an_ordered_graph() -> None:
    """A chain of a thousand with one short way back: only what it spans is suspected."""
    src = np.append(np.arange(999), 510)
    dst = np.append(np.arange(1, 1000), 505)
    zero = np.zeros(1000, np.int64)
    graph = Graph(src, dst, zero, zero, zero, zero, zero, zero - 1, zero)
    nobody = Transactions(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    kept = cycle_candidates(graph, Nodes(np.arange(1000), nobody, np.arange(1000)))
    assert sorted({*src[kept].tolist(), *dst[kept].tolist()}) == list(range(505, 511))


@pytest.mark.parametrize("seed", range(20))
def test_a_witness_is_a_shortest_cycle(seed: int) -> None:
    """As long as the shortest that a search finds."""
    dice = Random(seed)
    _, src, dst = drawn(dice)
    found = strong_components(src, dst)
    for number in range(found.count):
        here = np.flatnonzero(found.of_edge == number)
        rows = ShortestPaths(src[here], dst[here], here, np.zeros(len(here), np.int64)).cycle()
        truth = nx.DiGraph(zip(src[here].tolist(), dst[here].tolist(), strict=True))
        back = nx.shortest_path_length
        assert len(rows) == min(back(truth, b, a) + 1 for a, b in truth.edges)
        ends = [(int(src[row]), int(dst[row])) for row in rows]
        assert all(a[1] == b[0] for a, b in zip(ends, [*ends[1:], ends[0]], strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_branches_are_the_lists_that_are_no_prefix(seed: int) -> None:
    """Every list is a beginning of its branch, and no branch is one of another."""
    dice = Random(seed)
    texts = [
        (dice.randrange(3), tuple(dice.randrange(2) for _ in range(dice.randint(0, 4))))
        for _ in range(dice.randint(0, 30))
    ]
    lists = Lists(
        ints(key for key, _ in texts),
        ints(len(text) for _, text in texts),
        ints(value for _, text in texts for value in text),
    )
    branch, of_branch = find_branches(lists)
    chosen = [texts[row] for row in of_branch.tolist()]
    for (key, text), number in zip(texts, branch.tolist(), strict=True):
        assert chosen[number][0] == key
        assert chosen[number][1][: len(text)] == text
    whole = {
        (key, text)
        for key, text in texts
        if not any(k == key and t != text and t[: len(text)] == text for k, t in texts)
    }
    assert sorted(chosen) == sorted(whole)
    common = in_common(lists, np.arange(len(texts) - 1), np.arange(1, len(texts)))
    for n, (a, b) in zip(common.tolist(), pairwise(texts), strict=True):
        same = [x == y for x, y in zip(a[1], b[1], strict=False)]
        assert n == (same.index(False) if False in same else len(same))


@pytest.mark.parametrize("far", [1, 1 << 40])
def test_lookups_find_the_first_of_equal_rows(far: int) -> None:
    """And nothing else, however far apart the values lie."""
    key, value = ints([3, 1, 3, 3]), ints([5, 5, -7, 5]) * far
    found = Lookup(key, value)
    asked = ints([3, 1, 3, 1, 3, 9]), ints([5, 5, -7, -7, 6, 5]) * far
    assert found.at(*asked).tolist() == [0, 1, 2, -1, -1, -1]
    assert found.at(ints([3]), ints([NULL])).tolist() == [-1]
    assert found.repeated.tolist() == [3]
    assert Lookup(NOTHING, NOTHING).at(key, value).tolist() == [-1] * 4


def test_ranges_of_nothing_are_nothing() -> None:
    """Segments may be empty, at either end too."""
    assert ranges(ints([5, 7, 9]), ints([0, 2, 0])).tolist() == [7, 8]
