"""The graph of all dependencies, and its strongly connected components.

Nodes are transactions, then relays, then *moments*: one for each end of a transaction, in a chain.
A transaction leads to the moment of its end, and the last moment before its begin leads to it, so
real time takes three edges a transaction.

The search is exact and mostly a filter. Nodes are sorted by their ends. A cycle needs edges that
lead backwards in that order, and one of them must pass between any two adjacent nodes that the
cycle covers. So the order splits into stretches wherever no backward edge passes, and a cycle lies
in one stretch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkers._cycles.arrays import Ints
from checkers._cycles.edges import (
    MISSING_DOWN,
    MISSING_UP,
    EdgeKind,
    Edges,
    OrderLayer,
    RelayChain,
    concat_edges,
    make_edges,
    relay,
    relay_edges,
)
from checkers._cycles.lists import MissingAppends, TailRows
from checkers._cycles.rows import FAIL, OK, ColumnTable, Transactions

MOMENT = 1 << 62  # added to the number of a moment
NO_ENTRY = -1


@dataclass(frozen=True)
class Graph(ColumnTable):
    """Edges between node numbers. `entry`: the missing append that the edge leads to, else -1.
    `missing`: the edge exists because of appends that no read has."""

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
class ListTails:
    """The ends of lists: missing appends by key, and the transactions that know of no later
    element."""

    missing: MissingAppends
    readers: TailRows
    writers: TailRows


def sorted_tails(missing: MissingAppends, readers: TailRows, writers: TailRows) -> ListTails:
    """Sort all in a total order, so that the order of arrival has no effect."""
    order = np.lexsort((missing.value, missing.op, missing.key))
    ends = (e.at(np.lexsort((e.value, e.op, e.key))) for e in (readers, writers))
    return ListTails(missing.at(order), *ends)


def graph(
    transactions: Transactions, data: Edges, ending: ListTails, layer: OrderLayer
) -> tuple[Graph, Nodes]:
    """Return the graph of all dependencies. `transactions` are in order of `op`."""
    beyond, entry = _beyond(ending)
    parts = [data, beyond]
    if layer >= OrderLayer.PROCESS:
        parts.append(_sessions(transactions))
    if layer >= OrderLayer.REALTIME:
        parts.append(_time(transactions))
    all_edges = concat_edges(parts)
    points = np.concatenate([all_edges.src, all_edges.dst])
    timed = int((transactions.status == OK).sum()) if layer >= OrderLayer.REALTIME else 0
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


def _beyond(ending: ListTails) -> tuple[Edges, Ints]:
    """Return the edges to missing appends, and the append that each leads to."""
    missing = ending.missing
    first = np.searchsorted(missing.key, missing.key)
    place = np.arange(len(missing)) - first
    up = relay_edges(missing.key, place, missing.op, missing.value, MISSING_UP)
    down = relay_edges(missing.key, place, missing.op, missing.value, MISSING_DOWN)
    parts, about = [up, down], []
    for _ in parts:
        entry = np.full(len(up), NO_ENTRY, np.int64)
        entry[: len(missing)] = np.arange(len(missing))
        about.append(entry)
    for ends, kind in ((ending.readers, EdgeKind.RW), (ending.writers, EdgeKind.WW)):
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
            part = make_edges(some.op, target, kind, some.key, some.value)
            parts.append(part)
            about.append(np.full(len(part), NO_ENTRY, np.int64))
    return concat_edges(parts), np.concatenate(about)


def _own(missing: MissingAppends, ends: TailRows, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the range of the key's missing appends by the operation itself; if none, an empty
    range at the begin."""
    keys = np.unique(missing.key)
    ops = np.unique(np.concatenate([missing.op, ends.op]))
    codes = np.searchsorted(keys, missing.key) * len(ops) + np.searchsorted(ops, missing.op)
    wanted = np.searchsorted(keys, ends.key) * len(ops) + np.searchsorted(ops, ends.op)
    first, last = np.searchsorted(codes, wanted), np.searchsorted(codes, wanted, side="right")
    none = first == last
    return np.where(none, low, first), np.where(none, low, last)


def _sessions(transactions: Transactions) -> Edges:
    """Return edges from the last transaction of a process that certainly ended, to its next one."""
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
    return make_edges(*ops, EdgeKind.PROCESS, -1, layer=OrderLayer.PROCESS)


def _time(transactions: Transactions) -> Edges:
    """Return real time as a chain of moments: from each end to the begins after it."""
    done = np.flatnonzero(transactions.status == OK)
    done = done[np.lexsort((transactions.op[done], transactions.end[done]))]
    moment = MOMENT + np.arange(len(done), dtype=np.int64)
    live = np.flatnonzero(transactions.status != FAIL)
    last = np.searchsorted(transactions.end[done], transactions.begin[live], side="left") - 1
    some = last >= 0
    ops = transactions.op
    return concat_edges(
        [
            make_edges(ops[done], moment, EdgeKind.REALTIME, -1, layer=OrderLayer.REALTIME),
            make_edges(moment[:-1], moment[1:], EdgeKind.LINK, -1, layer=OrderLayer.REALTIME),
            make_edges(
                moment[last[some]], ops[live[some]], EdgeKind.LINK, -1, layer=OrderLayer.REALTIME
            ),
        ]
    )


def _times(transactions: Transactions, others: Ints, found: Graph) -> Ints:
    """Return a total order of the nodes in which few edges lead backwards."""
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
    """Place a relay just before the first of all transactions that it leads to."""
    if not len(relayed):
        return np.empty(0, np.int64)
    leads = np.flatnonzero(
        (found.kind == EdgeKind.LINK)
        & (found.src >= count)
        & (found.src < count + len(relayed))
        & (found.dst < count)
    )
    direct = np.full(len(relayed), np.iinfo(np.int64).max >> 3, np.int64)
    np.minimum.at(direct, found.src[leads] - count, own[found.dst[leads]] - 1)
    times, ranks = np.unique(direct, return_inverse=True)
    on = RelayChain.of(relayed)
    order = np.lexsort((-on.nearness, on.chain))  # from the end of each chain
    same = np.concatenate([[True], on.chain[order][1:] != on.chain[order][:-1]])
    offset = np.cumsum(same) * (len(times) + 1)
    least = np.minimum.accumulate(ranks[order] - offset) + offset
    earliest = np.empty(len(relayed), np.int64)
    earliest[order] = times[least]
    return earliest


# ------------------------------------------------------------------------------------- components


def cycle_candidates(found: Graph, nodes: Nodes) -> Ints:
    """Return the edges that lie within one stretch of the order, and so may be on a cycle."""
    here, there = nodes.time[found.src], nodes.time[found.dst]
    back = here > there
    count = len(nodes.ids)
    passing = np.bincount(there[back], minlength=count + 1)
    passing -= np.bincount(here[back], minlength=count + 1)
    stretch = np.cumsum(np.concatenate([[0], np.cumsum(passing)[: count - 1] == 0]))
    return np.flatnonzero(stretch[here] == stretch[there])


@dataclass(frozen=True)
class StrongComponents:
    """Strongly connected components: for each edge the number of its component, or -1."""

    of_edge: Ints
    count: int


def strong_components(src: Ints, dst: Ints) -> StrongComponents:
    """Return the strongly connected components of several nodes, numbered by their least node."""
    from scipy.sparse import coo_array  # slow to import, and most judged runs have no such graph
    from scipy.sparse.csgraph import connected_components

    nowhere = np.full(len(src), -1, np.int64)
    if not len(src):
        return StrongComponents(nowhere, 0)
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
    return StrongComponents(nowhere, len(found))
