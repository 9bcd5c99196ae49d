"""Root causes in small histories of transactions, counted by loops over the definitions.

What counts as one cause is what the checker promises in words. Here every dependency is an edge
between two transactions, and a strongly connected part is networkx's.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import networkx as nx
from isolation_found import (
    COMMITTED,
    SERIALIZABLE,
    SESSION,
    SNAPSHOT,
    STRICT,
    UNCOMMITTED,
    WRONG,
    Edge,
    Found,
    Remarked,
    end,
)
from isolation_lists import of_list
from isolation_registers import of_register
from transacting import Transaction

from harness.operation import F, Type

LAYERS = ("", "_PROCESS", "_REALTIME")
WRITES, READS, APART, ANY = range(4)  # the steps of a layer
KINDS = ({"ww"}, {"ww", "wr"}, {"ww", "wr", "rw"}, {"ww", "wr", "rw"})
ALWAYS = {"process", "realtime"}
WHOLE = ("G0", "G1C", "G_NONADJACENT", "G2_ITEM")
DEMANDS = (UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE)

Told = tuple[str, str]  # a code and a demand
Named = tuple[int, int, str, int, int, int]  # an edge's ends, kind, key, a, b


@dataclass(frozen=True)
class Expected:
    """`counts`: number of causes. `layers`: the layer of each dependency. `roots`: direct
    anomalies, one a cause. `repeated`: keys to which a value was written twice, which are not
    judged."""

    counts: Counter[Told]
    layers: dict[Named, int]
    roots: set[Remarked]
    repeated: set[int]


def causes(history: list[Transaction]) -> Expected:
    """Return all that the checker has to report on a history."""
    found = Found(history)
    for key in sorted({move.key for t in history for move in t.moves}):
        if any(m.f in (F.PUT, F.GET) for t in history for m in t.moves if m.key == key):
            of_register(key, found)
        else:
            of_list(key, found)
    _order(found)
    layers: dict[Named, int] = {}
    for e in found.edges:
        named = e.src, e.dst, e.kind, e.key, e.a, e.b
        layers[named] = min(e.layer, layers.get(named, e.layer))
    remarks = set(found.roots().values())
    repeated = {key for word, _, key, *_ in remarks if word == "NOT_UNIQUE"}
    roots = {remark for remark in remarks if remark[0] != "NOT_UNIQUE"}
    counts = Counter(WRONG[word][:2] for word, *_ in roots)
    counts.update(_peeled(found))
    return Expected(+counts, layers, roots, repeated)


def _order(found: Found) -> None:
    """What a process did next, and what began after the end of something."""
    live = [t for t in found.history if t.status is not Type.FAIL]
    for t in live:
        before = [o for o in live if o.process == t.process and (o.begin, o.op) < (t.begin, t.op)]
        before = [o for o in before if o.status is Type.OK]
        last = max(before, key=lambda o: (o.begin, o.op), default=None)
        if last is not None and last.end <= t.begin:
            found.add(last.op, t.op, "process", layer=1)
        for other in live:
            if other.status is Type.OK and other.end < t.begin:
                found.add(other.op, t.op, "realtime", layer=2)


def _peeled(found: Found) -> Counter[Told]:
    """Peel from the weakest promise upwards; what is reported is removed."""
    counts: Counter[Told] = Counter()
    for layer in range(3):
        for step in range(4):
            demand = (DEMANDS[step], SESSION, STRICT)[layer if layer else 0]
            if _on_cycles(found.edges, layer, step):
                _peel(found, layer, step, demand, counts)
            if layer == 0 and step == WRITES:
                _forget(found, {n for n, lost in enumerate(found.missing) if lost.known})
    return counts


def _peel(found: Found, layer: int, step: int, demand: str, counts: Counter[Told]) -> None:
    if step <= READS:
        _whole(found, layer, step, demand, counts, lambda edge: edge.missing < 0)
    counts["LOST_APPEND", demand] += _overdue(found, layer, step)
    if step != ANY:
        counts["LOST_APPEND", demand] += _overtaken(found, layer, step)
    if step == APART:
        code = "G_SINGLE" + LAYERS[layer]
        told = _single(found, layer, by_time=True) if layer == 2 else set()
        counts[code, demand] += len(told | _single(found, layer, by_time=False))
    _whole(found, layer, step, demand, counts, lambda edge: True)


def _counting(edges: Iterable[Edge], layer: int, step: int) -> list[Edge]:
    return [e for e in edges if e.layer <= layer and e.kind in KINDS[step] | ALWAYS]


def _parts(edges: Iterable[Edge], layer: int, step: int) -> list[set[tuple[int, bool]]]:
    """Strongly connected ones. At the step APART each transaction is there twice: come to by an
    rw, from where no rw leads on, or otherwise."""
    graph = nx.DiGraph()
    for e in _counting(edges, layer, step):
        if step != APART:
            graph.add_edge((e.src, False), (e.dst, False))
            continue
        graph.add_edge((e.src, False), (e.dst, e.kind == "rw"))
        if e.kind != "rw":
            graph.add_edge((e.src, True), (e.dst, False))
    return [part for part in nx.strongly_connected_components(graph) if len(part) > 1]


def _on_cycles(edges: Iterable[Edge], layer: int, step: int) -> set[Edge]:
    edges = _counting(edges, layer, step)
    on: set[Edge] = set()
    for part in _parts(edges, layer, step):
        for e in edges:
            ends = [((e.src, False), (e.dst, step == APART and e.kind == "rw"))]
            if step == APART and e.kind != "rw":
                ends.append(((e.src, True), (e.dst, False)))
            if any({a, b} <= part for a, b in ends):
                on.add(e)
    return on


def _whole(
    found: Found,
    layer: int,
    step: int,
    demand: str,
    counts: Counter[Told],
    counting: Callable[[Edge], bool],
) -> None:
    """Each strongly connected part is a cause; all edges within it are taken out."""
    parts = _parts(filter(counting, found.edges), layer, step)
    counts[WHOLE[step] + LAYERS[layer], demand] += len(parts)
    for part in parts:
        nodes = {node for node, _ in part}
        within = {e for e in found.edges if {e.src, e.dst} <= nodes and e.kind not in ALWAYS}
        told = {_observation(e) for e in within if e.shared}
        found.edges -= within
        found.edges -= {e for e in found.edges if e.shared and _observation(e) in told}


def _observation(edge: Edge) -> tuple[int, int, str, str]:
    return edge.src, edge.key, edge.kind, edge.shared


def _forget(found: Found, gone: set[int]) -> None:
    found.edges = {e for e in found.edges if e.missing not in gone}


def _suspected(found: Found, layer: int, step: int) -> set[int]:
    return {e.missing for e in _on_cycles(found.edges, layer, step) if e.missing >= 0}


def _overdue(found: Found, layer: int, step: int) -> int:
    """Return missing appends on a cycle that ended before a transaction began that misses them."""
    lost = set()
    for number in _suspected(found, layer, step):
        append = found.missing[number]
        ops = (*append.readers, *append.writers)
        if any(end(found.among(append.op)) < found.among(op).begin for op in ops):
            lost.add(number)
    _forget(found, lost)
    return len(lost)


def _overtaken(found: Found, layer: int, step: int) -> int:
    """Return missing appends before a transaction that knows all known elements of the list."""
    edges = _counting(found.edges, layer, READS if step == APART else step)
    base = [e for e in edges if step == APART or e.missing < 0]
    lost = set()
    for number in _suspected(found, layer, step):
        append = found.missing[number]
        ops = append.readers if step == APART else append.writers
        if any(_leads(base, append.op, op) for op in ops):
            lost.add(number)
    _forget(found, lost)
    return len(lost)


def _leads(edges: list[Edge], src: int, dst: int) -> bool:
    """Is there a way of at least one edge?"""
    reached, new = set[int](), {src}
    while new:
        new = {e.dst for e in edges if e.src in new} - reached
        reached |= new
    return dst in reached


def _single(found: Found, layer: int, *, by_time: bool) -> set[int]:
    """Return readers of versions that were replaced by a transaction that the reader depends on."""
    base = _counting(found.edges, layer, READS)
    told = set()
    for e in _on_cycles(found.edges, layer, APART):
        if e.kind != "rw":
            continue
        late = end(found.among(e.dst)) < found.among(e.src).begin
        if late if by_time else _leads(base, e.dst, e.src):
            told.add((e.src, e.key))
    found.edges = {e for e in found.edges if e.kind != "rw" or (e.src, e.key) not in told}
    return {op for op, _ in told}
