"""Queues, first in first out, of elements that all differ: decided by sorting alone.

Without operations of unknown outcome, a history is legal exactly when no element is taken before it
was put, or twice; no element a that was put before b is taken after b, or never although b was
taken; and no answer "empty" spans only instants at which some element was certainly there
(Bouajjani, Emmi, Enea, Hamza: On reducing linearizability to state reachability, 2015).

An enqueue of unknown outcome counts if its element was taken. A dequeue of unknown outcome may have
taken one element that no other operation took, at any time after its call. Elements that must be
gone by some instant are the first of those never taken, whatever requires it, so counting is
enough: by no such instant may more elements have to be gone than dequeues of unknown outcome were
called. The excess is lost. A drain of unknown outcome may have taken any number.

Where the order does not count, an element is lost only if an answer "empty" came after it.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints, Lookup
from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import Objects, Operations
from checkers._linear.violations import Code, MethodResult, Violations, violations
from harness.operation import F

_COVERED = np.int64(1) << 40


class _Elements(NamedTuple):
    """Elements that were put and taken once each: places of their operations."""

    put: Ints
    taken: Ints


class _Shortage(NamedTuple):
    """An instant by which `excess` more elements had to be gone than possible. `ops`: the
    witnesses."""

    key: Ints
    excess: Ints
    ops: Ints


def judge(queues: Objects, *, ordered: bool = True) -> MethodResult:
    """Judge all keys. A key on which a value was put twice is left undecided. `ordered`: elements
    have to be taken in the order in which they were put."""
    operations = queues.operations
    put = np.concatenate([operations.of(F.ENQUEUE), operations.of(F.ENQUEUE, status=INFO)])
    lookup = Lookup(operations.key[put], operations.value[put])
    undecided = np.zeros(len(queues.keys), np.bool_)
    undecided[operations.key[put[lookup.repeated]]] = True
    taken = operations.of(F.DEQUEUE)
    taken = taken[operations.value[taken] != ABSENT]
    at = lookup.at(operations.key[taken], operations.value[taken])
    never_put = violations(Code.PHANTOM_ELEMENT, operations.key[taken[at < 0]], taken[at < 0])
    known = (at >= 0) & ~undecided[operations.key[taken]]
    strange, elements = _pair_elements(operations, put[at[known]], taken[known])
    left = put[np.isin(put, put[at[known]], invert=True) & (operations.status[put] == OK)]
    left = left[~undecided[operations.key[left]]]
    overtaken = [_overtaken(queues, elements)] if ordered else []
    lost = _lost(queues, elements, left, undecided, ordered)
    return MethodResult([never_put, *strange, *overtaken, *lost], undecided)


def unverified_elements(queues: Objects) -> Ints:
    """Return acknowledged elements that were never taken, and after which no dequeue found it
    empty."""
    operations = queues.operations
    put, taken = operations.of(F.ENQUEUE), operations.of(F.DEQUEUE)
    gave = operations.value[taken] != ABSENT
    empty, taken = taken[~gave], taken[gave]
    last = np.full(len(queues.keys), -1, np.int64)
    np.maximum.at(last, operations.key[empty], operations.call[empty])
    found = Lookup(operations.key[taken], operations.value[taken])
    left = put[found.at(operations.key[put], operations.value[put]) < 0]
    return left[operations.ret[left] > last[operations.key[left]]]


def _pair_elements(
    operations: Operations, put: Ints, taken: Ints
) -> tuple[list[Violations], _Elements]:
    """Return violations of elements taken twice or before they were put; and the other elements."""
    order = np.lexsort((operations.ret[taken], put))
    put, taken = put[order], taken[order]
    again = np.append(False, put[1:] == put[:-1]) if len(put) else np.zeros(0, np.bool_)
    first = taken[np.maximum.accumulate(np.where(again, 0, np.arange(len(put))))]
    early = (operations.ret[taken] < operations.call[put]) & ~again
    twice = np.isin(put, put[again])
    key = operations.key[put]
    found = [
        violations(Code.DUPLICATE_ELEMENT, key[again], put[again], first[again], taken[again]),
        violations(Code.PHANTOM_ELEMENT, key[early], taken[early], put[early]),
    ]
    sound = ~(twice | early)
    return found, _Elements(put[sound], taken[sound])


def _overtaken(queues: Objects, elements: _Elements) -> Violations:
    """Return pairs of elements taken in the wrong order: one for each late or each early element,
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
    return violations(Code.QUEUE_ORDER, key[mine], put[mine], taken[mine], their_put, other)


def _first_after(operations: Operations, elements: _Elements) -> Ints:
    """Return for each element the first return of a dequeue of elements put after it."""
    call, ret = operations.call[elements.put], operations.ret[elements.taken]
    order = np.argsort(call)
    first = np.append(np.minimum.accumulate(ret[order][::-1])[::-1], np.iinfo(np.int64).max)
    at = np.searchsorted(call[order], operations.ret[elements.put])
    return first[at]


def _last_before(operations: Operations, elements: _Elements) -> Ints:
    """Return for each element the last call of a dequeue of elements put before it."""
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
) -> list[Violations]:
    """Return lost elements, and answers "empty" while an element was there."""
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
    """Return the times since which one more element may have been taken by an operation of unknown
    outcome: for a key's first drain, one time for each element left."""
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
) -> _Shortage:
    """When an element was taken, all elements put before it had to be gone at some time."""
    operations = queues.operations
    order = np.argsort(operations.ret[elements.taken])
    put, taken = elements.put[order], elements.taken[order]
    latest = np.maximum.accumulate(operations.call[put])
    key, by = operations.key[put], operations.ret[taken]
    gone = np.searchsorted(events[0], latest) - before[0][key]
    excess = gone - (np.searchsorted(events[1], by) - before[1][key])
    cause = queues.owner[latest]
    return _Shortage(key, excess, np.stack([cause, taken], axis=1))


def _empty(
    queues: Objects,
    elements: _Elements,
    empty: Ints,
    events: tuple[Ints, Ints],
    before: tuple[Ints, Ints],
) -> tuple[Violations, _Shortage]:
    """Each answer "empty" needs an instant, between its call and return, at which no element is
    there that was taken later, and few enough that were never taken."""
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
    found = violations(Code.NOT_EMPTY, key[never], empty[never], other, another)
    none = np.full(int((~never).sum()), -1, np.int64)
    return found, _Shortage(key[~never], least[~never], np.stack([empty[~never], none], axis=1))


def _least(numbers: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the least number in each non-empty range."""
    bounds = np.stack([starts, ends], axis=1).ravel()
    return np.minimum.reduceat(numbers, bounds)[::2]


def _holder(queues: Objects, elements: _Elements, instants: Ints) -> Ints:
    """Return, for each instant, the operation that took latest an element that was there by
    then."""
    operations = queues.operations
    order = np.argsort(operations.ret[elements.put], kind="stable")
    latest = np.maximum.accumulate(operations.call[elements.taken][order])
    at = np.searchsorted(operations.ret[elements.put][order], instants, side="right") - 1
    return queues.owner[latest[at]]


def _excess(queues: Objects, left: Ints, needs: list[_Shortage]) -> Violations:
    """Return, on each key, as many of the first elements as have to be gone and cannot be."""
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
    return violations(Code.ELEMENT_LOST, operations.key[lost], lost, theirs[:, 0], theirs[:, 1])
