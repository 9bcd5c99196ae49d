"""Sets that only grow, read whole: decided by sorting.

An element is there from some instant between the call of its earliest add and the first return of
any. Whoever saw it returned later, whoever did not was called earlier; where that fails for one
element alone, it was lost (the last read does not have it) or a read was stale. The elements that
are left must also fit together: of two reads one saw all that the other saw, so reads and the adds
between them form one sequence, in which nothing may be called after something later has returned.

An add of unknown outcome that nobody saw is left out.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup, group_numbers, group_starts
from checkers._linear.batch import INFO
from checkers._linear.objects import Objects
from checkers._linear.wrongs import Code, Judged, Wrongs, wrongs
from harness.operation import F


class _Members(NamedTuple):
    """Elements of sets: key, when it was first called, when it was surely there (two ranks: by its
    adds alone, and by whoever saw it too), and who added it."""

    key: Ints
    call: Ints
    ret: Ints
    known: Ints
    by: Ints


class _Sightings(NamedTuple):
    """Which member which read saw: places of reads, numbers of members."""

    read: Ints
    member: Ints

    def where(self, mask: Bools) -> "_Sightings":
        return _Sightings(self.read[mask], self.member[mask])


def judge(sets: Objects) -> Judged:
    """Judge all keys; none is left undecided."""
    operations = sets.operations
    reads = operations.of(F.LIST)
    reads = reads[np.argsort(operations.call[reads], kind="stable")]
    members, sightings, strange = _members(sets)
    missing, sound = _missing(sets, members, sightings, reads)
    found = [*strange, *missing]
    kept = sightings.where(sound[sightings.member])
    return Judged([*found, *_together(sets, members, kept, reads, sound)], _none(sets))


def unsought(sets: Objects) -> Ints:
    """Acknowledged adds of what no read saw, and after which none was begun."""
    operations, elements = sets.operations, sets.elements
    adds, reads = operations.of(F.ADD), operations.of(F.LIST)
    last = np.full(len(sets.keys), -1, np.int64)
    np.maximum.at(last, operations.key[reads], operations.call[reads])
    seen = Lookup(operations.key[elements.list], elements.value)
    unseen = adds[seen.at(operations.key[adds], operations.value[adds]) < 0]
    return unseen[operations.ret[unseen] > last[operations.key[unseen]]]


def _none(sets: Objects) -> Bools:
    return np.zeros(len(sets.keys), np.bool_)


def _members(sets: Objects) -> tuple[_Members, _Sightings, list[Wrongs]]:
    """All that was added, who saw it, and what was seen and should not have been."""
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
    """Of all elements of lists: is it the first of its value in its list, and the second?"""
    elements = sets.elements
    order = np.lexsort((elements.value, elements.list))
    starts = group_starts(elements.list[order], elements.value[order])
    nth = np.arange(len(order)) - starts[group_numbers(starts, len(order))]
    once, twice = np.zeros(len(order), np.bool_), np.zeros(len(order), np.bool_)
    once[order], twice[order] = nth == 0, nth == 1
    return once, twice


def _one_each(code: Code, key: Ints, value: Ints, mask: Bools, reads: Ints) -> Wrongs:
    """One row for each value of a key, with a read that has it."""
    at = np.flatnonzero(mask)
    at = at[np.lexsort((value[at], key[at]))]
    at = at[group_starts(key[at], value[at])]
    return wrongs(code, key[at], reads[at], value=value[at])


# ----------------------------------------------------------------------- each element on its own


def _missing(
    sets: Objects, members: _Members, sightings: _Sightings, reads: Ints
) -> tuple[list[Wrongs], Bools]:
    """Elements that were surely there, and not seen later; and which are sound."""
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
    found = wrongs(Code.ELEMENT_LOST, members.key[lost], members.by[lost], knower[lost], last[lost])
    sound = np.ones(len(members.key), np.bool_)
    sound[missed] = False
    return [found, _stale(sets, members, sightings, reads, stale)], sound


def _stale(
    sets: Objects, members: _Members, sightings: _Sightings, reads: Ints, stale: Ints
) -> Wrongs:
    """One row for each stale element, or for each stale read, whichever are fewer on its key."""
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
    nobody = np.full(len(late), -1)
    ops = (
        np.concatenate([members.by[stale], late]),
        np.concatenate([knower[stale], nobody]),
    )
    return wrongs(Code.STALE_READ, key, *ops)


# -------------------------------------------------------------------------------- all of them


def _together(
    sets: Objects, members: _Members, sightings: _Sightings, reads: Ints, sound: Bools
) -> list[Wrongs]:
    """Reads that can not be put into one order, each seeing all that those before it saw."""
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
) -> Wrongs:
    """By key a member, a read that saw it, and one that saw as much and yet not this member."""
    operations = sets.operations
    saw = np.zeros(len(operations), np.bool_)
    saw[sightings.read[sightings.member == some[members.key[sightings.member]]]] = True
    key, seers = np.unique(operations.key[reads[saw[reads]]], return_index=True)
    _, others = np.unique(operations.key[reads[~saw[reads]]], return_index=True)
    seer, other = reads[saw[reads]][seers], reads[~saw[reads]][others]
    return wrongs(Code.NOT_LINEARIZABLE, key, members.by[some[key]], seer, other)


def _in_time(
    sets: Objects,
    members: _Members,
    listed: tuple[Ints, Ints],
    stage: Ints,
    sound: Bools,
    chained: Bools,
) -> Wrongs:
    """The sequence of adds and reads against time, by key.

    A member's stage is even: before the reads that first saw it; of one that nobody saw, last.
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
    return wrongs(Code.NOT_LINEARIZABLE, key[wrong][heads], later[heads], earlier[heads])
