"""Locks: held by one process at a time, with rising tokens.

A process that was given a lock certainly holds it from then until it calls for its release, or
until the end. A history is legal exactly when no two such holds of a lock overlap, each successful
release had a hold to give back, and tokens rise with the holds.

An acquire of unknown outcome may hold from any time on, or never: it is left out, unless its
process releases the lock later with success. Then it held for an instant at least, so during that
release there must be an instant at which no other process holds the lock. A release of unknown
outcome ends its hold at any time after its call; if its process is given the lock again, it did. If
it may belong to a later hold of its process, the key is left undecided. A failed release did
nothing and proves nothing, unless it was refused (fail with pos 0): then its process did not hold
the lock.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Ints, group_starts
from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import REFUSED, Objects, Operations
from checkers._linear.violations import (
    Code,
    MethodResult,
    Violations,
    keys_with_violations,
    violations,
)
from harness.compiled import kernel
from harness.operation import F

# states of a process towards a lock
_FREE, _HOLDS, _RELEASING = range(3)
# meanings of an operation in its process's sequence
_NOTHING, _HOLD, _INSTANT, _NOT_HELD, _LOST, _CROOKED = range(6)
_ACQUIRE = int(F.ACQUIRE)


class _Holds(NamedTuple):
    """Certain holds in the order of their begin; `by`: the acquires."""

    by: Ints
    begin: Ints
    end: Ints


def judge(locks: Objects) -> MethodResult:
    """Judge all keys."""
    operations = locks.operations
    happened = (operations.status == OK) | (operations.status == INFO)
    places = np.flatnonzero(
        np.isin(operations.f, (F.ACQUIRE, F.RELEASE))
        & (happened | ((operations.status == REFUSED) & (operations.f == F.RELEASE)))
    )
    columns = (operations.call, operations.process, operations.key)
    places = places[np.lexsort([column[places] for column in columns])]
    meaning, until = _follow_processes(operations, places)
    undecided = np.zeros(len(locks.keys), np.bool_)
    undecided[operations.key[places[meaning == _CROOKED]]] = True
    decided = ~undecided[operations.key[places]]
    places, meaning, until = places[decided], meaning[decided], until[decided]
    acquired = places[meaning == _HOLD]
    ends = np.where(until < 0, locks.never[operations.key[places]], until)[meaning == _HOLD]
    order = np.argsort(operations.ret[acquired])
    holds = _Holds(acquired[order], operations.ret[acquired][order], ends[order])
    twice = _twice(locks, holds)
    odd = [
        violations(code, operations.key[places[meaning == what]], places[meaning == what])
        for code, what in ((Code.LOCK_NOT_HELD, _NOT_HELD), (Code.LOCK_LOST, _LOST))
    ]
    instants = _instants(locks, holds, places[meaning == _INSTANT])
    return MethodResult([twice, instants, *odd, *_tokens(locks, holds, twice)], undecided)


def _follow_processes(operations: Operations, places: Ints) -> tuple[Ints, Ints]:
    """Return the meaning of each operation, and when a hold was called to end, or -1."""
    columns = (operations.key, operations.process, operations.f, operations.status)
    table = np.stack([column[places] for column in (*columns, operations.call, operations.ret)])
    meaning, until = np.zeros(len(places), np.int64), np.full(len(places), -1, np.int64)
    starts = np.append(group_starts(table[0], table[1]), len(places))
    _follow(table, starts, meaning, until)
    return meaning, until


@kernel
def _follow(table: Ints, starts: Ints, meaning: Ints, until: Ints) -> None:
    """Follow each process's operations on a lock."""
    for group in range(len(starts) - 1):
        state, hold, acquires, releases, last = _FREE, -1, 0, 0, -1
        for i in range(starts[group], starts[group + 1]):
            acquire, status, call = table[2, i] == _ACQUIRE, table[3, i], table[4, i]
            if call < last:
                meaning[i] = _CROOKED
                break
            last = table[5, i] if status != INFO else last
            if acquire and status == INFO:
                acquires += 1
            elif acquire:
                if releases:
                    meaning[i] = _CROOKED
                    break
                state, hold, meaning[i] = _HOLDS, i, _HOLD
            elif status == INFO:
                if state == _HOLDS:
                    state, until[hold] = _RELEASING, call
                else:
                    releases += 1
            elif status == REFUSED:
                if state == _HOLDS:
                    meaning[i], until[hold] = _LOST, call
                state = _FREE
            elif state == _FREE:
                meaning[i] = _INSTANT if acquires else _NOT_HELD
                acquires = max(acquires - 1, 0)
            elif state == _RELEASING and acquires:
                meaning[i] = _CROOKED
                break
            else:
                releases += state == _RELEASING
                state, until[hold] = _FREE, call


def _twice(locks: Objects, holds: _Holds) -> Violations:
    """Return as few holds as must go for the rest to be disjoint, each with a hold that it
    overlaps."""
    operations = locks.operations
    gone = np.full(len(holds.by), -1, np.int64)
    _drop(holds.begin, holds.end, gone)
    at = np.flatnonzero(gone >= 0)
    mine, other = holds.by[at], holds.by[gone[at]]
    return violations(Code.LOCK_HELD_TWICE, operations.key[mine], mine, other)


@kernel
def _drop(begin: Ints, end: Ints, gone: Ints) -> None:
    """Drop, of two overlapping holds, the one that ends later. `gone`: by hold, the cause."""
    kept = -1
    for i in range(len(begin)):
        if kept < 0 or begin[i] > end[kept]:
            kept = i
        elif end[i] < end[kept]:
            gone[kept], kept = i, i
        else:
            gone[i] = kept


def _instants(locks: Objects, holds: _Holds, releases: Ints) -> Violations:
    """Return the releases during which other processes held the lock all the time."""
    operations = locks.operations
    held = np.zeros(len(locks.owner) + 1, np.int64)  # from before the first event on
    np.add.at(held, holds.begin + 1, 1)
    np.add.at(held, holds.end + 1, -1)
    free = np.concatenate([[0], np.cumsum(np.cumsum(held) == 0)])
    call, ret = operations.call[releases], operations.ret[releases]
    never = np.flatnonzero(free[ret + 1] == free[call + 1])
    latest = np.maximum.accumulate(holds.end)
    begun = np.searchsorted(holds.begin, call[never], side="right") - 1
    mine = releases[never]
    other = holds.by[np.searchsorted(latest, latest[begun])]
    return violations(Code.LOCK_HELD_TWICE, operations.key[mine], mine, other)


def _tokens(locks: Objects, holds: _Holds, twice: Violations) -> list[Violations]:
    """Return tokens that do not rise: from hold to hold, or where holds overlap, in real time."""
    mine = holds.by[locks.operations.offset[holds.by] != ABSENT]
    apart = ~keys_with_violations(len(locks.keys), [twice])[locks.operations.key[mine]]
    return [_falling(locks.operations, mine[apart]), _overlapping(locks.operations, mine[~apart])]


def _falling(operations: Operations, holds: Ints) -> Violations:
    """Return holds, in their order, whose token is not greater than the previous one."""
    key, token = operations.key[holds], operations.offset[holds]
    at = 1 + np.flatnonzero((key[1:] == key[:-1]) & (token[1:] <= token[:-1]))
    return violations(Code.FENCING_BROKEN, key[at], holds[at], holds[at - 1])


def _overlapping(operations: Operations, holds: Ints) -> Violations:
    """Return holds whose token is not greater than all tokens given before they were requested."""
    key, call, ret = operations.key[holds], operations.call[holds], operations.ret[holds]
    known, token = np.unique(operations.offset[holds], return_inverse=True)
    code = key * len(known) + token  # greater than those of all previous keys
    greatest = np.maximum.accumulate(code)  # holds are in the order of their acquires' returns
    at = np.searchsorted(ret, call) - 1
    before = np.where(at >= 0, greatest[np.maximum(at, 0)], -1) if len(holds) else holds
    wrong = np.flatnonzero(before >= code)
    other = holds[np.searchsorted(greatest, before[wrong])]
    return violations(Code.FENCING_BROKEN, key[wrong], holds[wrong], other)
