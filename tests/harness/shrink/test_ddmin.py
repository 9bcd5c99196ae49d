"""Delta debugging, against every predicate on few items and drawn ones on many."""

from collections.abc import Callable
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.shrink.ddmin import dialogue

Some = tuple[int, ...]


def minimal(items: Some, fails: Callable[[Some], bool]) -> Some:
    """Answer the search by a predicate; nothing is tried twice."""
    known: dict[Some, bool] = {}

    def failing(some: Some) -> bool:
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
        found: Some = end.value
        return found


def subsets(items: Some) -> list[Some]:
    return list(chain.from_iterable(combinations(items, n) for n in range(len(items) + 1)))


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_whatever_fails_the_result_fails_and_nothing_can_be_left_out(length: int) -> None:
    """For every predicate that is true of all items, monotone or not."""
    items = tuple(range(length))
    *some, _ = subsets(items)
    for number in range(1 << len(some)):
        failing = {s for at, s in enumerate(some) if number >> at & 1} | {items}
        found = minimal(items, failing.__contains__)
        assert found in failing
        assert not any(tuple(i for i in found if i != left) in failing for left in found)


@given(st.integers(1, 60), st.data())
def test_what_fails_together_is_found_exactly(length: int, data: st.DataObject) -> None:
    """When a set of items fails with whatever else is there, the set is what is left, in order."""
    items = tuple(range(length))
    guilty = data.draw(st.sets(st.sampled_from(items)))
    assert minimal(items, lambda some: guilty <= set(some)) == tuple(sorted(guilty))


@given(st.sets(st.integers(0, 199), max_size=3))
def test_few_among_many_take_few_tries(guilty: set[int]) -> None:
    """Far fewer than there are items, and none twice."""
    tries: list[Some] = []

    def fails(some: Some) -> bool:
        tries.append(some)
        return guilty <= set(some)

    minimal(range(200), fails)
    assert len(tries) == len(set(tries))
    assert len(tries) <= 80
