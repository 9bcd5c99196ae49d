"""Places that are filled one after the other, and who may have filled them.

The n-th entry of a log, like the n-th increment of a counter, comes at an instant t(n), and t rises
with n. Reads bound t(n) from below (it was not there yet) and above (it was there). Bounds spread:
t(n) is later than every lower bound up to n, and earlier than every upper bound from n on.

Who filled a place is not always known. A *candidate* may have filled any of a row of neighbouring
places: those whose bounds its call and return admit. It is never worse to give the first free place
to the candidate with the nearest end, so a matching is as large as can be (Glover 1967). All places
can be filled, and all candidates that must have a place be given one, at once, exactly when each of
these is possible on its own (Mendelsohn and Dulmage 1958). That candidates respect real time among
each other needs no care: two that do not can change places.
"""

from typing import NamedTuple

import numpy as np

from checkers._cycles.arrays import Ints
from checkers._linear.objects import Objects
from checkers._linear.wrongs import Code, Wrongs, wrongs
from checkers._spark.compiled import kernel


class Slots(NamedTuple):
    """Places of all keys: those of key k from `first[k]` to `first[k + 1]`, and the last of each
    is the one that nothing is known to have filled. `lower` and `upper`: by place, ranks."""

    first: Ints
    lower: Ints
    upper: Ints

    @property
    def beyond(self) -> Ints:
        """By key: the place after all that are known of."""
        return self.first[1:] - 1


def room(counts: Ints, never: Ints) -> Slots:
    """Unbounded places, so many for each key and one more."""
    first = np.concatenate([[0], np.cumsum(counts + 1)])
    begin = np.concatenate([[-1], never])[:-1]
    return Slots(first, np.repeat(begin, counts + 1), np.repeat(never, counts + 1))


def spread(slots: Slots) -> Slots:
    """Bounds with what follows from those of other places of the same key."""
    lower = np.maximum.accumulate(slots.lower)
    upper = np.minimum.accumulate(slots.upper[::-1])[::-1]
    return Slots(slots.first, lower, upper)


def windows(slots: Slots, holes: Ints, call: Ints, ret: Ints) -> tuple[Ints, Ints]:
    """Which of the holes, from the first to the last, each candidate may have filled."""
    first = np.searchsorted(slots.upper[holes], call, side="right")
    last = np.searchsorted(slots.lower[holes], ret) - 1
    return first, last


def matched(first: Ints, last: Ints, holes: int) -> Ints:
    """For each candidate the hole that it fills in a largest matching, or -1."""
    given = np.full(len(first), -1, np.int64)
    _fill(first, last, np.argsort(last, kind="stable"), np.arange(holes + 1), given)
    return given


def unmatched(
    objects: Objects, loose: Ints, slots: Slots, holes: Ints, codes: tuple[Code, Code]
) -> list[Wrongs]:
    """Holes that nobody can have filled, with who saw them filled; and those of the operations
    `loose` that need a place and get none, with who saw that all places were filled."""
    operations = objects.operations
    first, last = windows(slots, holes, operations.call[loose], operations.ret[loose])
    given = matched(first, last, len(holes))
    empty = holes[np.isin(np.arange(len(holes)), given, invert=True)]
    reader = objects.owner[slots.upper[empty]]
    end = slots.lower[slots.beyond]
    must = operations.ret[loose] < end[operations.key[loose]]
    own = matched(first[must], last[must], len(holes))
    missing = loose[must][own < 0]
    witness = objects.owner[end[operations.key[missing]]]
    unfilled, unplaced = codes
    return [
        wrongs(unfilled, operations.key[reader], reader),
        wrongs(unplaced, operations.key[missing], missing, witness),
    ]


@kernel
def _fill(first: Ints, last: Ints, order: Ints, free: Ints, given: Ints) -> None:
    """`free`: for each hole the way to the next free one."""
    for candidate in order:
        hole = first[candidate]
        while free[hole] != hole:
            free[hole] = free[free[hole]]
            hole = free[hole]
        if hole <= last[candidate]:
            given[candidate] = hole
            free[hole] = hole + 1
