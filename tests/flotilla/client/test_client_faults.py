"""Which broker a producer avoids, and which queue it chooses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.client.faults import AVOIDANCES, Faults, choose
from clusters.flotilla.client.route_cache import QueueLocation
from clusters.flotilla.client.settings import ClientSettings

CURRENT = [(0.05, 0), (0.1, 0), (0.55, 2), (1.8, 5), (3, 6), (5, 10), (15, 30)]
FORMER = [(0.05, 0), (0.1, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (15, 600)]
A = [QueueLocation("set-a", "a", n, n) for n in range(4)]
B = [QueueLocation("set-b", "b", n, 4 + n) for n in range(4)]


def faults(name: str = "current") -> Faults:
    return Faults(AVOIDANCES[name])


def chosen(it: Faults | None, turn: int = 0, last: str = "", silent: str = "") -> QueueLocation:
    place = choose([*A, *B], turn, last, it, lambda address: address != silent, 0.0)
    assert place
    return place


@pytest.mark.parametrize(("name", "rows"), [("current", CURRENT), ("former", FORMER)])
def test_the_published_tables(name: str, rows: list[tuple[float, float]]) -> None:
    """RocketMQ 5's and RocketMQ 4's table, each latency with its time of avoidance."""
    for latency_s, lasts_s in rows:
        assert AVOIDANCES[name].lasts_s(latency_s) == lasts_s
        assert AVOIDANCES[name].lasts_s(latency_s - 0.001) < lasts_s or not lasts_s
    failure_s = {"current": 10, "former": 600}[name]
    assert AVOIDANCES[name].lasts_s(AVOIDANCES[name].failure_s) == failure_s


@given(st.sampled_from(sorted(AVOIDANCES)), st.floats(0, 100), st.floats(0, 100))
def test_the_slower_is_avoided_for_longer(name: str, one_s: float, other_s: float) -> None:
    lasts_s = AVOIDANCES[name].lasts_s
    assert (lasts_s(one_s) <= lasts_s(other_s)) == (one_s <= other_s) or lasts_s(one_s) == lasts_s(
        other_s
    )


def test_queues_are_taken_in_turn() -> None:
    """Without fault tolerance too."""
    for it in (None, faults()):
        assert [chosen(it, turn) for turn in range(9)] == [*A, *B, A[0]]


def test_a_retry_goes_to_another_set() -> None:
    """The last try's broker set is avoided if there is another."""
    for it in (None, faults()):
        assert {chosen(it, turn, last="set-a").broker_name for turn in range(8)} == {"set-b"}
        assert choose(A, 0, "set-a", it, lambda _: True, 0.0) == A[0]


def test_a_failed_broker_is_avoided_until_its_time_is_over() -> None:
    it = faults()
    it.record_failure("a", now=0.0)
    assert {chosen(it, turn).address for turn in range(8)} == {"b"}
    assert not it.available("a", 9.9)
    assert it.available("a", 10.0)


def test_a_slow_broker_is_avoided_and_a_fast_one_is_not() -> None:
    it = faults()
    it.record_latency("a", 0.6, now=0.0)
    it.record_latency("b", 0.04, now=0.0)
    assert {chosen(it, turn).address for turn in range(8)} == {"b"}


def test_when_all_are_bad_the_least_bad_is_taken() -> None:
    """pickOneAtLeast: its queues in turn."""
    it = faults()
    it.record_failure("a", now=0.0)
    it.record_latency("b", 0.6, now=0.0)
    assert it.pick_one_at_least("ab", 0.0) == "b"
    assert {chosen(it, turn, last="set-b") for turn in range(8)} == set(B)


def test_who_is_unreachable_is_not_the_least_bad() -> None:
    """Nobody takes it before a probe has reached it, or nothing else is left."""
    it = faults()
    it.record_failure("a", now=0.0, reachable=False)
    it.record_failure("b", now=0.0)
    assert {chosen(it, turn).address for turn in range(8)} == {"b"}
    it.record_failure("b", now=0.0, reachable=False)
    assert chosen(it) == A[0]
    it.record_probe("b", reached=True, again_at=2.0)
    assert {chosen(it, turn).address for turn in range(8)} == {"b"}
    assert it.due(1.0) == ["a"]
    assert it.due(2.0) == ["a", "b"]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.floats(0, 20))),
    st.integers(0, 1000),
    st.sampled_from(["", "set-a", "set-b"]),
    st.sampled_from(["", "a", "b"]),
)
def test_there_is_always_a_queue_and_never_a_silent_one(
    events: list[tuple[str, bool, float]], turn: int, last: str, silent: str
) -> None:
    """Whatever happened, a send has somewhere to go; an open breaker is passed over."""
    it = faults()
    for address, answered, latency_s in events:
        if answered:
            it.record_latency(address, latency_s, 0.0)
        else:
            it.record_failure(address, 0.0, reachable=latency_s < 10)
    place = chosen(it, turn, last, silent)
    reachable = {p.address for p in (*A, *B) if it.reachable(p.address)} - {silent}
    assert place.address != silent or not reachable


@pytest.mark.parametrize("key", ["sendLatencyFaultEnable", "sendLatencyEnable"])
def test_both_spellings_of_the_switch_mean_the_same(key: str) -> None:
    """The seed article's and RocketMQ 5's."""
    assert ClientSettings.of({"namesrvAddr": []}).avoidance is None
    chosen = ClientSettings.of({"namesrvAddr": [], key: True, "sendLatencyTable": "former"})
    assert chosen.avoidance == AVOIDANCES["former"].scaled(1)
    assert ClientSettings.of({"namesrvAddr": [], key: True}).avoidance == AVOIDANCES[
        "current"
    ].scaled(1)
