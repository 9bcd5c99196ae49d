"""Root causes: the graph is peeled from the weakest promise upwards, and what is told is taken out.

For each layer (what was read alone, then the order of processes, then real time) the graph is
looked at in four steps, each with more cycles in it than the one before:

    WRITES   ww         a cycle is G0
    READS    ww wr      a cycle is G1c
    APART    ww wr rw   no rw next to another: G-single with one of them, else G-nonadjacent
    ANY      ww wr rw   a cycle is G2

What counts as one cause, and is then taken out of the graph so that nothing stronger counts again:

    LOST_APPEND   a committed append that no read shows, and that some reader or later writer of its
                  list came after; with it all edges to it. On a cycle with other things it is the
                  one to blame if one of those had begun after it had ended
    G_SINGLE      a transaction that read something which had been replaced by one that it depends
                  on; with it its rw edges of those keys
    the others    a strongly connected part of the graph, whatever the number of cycles in it; with
                  it all edges within it that rest on what was read. Edges of one observation (that
                  a list ended, that a register had no value) go together, if one is within

The order of processes and of time is never to blame: it is not taken out.

At the first level that a history offends nothing has been taken out before. So the counts are
exact and do not depend on the order of anything, and a stronger contract never excuses a history.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import product

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup, ranges
from checkers._cycles.edges import Chained, Kind, Layer
from checkers._cycles.graph import NO_ENTRY, Ending, Graph, Nodes, parts, suspects
from checkers._cycles.lists import Ends
from checkers._cycles.reach import Dag
from checkers._cycles.ways import Hop, Ways


class Step(IntEnum):
    WRITES = 0
    READS = 1
    APART = 2
    ANY = 3


MOST_SHOWN = 20
WHOLE = {Step.WRITES: "G0", Step.READS: "G1C", Step.APART: "G_NONADJACENT", Step.ANY: "G2_ITEM"}
ALWAYS = (Kind.LINK, Kind.PROCESS, Kind.REALTIME)
KINDS = {
    Step.WRITES: (Kind.WW, *ALWAYS),
    Step.READS: (Kind.WW, Kind.WR, *ALWAYS),
    Step.APART: (Kind.WW, Kind.WR, Kind.RW, *ALWAYS),
    Step.ANY: (Kind.WW, Kind.WR, Kind.RW, *ALWAYS),
}


@dataclass(frozen=True)
class Shown:
    """A cycle, and what shows the same at a glance by the clock, if anything does."""

    cycle: list[Hop]
    by_time: list[Hop] = field(default_factory=list)


@dataclass
class Causes:
    """One kind of anomaly at one step of one layer: how many causes, and some of them shown."""

    code: str
    layer: Layer
    step: Step
    count: int = 0
    shown: list[Shown] = field(default_factory=list)


@dataclass(frozen=True)
class OnCycles:
    """Rows of edges on cycles, and the parts they are in. `src` and `dst` are as the step sees
    them."""

    rows: Ints
    src: Ints
    dst: Ints
    part: Ints
    count: int


@dataclass(frozen=True)
class Asked:
    """Missing appends, the nodes of their transactions, and of each the nodes of some goals, one
    after the other, with the last values that those know."""

    entries: Ints
    start: Ints
    goals: Ints
    values: Ints
    counts: Ints

    @property
    def number(self) -> Ints:
        """Of each goal, the row of the append that it belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True)
class Shared:
    """Edges to relays, and those from relays to the nodes at last: their rows, and the relays. The
    latter are sorted, nearest to the end of a chain first."""

    rows: Ints
    relays: Chained
    last_rows: Ints
    last_relays: Chained

    @classmethod
    def of(cls, graph: Graph, nodes: Nodes) -> "Shared":
        src, dst = nodes.ids[graph.src], nodes.ids[graph.dst]
        rows = np.flatnonzero((dst < 0) & (graph.kind != Kind.LINK))
        last = np.flatnonzero((src < 0) & (dst >= 0))
        last = last[np.argsort(-Chained.of(src[last]).nearness, kind="stable")]
        return cls(rows, Chained.of(dst[rows]), last, Chained.of(src[last]))

    def within(self, graph: Graph, alive: Bools, members: list[Ints]) -> Bools:
        """Which edges lead from a member of a part, by relays, to one of the same part."""
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
    """The edges that are left, in node numbers."""

    def __init__(self, found: Graph, nodes: Nodes, ending: Ending) -> None:
        here = suspects(found, nodes)
        stuck = parts(found.src[here], found.dst[here]).of_edge >= 0
        self.graph = found.at(here[stuck])
        self.nodes, self.ending = nodes, ending
        self.ways = Ways(self.graph, nodes)
        self.alive = np.ones(len(self.graph), np.bool_)
        self.lasting = np.isin(self.graph.kind, ALWAYS)
        self.shared = Shared.of(self.graph, nodes)
        self.causes: list[Causes] = []

    def run(self, top: Layer) -> list[Causes]:
        for layer in Layer:
            for step in Step:
                if layer <= top and self.alive.any() and self._on_cycles(layer, step).count:
                    self._peel(layer, step)
                if layer is Layer.DATA and step is Step.WRITES:
                    self._forget_known()
        return [causes for causes in self.causes if causes.count]

    def _peel(self, layer: Layer, step: Step) -> None:
        if step <= Step.READS:
            self._whole(layer, step, missing=False)
        self._overdue(layer, step)
        if step is not Step.ANY:
            self._lost(layer, step)
        if step is Step.APART:
            self._single(layer)
        self._whole(layer, step)

    # ---------------------------------------------------------------------------------- cycles

    def _edges(self, layer: Layer, step: Step, missing: bool = True) -> Ints:
        """Rows of the edges that are left and count at this step, on this layer and below."""
        g = self.graph
        mask = self.alive & (g.layer <= layer) & np.isin(g.kind, KINDS[step])
        return np.flatnonzero(mask if missing else mask & (g.missing == 0))

    def _on_cycles(self, layer: Layer, step: Step, missing: bool = True) -> OnCycles:
        """Edges on any cycle of a step."""
        rows = self._edges(layer, step, missing)
        src, dst = self.graph.src[rows], self.graph.dst[rows]
        if step is Step.APART:
            rows, src, dst = self._doubled(rows)
        found = parts(src, dst)
        inside = found.of_edge >= 0
        return OnCycles(rows[inside], src[inside], dst[inside], found.of_edge[inside], found.count)

    def _doubled(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Edges of a graph with two nodes for each: did one come to it by rw, or otherwise? From
        the first no rw leads on; so its cycles are those without an rw next to another."""
        g = self.graph
        anti, on = g.kind[rows] == Kind.RW, g.kind[rows] == Kind.LINK
        src, dst = 2 * g.src[rows], 2 * g.dst[rows]
        return (
            np.concatenate([rows, rows[~anti]]),
            np.concatenate([src, src[~anti] + 1]),
            np.concatenate([np.where(anti, dst + 1, dst), dst[~anti] + on[~anti]]),
        )

    def _whole(self, layer: Layer, step: Step, *, missing: bool = True) -> None:
        """Each strongly connected part is a cause. All edges within it are taken out."""
        found = self._on_cycles(layer, step, missing)
        if not found.count:
            return
        causes = self._causes(WHOLE[step], layer, step, found.count)
        for number in range(min(found.count, MOST_SHOWN)):
            here = found.part == number
            cycle = self.ways.cycle(found.rows[here], found.src[here], found.dst[here])
            causes.shown.append(Shown(cycle))
        members = self._members(found, doubled=step is Step.APART)
        within = np.zeros(len(self.graph), np.bool_)
        for one, other in product(members, members):
            part = one[self.graph.src]
            within |= (part >= 0) & (part == other[self.graph.dst])
        self.alive &= self.lasting | ~(within | self.shared.within(self.graph, self.alive, members))

    def _members(self, found: OnCycles, *, doubled: bool) -> list[Ints]:
        """Of each node the part that it is in, or -1; in a doubled graph it can be in two."""
        members = [np.full(len(self.nodes.ids), -1, np.int64) for _ in range(1 + doubled)]
        for points in (found.src, found.dst):
            for state, of_node in enumerate(members):
                here = points % len(members) == state
                of_node[points[here] // len(members)] = found.part[here]
        return members

    # ---------------------------------------------------------------------------- lost appends

    def _forget_known(self) -> None:
        """Appends that are remarked on as lost: only what offends an even weaker level is news."""
        self._take_out(np.flatnonzero(self.ending.missing.known))

    def _overdue(self, layer: Layer, step: Step) -> None:
        """Missing appends on a cycle that had ended before one who misses them began."""
        found = self._on_cycles(layer, step)
        asked = self._asked(found, self._who_knows(both=True))
        if not len(asked.entries):
            return
        when = self.nodes.transactions
        late = when.end[np.repeat(asked.start, asked.counts)] < when.begin[asked.goals]
        lost = np.bincount(asked.number[late], minlength=len(asked.counts)) > 0
        causes = self._causes("LOST_APPEND", layer, step, int(lost.sum()))
        rows = np.unique(found.rows)
        for row in np.flatnonzero(lost)[:MOST_SHOWN].tolist():
            first = int(np.flatnonzero((asked.number == row) & late)[0])
            start = int(asked.start[row])
            by_time = [
                self.ways.after(start, int(asked.goals[first])),
                self._overlooked(asked, row, first),
            ]
            causes.shown.append(Shown(self._around(rows, asked, row) or by_time, by_time))
        self._take_out(asked.entries[lost])

    def _lost(self, layer: Layer, step: Step) -> None:
        """Missing appends that somebody came after who knows all of the list that is known."""
        anti = step is Step.APART
        asked = self._asked(self._on_cycles(layer, step), self._who_knows(readers=anti))
        base = self._edges(layer, Step.READS) if anti else self._edges(layer, step, False)
        lost = self._reached(base, asked.start, asked.goals, asked.counts)
        causes = self._causes("LOST_APPEND", layer, step, int(lost.sum()))
        for row in np.flatnonzero(lost)[:MOST_SHOWN].tolist():
            causes.shown.append(Shown(self._around(base, asked, row)))
        self._take_out(asked.entries[lost])

    def _who_knows(self, *, readers: bool = False, both: bool = False) -> Ends:
        """Who stands at the ends of lists, by key: readers, or writers."""
        ends = self.ending.readers if readers else self.ending.writers
        if both:
            pairs = zip(self.ending.readers.columns(), self.ending.writers.columns(), strict=True)
            ends = Ends(*(np.concatenate(pair) for pair in pairs))
        return ends.at(np.argsort(ends.key, kind="stable"))

    def _asked(self, found: OnCycles, ends: Ends) -> Asked:
        """Missing appends on these cycles, and who would have to come after each."""
        entry = self.graph.entry[found.rows]
        entries = np.unique(entry[entry != NO_ENTRY])
        key = self.ending.missing.key[entries]
        low = np.searchsorted(ends.key, key)
        count = np.searchsorted(ends.key, key, side="right") - low
        goals = ends.at(ranges(low, count))
        start = self._node(self.ending.missing.op[entries])
        return Asked(entries, start, self._node(goals.op), goals.value, count)

    def _around(self, base: Ints, asked: Asked, row: int) -> list[Hop]:
        """From a missing append's transaction to one who misses it, and back."""
        start = int(asked.start[row])
        mine = np.flatnonzero((asked.number == row) & (asked.goals != start))
        path = self.ways.path(base, start, asked.goals[mine])
        if not path:
            return []
        goal = mine[self.nodes.ids[asked.goals[mine]] == path[-1].dst]
        return [*path, self._overlooked(asked, row, int(goal[0]))]

    def _overlooked(self, asked: Asked, row: int, goal: int) -> Hop:
        missing, entry = self.ending.missing, asked.entries[row]
        node, key = asked.goals[goal], missing.key[entry]
        op = int(self.nodes.ids[node])
        readers = self.ending.readers
        read = bool(((readers.key == key) & (readers.op == op)).any())
        kind = Kind.RW if read else Kind.WW
        known, value = int(asked.values[goal]), int(missing.value[entry])
        return Hop(op, int(missing.op[entry]), kind, int(key), known, value)

    def _take_out(self, entries: Ints) -> None:
        gone = np.zeros(len(self.ending.missing) + 1, np.bool_)
        gone[entries] = True
        self.alive &= ~gone[self.graph.entry]

    # ------------------------------------------------------------------------------ single rw

    def _single(self, layer: Layer) -> None:
        """Reads of what had been replaced by somebody whom the reader depends on."""
        g, when = self.graph, self.nodes.transactions
        base = self._edges(layer, Step.READS)
        rows = self._anti_on_cycles(layer)
        late = rows[:0]
        if layer is Layer.REALTIME:  # most of them are plain to see, and need no search
            known = rows[g.dst[rows] < len(when)]
            late = known[when.end[g.dst[known]] < when.begin[g.src[known]]]
            self._outdated(layer, late, base, by_time=True)
            rows = self._anti_on_cycles(layer)
        one = np.ones(len(rows), np.int64)
        closed = rows[self._reached(base, g.dst[rows], g.src[rows], one)]
        told = np.isin(g.src[closed], g.src[late])
        self._outdated(layer, closed[~told], base, by_time=False)
        self._forget_reads(closed[told])

    def _anti_on_cycles(self, layer: Layer) -> Ints:
        rows = np.unique(self._on_cycles(layer, Step.APART).rows)
        anti: Ints = rows[self.graph.kind[rows] == Kind.RW]
        return anti

    def _outdated(self, layer: Layer, rows: Ints, base: Ints, *, by_time: bool) -> None:
        """Tell of these rw edges by their readers, and take them out."""
        g = self.graph
        readers, first = np.unique(g.src[rows], return_index=True)
        causes = self._causes("G_SINGLE", layer, Step.APART, len(readers))
        for row in rows[first][:MOST_SHOWN].tolist():
            src, dst = int(g.src[row]), int(g.dst[row])
            if by_time:
                cycle = [*self.ways.hops([row]), self.ways.after(dst, src)]
            else:
                cycle = self.ways.hops([row, *self.ways.rows(base, dst, g.src[[row]])])
            causes.shown.append(Shown(cycle))
        self._forget_reads(rows)

    def _forget_reads(self, rows: Ints) -> None:
        """Take out all rw edges of these readers and keys."""
        g = self.graph
        keys = int(g.key.max()) + 2
        told = np.unique(g.src[rows] * keys + g.key[rows])
        self.alive &= ~((g.kind == Kind.RW) & np.isin(g.src * keys + g.key, told))

    # ------------------------------------------------------------------------------------------

    def _reached(self, base: Ints, start: Ints, goals: Ints, counts: Ints) -> Bools:
        """Of each start: does a way of base edges lead to any of its goals?"""
        if not len(start):
            return np.zeros(0, np.bool_)
        src, dst = self.graph.src[base], self.graph.dst[base]
        points, compact = np.unique(np.concatenate([src, dst, start, goals]), return_inverse=True)
        a, b, c, d = np.split(compact, np.cumsum([len(src), len(dst), len(start)]))
        return Dag.of(a, b, len(points)).reached(c, d, counts)

    def _node(self, op: Ints) -> Ints:
        nodes: Ints = np.searchsorted(self.nodes.transactions.op, op)
        return nodes

    def _causes(self, code: str, layer: Layer, step: Step, count: int) -> Causes:
        """Where to write down causes of this kind."""
        for causes in self.causes:
            if (causes.code, causes.layer, causes.step) == (code, layer, step):
                break
        else:
            causes = Causes(code, layer, step)
            self.causes.append(causes)
        causes.count += count
        return causes
