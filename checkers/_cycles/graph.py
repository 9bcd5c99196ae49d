"""The graph of all dependencies, and its strongly connected parts.

Nodes are transactions, then relays, then *moments*: one for each end of a transaction, in a chain.
A transaction leads to the moment of its end, and the last moment before its beginning leads to it;
so all of real time is three edges a transaction.

The search is exact and mostly a filter. Nodes are put in one order, by their ends. A cycle has to
come back by edges that lead backwards in it, and between any two neighbours of the order that it
covers one of them has to pass; so the order falls apart into stretches wherever no backward edge
passes, and only what lies in one stretch can be on a cycle.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from checkers._cycles.arrays import Ints
from checkers._cycles.edges import (
    MISSING_DOWN,
    MISSING_UP,
    Chained,
    Edges,
    Kind,
    Layer,
    edges,
    relay,
    relays,
    together,
)
from checkers._cycles.lists import Ends, Missing
from checkers._cycles.rows import FAIL, OK, Columns, Transactions

MOMENT = 1 << 62  # added to the number of a moment
NO_ENTRY = -1


@dataclass(frozen=True)
class Graph(Columns):
    """Edges between node numbers. `entry`: the missing append that the edge is about, else -1;
    `missing`: the edge is there because of appends that no read shows."""

    src: Ints
    dst: Ints
    kind: Ints
    layer: Ints
    key: Ints
    a: Ints
    b: Ints
    entry: Ints
    missing: Ints


@dataclass(frozen=True)
class Nodes:
    """`ids`: operations in order, then relays (negative), then moments. `time`: their order."""

    ids: Ints
    transactions: Transactions
    time: Ints


@dataclass(frozen=True)
class Ending:
    """What the ends of lists say: missing appends by key, and who knows of no more."""

    missing: Missing
    readers: Ends
    writers: Ends


def entries(missing: Missing, readers: Ends, writers: Ends) -> Ending:
    """All in a total order, so that it never shows in which they came."""
    order = np.lexsort((missing.value, missing.op, missing.key))
    ends = (e.at(np.lexsort((e.value, e.op, e.key))) for e in (readers, writers))
    return Ending(missing.at(order), *ends)


def graph(
    transactions: Transactions, data: Edges, ending: Ending, layer: Layer
) -> tuple[Graph, Nodes]:
    """Everything that says who came before whom. `transactions` are in order of `op`."""
    beyond, entry = _beyond(ending)
    parts = [data, beyond]
    if layer >= Layer.PROCESS:
        parts.append(_sessions(transactions))
    if layer >= Layer.REALTIME:
        parts.append(_time(transactions))
    all_edges = together(parts)
    points = np.concatenate([all_edges.src, all_edges.dst])
    timed = int((transactions.status == OK).sum()) if layer >= Layer.REALTIME else 0
    moments = MOMENT + np.arange(timed, dtype=np.int64)
    others = np.concatenate([np.unique(points[points < 0]), moments])
    ids = np.concatenate([transactions.op, others])
    order = np.argsort(ids, kind="stable")
    ranked = ids[order]
    src = order[np.searchsorted(ranked, all_edges.src)]
    dst = order[np.searchsorted(ranked, all_edges.dst)]
    about = np.full(len(src), NO_ENTRY, np.int64)
    about[len(data) : len(data) + len(beyond)] = entry
    missing = np.zeros(len(src), np.int64)
    missing[len(data) : len(data) + len(beyond)] = 1
    e = all_edges
    found = Graph(src, dst, e.kind, e.layer, e.key, e.a, e.b, about, missing)
    return found, Nodes(ids, transactions, _times(transactions, others, found))


def _beyond(ending: Ending) -> tuple[Edges, Ints]:
    """Edges to missing appends, and of each the append that it leads to."""
    missing = ending.missing
    first = np.searchsorted(missing.key, missing.key)
    place = np.arange(len(missing)) - first
    up = relays(missing.key, place, missing.op, missing.value, MISSING_UP)
    down = relays(missing.key, place, missing.op, missing.value, MISSING_DOWN)
    parts, about = [up, down], []
    for _ in parts:
        entry = np.full(len(up), NO_ENTRY, np.int64)
        entry[: len(missing)] = np.arange(len(missing))
        about.append(entry)
    for ends, kind in ((ending.readers, Kind.RW), (ending.writers, Kind.WW)):
        low = np.searchsorted(missing.key, ends.key)
        high = np.searchsorted(missing.key, ends.key, side="right")
        ours = ends.at(high > low)
        low, high = low[high > low], high[high > low]
        own_low, own_high = _own(missing, ours, low, high)
        for rows, at, direction in (
            (own_high < high, own_high - low, MISSING_UP),
            (own_low > low, own_low - low - 1, MISSING_DOWN),
        ):
            some = ours.at(rows)
            target = relay(some.key, at[rows], direction)
            part = edges(some.op, target, kind, some.key, some.value)
            parts.append(part)
            about.append(np.full(len(part), NO_ENTRY, np.int64))
    return together(parts), np.concatenate(about)


def _own(missing: Missing, ends: Ends, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """The range of the key's missing appends that are of the operation itself; else all is after
    an empty one at the beginning."""
    keys = np.unique(missing.key)
    ops = np.unique(np.concatenate([missing.op, ends.op]))
    codes = np.searchsorted(keys, missing.key) * len(ops) + np.searchsorted(ops, missing.op)
    wanted = np.searchsorted(keys, ends.key) * len(ops) + np.searchsorted(ops, ends.op)
    first, last = np.searchsorted(codes, wanted), np.searchsorted(codes, wanted, side="right")
    none = first == last
    return np.where(none, low, first), np.where(none, low, last)


def _sessions(transactions: Transactions) -> Edges:
    """From the last transaction of a process that is known to have ended, to its next."""
    live = np.flatnonzero(transactions.status != FAIL)
    order = live[
        np.lexsort((transactions.op[live], transactions.begin[live], transactions.process[live]))
    ]
    process, ended = transactions.process[order], transactions.status[order] == OK
    number = np.arange(len(order))
    last = np.maximum.accumulate(np.where(ended, number, -1)) if len(order) else number
    before, after = last[:-1], number[1:]
    there = before >= 0
    there[there] &= process[before[there]] == process[after[there]]
    a, b = order[before[there]], order[after[there]]
    apart = transactions.end[a] <= transactions.begin[b]
    a, b = a[apart], b[apart]
    ops = transactions.op[a], transactions.op[b]
    return edges(*ops, Kind.PROCESS, -1, layer=Layer.PROCESS)


def _time(transactions: Transactions) -> Edges:
    """Real time as a chain of moments: from each end to the beginnings after it."""
    done = np.flatnonzero(transactions.status == OK)
    done = done[np.lexsort((transactions.op[done], transactions.end[done]))]
    moment = MOMENT + np.arange(len(done), dtype=np.int64)
    live = np.flatnonzero(transactions.status != FAIL)
    last = np.searchsorted(transactions.end[done], transactions.begin[live], side="left") - 1
    some = last >= 0
    ops = transactions.op
    return together(
        [
            edges(ops[done], moment, Kind.REALTIME, -1, layer=Layer.REALTIME),
            edges(moment[:-1], moment[1:], Kind.LINK, -1, layer=Layer.REALTIME),
            edges(moment[last[some]], ops[live[some]], Kind.LINK, -1, layer=Layer.REALTIME),
        ]
    )


def _times(transactions: Transactions, others: Ints, found: Graph) -> Ints:
    """A total order of the nodes in which few edges lead backwards."""
    count = len(transactions)
    ended = transactions.status == OK
    own = np.where(ended, 2 * transactions.end, 2 * transactions.begin)
    done = np.sort(transactions.end[ended])
    relayed = others[others < 0]
    moments = others[len(relayed) :] - MOMENT
    between = _relay_times(own, relayed, found, count)
    time = np.concatenate([own, between, 2 * done[moments] + 1])
    rank = np.empty(len(time), np.int64)
    rank[np.argsort(time, kind="stable")] = np.arange(len(time))
    return rank


def _relay_times(own: Ints, relayed: Ints, found: Graph, count: int) -> Ints:
    """A relay comes just before the first of all transactions that it leads to."""
    if not len(relayed):
        return np.empty(0, np.int64)
    leads = np.flatnonzero(
        (found.kind == Kind.LINK)
        & (found.src >= count)
        & (found.src < count + len(relayed))
        & (found.dst < count)
    )
    direct = np.full(len(relayed), np.iinfo(np.int64).max >> 3, np.int64)
    np.minimum.at(direct, found.src[leads] - count, own[found.dst[leads]] - 1)
    times, ranks = np.unique(direct, return_inverse=True)
    on = Chained.of(relayed)
    order = np.lexsort((-on.nearness, on.chain))  # from the end of each chain
    same = np.concatenate([[True], on.chain[order][1:] != on.chain[order][:-1]])
    offset = np.cumsum(same) * (len(times) + 1)
    least = np.minimum.accumulate(ranks[order] - offset) + offset
    earliest = np.empty(len(relayed), np.int64)
    earliest[order] = times[least]
    return earliest


# ------------------------------------------------------------------------------------- components


def suspects(found: Graph, nodes: Nodes) -> Ints:
    """The edges that lie in one stretch of the order and may be on a cycle."""
    here, there = nodes.time[found.src], nodes.time[found.dst]
    back = here > there
    count = len(nodes.ids)
    passing = np.bincount(there[back], minlength=count + 1)
    passing -= np.bincount(here[back], minlength=count + 1)
    stretch = np.cumsum(np.concatenate([[0], np.cumsum(passing)[: count - 1] == 0]))
    return np.flatnonzero(stretch[here] == stretch[there])


@dataclass(frozen=True)
class Parts:
    """Strongly connected parts: of each edge the number of the part it lies in, or -1."""

    of_edge: Ints
    count: int


def parts(src: Ints, dst: Ints) -> Parts:
    """The strongly connected parts of more than one node, numbered by their least node."""
    nowhere = np.full(len(src), -1, np.int64)
    if not len(src):
        return Parts(nowhere, 0)
    used = np.zeros(max(int(src.max()), int(dst.max())) + 1, np.bool_)
    used[src] = used[dst] = True
    compact = (np.cumsum(used) - 1).astype(np.int32)
    a, b, points = compact[src], compact[dst], int(used.sum())
    ones: npt.NDArray[np.int8] = np.ones(len(a), np.int8)
    matrix = coo_array((ones, (a, b)), shape=(points, points))
    _, label = connected_components(matrix.tocsr(), directed=True, connection="strong")
    inside = (label[a] == label[b]) & (a != b)
    found = np.unique(label[a[inside]])
    least = np.concatenate([a[inside], b[inside]])
    smallest = np.full(len(found), points, np.int64)
    np.minimum.at(smallest, np.searchsorted(found, label[least]), least)
    number = np.empty(len(found), np.int64)
    number[np.argsort(smallest)] = np.arange(len(found))
    nowhere[inside] = number[np.searchsorted(found, label[a[inside]])]
    return Parts(nowhere, len(found))
