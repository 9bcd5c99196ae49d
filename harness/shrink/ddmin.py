"""Delta debugging: finds the fewest items with which something still fails. Pure.

Parts of the list are removed, large ones first, while the rest fails; the result is *1-minimal*: it
fails, and without any one of its items it does not. (Zeller, Hildebrandt, Simplifying and Isolating
Failure-Inducing Input, 2002; only complements are tried, since subsets other than halves seldom
fail and cost as much.)

The search is a generator, so that the caller may try several candidates at once: it yields a list
of candidates, and receives the index of one that fails, or None.
"""

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")
Some = tuple[Item, ...]
Search = Generator[Sequence[Some[Item]], int | None, Some[Item]]


def dialogue(items: Sequence[Item]) -> Search[Item]:
    """Search the fewest of the items that fail together."""
    kept = tuple(items)
    if not kept or (yield [()]) is not None:
        return ()
    parts, first = 2, 0
    while len(kept) > 1:
        cuts = _cuts(len(kept), min(parts, len(kept)))
        cuts = cuts[first:] + cuts[:first]  # continue where something could be removed
        failing = yield [kept[:low] + kept[high:] for low, high in cuts]
        if failing is not None:
            low, high = cuts[failing]
            kept, parts = kept[:low] + kept[high:], max(2, len(cuts) - 1)
            first = (first + failing) % max(1, min(parts, len(kept)))
        elif len(cuts) < len(kept):
            parts, first = 2 * len(cuts), 2 * first
        else:
            break
    return kept


def _cuts(length: int, parts: int) -> list[tuple[int, int]]:
    """Return the bounds of parts of nearly equal length."""
    edges = [length * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))
