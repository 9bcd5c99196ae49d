"""Root causes: the graph is peeled from the weakest promise upwards; what is reported is removed.

On each layer (what was read, then the order of processes, then real time) the graph is searched in
four steps, each with more cycles than the one before:

    WRITES   ww         a cycle is G0
    READS    ww wr      a cycle is G1c
    APART    ww wr rw   no two adjacent rw: G-single with one of them, else G-nonadjacent
    ANY      ww wr rw   a cycle is G2

A root cause is one of these, and is then removed so that it does not count again at a stronger
level:

    LOST_APPEND   a committed append that no read has, and that some reader or later writer of its
                  list came after; removed with all edges to it. On a cycle with other causes it is
                  the root cause if one of those began after it ended
    G_SINGLE      a transaction that read a version replaced by a transaction that it depends on;
                  removed with its rw edges of those keys
    the others    a strongly connected component, whatever the number of cycles in it; removed with
                  all edges within it that depend on what was read. Edges of one observation (that a
                  list ended, that a register had no value) go together, if one is within

The order of processes and real time are never a cause: these edges are not removed.

At the first level that a history violates nothing has been removed before. So the counts are exact
and do not depend on the order of anything, and a stronger contract never excuses a history.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import product

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup, ranges
from checkers._cycles.edges import EdgeKind, OrderLayer, RelayChain
from checkers._cycles.graph import (
    NO_ENTRY,
    Graph,
    ListTails,
    Nodes,
    cycle_candidates,
    strong_components,
)
from checkers._cycles.lists import TailRows
from checkers._cycles.paths import GraphPaths, Hop
from checkers._cycles.reach import Dag


class AnomalyStep(IntEnum):
    WRITES = 0
    READS = 1
    APART = 2
    ANY = 3


MAX_EXAMPLES = 20
WHOLE = {
    AnomalyStep.WRITES: "G0",
    AnomalyStep.READS: "G1C",
    AnomalyStep.APART: "G_NONADJACENT",
    AnomalyStep.ANY: "G2_ITEM",
}
ALWAYS = (EdgeKind.LINK, EdgeKind.PROCESS, EdgeKind.REALTIME)
KINDS = {
    AnomalyStep.WRITES: (EdgeKind.WW, *ALWAYS),
    AnomalyStep.READS: (EdgeKind.WW, EdgeKind.WR, *ALWAYS),
    AnomalyStep.APART: (EdgeKind.WW, EdgeKind.WR, EdgeKind.RW, *ALWAYS),
    AnomalyStep.ANY: (EdgeKind.WW, EdgeKind.WR, EdgeKind.RW, *ALWAYS),
}


@dataclass(frozen=True)
class CycleExample:
    """A cycle, and a shorter proof by time, if there is one."""

    cycle: list[Hop]
    by_time: list[Hop] = field(default_factory=list)


@dataclass
class Causes:
    """One kind of anomaly at one step of one layer: the number of causes, and some examples."""

    code: str
    layer: OrderLayer
    step: AnomalyStep
    count: int = 0
    examples: list[CycleExample] = field(default_factory=list)


@dataclass(frozen=True)
class OnCycles:
    """Rows of edges on cycles, and their components. `src` and `dst` are as the step sees them."""

    rows: Ints
    src: Ints
    dst: Ints
    part: Ints
    count: int


@dataclass(frozen=True)
class AppendGoals:
    """Missing appends, the nodes of their transactions, and for each the nodes of some goals, one
    after another, with the last values that those know."""

    entries: Ints
    start: Ints
    goals: Ints
    values: Ints
    counts: Ints

    @property
    def number(self) -> Ints:
        """For each goal, the row of its append."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True)
class RelayPaths:
    """Edges to relays, and edges from relays to nodes: their rows, and the relays. The latter are
    sorted, nearest to the end of a chain first."""

    rows: Ints
    relays: RelayChain
    last_rows: Ints
    last_relays: RelayChain

    @classmethod
    def of(cls, graph: Graph, nodes: Nodes) -> "RelayPaths":
        src, dst = nodes.ids[graph.src], nodes.ids[graph.dst]
        rows = np.flatnonzero((dst < 0) & (graph.kind != EdgeKind.LINK))
        last = np.flatnonzero((src < 0) & (dst >= 0))
        last = last[np.argsort(-RelayChain.of(src[last]).nearness, kind="stable")]
        return cls(rows, RelayChain.of(dst[rows]), last, RelayChain.of(src[last]))

    def within(self, graph: Graph, alive: Bools, members: list[Ints]) -> Bools:
        """Return the edges that lead from a member of a component, by relays, to a member of the
        same one."""
        found = np.zeros(len(graph), np.bool_)
        there = alive[self.last_rows]
        chain, nearness = self.last_relays.chain[there], self.last_relays.nearness[there]
        for one, other in product(members, members):
            nearest = Lookup(chain, other[graph.dst[self.last_rows[there]]])
            part = one[graph.src[self.rows]]
            last = nearest.at(self.relays.chain, part)
            leads = (part >= 0) & (last >= 0)
            leads[leads] = nearness[last[leads]] >= self.relays.nearness[leads]
            found[self.rows[leads]] = True
        return found


class Peeling:
    """The remaining edges, in node numbers."""

    def __init__(self, found: Graph, nodes: Nodes, ending: ListTails) -> None:
        here = cycle_candidates(found, nodes)
        stuck = strong_components(found.src[here], found.dst[here]).of_edge >= 0
        self.graph = found.at(here[stuck])
        self.nodes, self.ending = nodes, ending
        self.ways = GraphPaths(self.graph, nodes)
        self.alive = np.ones(len(self.graph), np.bool_)
        self.lasting = np.isin(self.graph.kind, ALWAYS)
        self.shared = RelayPaths.of(self.graph, nodes)
        self.causes: list[Causes] = []

    def run(self, top: OrderLayer) -> list[Causes]:
        for layer in OrderLayer:
            for step in AnomalyStep:
                if layer <= top and self.alive.any() and self._on_cycles(layer, step).count:
                    self._peel(layer, step)
                if layer is OrderLayer.DATA and step is AnomalyStep.WRITES:
                    self._forget_known()
        return [causes for causes in self.causes if causes.count]

    def _peel(self, layer: OrderLayer, step: AnomalyStep) -> None:
        if step <= AnomalyStep.READS:
            self._whole(layer, step, missing=False)
        self._overdue(layer, step)
        if step is not AnomalyStep.ANY:
            self._lost(layer, step)
        if step is AnomalyStep.APART:
            self._single(layer)
        self._whole(layer, step)

    # ---------------------------------------------------------------------------------- cycles

    def _edges(self, layer: OrderLayer, step: AnomalyStep, missing: bool = True) -> Ints:
        """Return the rows of the remaining edges that count at this step, on this layer and
        below."""
        g = self.graph
        mask = self.alive & (g.layer <= layer) & np.isin(g.kind, KINDS[step])
        return np.flatnonzero(mask if missing else mask & (g.missing == 0))

    def _on_cycles(self, layer: OrderLayer, step: AnomalyStep, missing: bool = True) -> OnCycles:
        """Return the edges on the cycles of a step."""
        rows = self._edges(layer, step, missing)
        src, dst = self.graph.src[rows], self.graph.dst[rows]
        if step is AnomalyStep.APART:
            rows, src, dst = self._doubled(rows)
        found = strong_components(src, dst)
        inside = found.of_edge >= 0
        return OnCycles(rows[inside], src[inside], dst[inside], found.of_edge[inside], found.count)

    def _doubled(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the edges of a graph with two nodes for each: reached by rw, or otherwise. No rw
        leads on from the first, so its cycles are those without two adjacent rw."""
        g = self.graph
        anti, on = g.kind[rows] == EdgeKind.RW, g.kind[rows] == EdgeKind.LINK
        src, dst = 2 * g.src[rows], 2 * g.dst[rows]
        return (
            np.concatenate([rows, rows[~anti]]),
            np.concatenate([src, src[~anti] + 1]),
            np.concatenate([np.where(anti, dst + 1, dst), dst[~anti] + on[~anti]]),
        )

    def _whole(self, layer: OrderLayer, step: AnomalyStep, *, missing: bool = True) -> None:
        """Count each strongly connected component as a cause, and remove all edges within it."""
        found = self._on_cycles(layer, step, missing)
        if not found.count:
            return
        causes = self._causes(WHOLE[step], layer, step, found.count)
        for number in range(min(found.count, MAX_EXAMPLES)):
            here = found.part == number
            cycle = self.ways.cycle(found.rows[here], found.src[here], found.dst[here])
            causes.examples.append(CycleExample(cycle))
        members = self._members(found, doubled=step is AnomalyStep.APART)
        within = np.zeros(len(self.graph), np.bool_)
        for one, other in product(members, members):
            part = one[self.graph.src]
            within |= (part >= 0) & (part == other[self.graph.dst])
        self.alive &= self.lasting | ~(within | self.shared.within(self.graph, self.alive, members))

    def _members(self, found: OnCycles, *, doubled: bool) -> list[Ints]:
        """Return the component of each node, or -1; in a doubled graph a node can be in two."""
        members = [np.full(len(self.nodes.ids), -1, np.int64) for _ in range(1 + doubled)]
        for points in (found.src, found.dst):
            for state, of_node in enumerate(members):
                here = points % len(members) == state
                of_node[points[here] // len(members)] = found.part[here]
        return members

    # ---------------------------------------------------------------------------- lost appends

    def _forget_known(self) -> None:
        """Remove appends that are already recorded as lost: only a violation of a weaker level is
        new."""
        self._take_out(np.flatnonzero(self.ending.missing.known))

    def _overdue(self, layer: OrderLayer, step: AnomalyStep) -> None:
        """Count missing appends on a cycle that ended before a transaction began that misses
        them."""
        found = self._on_cycles(layer, step)
        pending = self._pending_appends(found, self._who_knows(both=True))
        if not len(pending.entries):
            return
        when = self.nodes.transactions
        late = when.end[np.repeat(pending.start, pending.counts)] < when.begin[pending.goals]
        lost = np.bincount(pending.number[late], minlength=len(pending.counts)) > 0
        causes = self._causes("LOST_APPEND", layer, step, int(lost.sum()))
        rows = np.unique(found.rows)
        for row in np.flatnonzero(lost)[:MAX_EXAMPLES].tolist():
            first = int(np.flatnonzero((pending.number == row) & late)[0])
            start = int(pending.start[row])
            by_time = [
                self.ways.after(start, int(pending.goals[first])),
                self._overlooked(pending, row, first),
            ]
            causes.examples.append(
                CycleExample(self._around(rows, pending, row) or by_time, by_time)
            )
        self._take_out(pending.entries[lost])

    def _lost(self, layer: OrderLayer, step: AnomalyStep) -> None:
        """Count missing appends that came before a transaction that knows all known elements of the
        list."""
        anti = step is AnomalyStep.APART
        pending = self._pending_appends(self._on_cycles(layer, step), self._who_knows(readers=anti))
        base = self._edges(layer, AnomalyStep.READS) if anti else self._edges(layer, step, False)
        lost = self._reached(base, pending.start, pending.goals, pending.counts)
        causes = self._causes("LOST_APPEND", layer, step, int(lost.sum()))
        for row in np.flatnonzero(lost)[:MAX_EXAMPLES].tolist():
            causes.examples.append(CycleExample(self._around(base, pending, row)))
        self._take_out(pending.entries[lost])

    def _who_knows(self, *, readers: bool = False, both: bool = False) -> TailRows:
        """Return the transactions at the ends of lists, by key: readers, or writers."""
        ends = self.ending.readers if readers else self.ending.writers
        if both:
            pairs = zip(self.ending.readers.columns(), self.ending.writers.columns(), strict=True)
            ends = TailRows(*(np.concatenate(pair) for pair in pairs))
        return ends.at(np.argsort(ends.key, kind="stable"))

    def _pending_appends(self, found: OnCycles, ends: TailRows) -> AppendGoals:
        """Return the missing appends on these cycles, and the transactions that would come after
        each."""
        entry = self.graph.entry[found.rows]
        entries = np.unique(entry[entry != NO_ENTRY])
        key = self.ending.missing.key[entries]
        low = np.searchsorted(ends.key, key)
        count = np.searchsorted(ends.key, key, side="right") - low
        goals = ends.at(ranges(low, count))
        start = self._node(self.ending.missing.op[entries])
        return AppendGoals(entries, start, self._node(goals.op), goals.value, count)

    def _around(self, base: Ints, pending: AppendGoals, row: int) -> list[Hop]:
        """Return the path from a missing append's transaction to one that misses it, and back."""
        start = int(pending.start[row])
        mine = np.flatnonzero((pending.number == row) & (pending.goals != start))
        path = self.ways.path(base, start, pending.goals[mine])
        if not path:
            return []
        goal = mine[self.nodes.ids[pending.goals[mine]] == path[-1].dst]
        return [*path, self._overlooked(pending, row, int(goal[0]))]

    def _overlooked(self, pending: AppendGoals, row: int, goal: int) -> Hop:
        missing, entry = self.ending.missing, pending.entries[row]
        node, key = pending.goals[goal], missing.key[entry]
        op = int(self.nodes.ids[node])
        readers = self.ending.readers
        read = bool(((readers.key == key) & (readers.op == op)).any())
        kind = EdgeKind.RW if read else EdgeKind.WW
        known, value = int(pending.values[goal]), int(missing.value[entry])
        return Hop(op, int(missing.op[entry]), kind, int(key), known, value)

    def _take_out(self, entries: Ints) -> None:
        gone = np.zeros(len(self.ending.missing) + 1, np.bool_)
        gone[entries] = True
        self.alive &= ~gone[self.graph.entry]

    # ------------------------------------------------------------------------------ single rw

    def _single(self, layer: OrderLayer) -> None:
        """Count reads of versions that were replaced by a transaction that the reader depends
        on."""
        g, when = self.graph, self.nodes.transactions
        base = self._edges(layer, AnomalyStep.READS)
        rows = self._anti_on_cycles(layer)
        late = rows[:0]
        if layer is OrderLayer.REALTIME:  # most of them are decided by time, without a search
            known = rows[g.dst[rows] < len(when)]
            late = known[when.end[g.dst[known]] < when.begin[g.src[known]]]
            self._outdated(layer, late, base, by_time=True)
            rows = self._anti_on_cycles(layer)
        one = np.ones(len(rows), np.int64)
        closed = rows[self._reached(base, g.dst[rows], g.src[rows], one)]
        reported = np.isin(g.src[closed], g.src[late])
        self._outdated(layer, closed[~reported], base, by_time=False)
        self._forget_reads(closed[reported])

    def _anti_on_cycles(self, layer: OrderLayer) -> Ints:
        rows = np.unique(self._on_cycles(layer, AnomalyStep.APART).rows)
        anti: Ints = rows[self.graph.kind[rows] == EdgeKind.RW]
        return anti

    def _outdated(self, layer: OrderLayer, rows: Ints, base: Ints, *, by_time: bool) -> None:
        """Report these rw edges by their readers, and remove them."""
        g = self.graph
        readers, first = np.unique(g.src[rows], return_index=True)
        causes = self._causes("G_SINGLE", layer, AnomalyStep.APART, len(readers))
        for row in rows[first][:MAX_EXAMPLES].tolist():
            src, dst = int(g.src[row]), int(g.dst[row])
            if by_time:
                cycle = [*self.ways.hops([row]), self.ways.after(dst, src)]
            else:
                cycle = self.ways.hops([row, *self.ways.rows(base, dst, g.src[[row]])])
            causes.examples.append(CycleExample(cycle))
        self._forget_reads(rows)

    def _forget_reads(self, rows: Ints) -> None:
        """Remove all rw edges of these readers and keys."""
        g = self.graph
        keys = int(g.key.max()) + 2
        reported = np.unique(g.src[rows] * keys + g.key[rows])
        self.alive &= ~((g.kind == EdgeKind.RW) & np.isin(g.src * keys + g.key, reported))

    # ------------------------------------------------------------------------------------------

    def _reached(self, base: Ints, start: Ints, goals: Ints, counts: Ints) -> Bools:
        """Return for each start whether a path of base edges leads to any of its goals."""
        if not len(start):
            return np.zeros(0, np.bool_)
        src, dst = self.graph.src[base], self.graph.dst[base]
        points, compact = np.unique(np.concatenate([src, dst, start, goals]), return_inverse=True)
        a, b, c, d = np.split(compact, np.cumsum([len(src), len(dst), len(start)]))
        return Dag.of(a, b, len(points)).reached(c, d, counts)

    def _node(self, op: Ints) -> Ints:
        nodes: Ints = np.searchsorted(self.nodes.transactions.op, op)
        return nodes

    def _causes(self, code: str, layer: OrderLayer, step: AnomalyStep, count: int) -> Causes:
        """Return the causes of this kind, increased by `count`."""
        for causes in self.causes:
            if (causes.code, causes.layer, causes.step) == (code, layer, step):
                break
        else:
            causes = Causes(code, layer, step)
            self.causes.append(causes)
        causes.count += count
        return causes
