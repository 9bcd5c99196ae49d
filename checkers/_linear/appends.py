"""Logs that are only appended to, with entries at offsets and reads to the end.

An append that was acknowledged at an offset, or whose value was read there, took effect between its
call and its return; a read of an entry returned after the entry was there; a read of n entries to
the end was called before entry n was there. That bounds the instant of each offset (`slots`). The
history is legal if values and offsets correspond one to one and each slot can be filled. Slots
without a known append are holes. Appends whose offset is unknown may have filled them: an append of
unknown outcome may fill a hole or none; an acknowledged append that was never read must have gone
into a hole, or behind all entries that were read.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup
from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import Objects
from checkers._linear.slots import Slots, tighten, unbounded_slots, unmatched_violations
from checkers._linear.violations import (
    Code,
    MethodResult,
    Violations,
    first_per_operation,
    keys_with_violations,
    violations,
)
from harness.operation import F

HOLES = (
    Code.LOG_HOLE,
    Code.ELEMENT_LOST,
)  # codes of a slot without an append, an append without a slot


class _Entries(NamedTuple):
    """Entries with known offsets: the operation that shows one, key, offset, value; `by`: its
    append."""

    place: Ints
    key: Ints
    offset: Ints
    value: Ints
    by: Ints

    def select(self, mask: Bools) -> "_Entries":
        return _Entries(*(column[mask] for column in self))


def judge(logs: Objects) -> MethodResult:
    """Judge all keys. A key to which a value was appended twice is left undecided."""
    operations = logs.operations
    appends = np.concatenate([operations.of(F.APPEND), operations.of(F.APPEND, status=INFO)])
    lookup = Lookup(operations.key[appends], operations.value[appends])
    undecided = np.zeros(len(logs.keys), np.bool_)
    undecided[operations.key[appends[lookup.repeated]]] = True
    entries = _entries(logs, appends, lookup)
    unknown = entries.select(entries.by < 0)
    phantoms = violations(Code.PHANTOM_ELEMENT, unknown.key, unknown.place, value=unknown.value)
    phantoms = _first(phantoms, unknown.value)
    entries = entries.select((entries.by >= 0) & ~undecided[entries.key])
    found = [phantoms, _twice(entries), _conflicts(entries)]
    sound = ~(keys_with_violations(len(logs.keys), found) | undecided)
    entries = entries.select(sound[entries.key])
    appends = appends[sound[operations.key[appends]]]
    reads = operations.of(F.LIST)
    reads = reads[sound[operations.key[reads]]]
    return MethodResult([*found, *_placed(logs, appends, entries, reads)], undecided)


def _entries(logs: Objects, appends: Ints, lookup: Lookup) -> _Entries:
    operations, elements = logs.operations, logs.elements
    acknowledged = appends[
        (operations.offset[appends] != ABSENT) & (operations.status[appends] == OK)
    ]
    key = np.concatenate([operations.key[acknowledged], operations.key[elements.list]])
    value = np.concatenate([operations.value[acknowledged], elements.value])
    at = lookup.at(key, value)
    return _Entries(
        place=np.concatenate([acknowledged, elements.list]),
        key=key,
        offset=np.concatenate([operations.offset[acknowledged], elements.pos]),
        value=value,
        by=np.append(appends, -1)[at],
    )


def _first(found: Violations, value: Ints) -> Violations:
    """Keep one row for each value of a key."""
    order = np.lexsort((value, found.key))
    new = np.ones(len(order), np.bool_)
    new[1:] = np.diff(value[order]) != 0
    new[1:] |= np.diff(found.key[order]) != 0
    kept = order[new]
    entries = None if found.value is None else found.value[kept]
    return Violations(found.code, found.key[kept], found.ops[kept], entries)


def _twice(entries: _Entries) -> Violations:
    """Return values at two offsets."""
    order = np.lexsort((entries.offset, entries.by))
    again = _differ(entries.by[order], entries.offset[order])
    one, other = order[again - 1], order[again]
    ops = (entries.by[one], entries.place[one], entries.place[other])
    return _first(violations(Code.DUPLICATE_ELEMENT, entries.key[one], *ops), entries.value[one])


def _conflicts(entries: _Entries) -> Violations:
    """Return offsets with two values."""
    order = np.lexsort((entries.by, entries.offset, entries.key))
    same = np.append(False, np.diff(entries.key[order]) == 0)
    again = _differ(entries.offset[order], entries.by[order])
    again = again[same[again]]
    one, other = order[again - 1], order[again]
    ops = (entries.place[one], entries.place[other])
    return _first(violations(Code.OFFSET_CONFLICT, entries.key[one], *ops), entries.offset[one])


def _differ(group: Ints, column: Ints) -> Ints:
    """Return the rows of the same group as the previous row that differ from it."""
    return 1 + np.flatnonzero((np.diff(group) == 0) & (np.diff(column) != 0))


def _placed(logs: Objects, appends: Ints, entries: _Entries, reads: Ints) -> list[Violations]:
    operations = logs.operations
    length = _lengths(logs, reads)
    counts = np.zeros(len(logs.keys), np.int64)
    np.maximum.at(counts, entries.key, entries.offset + 1)
    loose = appends[np.isin(appends, entries.by, invert=True)]
    gaps = _too_many(logs, counts, entries, loose)
    sound = ~keys_with_violations(len(logs.keys), [gaps])
    entries, counts = entries.select(sound[entries.key]), np.where(sound, counts, 0)
    loose = loose[sound[operations.key[loose]]]
    kept = sound[operations.key[reads]]
    slots = _bounds(logs, counts, entries, reads[kept], length[kept])
    back = np.flatnonzero(slots.lower > slots.upper)
    later, earlier = logs.owner[slots.lower[back]], logs.owner[slots.upper[back]]
    stale = operations.f[later] == F.LIST
    found = [
        first_per_operation(
            violations(code, operations.key[later[mask]], later[mask], earlier[mask])
        )
        for code, mask in ((Code.STALE_READ, stale), (Code.NOT_LINEARIZABLE, ~stale))
    ]
    whole = ~keys_with_violations(len(logs.keys), found)
    hole = np.repeat(whole, np.diff(slots.first))
    hole[slots.beyond], hole[slots.first[entries.key] + entries.offset] = False, False
    loose = loose[whole[operations.key[loose]]]
    return [gaps, *found, *unmatched_violations(logs, loose, slots, np.flatnonzero(hole), HOLES)]


def _lengths(logs: Objects, reads: Ints) -> Ints:
    """Return the number of elements of each list."""
    length = np.zeros(len(logs.operations), np.int64)
    np.maximum.at(length, logs.elements.list, logs.elements.pos + 1)
    return length[reads]


def _too_many(logs: Objects, counts: Ints, entries: _Entries, loose: Ints) -> Violations:
    """Return the logs with more holes than appends for them, without counting hole by hole."""
    key = logs.operations.key
    known = np.unique(np.stack([entries.key, entries.offset]), axis=1)[0]
    holes = counts - np.bincount(known, minlength=len(counts))
    many = holes > np.bincount(key[loose], minlength=len(counts))
    last = np.lexsort((entries.offset, entries.key))
    last = last[np.append(np.diff(entries.key[last]) != 0, True)] if len(last) else last
    last = last[many[entries.key[last]]]
    return violations(Code.LOG_HOLE, entries.key[last], entries.by[last], entries.place[last])


def _bounds(logs: Objects, counts: Ints, entries: _Entries, reads: Ints, length: Ints) -> Slots:
    operations = logs.operations
    slots = unbounded_slots(counts, logs.never)
    place = slots.first[entries.key] + entries.offset
    np.maximum.at(slots.lower, place, operations.call[entries.by])
    np.minimum.at(slots.upper, place, operations.ret[entries.by])
    np.minimum.at(slots.upper, place, operations.ret[entries.place])
    end = slots.first[operations.key[reads]] + length
    np.maximum.at(slots.lower, end, operations.call[reads])
    return tighten(slots)
