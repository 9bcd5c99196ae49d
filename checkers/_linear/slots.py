"""Slots that are filled one after another, and the operations that may have filled them.

The n-th entry of a log, like the n-th increment of a counter, comes at an instant t(n), and t rises
with n. Reads bound t(n) from below (it was not there yet) and above (it was there). Bounds
propagate: t(n) is later than each lower bound up to n, and earlier than each upper bound from n on.

The operation that filled a slot is not always known. A *candidate* may have filled any of a range
of adjacent slots: those whose bounds its call and return admit. Giving the first free slot to the
candidate with the nearest end yields a maximum matching (Glover 1967). All slots can be filled, and
all candidates that need a slot can get one, at once, exactly when each is possible on its own
(Mendelsohn and Dulmage 1958). Real time among candidates needs no check: two that violate it can
swap their slots.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Ints
from checkers._linear.objects import Objects
from checkers._linear.violations import Code, Violations, violations
from harness.compiled import kernel


class Slots(NamedTuple):
    """Slots of all keys: those of key k from `first[k]` to `first[k + 1]`. The last slot of each
    key is the one beyond all known entries. `lower` and `upper`: ranks, by slot."""

    first: Ints
    lower: Ints
    upper: Ints

    @property
    def beyond(self) -> Ints:
        """By key: the slot after all known ones."""
        return self.first[1:] - 1


def unbounded_slots(counts: Ints, never: Ints) -> Slots:
    """Return slots without bounds: `counts` for each key and one more."""
    first = np.concatenate([[0], np.cumsum(counts + 1)])
    begin = np.concatenate([[-1], never])[:-1]
    return Slots(first, np.repeat(begin, counts + 1), np.repeat(never, counts + 1))


def tighten(slots: Slots) -> Slots:
    """Propagate the bounds between the slots of each key."""
    lower = np.maximum.accumulate(slots.lower)
    upper = np.minimum.accumulate(slots.upper[::-1])[::-1]
    return Slots(slots.first, lower, upper)


def windows(slots: Slots, holes: Ints, call: Ints, ret: Ints) -> tuple[Ints, Ints]:
    """Return the first and the last of the holes that each candidate may have filled."""
    first = np.searchsorted(slots.upper[holes], call, side="right")
    last = np.searchsorted(slots.lower[holes], ret) - 1
    return first, last


def max_matching(first: Ints, last: Ints, holes: int) -> Ints:
    """Return for each candidate the hole that it fills in a maximum matching, or -1."""
    given = np.full(len(first), -1, np.int64)
    _fill(first, last, np.argsort(last, kind="stable"), np.arange(holes + 1), given)
    return given


def unmatched_violations(
    objects: Objects, loose: Ints, slots: Slots, holes: Ints, codes: tuple[Code, Code]
) -> list[Violations]:
    """Return the holes that no operation can have filled, with a reader that saw them filled; and
    those of the operations `loose` that need a slot and get none, with a reader that saw all slots
    filled."""
    operations = objects.operations
    first, last = windows(slots, holes, operations.call[loose], operations.ret[loose])
    given = max_matching(first, last, len(holes))
    empty = holes[np.isin(np.arange(len(holes)), given, invert=True)]
    reader = objects.owner[slots.upper[empty]]
    end = slots.lower[slots.beyond]
    must = operations.ret[loose] < end[operations.key[loose]]
    own = max_matching(first[must], last[must], len(holes))
    missing = loose[must][own < 0]
    witness = objects.owner[end[operations.key[missing]]]
    unfilled, unplaced = codes
    return [
        violations(unfilled, operations.key[reader], reader),
        violations(unplaced, operations.key[missing], missing, witness),
    ]


@kernel
def _fill(first: Ints, last: Ints, order: Ints, free: Ints, given: Ints) -> None:
    """Fill the holes. `free`: for each hole a link towards the next free one."""
    for candidate in order:
        hole = first[candidate]
        while free[hole] != hole:
            free[hole] = free[free[hole]]
            hole = free[hole]
        if hole <= last[candidate]:
            given[candidate] = hole
            free[hole] = hole + 1
