"""Registers against every order tried one by one, and what a search does when it may not go on."""

from collections import Counter

import numpy as np
import pytest
from register_dice import endless
from table_sizes import at_least, share

from checkers._linear import models, search
from checkers._linear.batch import ILLEGAL, LEGAL, UNKNOWN
from checkers._linear.encoding import encode
from checkers._linear.judge import SearchBudget, judge
from checkers._linear.search_state import allocate, extent, power_of_two

ALL = SearchBudget(exhaustive=True)
BATCH = share(2_500)  # keys of one table


def searched(batch):
    """Verdicts of the search alone, also for keys that need none."""
    which = np.arange(len(batch.starts) - 1)
    n, values, ranks = extent(batch, which)
    out, stop = np.zeros((len(which), 4), np.int64), np.zeros(1, np.int8)
    state = allocate(n, values, ranks, 2_000, 4_096, seed=7)
    search.search(state, batch, which, 2_000, stop, out)
    return out[:, 0]


def test_room_is_a_power_of_two_whoever_counts() -> None:
    """Numbers of arrays, too: what counts is compiled or not, and they have no bit_length."""
    assert [power_of_two(np.int64(n)) for n in (1, 16, 17)] == [16, 16, 32]


def test_a_search_agrees_with_all_orders(registers, table, oracle) -> None:
    """Histories of up to eight operations, with wrong reads, writes that are lost or late,
    and compare-and-sets with the opposite answer: the verdict is that of trying all orders."""
    illegal, legal = Counter(), 0
    for seed in range(8):
        games = registers(seed, BATCH)
        encoded = encode(table([row for game in games for row in game.rows]), pipelined=True)
        verdicts = judge(encoded.batch, budget=ALL).verdicts
        alone = searched(encoded.batch)
        assert not encoded.flaws
        for game, verdict, second in zip(games, verdicts, alone, strict=True):
            expected = LEGAL if oracle(game.ops) else ILLEGAL
            assert verdict == second == expected, game
            legal += expected == LEGAL
            illegal[game.anomaly] += expected == ILLEGAL
    print(f"{legal} legal; illegal by what was planted: {dict(illegal)}")
    assert illegal.pop("") == 0
    assert len(illegal) == 5
    assert min(illegal.values()) >= at_least(200)


def test_zones_agree_with_all_orders(written_once, table, oracle) -> None:
    """Where all writes differ there is no search, and the verdict is the same."""
    counts = Counter()
    for seed in range(100, 104):
        games = written_once(seed, BATCH)
        batch = encode(table([row for game in games for row in game.rows]), pipelined=True).batch
        judged = judge(batch, budget=ALL)
        assert judged.stats["zones"] > 0.9 * BATCH
        for k, (game, verdict) in enumerate(zip(games, judged.verdicts, strict=True)):
            assert verdict == (LEGAL if oracle(game.ops) else ILLEGAL), game
            counts[int(verdict)] += 1
            if k in judged.witnesses:
                assert set(judged.witnesses[k]) <= set(range(batch.starts[k], batch.starts[k + 1]))
    print(counts)
    assert counts[ILLEGAL] > at_least(200)


def test_the_model_agrees_with_all_orders(registers, table, oracle) -> None:
    """The oracle, a search over a step function, is right, too."""
    games = registers(1_000, 2_000)
    batch = encode(table([row for game in games for row in game.rows]), pipelined=True).batch
    for k, game in enumerate(games):
        verdict = models.search_model(models.REGISTER, models.operations_of(batch, k))
        assert verdict == (LEGAL if oracle(game.ops) else ILLEGAL), game


@pytest.fixture
def crowd(table):
    return encode(table(endless())).batch


def test_a_spent_budget_is_unknown(crowd) -> None:
    """A key that is too hard for its budget is neither legal nor illegal, and reports its
    progress."""
    judged = judge(crowd, budget=SearchBudget(failures=50))
    assert judged.verdicts.tolist() == [UNKNOWN]
    assert judged.passed[0] > 0


def test_a_deadline_is_unknown(crowd) -> None:
    """When the time is over the search stops, however large its budget."""
    judged = judge(crowd, budget=SearchBudget(failures=1 << 22, seconds=0.05))
    assert judged.verdicts.tolist() == [UNKNOWN]
