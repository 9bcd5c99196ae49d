"""Shortest cycles and paths in the graph, as dependencies between transactions."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers._cycles.arrays import NULL, Ints
from checkers._cycles.edges import EdgeKind
from checkers._cycles.graph import Graph, Nodes

FREE = 2.0**-30  # the length of an edge from a relay on
MAX_STARTS = 256  # in larger components, only this many nodes are tried


@dataclass(frozen=True)
class Hop:
    """One dependency: `src` came before `dst`, both operations."""

    src: int
    dst: int
    kind: EdgeKind
    key: int
    a: int
    b: int


class ShortestPaths:
    """Shortest paths along some edges; `row`: the caller's number of each edge."""

    def __init__(self, src: Ints, dst: Ints, row: Ints, free: Ints) -> None:
        order = np.lexsort((row, dst, src))
        src, dst, row, free = src[order], dst[order], row[order], free[order]
        first = np.ones(len(src), np.bool_)
        first[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
        self._points = np.unique(np.concatenate([src, dst]))
        self._src = np.searchsorted(self._points, src[first])
        self._dst = np.searchsorted(self._points, dst[first])
        self._row = row[first]
        length = np.where(free[first] != 0, FREE, 1.0)
        self._length = length
        size = len(self._points)
        heads = np.concatenate([[0], np.cumsum(np.bincount(self._src, minlength=size))])
        from scipy.sparse import csr_array  # slow to import, and most judged runs have no cycles

        self._matrix = csr_array((length, self._dst, heads), shape=(size, size))

    def cycle(self) -> list[int]:
        """Return the rows of a shortest cycle."""
        best, closing = np.inf, -1
        for start in range(min(len(self._points), MAX_STARTS)):
            into = np.flatnonzero(self._dst == start)
            if not len(into):
                continue
            away = self._distances(indices=start, limit=best)
            total = away[self._src[into]] + self._length[into]
            least = int(np.argmin(total))
            if total[least] < best:
                best, closing = float(total[least]), int(into[least])
        if closing < 0:
            return []
        start, end = int(self._dst[closing]), int(self._src[closing])
        return [*self._path(start, end), int(self._row[closing])]

    def path(self, start: int, goals: Ints) -> list[int]:
        """Return the rows of a shortest path from a node to the nearest of some others."""
        there = goals[np.isin(goals, self._points)]
        at = np.searchsorted(self._points, [start, *there])
        away = self._distances(indices=int(at[0]))
        nearest = at[1:][int(np.argmin(away[at[1:]]))]
        return self._path(int(at[0]), int(nearest))

    def _distances(self, **options: Any) -> Any:
        from scipy.sparse.csgraph import dijkstra

        return dijkstra(self._matrix, **options)

    def _path(self, start: int, end: int) -> list[int]:
        """Return the rows of a shortest path; empty if there is none.

        Distances are computed on all edges; the path follows the predecessors from its end.
        """
        away, before = self._distances(indices=start, return_predecessors=True)
        if not np.isfinite(away[end]):
            return []
        rows: list[int] = []
        node = end
        while node != start:
            previous = int(before[node])
            rows.append(self._row_of(previous, node))
            node = previous
        return rows[::-1]

    def _row_of(self, src: int, dst: int) -> int:
        low, high = self._matrix.indptr[src : src + 2]
        at = low + int(np.searchsorted(self._matrix.indices[low:high], dst))
        return int(self._row[at])


class GraphPaths:
    """Paths along some rows of a graph."""

    def __init__(self, graph: Graph, nodes: Nodes) -> None:
        self._graph, self._nodes = graph, nodes

    def cycle(self, rows: Ints, src: Ints, dst: Ints) -> list[Hop]:
        """Return a shortest cycle of edges between these nodes."""
        return self.hops(self._roads(rows, src, dst).cycle())

    def path(self, rows: Ints, start: int, goals: Ints) -> list[Hop]:
        """Return a shortest path from a node to the nearest of some others; empty if there is
        none."""
        return self.hops(self.rows(rows, start, goals))

    def rows(self, base: Ints, start: int, goals: Ints) -> list[int]:
        g = self._graph
        return self._roads(base, g.src[base], g.dst[base]).path(start, goals)

    def after(self, first: int, second: int) -> Hop:
        """Return the dependency that one transaction ended before another began."""
        ids = self._nodes.ids
        return Hop(int(ids[first]), int(ids[second]), EdgeKind.REALTIME, -1, NULL, NULL)

    def hops(self, rows: list[int]) -> list[Hop]:
        """Return adjacent edges as dependencies; edges through relays become one."""
        g, ids, count = self._graph, self._nodes.ids, len(self._nodes.transactions)
        leaves = [i for i, row in enumerate(rows) if g.src[row] < count]
        if not leaves:
            return []
        hops: list[Hop] = []
        for row in rows[leaves[0] :] + rows[: leaves[0]]:
            end, b = int(ids[g.dst[row]]), int(g.b[row])
            if g.src[row] < count:
                kind = EdgeKind(int(g.kind[row]))
                start, key, a = int(ids[g.src[row]]), int(g.key[row]), int(g.a[row])
            else:
                hops.pop()
            hops.append(Hop(start, end, kind, key, a, b))
        return hops

    def _roads(self, rows: Ints, src: Ints, dst: Ints) -> ShortestPaths:
        free = (self._graph.kind[rows] == EdgeKind.LINK).astype(np.int64)
        return ShortestPaths(src, dst, rows, free)
