"""The search alone: how far it comes, in how many steps, and how it ends when it may not go on."""

import threading
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from register_dice import (
    KINDS,
    Game,
    all_orders,
    columns,
    crowded_games,
    endless,
    explained,
    games,
    long_games,
)

from checkers._linear import search
from checkers._linear.batch import ILLEGAL, LEGAL, UNKNOWN, OperationBatch
from checkers._linear.encoding import encode
from checkers._linear.search_state import allocate, extent
from harness.operation import F, Type

FAILURES, CHOICES = 2_000, 4_096
AFTER = 8  # choices behind a search's room, which it must not touch
POLLED = 1_024  # steps between two looks at the clock
GAMES = {
    "small": lambda: games(5, 2_500, KINDS),
    "crowded": lambda: crowded_games(8, 3_000),
    "long": lambda: long_games(7, 150),
}
STEPS = {"small": 5_964, "crowded": 8_990, "long": 769}  # fewer are better, more are a loss


def searched(
    batch: OperationBatch,
    failures: int = FAILURES,
    choices: int = CHOICES,
    stop: np.ndarray | None = None,
) -> np.ndarray:
    """Of each key: verdict, steps, returns passed, hits."""
    which = np.arange(len(batch.starts) - 1)
    n, values, ranks = extent(batch, which)
    out = np.full((len(which), 4), -1, np.int64)
    state = allocate(n, values, ranks, failures, choices + AFTER, seed=7)
    state.choices[choices:] = -7
    stop = np.zeros(1, np.int8) if stop is None else stop
    within = state._replace(choices=state.choices[:choices])
    search.search(within, batch, which, failures, stop, out)
    assert (state.choices[choices:] == -7).all()
    return out


@cache
def drawn(name: str) -> tuple[Sequence[Game], OperationBatch, np.ndarray]:
    """Games, as a batch, and the verdicts of all orders."""
    played = GAMES[name]()
    batch = encode(columns([row for game in played for row in game.rows]), pipelined=True).batch
    return played, batch, np.array([LEGAL if all_orders(g.ops) else ILLEGAL for g in played])


@pytest.mark.parametrize("name", GAMES)
def test_it_comes_as_far_as_any_order_in_few_steps(name: str) -> None:
    """Verdicts and the returns passed are those of all orders, one by one. No reduction is lost:
    a search never takes more steps than it did."""
    played, batch, truth = drawn(name)
    out = searched(batch)
    for game, verdict, passed, row in zip(played, truth, out[:, 2], out, strict=True):
        assert row[0] == verdict, game
        assert passed == explained(game.ops), game
    steps = int(out[:, 1].sum())
    print(f"{steps} steps, {out[:, 3].sum()} of them ended by a failure that was remembered")
    assert len(played) <= steps <= STEPS[name]
    assert (out[:, 1] >= 1).all()


@pytest.mark.parametrize("choices", [6, 7, 8, 9, 10, 12, 14, 16, 20])
def test_without_room_it_says_so(choices: int) -> None:
    """And never writes beyond its room."""
    _, batch, truth = drawn("crowded")
    verdicts = searched(batch, choices=choices)[:, 0]
    full = verdicts == search.NO_ROOM
    assert (verdicts == np.where(full, search.NO_ROOM, truth)).all()
    assert full.any()


@pytest.mark.parametrize(
    ("failures", "least", "most"), [(0, 3_000, 3_000), (1, 35, 59), (3, 20, 59)]
)
def test_without_failures_left_a_key_is_unknown(failures: int, least: int, most: int) -> None:
    """What is decided until then is right."""
    _, batch, truth = drawn("crowded")
    out = searched(batch, failures)
    spent = out[:, 0] == UNKNOWN
    assert (out[:, 0] == np.where(spent, UNKNOWN, truth)).all()
    assert least <= spent.sum() <= most


def test_when_time_is_over_nothing_is_begun() -> None:
    """Keys that were not searched are unknown, whatever was in the place of their verdicts."""
    _, batch, _ = drawn("small")
    out = searched(batch, stop=np.ones(1, np.int8))
    assert (out[:, 0] == UNKNOWN).all()
    assert (out[:, 1:] == -1).all()


def test_when_time_is_over_a_search_stops_at_its_next_look() -> None:
    """However large its budget, and without a verdict; it looks only now and then."""
    batch, stop = encode(columns(endless())).batch, np.zeros(1, np.int8)
    searched(batch, 1)  # compiled beforehand
    timer = threading.Timer(0.05, stop.fill, (1,))
    timer.start()
    verdict, steps, passed, _ = searched(batch, 1 << 24, stop=stop)[0].tolist()
    timer.join()
    assert verdict == UNKNOWN
    assert passed > 0
    assert steps % POLLED == 0


def told(*said: tuple[F, Type, int | None, int | None, int]) -> OperationBatch:
    """One key's rows, one after the other: kind, type, value, what it sets, operation."""
    rows = [
        (t, op, op, kind, f, 0, value, to, None) for t, (f, kind, value, to, op) in enumerate(said)
    ]
    return encode(columns(rows), pipelined=True).batch


def test_a_write_goes_before_what_takes_its_value_away() -> None:
    """The second write of 1 can hide only between the first one and the compare-and-set of unknown
    outcome: it is tried although no operation needs its value."""
    batch = told(
        *((F.PUT, Type.INVOKE, 1, None, 0), (F.PUT, Type.OK, 1, None, 0)),
        *((F.PUT, Type.INVOKE, 1, None, 1), (F.CAS, Type.INVOKE, 1, 2, 2)),
        *((F.GET, Type.INVOKE, None, None, 3), (F.GET, Type.OK, 2, None, 3)),
        (F.PUT, Type.OK, 1, None, 1),
        *((F.GET, Type.INVOKE, None, None, 4), (F.GET, Type.OK, 2, None, 4)),
    )
    assert searched(batch)[0, 0] == LEGAL


def test_of_twins_one_is_tried() -> None:
    """Six operations of unknown outcome in each direction do not make seven, whichever are taken:
    of equal ones the same one is tried, so it takes a dozen steps and not thousands."""
    there = [(F.CAS, Type.INVOKE, 0, 1, n) for n in range(10, 16)]
    back = [(F.CAS, Type.INVOKE, 1, 0, n) for n in range(20, 26)]
    seen = [
        (F.GET, kind, value, None, 30 + n)
        for n in range(14)
        for kind, value in ((Type.INVOKE, None), (Type.OK, n % 2))
    ]
    start = ((F.PUT, Type.INVOKE, 0, None, 0), (F.PUT, Type.OK, 0, None, 0))
    out = searched(told(*start, *there, *back, *seen))[0].tolist()
    assert out[0] == ILLEGAL
    assert out[2] == 14
    assert out[1] <= 16
