"""Logs that are only appended to, with entries at offsets and reads to the end.

An append that was acknowledged at an offset, or whose value was read there, came to be between its
call and its return; whoever read an entry returned after it was there; whoever read n entries to
the end was called before the entry at n was. That bounds each offset's instant (`slots`), and the
history is legal when values and offsets belong to each other and every place can be filled: holes
that nobody names by appends whose offset nobody told, and acknowledged appends that nobody saw must
have gone into holes, or behind everything that was read. An append of unknown outcome that nobody
saw may fill a hole, and needs none.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup
from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import Objects
from checkers._linear.slots import Slots, room, spread, unmatched
from checkers._linear.wrongs import Code, Judged, Wrongs, one_each, spoilt, wrongs
from harness.operation import F

HOLES = Code.LOG_HOLE, Code.ELEMENT_LOST  # a place without an append, an append without a place


class _Named(NamedTuple):
    """Entries as somebody named them: whose word it is, key, offset, value; `by`: who appended."""

    place: Ints
    key: Ints
    offset: Ints
    value: Ints
    by: Ints

    def where(self, mask: Bools) -> "_Named":
        return _Named(*(column[mask] for column in self))


def judge(logs: Objects) -> Judged:
    """Judge all keys. A key to which a value was appended twice is left undecided."""
    operations = logs.operations
    appends = np.concatenate([operations.of(F.APPEND), operations.of(F.APPEND, status=INFO)])
    lookup = Lookup(operations.key[appends], operations.value[appends])
    undecided = np.zeros(len(logs.keys), np.bool_)
    undecided[operations.key[appends[lookup.repeated]]] = True
    named = _named(logs, appends, lookup)
    nobodys = named.where(named.by < 0)
    phantoms = wrongs(Code.PHANTOM_ELEMENT, nobodys.key, nobodys.place, value=nobodys.value)
    phantoms = _first(phantoms, nobodys.value)
    named = named.where((named.by >= 0) & ~undecided[named.key])
    found = [phantoms, _twice(named), _conflicts(named)]
    sound = ~(spoilt(len(logs.keys), found) | undecided)
    named = named.where(sound[named.key])
    appends = appends[sound[operations.key[appends]]]
    reads = operations.of(F.LIST)
    reads = reads[sound[operations.key[reads]]]
    return Judged([*found, *_placed(logs, appends, named, reads)], undecided)


def _named(logs: Objects, appends: Ints, lookup: Lookup) -> _Named:
    operations, elements = logs.operations, logs.elements
    told = appends[(operations.offset[appends] != ABSENT) & (operations.status[appends] == OK)]
    key = np.concatenate([operations.key[told], operations.key[elements.list]])
    value = np.concatenate([operations.value[told], elements.value])
    at = lookup.at(key, value)
    return _Named(
        place=np.concatenate([told, elements.list]),
        key=key,
        offset=np.concatenate([operations.offset[told], elements.pos]),
        value=value,
        by=np.append(appends, -1)[at],
    )


def _first(found: Wrongs, value: Ints) -> Wrongs:
    """One row for each value of a key."""
    order = np.lexsort((value, found.key))
    new = np.ones(len(order), np.bool_)
    new[1:] = np.diff(value[order]) != 0
    new[1:] |= np.diff(found.key[order]) != 0
    kept = order[new]
    named = None if found.value is None else found.value[kept]
    return Wrongs(found.code, found.key[kept], found.ops[kept], named)


def _twice(named: _Named) -> Wrongs:
    """Values at two offsets."""
    order = np.lexsort((named.offset, named.by))
    again = _differ(named.by[order], named.offset[order])
    one, other = order[again - 1], order[again]
    ops = (named.by[one], named.place[one], named.place[other])
    return _first(wrongs(Code.DUPLICATE_ELEMENT, named.key[one], *ops), named.value[one])


def _conflicts(named: _Named) -> Wrongs:
    """Offsets with two values."""
    order = np.lexsort((named.by, named.offset, named.key))
    same = np.append(False, np.diff(named.key[order]) == 0)
    again = _differ(named.offset[order], named.by[order])
    again = again[same[again]]
    one, other = order[again - 1], order[again]
    ops = (named.place[one], named.place[other])
    return _first(wrongs(Code.OFFSET_CONFLICT, named.key[one], *ops), named.offset[one])


def _differ(group: Ints, column: Ints) -> Ints:
    """Rows of the same group as the row before that differ from it."""
    return 1 + np.flatnonzero((np.diff(group) == 0) & (np.diff(column) != 0))


def _placed(logs: Objects, appends: Ints, named: _Named, reads: Ints) -> list[Wrongs]:
    operations = logs.operations
    length = _lengths(logs, reads)
    counts = np.zeros(len(logs.keys), np.int64)
    np.maximum.at(counts, named.key, named.offset + 1)
    loose = appends[np.isin(appends, named.by, invert=True)]
    gaps = _too_many(logs, counts, named, loose)
    sound = ~spoilt(len(logs.keys), [gaps])
    named, counts = named.where(sound[named.key]), np.where(sound, counts, 0)
    loose = loose[sound[operations.key[loose]]]
    kept = sound[operations.key[reads]]
    slots = _bounds(logs, counts, named, reads[kept], length[kept])
    back = np.flatnonzero(slots.lower > slots.upper)
    later, earlier = logs.owner[slots.lower[back]], logs.owner[slots.upper[back]]
    stale = operations.f[later] == F.LIST
    found = [
        one_each(wrongs(code, operations.key[later[mask]], later[mask], earlier[mask]))
        for code, mask in ((Code.STALE_READ, stale), (Code.NOT_LINEARIZABLE, ~stale))
    ]
    whole = ~spoilt(len(logs.keys), found)
    hole = np.repeat(whole, np.diff(slots.first))
    hole[slots.beyond], hole[slots.first[named.key] + named.offset] = False, False
    loose = loose[whole[operations.key[loose]]]
    return [gaps, *found, *unmatched(logs, loose, slots, np.flatnonzero(hole), HOLES)]


def _lengths(logs: Objects, reads: Ints) -> Ints:
    """How many elements each list had."""
    length = np.zeros(len(logs.operations), np.int64)
    np.maximum.at(length, logs.elements.list, logs.elements.pos + 1)
    return length[reads]


def _too_many(logs: Objects, counts: Ints, named: _Named, loose: Ints) -> Wrongs:
    """Logs with more holes than anybody can fill: no need to count them one by one."""
    key = logs.operations.key
    known = np.unique(np.stack([named.key, named.offset]), axis=1)[0]
    holes = counts - np.bincount(known, minlength=len(counts))
    many = holes > np.bincount(key[loose], minlength=len(counts))
    last = np.lexsort((named.offset, named.key))
    last = last[np.append(np.diff(named.key[last]) != 0, True)] if len(last) else last
    last = last[many[named.key[last]]]
    return wrongs(Code.LOG_HOLE, named.key[last], named.by[last], named.place[last])


def _bounds(logs: Objects, counts: Ints, named: _Named, reads: Ints, length: Ints) -> Slots:
    operations = logs.operations
    slots = room(counts, logs.never)
    place = slots.first[named.key] + named.offset
    np.maximum.at(slots.lower, place, operations.call[named.by])
    np.minimum.at(slots.upper, place, operations.ret[named.by])
    np.minimum.at(slots.upper, place, operations.ret[named.place])
    end = slots.first[operations.key[reads]] + length
    np.maximum.at(slots.lower, end, operations.call[reads])
    return spread(slots)
