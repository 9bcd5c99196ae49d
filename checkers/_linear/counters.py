"""Counters: increments of one size are decided by matching, others by bounds and then by search.

A read lies between the sum of what was certainly added before it and the sum of what may have been;
otherwise it is out of range, whatever the steps are. With equal steps a counter is a log whose
entries are invisible: the c-th increment was there before a read of c returned, and the next one
was not when the read was called. The rest is a matching: an increment for each place that was
counted, and a place for each increment that returned before the last read. With unequal steps only
the range is judged here, and keys that pass are left undecided.
"""

import numpy as np

from checkers._cycles.arrays import Bools, Ints
from checkers._linear.batch import INFO
from checkers._linear.objects import Objects
from checkers._linear.slots import tighten, unbounded_slots, unmatched_violations
from checkers._linear.violations import (
    Code,
    MethodResult,
    Violations,
    first_per_operation,
    keys_with_violations,
    violations,
)
from harness.operation import F

ODD = (
    Code.NOT_LINEARIZABLE,
    Code.NOT_LINEARIZABLE,
)  # codes of unmatched places and of unmatched increments


def judge(counters: Objects) -> MethodResult:
    """Judge all keys."""
    operations = counters.operations
    adds = np.concatenate([operations.of(F.ADD), operations.of(F.ADD, status=INFO)])
    adds = adds[operations.value[adds] != 0]
    reads = operations.of(F.COUNT)
    beyond = _out_of_range(counters, adds, reads)
    bad = keys_with_violations(len(counters.keys), [beyond])
    step, even = _steps(counters, adds)
    adds, reads = (places[(even & ~bad)[operations.key[places]]] for places in (adds, reads))
    # a read between two steps
    odd = operations.value[reads] % step[operations.key[reads]] != 0
    between = violations(Code.COUNTER_OUT_OF_RANGE, operations.key[reads[odd]], reads[odd])
    whole = ~keys_with_violations(len(counters.keys), [between])
    adds, reads = (places[whole[operations.key[places]]] for places in (adds, reads))
    found = _counted(counters, adds, reads, operations.value[reads] // step[operations.key[reads]])
    return MethodResult([beyond, between, *found], ~even)


def _out_of_range(counters: Objects, adds: Ints, reads: Ints) -> Violations:
    """Return reads of less than what was certainly there, or of more than what can have been."""
    operations = counters.operations
    call, ret = operations.call[reads], operations.ret[reads]
    begin = np.concatenate([[-1], counters.never[:-1]])[operations.key[reads]]
    least = np.zeros(len(reads), np.int64)
    most = np.zeros(len(reads), np.int64)
    for sign in (1, -1):
        mine = adds[np.sign(operations.value[adds]) == sign]
        value = operations.value[mine]
        surely = _sum(operations.ret[mine], value, begin, call)
        perhaps = _sum(operations.call[mine], value, begin - 1, ret)
        least += surely if sign > 0 else perhaps
        most += perhaps if sign > 0 else surely
    value = operations.value[reads]
    bad = reads[(value < least) | (value > most)]
    return violations(Code.COUNTER_OUT_OF_RANGE, operations.key[bad], bad)


def _sum(at: Ints, value: Ints, after: Ints, before: Ints) -> Ints:
    """Return the sums of the values between pairs of ranks; 0 where the second is not later."""
    order = np.argsort(at, kind="stable")
    total = np.concatenate([[0], np.cumsum(value[order])])
    first = np.searchsorted(at[order], after, side="right")
    last = np.maximum(first, np.searchsorted(at[order], before))
    sums: Ints = total[last] - total[first]
    return sums


def _steps(counters: Objects, adds: Ints) -> tuple[Ints, Bools]:
    """Return by key the size of an increment, and whether all have the same size."""
    operations = counters.operations
    step = np.ones(len(counters.keys), np.int64)
    step[operations.key[adds]] = operations.value[adds]
    even = np.ones(len(counters.keys), np.bool_)
    even[operations.key[adds[operations.value[adds] != step[operations.key[adds]]]]] = False
    return step, even


def _counted(counters: Objects, adds: Ints, reads: Ints, value: Ints) -> list[Violations]:
    """Judge counters with equal steps: an increment for each that was counted, and no other."""
    operations = counters.operations
    key = operations.key[reads]
    counts = np.zeros(len(counters.keys), np.int64)
    np.maximum.at(counts, key, value)
    slots = unbounded_slots(counts, counters.never)
    place = slots.first[key] + value
    np.maximum.at(slots.lower, place, operations.call[reads])
    some = value > 0
    np.minimum.at(slots.upper, place[some] - 1, operations.ret[reads[some]])
    slots = tighten(slots)
    back = np.flatnonzero(slots.lower > slots.upper)
    later, earlier = counters.owner[slots.lower[back]], counters.owner[slots.upper[back]]
    found = first_per_operation(
        violations(Code.NOT_LINEARIZABLE, operations.key[later], later, earlier)
    )
    whole = ~keys_with_violations(len(counters.keys), [found])
    adds = adds[whole[operations.key[adds]]]
    sound = np.repeat(whole, np.diff(slots.first))
    sound[slots.beyond] = False
    return [found, *unmatched_violations(counters, adds, slots, np.flatnonzero(sound), ODD)]
