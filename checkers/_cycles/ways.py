"""Ways through the graph: shortest cycles and paths, as dependencies between transactions."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from checkers._cycles.arrays import NULL, Ints
from checkers._cycles.edges import Kind
from checkers._cycles.graph import Graph, Nodes

FREE = 2.0**-30  # the length of an edge onwards from a relay
MOST_STARTS = 256  # of larger parts only so many nodes are tried
UNREACHED = -9999  # scipy's word for a node without predecessor


@dataclass(frozen=True)
class Hop:
    """One dependency: `src` came before `dst`, both operations."""

    src: int
    dst: int
    kind: Kind
    key: int
    a: int
    b: int


class Roads:
    """Edges to look for short paths in; `row`: what each edge is called by its owner."""

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
        self._matrix = csr_array((length, self._dst, heads), shape=(size, size))

    def cycle(self) -> list[int]:
        """The rows of a shortest cycle."""
        best, closing = np.inf, -1
        for start in range(min(len(self._points), MOST_STARTS)):
            into = np.flatnonzero(self._dst == start)
            if not len(into):
                continue
            away = dijkstra(self._matrix, indices=start, limit=best)
            total = away[self._src[into]] + self._length[into]
            least = int(np.argmin(total))
            if total[least] < best:
                best, closing = float(total[least]), int(into[least])
        if closing < 0:
            return []
        start, end = int(self._dst[closing]), int(self._src[closing])
        return [*self._path(start, end), int(self._row[closing])]

    def path(self, start: int, goals: Ints) -> list[int]:
        """The rows of a shortest path from a node to the nearest of some others."""
        there = goals[np.isin(goals, self._points)]
        at = np.searchsorted(self._points, [start, *there])
        away = dijkstra(self._matrix, indices=int(at[0]))
        nearest = at[1:][int(np.argmin(away[at[1:]]))]
        return self._path(int(at[0]), int(nearest))

    def _path(self, start: int, end: int) -> list[int]:
        _, before = dijkstra(self._matrix, indices=start, return_predecessors=True)
        rows: list[int] = []
        node = end
        while node != start:
            previous = int(before[node])
            if previous == UNREACHED:
                return []
            low, high = self._matrix.indptr[previous : previous + 2]
            at = low + int(np.flatnonzero(self._matrix.indices[low:high] == node)[0])
            rows.append(int(self._row[at]))
            node = previous
        return rows[::-1]


class Ways:
    """Ways along some rows of a graph."""

    def __init__(self, graph: Graph, nodes: Nodes) -> None:
        self._graph, self._nodes = graph, nodes

    def cycle(self, rows: Ints, src: Ints, dst: Ints) -> list[Hop]:
        """A shortest cycle of edges between these points, whatever the points are."""
        return self.hops(self._roads(rows, src, dst).cycle())

    def path(self, rows: Ints, start: int, goals: Ints) -> list[Hop]:
        """A shortest path from a node to the nearest of some others; empty when there is none."""
        return self.hops(self.rows(rows, start, goals))

    def rows(self, base: Ints, start: int, goals: Ints) -> list[int]:
        g = self._graph
        return self._roads(base, g.src[base], g.dst[base]).path(start, goals)

    def after(self, first: int, second: int) -> Hop:
        """One transaction had ended before another began."""
        ids = self._nodes.ids
        return Hop(int(ids[first]), int(ids[second]), Kind.REALTIME, -1, NULL, NULL)

    def hops(self, rows: list[int]) -> list[Hop]:
        """Edges one after the other, as dependencies: what goes through relays is one."""
        g, ids, count = self._graph, self._nodes.ids, len(self._nodes.transactions)
        leaves = [i for i, row in enumerate(rows) if g.src[row] < count]
        if not leaves:
            return []
        hops: list[Hop] = []
        for row in rows[leaves[0] :] + rows[: leaves[0]]:
            end, b = int(ids[g.dst[row]]), int(g.b[row])
            if g.src[row] < count:
                kind = Kind(int(g.kind[row]))
                start, key, a = int(ids[g.src[row]]), int(g.key[row]), int(g.a[row])
            else:
                hops.pop()
            hops.append(Hop(start, end, kind, key, a, b))
        return hops

    def _roads(self, rows: Ints, src: Ints, dst: Ints) -> Roads:
        free = (self._graph.kind[rows] == Kind.LINK).astype(np.int64)
        return Roads(src, dst, rows, free)
