"""Locks: held by one process at a time, with tokens that rise.

A process that was given a lock holds it for certain from then until it calls for its release, or
for ever. A history is legal exactly when no two such holds of a lock overlap, every release that
succeeded had something to give back, and tokens rise with the holds.

An acquire of unknown outcome may hold from any time on, or never: it is left out, unless its
process releases the lock later with success. Then it held for an instant at least, and needs one
during that release at which nobody else holds. A release of unknown outcome ends its hold at any
time after its call; if its process is given the lock again, it did. Where it may be owed to a later
hold of its process, the key is left undecided. A release that failed did nothing and tells nothing,
unless it was refused (fail with pos 0): then its process did not hold the lock.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Ints, group_starts
from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import REFUSED, Objects, Operations
from checkers._linear.wrongs import Code, Judged, Wrongs, spoilt, wrongs
from checkers._spark.compiled import kernel
from harness.operation import F

# what one process may be to a lock
_FREE, _HOLDS, _RELEASING = range(3)
# what a pass over a process's operations says of each
_NOTHING, _HOLD, _INSTANT, _NOT_HELD, _LOST, _CROOKED = range(6)
_ACQUIRE = int(F.ACQUIRE)


class _Holds(NamedTuple):
    """Holds that are certain, in the order of their beginning: who acquired, and who released."""

    by: Ints
    begin: Ints
    end: Ints


def judge(locks: Objects) -> Judged:
    """Judge all keys."""
    operations = locks.operations
    happened = (operations.status == OK) | (operations.status == INFO)
    places = np.flatnonzero(
        np.isin(operations.f, (F.ACQUIRE, F.RELEASE))
        & (happened | ((operations.status == REFUSED) & (operations.f == F.RELEASE)))
    )
    columns = (operations.call, operations.process, operations.key)
    places = places[np.lexsort([column[places] for column in columns])]
    said, until = _told(operations, places)
    undecided = np.zeros(len(locks.keys), np.bool_)
    undecided[operations.key[places[said == _CROOKED]]] = True
    decided = ~undecided[operations.key[places]]
    places, said, until = places[decided], said[decided], until[decided]
    acquired = places[said == _HOLD]
    ends = np.where(until < 0, locks.never[operations.key[places]], until)[said == _HOLD]
    order = np.argsort(operations.ret[acquired])
    holds = _Holds(acquired[order], operations.ret[acquired][order], ends[order])
    twice = _twice(locks, holds)
    odd = [
        wrongs(code, operations.key[places[said == what]], places[said == what])
        for code, what in ((Code.LOCK_NOT_HELD, _NOT_HELD), (Code.LOCK_LOST, _LOST))
    ]
    instants = _instants(locks, holds, places[said == _INSTANT])
    return Judged([twice, instants, *odd, *_tokens(locks, holds, twice)], undecided)


def _told(operations: Operations, places: Ints) -> tuple[Ints, Ints]:
    """What each operation says, and when a hold was called to end; -1: never."""
    columns = (operations.key, operations.process, operations.f, operations.status)
    table = np.stack([column[places] for column in (*columns, operations.call, operations.ret)])
    said, until = np.zeros(len(places), np.int64), np.full(len(places), -1, np.int64)
    starts = np.append(group_starts(table[0], table[1]), len(places))
    _follow(table, starts, said, until)
    return said, until


@kernel
def _follow(table: Ints, starts: Ints, said: Ints, until: Ints) -> None:
    """Each process's operations on a lock, one after the other."""
    for group in range(len(starts) - 1):
        state, hold, acquires, releases, last = _FREE, -1, 0, 0, -1
        for i in range(starts[group], starts[group + 1]):
            acquire, status, call = table[2, i] == _ACQUIRE, table[3, i], table[4, i]
            if call < last:
                said[i] = _CROOKED
                break
            last = table[5, i] if status != INFO else last
            if acquire and status == INFO:
                acquires += 1
            elif acquire:
                if releases:
                    said[i] = _CROOKED
                    break
                state, hold, said[i] = _HOLDS, i, _HOLD
            elif status == INFO:
                if state == _HOLDS:
                    state, until[hold] = _RELEASING, call
                else:
                    releases += 1
            elif status == REFUSED:
                if state == _HOLDS:
                    said[i], until[hold] = _LOST, call
                state = _FREE
            elif state == _FREE:
                said[i] = _INSTANT if acquires else _NOT_HELD
                acquires = max(acquires - 1, 0)
            elif state == _RELEASING and acquires:
                said[i] = _CROOKED
                break
            else:
                releases += state == _RELEASING
                state, until[hold] = _FREE, call


def _twice(locks: Objects, holds: _Holds) -> Wrongs:
    """As few holds as have to go for the others to be apart, each with one that it overlaps."""
    operations = locks.operations
    gone = np.full(len(holds.by), -1, np.int64)
    _drop(holds.begin, holds.end, gone)
    at = np.flatnonzero(gone >= 0)
    mine, other = holds.by[at], holds.by[gone[at]]
    return wrongs(Code.LOCK_HELD_TWICE, operations.key[mine], mine, other)


@kernel
def _drop(begin: Ints, end: Ints, gone: Ints) -> None:
    """Of two that overlap the one that ends later goes. `gone`: because of whom."""
    kept = -1
    for i in range(len(begin)):
        if kept < 0 or begin[i] > end[kept]:
            kept = i
        elif end[i] < end[kept]:
            gone[kept], kept = i, i
        else:
            gone[i] = kept


def _instants(locks: Objects, holds: _Holds, releases: Ints) -> Wrongs:
    """Releases during which others held the lock all the time."""
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
    return wrongs(Code.LOCK_HELD_TWICE, operations.key[mine], mine, other)


def _tokens(locks: Objects, holds: _Holds, twice: Wrongs) -> list[Wrongs]:
    """Tokens that do not rise: from hold to hold, or where holds overlap, in real time."""
    mine = holds.by[locks.operations.offset[holds.by] != ABSENT]
    apart = ~spoilt(len(locks.keys), [twice])[locks.operations.key[mine]]
    return [_falling(locks.operations, mine[apart]), _overlapping(locks.operations, mine[~apart])]


def _falling(operations: Operations, holds: Ints) -> Wrongs:
    """Holds, in their order, whose token is not greater than that of the one before."""
    key, token = operations.key[holds], operations.offset[holds]
    at = 1 + np.flatnonzero((key[1:] == key[:-1]) & (token[1:] <= token[:-1]))
    return wrongs(Code.FENCING_BROKEN, key[at], holds[at], holds[at - 1])


def _overlapping(operations: Operations, holds: Ints) -> Wrongs:
    """Holds whose token is not greater than all that were given before they were asked for."""
    key, call, ret = operations.key[holds], operations.call[holds], operations.ret[holds]
    known, token = np.unique(operations.offset[holds], return_inverse=True)
    code = key * len(known) + token  # greater than those of all keys before
    greatest = np.maximum.accumulate(code)  # holds are in the order of their returns
    at = np.searchsorted(ret, call) - 1
    before = np.where(at >= 0, greatest[np.maximum(at, 0)], -1) if len(holds) else holds
    wrong = np.flatnonzero(before >= code)
    other = holds[np.searchsorted(greatest, before[wrong])]
    return wrongs(Code.FENCING_BROKEN, key[wrong], holds[wrong], other)
