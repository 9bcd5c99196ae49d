"""The schedule is pure and seeded: what, for whom and when are functions of the seed."""

from itertools import islice, takewhile
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.operation import producer_of, sequence_of
from harness.run.schedule import arrivals, choices, share, values

seeds = st.integers(0, 2**32)


@given(seeds, st.floats(0.1, 1e5))
def test_arrivals_move_forward_and_repeat(seed: int, rate: float) -> None:
    """Time only goes forward, and the same seed arrives at the same times."""
    first = list(islice(arrivals(Random(seed), rate), 50))
    assert first == sorted(first)
    assert first[0] > 0
    assert first == list(islice(arrivals(Random(seed), rate), 50))


@given(seeds)
def test_arrivals_keep_the_rate(seed: int) -> None:
    """A Poisson process of 100 a second for 100 s: 10,000, give or take six deviations."""
    arrived = sum(1 for _ in takewhile(lambda at: at < 100, arrivals(Random(seed), 100)))
    assert abs(arrived - 10_000) < 600


@given(seeds, st.integers(2, 16))
def test_bursts_keep_the_rate(seed: int, burst: int) -> None:
    """So many arrive at each instant, and 100 a second on average, give or take six deviations."""
    arrived = list(takewhile(lambda at: at < 400, arrivals(Random(seed), 100, burst)))
    assert abs(len(arrived) - 40_000) < 1200 * burst**0.5
    assert {arrived.count(at) for at in arrived[: 3 * burst]} == {burst}


def test_no_rate_is_always_due() -> None:
    assert list(islice(arrivals(Random(1), 0), 3)) == [0.0, 0.0, 0.0]


@given(st.integers(0, 2**31 - 1))
def test_values_are_dense_for_each_producer(producer: int) -> None:
    """Dense values make the heavy checks cheap, so no number may be left out."""
    sent = list(islice(values(producer), 20))
    assert [sequence_of(v) for v in sent] == list(range(20))
    assert {producer_of(v) for v in sent} == {producer}


@given(seeds, st.integers(1, 50))
def test_choices_are_keys(seed: int, keys: int) -> None:
    chosen = list(islice(choices(Random(seed), keys), 100))
    assert all(0 <= key < keys for key in chosen)
    assert chosen == list(islice(choices(Random(seed), keys), 100))


def test_every_key_gets_its_part() -> None:
    chosen = list(islice(choices(Random(7), 4), 4000))
    assert all(abs(chosen.count(key) - 1000) < 200 for key in range(4))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@given(items=st.lists(st.integers(), unique=True))
def test_shares_are_a_partition(items: list[int], workers: int) -> None:
    """Everything to exactly one, and nobody has two more than another."""
    shares = [share(items, index, workers) for index in range(workers)]
    assert sorted(item for part in shares for item in part) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
