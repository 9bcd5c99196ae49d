"""Registers: unique values show who read from whom, and a part of the order of the versions.

No read shows a register's past, so the order of its versions is only partly known: the initial
state comes before all values; a transaction that read one version and wrote another came after the
writer of the first; and, under a contract that keeps the order of processes or real time, a version
that was accessed before another one's first access is the older one. Further consequences of all
dependencies together are not searched for: that is a hard problem, and no reported anomaly depends
on it.
"""

from dataclasses import dataclass, replace

import numpy as np

from checkers._cycles.arrays import NULL, Bools, Ints, Lookup, count_until, ranges
from checkers._cycles.direct_anomalies import DirectAnomalies, DirectAnomaly
from checkers._cycles.edges import (
    DOWN,
    SINCE,
    UP,
    EdgeKind,
    Edges,
    OrderLayer,
    concat_edges,
    make_edges,
    relay,
    relay_edges,
)
from checkers._cycles.internal_reads import Gets, Puts
from checkers._cycles.rows import FAIL, OK, ColumnTable

MAX_BETWEEN = 64  # direct edges from one read; more of them mean an anomaly that is found anyway


def dependencies(puts: Puts, gets: Gets, layer: OrderLayer, remarks: DirectAnomalies) -> Edges:
    """Return the edges of the registers of some keys; record their direct anomalies."""
    repeated = Lookup(puts.key, puts.value).repeated
    twice = np.unique(puts.key[repeated])
    if len(twice):
        remarks.add(DirectAnomaly.NOT_UNIQUE, puts.op[repeated], puts.key[repeated], NULL, -1)
        puts, gets = puts.at(~np.isin(puts.key, twice)), gets.at(~np.isin(gets.key, twice))
    put = Lookup(puts.key, puts.value).at(gets.key, gets.value)
    put[gets.value == NULL] = -1
    good = _sound(puts, gets, put, remarks)
    gets, put = gets.at(good), put[good]
    puts, put = _last_ones(puts, put)
    if not len(puts):
        return concat_edges([])
    own = Lookup(puts.key, puts.op).at(gets.key, gets.op)
    behind = _lost_updates(puts, gets, own, remarks)
    gets = replace(gets, again=gets.again | behind)
    parts = [_read_from(puts, gets, put), *_replaced(puts, gets, put, own)]
    if layer >= OrderLayer.PROCESS:
        parts += _by_process(puts, gets, put)
    if layer >= OrderLayer.REALTIME:
        parts.append(_by_time(puts, gets, put, own))
    return concat_edges(parts)


def _sound(puts: Puts, gets: Gets, put: Ints, remarks: DirectAnomalies) -> Bools:
    """Return the reads of committed, final writes, and of the initial state."""
    phantom = (put < 0) & (gets.value != NULL)
    remarks.add(DirectAnomaly.PHANTOM, gets.op[phantom], gets.key[phantom], gets.value[phantom], -1)
    there = put >= 0

    def where(condition: Bools) -> Bools:
        mask = np.zeros(len(put), np.bool_)
        mask[there] = condition
        return mask

    aborted = where(puts.status[put[there]] == FAIL)
    ahead = where(puts.op[put[there]] == gets.op[there]) & ~aborted
    partly = where(puts.last[put[there]] == 0) & ~aborted & ~ahead
    remarks.add(DirectAnomaly.UNSEEN_OWN, gets.op[ahead], gets.key[ahead], gets.value[ahead], -1)
    for code, rows in ((DirectAnomaly.ABORTED, aborted), (DirectAnomaly.INTERMEDIATE, partly)):
        writer = puts.op[put[rows]]
        remarks.add(code, writer, gets.key[rows], gets.value[rows], gets.op[rows])
    good: Bools = ~(phantom | aborted | ahead | partly)
    return good


def _last_ones(puts: Puts, put: Ints) -> tuple[Puts, Ints]:
    """Return the writes that others may read, by key and time; and the write of each read among
    them."""
    rows = np.flatnonzero((puts.last == 1) & (puts.status != FAIL))
    rows = rows[np.lexsort((puts.op[rows], puts.begin[rows], puts.key[rows]))]
    renumbered = np.full(len(puts) + 1, -1, np.int64)
    renumbered[rows] = np.arange(len(rows))
    return puts.at(rows), renumbered[put]


def _lost_updates(puts: Puts, gets: Gets, own: Ints, remarks: DirectAnomalies) -> Ints:
    """Return the reads of transactions that replaced a version which another one also replaced."""
    rows = np.flatnonzero(own >= 0)
    order = rows[np.lexsort((gets.op[rows], gets.end[rows], gets.value[rows], gets.key[rows]))]
    key, value, op = gets.key[order], gets.value[order], gets.op[order]
    same = (key[1:] == key[:-1]) & (value[1:] == value[:-1])
    behind = np.zeros(len(gets), np.int64)
    if not same.any():
        return behind
    first = np.concatenate([[True], ~same])
    group = np.cumsum(first) - 1
    leader = op[np.flatnonzero(first)][group]
    late = op != leader
    crowded = np.zeros(group[-1] + 1, np.bool_)
    crowded[group[late]] = True
    behind[order[crowded[group]]] = 1
    remarks.add(DirectAnomaly.LOST_UPDATE, op[late], key[late], value[late], leader[late])
    return behind


def _read_from(puts: Puts, gets: Gets, put: Ints) -> Edges:
    there = put >= 0
    writer = puts.op[put[there]]
    return make_edges(writer, gets.op[there], EdgeKind.WR, gets.key[there], gets.value[there])


def _replaced(puts: Puts, gets: Gets, put: Ints, own: Ints) -> list[Edges]:
    """Return edges of transactions that wrote after reading, of readers of what they replaced, and
    of readers of the initial state."""
    both = np.flatnonzero((own >= 0) & (put >= 0))
    writer, value = puts.op[put[both]], puts.value[own[both]]
    ww = make_edges(writer, gets.op[both], EdgeKind.WW, gets.key[both], gets.value[both], value)
    rw = _against(puts, gets, put, put[both], own[both], OrderLayer.DATA)
    return [ww, rw, *_before_all(puts, gets, own)]


def _against(
    puts: Puts, gets: Gets, put: Ints, older: Ints, newer: Ints, layer: OrderLayer
) -> Edges:
    """Return edges from readers of the older versions to the writers of the newer ones."""
    readers = np.flatnonzero((put >= 0) & (gets.again == 0))
    readers = readers[np.argsort(put[readers], kind="stable")]
    low = np.searchsorted(put[readers], older)
    count = np.searchsorted(put[readers], older, side="right") - low
    reader, new = readers[ranges(low, count)], np.repeat(newer, count)
    return make_edges(
        gets.op[reader],
        puts.op[new],
        EdgeKind.RW,
        gets.key[reader],
        gets.value[reader],
        puts.value[new],
        layer,
    )


def _before_all(puts: Puts, gets: Gets, own: Ints) -> list[Edges]:
    """Return edges from readers of the initial state to all writers but themselves."""
    nothing = np.flatnonzero((gets.value == NULL) & (gets.again == 0))
    if not len(nothing):
        return []
    first = _first_places(puts)
    place = np.arange(len(puts)) - first
    key = gets.key[nothing]
    mine = own[nothing]
    low = np.searchsorted(puts.key, key)
    count = np.searchsorted(puts.key, key, side="right") - low
    after = np.where(mine >= 0, mine - low + 1, 0)
    before = np.where(mine >= 0, mine - low - 1, -1)
    up, down = after < count, before >= 0
    parts = [
        make_edges(gets.op[nothing][up], relay(key[up], after[up], UP), EdgeKind.RW, key[up]),
        make_edges(
            gets.op[nothing][down], relay(key[down], before[down], DOWN), EdgeKind.RW, key[down]
        ),
    ]
    used = np.isin(puts.key, key)
    for direction in (UP, DOWN):
        on = (puts.key[used], place[used], puts.op[used], puts.value[used])
        parts.append(relay_edges(*on, direction))
    return parts


def _first_places(puts: Puts) -> Ints:
    """Return for each write the place of the first write of its key."""
    return np.searchsorted(puts.key, puts.key)


# ---------------------------------------------------------------------------- sessions and time


def _by_process(puts: Puts, gets: Gets, put: Ints) -> list[Edges]:
    """Return edges from a process's version to the next one that it accessed. The order of
    transactions that began at the same time of a coarse clock is unknown."""
    touch = _touches(puts, gets, put)
    order = np.lexsort((touch.into, touch.begin, touch.key, touch.process))
    touch = touch.at(order)
    same = (touch.process[1:] == touch.process[:-1]) & (touch.key[1:] == touch.key[:-1])
    first = _first_of(touch)
    later = (touch.begin[:-1] < touch.begin[1:]) & (touch.end[:-1] <= touch.begin[1:])
    step = np.flatnonzero(same & later & (touch.out[:-1] >= 0) & first[1:])
    older, newer = touch.out[:-1][step], touch.into[1:][step]
    differ = older != newer
    older, newer = older[differ], newer[differ]
    ww = make_edges(
        puts.op[older],
        puts.op[newer],
        EdgeKind.WW,
        puts.key[older],
        puts.value[older],
        puts.value[newer],
        OrderLayer.PROCESS,
    )
    return [ww, _against(puts, gets, put, older, newer, OrderLayer.PROCESS)]


def _by_time(puts: Puts, gets: Gets, put: Ints, own: Ints) -> Edges:
    """Return edges from a version to those first accessed after an access of it had ended."""
    done, since = _first_touched(puts, gets, put)
    order = np.lexsort((np.arange(len(puts)), since, puts.key))
    place_of = np.empty(len(puts), np.int64)
    low = _first_places(puts)
    place_of[order] = np.arange(len(puts)) - low
    after = count_until(puts.key[order], since[order], puts.key, done) - low
    count = np.searchsorted(puts.key, puts.key, side="right") - low

    readers = np.flatnonzero((put >= 0) & (gets.again == 0))
    old = put[readers]
    start, mine = after[old], np.where(own[readers] >= 0, place_of[own[readers]], -1)
    beside = mine >= start
    onward = np.where(beside, mine + 1, start)
    some = onward < count[old]
    key = gets.key[readers]
    target = relay(key, onward, SINCE)[some]
    far = make_edges(
        gets.op[readers][some],
        target,
        EdgeKind.RW,
        key[some],
        gets.value[readers][some],
        layer=OrderLayer.REALTIME,
    )
    between = np.where(beside, np.minimum(mine - start, MAX_BETWEEN), 0)
    reader = np.repeat(readers, between)
    new = order[ranges((low[old] + start), between)]
    near = make_edges(
        gets.op[reader],
        puts.op[new],
        EdgeKind.RW,
        gets.key[reader],
        gets.value[reader],
        puts.value[new],
        OrderLayer.REALTIME,
    )
    followed = np.flatnonzero(after < count)
    target = relay(puts.key[followed], after[followed], SINCE)
    value = puts.value[followed]
    ww = make_edges(
        puts.op[followed], target, EdgeKind.WW, puts.key[followed], value, layer=OrderLayer.REALTIME
    )
    listed = puts.at(order)
    on = relay_edges(listed.key, np.arange(len(puts)) - low, listed.op, listed.value, SINCE)
    return concat_edges([far, near, ww, on])


def _first_touched(puts: Puts, gets: Gets, put: Ints) -> tuple[Ints, Ints]:
    """Return for each version the end of the first access to end, and its begin."""
    there = put >= 0
    version = np.concatenate([np.arange(len(puts)), put[there]])
    begin = np.concatenate([puts.begin, gets.begin[there]])
    end = np.concatenate([puts.end, gets.end[there]])
    order = np.lexsort((begin, end, version))
    first = order[np.searchsorted(version[order], np.arange(len(puts)))]
    since = np.maximum(begin[first], puts.begin)
    return np.maximum(end[first], since), since


@dataclass(frozen=True)
class _Touches(ColumnTable):
    """Transactions that read or wrote a key: the version that they found, and the one that they
    left."""

    process: Ints
    key: Ints
    begin: Ints
    end: Ints
    into: Ints
    out: Ints


def _touches(puts: Puts, gets: Gets, put: Ints) -> _Touches:
    """Return one row for each read of a version, and one for each write without such a read."""
    read = np.flatnonzero(put >= 0)
    mine = Lookup(puts.key, puts.op).at(gets.key[read], gets.op[read])
    reads = _Touches(
        gets.process[read],
        gets.key[read],
        gets.begin[read],
        gets.end[read],
        put[read],
        np.where(mine >= 0, mine, put[read]),
    )
    blind = np.ones(len(puts), np.bool_)
    blind[mine[mine >= 0]] = False
    w = np.flatnonzero(blind)
    out = np.where(puts.status[w] == OK, w, -1)
    writes = _Touches(puts.process[w], puts.key[w], puts.begin[w], puts.end[w], w, out)
    pairs = zip(reads.columns(), writes.columns(), strict=True)
    return _Touches(*(np.concatenate(pair) for pair in pairs))


def _first_of(touch: _Touches) -> Bools:
    """Return for each row whether it is its process's first access of the version. Rows are in time
    order."""
    count = len(touch)
    version = np.concatenate([touch.into, touch.out])
    process = np.concatenate([touch.process, touch.process])
    when = np.concatenate([2 * np.arange(count), 2 * np.arange(count) + 1])
    order = np.lexsort((when, version, process))
    p, v = process[order], version[order]
    again = (p[1:] == p[:-1]) & (v[1:] == v[:-1])
    first = np.ones(2 * count, np.bool_)
    first[order[1:][again]] = False
    return first[:count]
