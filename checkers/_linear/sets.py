"""Sets that only grow, read as a whole: decided by sorting.

An element is there from some instant between the call of its earliest add and the first return of
any add. A read with the element returned later, a read without it was called earlier. Where that
fails for one element alone, the element was lost (the last read does not have it) or a read was
stale. The remaining elements must also be consistent: of two reads one has all that the other has,
so reads and the adds between them form one sequence, in which no operation may be called after a
later one returned.

An add of unknown outcome whose element was never read is left out.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup, group_numbers, group_starts
from checkers._linear.batch import INFO
from checkers._linear.objects import Objects
from checkers._linear.violations import Code, MethodResult, Violations, violations
from harness.operation import F


class _Members(NamedTuple):
    """Elements of sets: key, first call, two ranks by which each was certainly there (`ret` by its
    adds alone, `known` by reads too), and the add."""

    key: Ints
    call: Ints
    ret: Ints
    known: Ints
    by: Ints


class _Sightings(NamedTuple):
    """Which read has which member: places of reads, numbers of members."""

    read: Ints
    member: Ints

    def select(self, mask: Bools) -> "_Sightings":
        return _Sightings(self.read[mask], self.member[mask])


def judge(sets: Objects) -> MethodResult:
    """Judge all keys; none is left undecided."""
    operations = sets.operations
    reads = operations.of(F.LIST)
    reads = reads[np.argsort(operations.call[reads], kind="stable")]
    members, sightings, strange = _members(sets)
    missing, sound = _missing(sets, members, sightings, reads)
    found = [*strange, *missing]
    kept = sightings.select(sound[sightings.member])
    return MethodResult([*found, *_inconsistent(sets, members, kept, reads, sound)], _no_keys(sets))


def unverified_elements(sets: Objects) -> Ints:
    """Return acknowledged adds of elements that no read has, with no read called after them."""
    operations, elements = sets.operations, sets.elements
    adds, reads = operations.of(F.ADD), operations.of(F.LIST)
    last = np.full(len(sets.keys), -1, np.int64)
    np.maximum.at(last, operations.key[reads], operations.call[reads])
    seen = Lookup(operations.key[elements.list], elements.value)
    unseen = adds[seen.at(operations.key[adds], operations.value[adds]) < 0]
    return unseen[operations.ret[unseen] > last[operations.key[unseen]]]


def _no_keys(sets: Objects) -> Bools:
    return np.zeros(len(sets.keys), np.bool_)


def _members(sets: Objects) -> tuple[_Members, _Sightings, list[Violations]]:
    """Return all members, the reads that have them, and violations of single reads."""
    operations, elements = sets.operations, sets.elements
    adds = np.concatenate([operations.of(F.ADD), operations.of(F.ADD, status=INFO)])
    adds = adds[np.lexsort((operations.call[adds], operations.value[adds], operations.key[adds]))]
    starts = group_starts(operations.key[adds], operations.value[adds])
    by = adds[starts]
    ret = np.minimum.reduceat(operations.ret[adds], starts) if len(adds) else adds
    lookup = Lookup(operations.key[by], operations.value[by])
    key = operations.key[elements.list]
    member = lookup.at(key, elements.value)
    once, twice = _doubled(sets)
    early = operations.ret[elements.list] < np.append(operations.call[by], -1)[member]
    strange = [
        _one_each(Code.DUPLICATE_ELEMENT, key, elements.value, twice, elements.list),
        _one_each(Code.PHANTOM_ELEMENT, key, elements.value, member < 0, elements.list),
        _one_each(Code.PHANTOM_ELEMENT, key, elements.value, early, elements.list),
    ]
    gone = np.zeros(len(by), np.bool_)
    gone[member[early]] = True
    seen = once & ~np.append(gone, True)[member]
    sightings = _Sightings(elements.list[seen], member[seen])
    known = np.where(gone, sets.never[operations.key[by]], ret)
    np.minimum.at(known, sightings.member, operations.ret[sightings.read])
    ret = np.where(gone, sets.never[operations.key[by]], ret)
    return _Members(operations.key[by], operations.call[by], ret, known, by), sightings, strange


def _doubled(sets: Objects) -> tuple[Bools, Bools]:
    """Return which elements of lists are the first of their value in their list, and which the
    second."""
    elements = sets.elements
    order = np.lexsort((elements.value, elements.list))
    starts = group_starts(elements.list[order], elements.value[order])
    nth = np.arange(len(order)) - starts[group_numbers(starts, len(order))]
    once, twice = np.zeros(len(order), np.bool_), np.zeros(len(order), np.bool_)
    once[order], twice[order] = nth == 0, nth == 1
    return once, twice


def _one_each(code: Code, key: Ints, value: Ints, mask: Bools, reads: Ints) -> Violations:
    """Return one violation for each value of a key, with a read that has it."""
    at = np.flatnonzero(mask)
    at = at[np.lexsort((value[at], key[at]))]
    at = at[group_starts(key[at], value[at])]
    return violations(code, key[at], reads[at], value=value[at])


# ----------------------------------------------------------------------- each element on its own


def _missing(
    sets: Objects, members: _Members, sightings: _Sightings, reads: Ints
) -> tuple[list[Violations], Bools]:
    """Return members that were certainly there and missing later; and which members are sound."""
    operations = sets.operations
    calls = operations.call[reads]
    since = np.searchsorted(calls, members.known)
    ends = np.searchsorted(calls, sets.never[members.key])
    later = operations.call[sightings.read] > members.known[sightings.member]
    saw = np.bincount(sightings.member[later], minlength=len(members.key))
    missed = np.flatnonzero(ends - since > saw)
    last = np.append(reads, -1)[ends - 1]
    has_last = np.zeros(len(members.key), np.bool_)
    has_last[sightings.member[sightings.read == last[sightings.member]]] = True
    lost, stale = missed[~has_last[missed]], missed[has_last[missed]]
    knower = sets.owner[members.known]
    found = violations(
        Code.ELEMENT_LOST, members.key[lost], members.by[lost], knower[lost], last[lost]
    )
    sound = np.ones(len(members.key), np.bool_)
    sound[missed] = False
    return [found, _stale(sets, members, sightings, reads, stale)], sound


def _stale(
    sets: Objects, members: _Members, sightings: _Sightings, reads: Ints, stale: Ints
) -> Violations:
    """Return one row for each stale element, or for each stale read, whichever are fewer on its
    key."""
    operations = sets.operations
    number = np.full(len(members.key), -1, np.int64)
    number[stale] = np.arange(len(stale))
    known = np.sort(members.known[stale])
    call, key = operations.call[reads], operations.key[reads]
    begin = np.concatenate([[-1], sets.never])[key]
    due = np.searchsorted(known, call) - np.searchsorted(known, begin)
    mine = (number[sightings.member] >= 0) & (
        operations.call[sightings.read] > members.known[sightings.member]
    )
    saw = np.bincount(sightings.read[mine], minlength=len(operations))[reads]
    late = reads[due > saw]
    by_read = np.bincount(operations.key[late], minlength=len(sets.keys))
    by_member = np.bincount(members.key[stale], minlength=len(sets.keys))
    fewer = by_read < by_member
    late, stale = late[fewer[operations.key[late]]], stale[~fewer[members.key[stale]]]
    knower = sets.owner[members.known]
    key = np.concatenate([members.key[stale], operations.key[late]])
    none = np.full(len(late), -1)
    ops = (
        np.concatenate([members.by[stale], late]),
        np.concatenate([knower[stale], none]),
    )
    return violations(Code.STALE_READ, key, *ops)


# -------------------------------------------------------------------------------- all of them


def _inconsistent(
    sets: Objects, members: _Members, sightings: _Sightings, reads: Ints, sound: Bools
) -> list[Violations]:
    """Return reads that have no order in which each has all elements of those before it."""
    operations = sets.operations
    size = np.bincount(sightings.read, minlength=len(operations))[reads]
    order = np.lexsort((size, operations.key[reads]))
    reads, size = reads[order], size[order]
    starts = group_starts(operations.key[reads], size)
    place = np.full(len(operations), -1, np.int64)
    place[reads] = starts[group_numbers(starts, len(reads))] if len(reads) else reads
    first = np.full(len(members.key), len(reads), np.int64)
    np.minimum.at(first, sightings.member, place[sightings.read])
    ends = np.searchsorted(operations.key[reads], members.key, side="right")
    saw = np.bincount(sightings.member, minlength=len(members.key))
    holed = np.flatnonzero(saw < ends - first)
    key, heads = np.unique(members.key[holed], return_index=True)
    some = np.full(len(sets.keys), -1, np.int64)
    some[key] = holed[heads]
    least = np.append(first, len(reads))[some[operations.key[reads]]]
    found = _apart(sets, members, sightings, some, reads[place[reads] >= least])
    chained = some < 0
    stage = np.where(saw > 0, 2 * first, 2 * ends)
    kept = (saw > 0) | (members.ret < sets.never[members.key])
    return [found, _in_time(sets, members, (reads, place), stage, kept & sound, chained)]


def _apart(
    sets: Objects, members: _Members, sightings: _Sightings, some: Ints, reads: Ints
) -> Violations:
    """Return by key a member, a read that has it, and a read of at least that size without it."""
    operations = sets.operations
    saw = np.zeros(len(operations), np.bool_)
    saw[sightings.read[sightings.member == some[members.key[sightings.member]]]] = True
    key, seers = np.unique(operations.key[reads[saw[reads]]], return_index=True)
    _, others = np.unique(operations.key[reads[~saw[reads]]], return_index=True)
    seer, other = reads[saw[reads]][seers], reads[~saw[reads]][others]
    return violations(Code.NOT_LINEARIZABLE, key, members.by[some[key]], seer, other)


def _in_time(
    sets: Objects,
    members: _Members,
    listed: tuple[Ints, Ints],
    stage: Ints,
    sound: Bools,
    chained: Bools,
) -> Violations:
    """Return violations of real time in the sequence of adds and reads of each key.

    A member's stage is even: before the first reads that have it; of one that was never read, last.
    """
    operations, (reads, place) = sets.operations, listed
    stage = np.concatenate([2 * place[reads] + 1, stage])
    key = np.concatenate([operations.key[reads], members.key])
    call = np.concatenate([operations.call[reads], members.call])
    ret = np.concatenate([operations.ret[reads], members.ret])
    kept = np.concatenate([np.ones(len(reads), np.bool_), sound]) & chained[key]
    stage, key, call, ret = stage[kept], key[kept], call[kept], ret[kept]
    order = np.lexsort((stage, key))
    stage, key, call, ret = stage[order], key[order], call[order], ret[order]
    starts = group_starts(key, stage)
    latest = np.concatenate([[-1], np.maximum.accumulate(call)])
    before = latest[starts[group_numbers(starts, len(key))]] if len(key) else call
    wrong = np.flatnonzero(before > ret)
    later, earlier = sets.owner[before[wrong]], sets.owner[ret[wrong]]
    _, heads = np.unique(later, return_index=True)
    return violations(Code.NOT_LINEARIZABLE, key[wrong][heads], later[heads], earlier[heads])
