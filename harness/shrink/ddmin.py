"""Delta debugging: the fewest items with which something still fails. Pure.

Parts of the list are left out, large ones first, as long as the rest fails; the result is
*1-minimal*: it fails, and without any one of its items it does not. (Zeller, Hildebrandt,
Simplifying and Isolating Failure-Inducing Input, 2002; only complements are tried, since subsets
other than halves seldom fail and cost as much.)

The search is a dialogue, so that whoever answers may try several candidates at once: it puts a
question, a list of candidates, and is told the place of one that fails, or None when none does.
"""

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")
Some = tuple[Item, ...]
Search = Generator[Sequence[Some[Item]], int | None, Some[Item]]


def minimal(items: Sequence[Item], fails: Callable[[Some[Item]], bool]) -> Some[Item]:
    """The fewest of the items, all of which fail together, that do. Nothing is tried twice."""
    known: dict[Some[Item], bool] = {}

    def failing(some: Some[Item]) -> bool:
        if some not in known:
            known[some] = fails(some)
        return known[some]

    search, answer = dialogue(items), None
    try:
        question = next(search)
        while True:
            answer = next((at for at, some in enumerate(question) if failing(some)), None)
            question = search.send(answer)
    except StopIteration as end:
        found: Some[Item] = end.value
        return found


def dialogue(items: Sequence[Item]) -> Search[Item]:
    """The same, asking."""
    kept = tuple(items)
    if not kept or (yield [()]) is not None:
        return ()
    parts, first = 2, 0
    while len(kept) > 1:
        cuts = _cuts(len(kept), min(parts, len(kept)))
        cuts = cuts[first:] + cuts[:first]  # go on where something could be left out
        found = yield [kept[:low] + kept[high:] for low, high in cuts]
        if found is not None:
            low, high = cuts[found]
            kept, parts = kept[:low] + kept[high:], max(2, len(cuts) - 1)
            first = (first + found) % max(1, min(parts, len(kept)))
        elif len(cuts) < len(kept):
            parts, first = 2 * len(cuts), 2 * first
        else:
            break
    return kept


def _cuts(length: int, parts: int) -> list[tuple[int, int]]:
    """Where each of so many parts of nearly equal length begins and ends."""
    edges = [length * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))
