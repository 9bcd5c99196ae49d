"""Registers: unique values tell who read from whom, and some of the order of the versions.

Nobody shows a register's past, so the order of its versions is known only in part: nothing comes
before the first value; a transaction that read one version and wrote another came after the first
one's writer; and, where a contract promises to keep the order of processes or real time, a version
that was touched before another was touched for the first time is the older one. What follows from
all dependencies together is not searched for: it is a hard problem, and no anomaly that is told
here is in doubt for it.
"""

from dataclasses import dataclass, replace

import numpy as np

from checkers._cycles.arrays import NULL, Bools, Ints, Lookup, counted, ranges
from checkers._cycles.edges import (
    DOWN,
    SINCE,
    UP,
    Edges,
    Kind,
    Layer,
    edges,
    relay,
    relays,
    together,
)
from checkers._cycles.inside import Gets, Puts
from checkers._cycles.remarks import Remark, Remarks
from checkers._cycles.rows import FAIL, OK, Columns

MOST_BETWEEN = 64  # direct edges from one read; more of them mean an anomaly that is seen anyway


def dependencies(puts: Puts, gets: Gets, layer: Layer, remarks: Remarks) -> Edges:
    """Edges and remarks of the registers of some keys."""
    repeated = Lookup(puts.key, puts.value).repeated
    twice = np.unique(puts.key[repeated])
    if len(twice):
        remarks.add(Remark.NOT_UNIQUE, puts.op[repeated], puts.key[repeated], NULL, -1)
        puts, gets = puts.at(~np.isin(puts.key, twice)), gets.at(~np.isin(gets.key, twice))
    put = Lookup(puts.key, puts.value).at(gets.key, gets.value)
    put[gets.value == NULL] = -1
    good = _sound(puts, gets, put, remarks)
    gets, put = gets.at(good), put[good]
    puts, put = _last_ones(puts, put)
    if not len(puts):
        return together([])
    own = Lookup(puts.key, puts.op).at(gets.key, gets.op)
    behind = _lost_updates(puts, gets, own, remarks)
    gets = replace(gets, again=gets.again | behind)
    parts = [_read_from(puts, gets, put), *_replaced(puts, gets, put, own)]
    if layer >= Layer.PROCESS:
        parts += _by_process(puts, gets, put)
    if layer >= Layer.REALTIME:
        parts.append(_by_time(puts, gets, put, own))
    return together(parts)


def _sound(puts: Puts, gets: Gets, put: Ints, remarks: Remarks) -> Bools:
    """Reads of what somebody wrote, committed, and left; and of nothing."""
    phantom = (put < 0) & (gets.value != NULL)
    remarks.add(Remark.PHANTOM, gets.op[phantom], gets.key[phantom], gets.value[phantom], -1)
    there = put >= 0

    def where(condition: Bools) -> Bools:
        mask = np.zeros(len(put), np.bool_)
        mask[there] = condition
        return mask

    aborted = where(puts.status[put[there]] == FAIL)
    ahead = where(puts.op[put[there]] == gets.op[there]) & ~aborted
    partly = where(puts.last[put[there]] == 0) & ~aborted & ~ahead
    remarks.add(Remark.UNSEEN_OWN, gets.op[ahead], gets.key[ahead], gets.value[ahead], -1)
    for code, rows in ((Remark.ABORTED, aborted), (Remark.INTERMEDIATE, partly)):
        writer = puts.op[put[rows]]
        remarks.add(code, writer, gets.key[rows], gets.value[rows], gets.op[rows])
    good: Bools = ~(phantom | aborted | ahead | partly)
    return good


def _last_ones(puts: Puts, put: Ints) -> tuple[Puts, Ints]:
    """The writes that others may see, by key and time; and each read's among them."""
    rows = np.flatnonzero((puts.last == 1) & (puts.status != FAIL))
    rows = rows[np.lexsort((puts.op[rows], puts.begin[rows], puts.key[rows]))]
    renumbered = np.full(len(puts) + 1, -1, np.int64)
    renumbered[rows] = np.arange(len(rows))
    return puts.at(rows), renumbered[put]


def _lost_updates(puts: Puts, gets: Gets, own: Ints, remarks: Remarks) -> Ints:
    """Reads of transactions that replaced a version which another one replaced, too."""
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
    remarks.add(Remark.LOST_UPDATE, op[late], key[late], value[late], leader[late])
    return behind


def _read_from(puts: Puts, gets: Gets, put: Ints) -> Edges:
    there = put >= 0
    writer = puts.op[put[there]]
    return edges(writer, gets.op[there], Kind.WR, gets.key[there], gets.value[there])


def _replaced(puts: Puts, gets: Gets, put: Ints, own: Ints) -> list[Edges]:
    """Who wrote after having read, and who read what they replaced; and who read nothing yet."""
    both = np.flatnonzero((own >= 0) & (put >= 0))
    writer, value = puts.op[put[both]], puts.value[own[both]]
    ww = edges(writer, gets.op[both], Kind.WW, gets.key[both], gets.value[both], value)
    rw = _against(puts, gets, put, put[both], own[both], Layer.DATA)
    return [ww, rw, *_before_all(puts, gets, own)]


def _against(puts: Puts, gets: Gets, put: Ints, older: Ints, newer: Ints, layer: Layer) -> Edges:
    """Readers of the older versions came before the writers of the newer ones."""
    readers = np.flatnonzero((put >= 0) & (gets.again == 0))
    readers = readers[np.argsort(put[readers], kind="stable")]
    low = np.searchsorted(put[readers], older)
    count = np.searchsorted(put[readers], older, side="right") - low
    reader, new = readers[ranges(low, count)], np.repeat(newer, count)
    return edges(
        gets.op[reader],
        puts.op[new],
        Kind.RW,
        gets.key[reader],
        gets.value[reader],
        puts.value[new],
        layer,
    )


def _before_all(puts: Puts, gets: Gets, own: Ints) -> list[Edges]:
    """Who read that there was nothing came before all writers but itself."""
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
        edges(gets.op[nothing][up], relay(key[up], after[up], UP), Kind.RW, key[up]),
        edges(gets.op[nothing][down], relay(key[down], before[down], DOWN), Kind.RW, key[down]),
    ]
    used = np.isin(puts.key, key)
    for direction in (UP, DOWN):
        on = (puts.key[used], place[used], puts.op[used], puts.value[used])
        parts.append(relays(*on, direction))
    return parts


def _first_places(puts: Puts) -> Ints:
    """Of each write, where the writes of its key begin."""
    return np.searchsorted(puts.key, puts.key)


# ---------------------------------------------------------------------------- sessions and time


def _by_process(puts: Puts, gets: Gets, put: Ints) -> list[Edges]:
    """A process that came upon another version has gone on to a newer one; of transactions that
    began together, as a coarse clock tells it, nobody knows which was first."""
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
    ww = edges(
        puts.op[older],
        puts.op[newer],
        Kind.WW,
        puts.key[older],
        puts.value[older],
        puts.value[newer],
        Layer.PROCESS,
    )
    return [ww, _against(puts, gets, put, older, newer, Layer.PROCESS)]


def _by_time(puts: Puts, gets: Gets, put: Ints, own: Ints) -> Edges:
    """A version first touched after somebody had done with another one is the newer one."""
    done, since = _first_touched(puts, gets, put)
    order = np.lexsort((np.arange(len(puts)), since, puts.key))
    place_of = np.empty(len(puts), np.int64)
    low = _first_places(puts)
    place_of[order] = np.arange(len(puts)) - low
    after = counted(puts.key[order], since[order], puts.key, done) - low
    count = np.searchsorted(puts.key, puts.key, side="right") - low

    readers = np.flatnonzero((put >= 0) & (gets.again == 0))
    old = put[readers]
    start, mine = after[old], np.where(own[readers] >= 0, place_of[own[readers]], -1)
    beside = mine >= start
    onward = np.where(beside, mine + 1, start)
    some = onward < count[old]
    key = gets.key[readers]
    target = relay(key, onward, SINCE)[some]
    far = edges(
        gets.op[readers][some],
        target,
        Kind.RW,
        key[some],
        gets.value[readers][some],
        layer=Layer.REALTIME,
    )
    between = np.where(beside, np.minimum(mine - start, MOST_BETWEEN), 0)
    reader = np.repeat(readers, between)
    new = order[ranges((low[old] + start), between)]
    near = edges(
        gets.op[reader],
        puts.op[new],
        Kind.RW,
        gets.key[reader],
        gets.value[reader],
        puts.value[new],
        Layer.REALTIME,
    )
    followed = np.flatnonzero(after < count)
    target = relay(puts.key[followed], after[followed], SINCE)
    value = puts.value[followed]
    ww = edges(puts.op[followed], target, Kind.WW, puts.key[followed], value, layer=Layer.REALTIME)
    listed = puts.at(order)
    on = relays(listed.key, np.arange(len(puts)) - low, listed.op, listed.value, SINCE)
    return together([far, near, ww, on])


def _first_touched(puts: Puts, gets: Gets, put: Ints) -> tuple[Ints, Ints]:
    """Of each version: when the first to be done with it was, and when that one had begun."""
    there = put >= 0
    version = np.concatenate([np.arange(len(puts)), put[there]])
    begin = np.concatenate([puts.begin, gets.begin[there]])
    end = np.concatenate([puts.end, gets.end[there]])
    order = np.lexsort((begin, end, version))
    first = order[np.searchsorted(version[order], np.arange(len(puts)))]
    since = np.maximum(begin[first], puts.begin)
    return np.maximum(end[first], since), since


@dataclass(frozen=True)
class _Touches(Columns):
    """Transactions that read or wrote a key: the version they came upon, and the one they left."""

    process: Ints
    key: Ints
    begin: Ints
    end: Ints
    into: Ints
    out: Ints


def _touches(puts: Puts, gets: Gets, put: Ints) -> _Touches:
    """One row for each read of a version; and one for each write without such a read."""
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
    """Is it the first time that the process has to do with the version? Rows are in time order."""
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
