"""The elementary moves of a search against sets and lists: what it remembers, and what it lifts."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from checkers._linear import room
from checkers._linear.room import FIRST, HORIZON, SECOND, USED, Room, dice, room_for
from checkers._spark.compiled import kernel

OPS, FAILURES = 12, 400
LONG = 80  # used operations: more than a comparison may take


@kernel
def includes(node: np.ndarray, more: int, less: int) -> bool:
    return room._includes(node, more, less)


@kernel
def used(now: np.ndarray, node: np.ndarray, i: int) -> None:
    room.note_use(now, node, i)


@kernel
def forgotten(now: np.ndarray, op: np.ndarray, node: np.ndarray, at_rank: np.ndarray) -> None:
    room.prepare(now, op, node, at_rank, np.zeros((0, 6), np.int32))


@kernel
def remembered(now: np.ndarray, failed: np.ndarray, first: int, second: int) -> None:
    room.remember(now, failed, first, second)


@kernel
def hopeless(
    now: np.ndarray, node: np.ndarray, failed: np.ndarray, first: int, second: int
) -> bool:
    return room.hopeless(now, node, failed, first, second)


@kernel
def lifted(now: np.ndarray, op: np.ndarray, thrown: np.ndarray, i: int) -> None:
    room.lift(now, op, thrown, i)


@kernel
def lowered(now: np.ndarray, op: np.ndarray, length: int) -> None:
    room.lower(now, op, length)


@pytest.fixture
def place() -> Room:
    made = room_for(OPS, 2, 2 * OPS, FAILURES, 8)
    forgotten(made.now, made.op, made.node, made.at_rank)
    return made


def lists(place: Room, dice: Random, count: int) -> list[tuple[int, frozenset[int]]]:
    """Lists of used operations, many of which share their tails: their heads, what they hold."""
    known: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
    for _ in range(count):
        tail, held = dice.choice(known)
        free = [i for i in range(OPS) if i not in held]
        if free:
            i = dice.choice(free)
            place.now[USED] = tail
            used(place.now, place.node, i)
            known.append((int(place.now[USED]), held | {i}))
    return known


@pytest.mark.parametrize("seed", range(5))
def test_a_list_includes_another_as_sets_do(place: Room, seed: int) -> None:
    known = lists(place, Random(seed), 60)
    counts = {True: 0, False: 0}
    for more, held in known:
        for less, others in known:
            truth = others <= held
            assert includes(place.node, more, less) is truth, (held, others)
            counts[truth] += 1
    assert min(counts.values()) > 200


def test_what_is_too_long_to_compare_is_not_included() -> None:
    """A search may only ever do too much."""
    made = room_for(2 * LONG, 2, 2, FAILURES, 8)
    forgotten(made.now, made.op, made.node, made.at_rank)

    def chain(ops: Sequence[int]) -> int:
        made.now[USED] = 0
        for i in ops:
            used(made.now, made.node, i)
        return int(made.now[USED])

    upwards, downwards = chain(range(LONG)), chain(range(LONG - 1, -1, -1))
    assert not includes(made.node, upwards, downwards)
    assert not includes(made.node, upwards, chain(range(LONG, 2 * LONG)))
    assert includes(made.node, upwards, upwards)


@pytest.mark.parametrize("seed", range(5))
def test_a_failure_ends_what_can_do_no_more(place: Room, seed: int) -> None:
    """Of the same two sums, after the same writes or later ones, with no more used; and no failure
    of another search does."""
    dice = Random(seed)
    known = lists(place, dice, 30)
    failures: list[tuple[int, int, int, frozenset[int]]] = []
    ended = 0
    for _ in range(FAILURES):
        first, second = dice.choice((5, 5 + (1 << 20), 6, -1)), dice.choice((1, 2))
        at, held = dice.choice(known)
        place.now[HORIZON], place.now[USED] = horizon, _ = dice.randrange(4), at
        truth = any(
            (f, s) == (first, second) and h >= horizon and before <= held
            for f, s, h, before in failures
        )
        found = hopeless(place.now, place.node, place.failed, first, second)
        assert found is truth
        ended += truth
        if not truth and len(failures) < 40:
            remembered(place.now, place.failed, first, second)
            failures.append((first, second, horizon, held))
    assert place.now[room.HITS] == ended > 50
    assert place.now[room.FAILURES] == len(failures) > 10
    forgotten(place.now, place.op, place.node, place.at_rank)
    place.now[HORIZON] = -1
    for first, second, _, _ in failures:
        assert not hopeless(place.now, place.node, place.failed, first, second)


def test_sums_tell_sets_of_lifted_operations_apart(place: Room) -> None:
    """Whatever the order, and both of them do; and lowering puts everything back in its place."""
    thrown, sums = dice(16, 3), {}
    place.op[room.AFTER, : OPS + 1] = [*range(1, OPS + 1), 0]
    place.op[room.BEFORE, : OPS + 1] = [OPS, *range(OPS)]
    place.op[room.LIFTED] = 0
    before = place.op[:, : OPS + 1].copy()
    for seed in range(300):
        some = Random(seed).sample(range(OPS), Random(seed).randrange(1, OPS))
        place.now[FIRST] = place.now[SECOND] = 0
        for i in some:
            lifted(place.now, place.op, thrown, i)
            assert place.op[room.LIFTED, i]
        both = int(place.now[FIRST]), int(place.now[SECOND])
        assert both[0] != both[1]
        assert sums.setdefault(frozenset(some), both) == both
        lowered(place.now, place.op, 1)
        assert place.op[room.TRAILED, 0] == some[0]
        assert place.op[room.LIFTED, :OPS].sum() == 1
        lowered(place.now, place.op, 0)
        assert (place.op[room.AFTER : room.BEFORE + 1, : OPS + 1] == before[1:3]).all()
    for which in (0, 1):
        assert len({both[which] for both in sums.values()}) == len(sums) > 100
