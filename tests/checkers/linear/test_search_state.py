"""The elementary moves of a search against sets and lists: what it remembers, and what it lifts."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from checkers._linear import search_state
from checkers._linear.search_state import NOW, SearchState, allocate
from harness.compiled import kernel

OPS, FAILURES = 12, 400
LONG = 80  # used operations: more than a comparison may take


@kernel
def includes(state: SearchState, more: int, less: int) -> bool:
    return search_state._includes(state, more, less)


@kernel
def used(state: SearchState, i: int) -> None:
    search_state.note_use(state, i)


@kernel
def forgotten(state: SearchState) -> None:
    search_state.prepare(state, np.zeros((0, 6), np.int32))


@kernel
def remembered(state: SearchState, first: int, second: int) -> None:
    search_state.remember_failure(state, first, second)


@kernel
def has_failed(state: SearchState, first: int, second: int) -> bool:
    return search_state.has_failed(state, first, second)


@kernel
def lifted(state: SearchState, i: int) -> None:
    search_state.lift(state, i)


@kernel
def lowered(state: SearchState, length: int) -> None:
    search_state.lower(state, length)


@pytest.fixture
def place() -> SearchState:
    made = allocate(OPS, 2, 2 * OPS, FAILURES, 8, seed=3)
    forgotten(made)
    return made


def lists(place: SearchState, dice: Random, count: int) -> list[tuple[int, frozenset[int]]]:
    """Lists of used operations, many of which share their tails: their heads, what they hold."""
    known: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
    for _ in range(count):
        tail, held = dice.choice(known)
        free = [i for i in range(OPS) if i not in held]
        if free:
            i = dice.choice(free)
            place.now[NOW.used] = tail
            used(place, i)
            known.append((int(place.now[NOW.used]), held | {i}))
    return known


@pytest.mark.parametrize("seed", range(5))
def test_a_list_includes_another_as_sets_do(place: SearchState, seed: int) -> None:
    known = lists(place, Random(seed), 60)
    counts = {True: 0, False: 0}
    for more, held in known:
        for less, others in known:
            truth = others <= held
            assert includes(place, more, less) is truth, (held, others)
            counts[truth] += 1
    assert min(counts.values()) > 200


def test_what_is_too_long_to_compare_is_not_included() -> None:
    """A search may only ever do too much."""
    made = allocate(2 * LONG, 2, 2, FAILURES, 8, seed=3)
    forgotten(made)

    def chain(ops: Sequence[int]) -> int:
        made.now[NOW.used] = 0
        for i in ops:
            used(made, i)
        return int(made.now[NOW.used])

    upwards, downwards = chain(range(LONG)), chain(range(LONG - 1, -1, -1))
    assert not includes(made, upwards, downwards)
    assert not includes(made, upwards, chain(range(LONG, 2 * LONG)))
    assert includes(made, upwards, upwards)


@pytest.mark.parametrize("seed", range(5))
def test_a_failure_ends_what_can_do_no_more(place: SearchState, seed: int) -> None:
    """Of the same two sums, after the same writes or later ones, with no more used; and no failure
    of another search does."""
    dice = Random(seed)
    known = lists(place, dice, 30)
    failures: list[tuple[int, int, int, frozenset[int]]] = []
    ended = 0
    for _ in range(FAILURES):
        first, second = dice.choice((5, 5 + (1 << 20), 6, -1)), dice.choice((1, 2))
        at, held = dice.choice(known)
        place.now[NOW.horizon], place.now[NOW.used] = horizon, _ = dice.randrange(4), at
        truth = any(
            (f, s) == (first, second) and h >= horizon and before <= held
            for f, s, h, before in failures
        )
        found = has_failed(place, first, second)
        assert found is truth
        ended += truth
        if not truth and len(failures) < 40:
            remembered(place, first, second)
            failures.append((first, second, horizon, held))
    assert place.now[NOW.hits] == ended > 50
    assert place.now[NOW.failures] == len(failures) > 10
    forgotten(place)
    place.now[NOW.horizon] = -1
    for first, second, _, _ in failures:
        assert not has_failed(place, first, second)


def test_sums_tell_sets_of_lifted_operations_apart(place: SearchState) -> None:
    """Whatever the order, and both of them do; and lowering puts everything back in its place."""
    sums: dict[frozenset[int], tuple[int, int]] = {}
    after, before = [*range(1, OPS + 1), 0], [OPS, *range(OPS)]
    place.after[: OPS + 1], place.before[: OPS + 1] = after, before
    place.lifted[:] = 0
    for seed in range(300):
        some = Random(seed).sample(range(OPS), Random(seed).randrange(1, OPS))
        place.now[NOW.first] = place.now[NOW.second] = 0
        for i in some:
            lifted(place, i)
            assert place.lifted[i]
        both = int(place.now[NOW.first]), int(place.now[NOW.second])
        assert both[0] != both[1]
        assert sums.setdefault(frozenset(some), both) == both
        lowered(place, 1)
        assert place.trailed[0] == some[0]
        assert place.lifted[:OPS].sum() == 1
        lowered(place, 0)
        assert place.after[: OPS + 1].tolist() == after
        assert place.before[: OPS + 1].tolist() == before
    for which in (0, 1):
        assert len({both[which] for both in sums.values()}) == len(sums) > 100
