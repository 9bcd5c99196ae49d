"""Queues, first in first out, of elements that are all different: decided by sorting alone.

Without operations of unknown outcome a history is legal exactly when nothing is taken that was not
put before, nothing twice, no a that was put before b is taken after b or never although b was
taken, and no answer "empty" spans only instants at which some element was certainly there
(Bouajjani, Emmi, Enea, Hamza: On reducing linearizability to state reachability, 2015).

An enqueue of unknown outcome counts if its element was taken. A dequeue of unknown outcome may have
taken one element that nobody else took, at any time after its call. Elements that have to be gone
by some instant are the first ones of those never taken, whatever asks for it, so it is enough to
count: by no such instant may more elements have to be gone than dequeues of unknown outcome had
been called. The excess is what was lost. A drain of unknown outcome may have taken any number.

Where the order does not count, an element is lost only if an answer "empty" came after it.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup
from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import Objects, Operations
from checkers._linear.wrongs import Code, Judged, Wrongs, wrongs
from harness.operation import F

_COVERED = np.int64(1) << 40


class _Elements(NamedTuple):
    """Elements that were put and taken once each: places of their operations."""

    put: Ints
    taken: Ints


class _Need(NamedTuple):
    """An instant by which so many more elements had to be gone than can be. `ops`: who says so."""

    key: Ints
    excess: Ints
    ops: Ints


def judge(queues: Objects, *, ordered: bool = True) -> Judged:
    """Judge all keys. A key on which a value was put twice is left undecided. `ordered`: what was
    put first has to be taken first."""
    operations = queues.operations
    put = np.concatenate([operations.of(F.ENQUEUE), operations.of(F.ENQUEUE, status=INFO)])
    lookup = Lookup(operations.key[put], operations.value[put])
    undecided = np.zeros(len(queues.keys), np.bool_)
    undecided[operations.key[put[lookup.repeated]]] = True
    taken = operations.of(F.DEQUEUE)
    taken = taken[operations.value[taken] != ABSENT]
    at = lookup.at(operations.key[taken], operations.value[taken])
    nobodys = wrongs(Code.PHANTOM_ELEMENT, operations.key[taken[at < 0]], taken[at < 0])
    known = (at >= 0) & ~undecided[operations.key[taken]]
    strange, elements = _once(operations, put[at[known]], taken[known])
    left = put[np.isin(put, put[at[known]], invert=True) & (operations.status[put] == OK)]
    left = left[~undecided[operations.key[left]]]
    overtaken = [_overtaken(queues, elements)] if ordered else []
    lost = _lost(queues, elements, left, undecided, ordered)
    return Judged([nobodys, *strange, *overtaken, *lost], undecided)


def unsought(queues: Objects) -> Ints:
    """Acknowledged elements that nobody took, and after which no answer "empty" was sought."""
    operations = queues.operations
    put, taken = operations.of(F.ENQUEUE), operations.of(F.DEQUEUE)
    gave = operations.value[taken] != ABSENT
    empty, taken = taken[~gave], taken[gave]
    last = np.full(len(queues.keys), -1, np.int64)
    np.maximum.at(last, operations.key[empty], operations.call[empty])
    found = Lookup(operations.key[taken], operations.value[taken])
    left = put[found.at(operations.key[put], operations.value[put]) < 0]
    return left[operations.ret[left] > last[operations.key[left]]]


def _once(operations: Operations, put: Ints, taken: Ints) -> tuple[list[Wrongs], _Elements]:
    """Elements taken twice, or before they were put; and the others."""
    order = np.lexsort((operations.ret[taken], put))
    put, taken = put[order], taken[order]
    again = np.append(False, put[1:] == put[:-1]) if len(put) else np.zeros(0, np.bool_)
    first = taken[np.maximum.accumulate(np.where(again, 0, np.arange(len(put))))]
    early = (operations.ret[taken] < operations.call[put]) & ~again
    twice = np.isin(put, put[again])
    key = operations.key[put]
    found = [
        wrongs(Code.DUPLICATE_ELEMENT, key[again], put[again], first[again], taken[again]),
        wrongs(Code.PHANTOM_ELEMENT, key[early], taken[early], put[early]),
    ]
    sound = ~(twice | early)
    return found, _Elements(put[sound], taken[sound])


def _overtaken(queues: Objects, elements: _Elements) -> Wrongs:
    """Pairs of elements that were taken in the wrong order, one for each that suffered or gained,
    whichever are fewer on its key."""
    operations, (put, taken) = queues.operations, elements
    overtakes = _first_after(operations, elements)
    late = np.flatnonzero(overtakes < operations.call[taken])
    passed = _last_before(operations, elements)
    fast = np.flatnonzero(passed > operations.ret[taken])
    key = operations.key[put]
    slow_count = np.bincount(key[late], minlength=len(queues.keys))
    fast_count = np.bincount(key[fast], minlength=len(queues.keys))
    late = late[(slow_count <= fast_count)[key[late]]]
    fast = fast[(slow_count > fast_count)[key[fast]]]
    other = queues.owner[np.concatenate([overtakes[late], passed[fast]])]
    mine = np.concatenate([late, fast])
    their_put = _put_of(elements, other)
    return wrongs(Code.QUEUE_ORDER, key[mine], put[mine], taken[mine], their_put, other)


def _first_after(operations: Operations, elements: _Elements) -> Ints:
    """Of each element: the first return of a dequeue of elements put after it."""
    call, ret = operations.call[elements.put], operations.ret[elements.taken]
    order = np.argsort(call)
    first = np.append(np.minimum.accumulate(ret[order][::-1])[::-1], np.iinfo(np.int64).max)
    at = np.searchsorted(call[order], operations.ret[elements.put])
    return first[at]


def _last_before(operations: Operations, elements: _Elements) -> Ints:
    """Of each element: the last call of a dequeue of elements put before it."""
    ret, call = operations.ret[elements.put], operations.call[elements.taken]
    order = np.argsort(ret, kind="stable")
    last = np.concatenate([[-1], np.maximum.accumulate(call[order])])
    return last[np.searchsorted(ret[order], operations.call[elements.put])]


def _put_of(elements: _Elements, taken: Ints) -> Ints:
    order = np.argsort(elements.taken)
    return elements.put[order][np.searchsorted(elements.taken[order], taken)]


# ------------------------------------------------------------------- never taken; empty queues


def _lost(
    queues: Objects, elements: _Elements, left: Ints, undecided: Bools, ordered: bool
) -> list[Wrongs]:
    """Elements that are gone, and answers "empty" while something was there."""
    operations = queues.operations
    ended = np.sort(operations.ret[left])
    called = np.sort(_absorbing(queues, left))
    begins = np.concatenate([[-1], queues.never[:-1]])
    waiting, absorbed = np.searchsorted(ended, begins), np.searchsorted(called, begins)
    needs = [_overtakers(queues, elements, (ended, called), (waiting, absorbed))] if ordered else []
    empty = operations.of(F.DEQUEUE)
    empty = empty[operations.value[empty] == ABSENT]
    empty = empty[~undecided[operations.key[empty]]]
    covered, more = _empty(queues, elements, empty, (ended, called), (waiting, absorbed))
    return [_excess(queues, left, [*needs, more]), covered]


def _absorbing(queues: Objects, left: Ints) -> Ints:
    """Since when one more element may have been taken by operations of unknown outcome: of a key's
    first drain, as many as are left."""
    operations = queues.operations
    absorbers = operations.of(F.DEQUEUE, status=INFO)
    drains = absorbers[operations.drain[absorbers]]
    since = np.full(len(queues.keys), np.iinfo(np.int64).max)
    np.minimum.at(since, operations.key[drains], operations.call[drains])
    drained = since[operations.key[left]]
    return np.concatenate(
        [
            operations.call[absorbers[~operations.drain[absorbers]]],
            drained[drained < np.iinfo(np.int64).max],
        ]
    )


def _overtakers(
    queues: Objects, elements: _Elements, events: tuple[Ints, Ints], before: tuple[Ints, Ints]
) -> _Need:
    """When an element was taken, all that were put before it had to be gone, some time."""
    operations = queues.operations
    order = np.argsort(operations.ret[elements.taken])
    put, taken = elements.put[order], elements.taken[order]
    latest = np.maximum.accumulate(operations.call[put])
    key, by = operations.key[put], operations.ret[taken]
    gone = np.searchsorted(events[0], latest) - before[0][key]
    excess = gone - (np.searchsorted(events[1], by) - before[1][key])
    cause = queues.owner[latest]
    return _Need(key, excess, np.stack([cause, taken], axis=1))


def _empty(
    queues: Objects,
    elements: _Elements,
    empty: Ints,
    events: tuple[Ints, Ints],
    before: tuple[Ints, Ints],
) -> tuple[Wrongs, _Need]:
    """Each answer "empty" needs an instant, between its call and return, at which nothing that was
    taken later is there, and few enough that were not."""
    operations = queues.operations
    here = np.zeros(len(queues.owner) + 1, np.int64)  # from before the first event on
    since, until = operations.ret[elements.put], operations.call[elements.taken]
    surely = since < until
    np.add.at(here, since[surely] + 1, 1)
    np.add.at(here, until[surely] + 1, -1)
    instants = np.arange(len(here)) - 1
    excess = np.searchsorted(events[0], instants, side="right") - np.searchsorted(
        events[1], instants, side="right"
    )
    excess = np.where(np.cumsum(here) > 0, _COVERED, excess)
    key, call, ret = operations.key[empty], operations.call[empty], operations.ret[empty]
    least = _least(excess, call + 1, ret + 1) - (before[0] - before[1])[key]
    never = least > _COVERED // 2
    other = _holder(queues, elements, call[never])
    another = _holder(queues, elements, ret[never] - 1)
    another = np.where(another == other, -1, another)
    found = wrongs(Code.NOT_EMPTY, key[never], empty[never], other, another)
    nobody = np.full(int((~never).sum()), -1, np.int64)
    return found, _Need(key[~never], least[~never], np.stack([empty[~never], nobody], axis=1))


def _least(numbers: Ints, starts: Ints, ends: Ints) -> Ints:
    """The least number in each non-empty range."""
    bounds = np.stack([starts, ends], axis=1).ravel()
    return np.minimum.reduceat(numbers, bounds)[::2]


def _holder(queues: Objects, elements: _Elements, instants: Ints) -> Ints:
    """Who took, latest of all, an element that was surely there already at each instant, where
    there was one."""
    operations = queues.operations
    order = np.argsort(operations.ret[elements.put], kind="stable")
    latest = np.maximum.accumulate(operations.call[elements.taken][order])
    at = np.searchsorted(operations.ret[elements.put][order], instants, side="right") - 1
    return queues.owner[latest[at]]


def _excess(queues: Objects, left: Ints, needs: list[_Need]) -> Wrongs:
    """As many of the first elements of each key as have to be gone and can not be."""
    operations = queues.operations
    key = np.concatenate([need.key for need in needs])
    excess = np.concatenate([need.excess for need in needs])
    ops = np.concatenate([need.ops for need in needs])
    order = np.lexsort((-excess, key))
    worst = np.zeros(len(queues.keys), np.int64)
    witness = np.full((len(queues.keys), 2), -1, np.int64)
    heads = order[np.append(True, key[order][1:] != key[order][:-1])] if len(order) else order
    worst[key[heads]], witness[key[heads]] = excess[heads], ops[heads]
    left = left[np.lexsort((operations.ret[left], operations.key[left]))]
    mine = operations.key[left]
    nth = np.arange(len(left)) - np.searchsorted(mine, mine)
    lost = left[nth < worst[mine]]
    theirs = witness[operations.key[lost]]
    return wrongs(Code.ELEMENT_LOST, operations.key[lost], lost, theirs[:, 0], theirs[:, 1])
