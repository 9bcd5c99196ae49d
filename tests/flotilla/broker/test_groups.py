"""Allocation of queues to group members, and leases."""

from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.client.consumer import allocate
from clusters.flotilla.controllers.leases import Leases

NAMES = st.sets(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6)


@given(st.integers(0, 20), NAMES)
def test_every_queue_falls_to_exactly_one_member(count: int, names: set[str]) -> None:
    """Whoever asks, in whatever order he heard of the others; shares differ by one at most."""
    queues = [("t", number) for number in range(count)]
    members = sorted(names)
    shares = [allocate(queues, members, me) for me in members]
    assert shares == [allocate(queues[::-1], members[::-1], me) for me in members]
    assert sorted(queue for share in shares for queue in share) == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_who_is_not_a_member_owns_nothing() -> None:
    """The broker has not heard of him yet."""
    assert allocate([("t", 0)], ["a"], "b") == ()


def test_a_lease_ends_unless_it_is_taken_again() -> None:
    """60 s at the broker; only its holder gives it back."""
    leases, place = Leases(60.0), ("g", "t", 0)
    assert leases.take(place, "a", 0.0)
    assert not leases.take(place, "b", 59.0)
    assert leases.take(("g", "t", 1), "b", 59.0)
    assert leases.take(place, "a", 59.0)
    assert not leases.take(place, "b", 60.0)
    leases.give_back(place, "b")
    assert not leases.take(place, "b", 118.0)
    assert leases.take(place, "b", 119.0)
    leases.give_back(place, "b")
    assert leases.take(place, "a", 120.0)
    leases.give_back(("g", "t", 9), "")  # no client holds it


def test_a_release_that_comes_late_releases_nothing() -> None:
    """Its client has taken the lock again since it sent it."""
    leases, place = Leases(60.0), ("g", "t", 0)
    assert leases.take(place, "a", 0.0, asked_at=7)
    leases.give_back(place, "a", asked_at=6)
    assert not leases.take(place, "b", 1.0, asked_at=1)
    assert leases.take(place, "a", 2.0, asked_at=5)  # asked before, and arrives after
    leases.give_back(place, "a", asked_at=6)
    assert not leases.take(place, "b", 3.0, asked_at=1)
    leases.give_back(place, "a", asked_at=8)
    assert leases.take(place, "b", 4.0, asked_at=1)  # the clocks of clients are not compared
    leases.give_back(place, "b", asked_at=1)
    assert leases.take(place, "a", 5.0, asked_at=9)


def test_a_client_whose_clock_began_again_can_release() -> None:
    """Once the lease from before has expired; and so can one that does not say when it asked."""
    leases, place = Leases(60.0), ("g", "t", 0)
    assert leases.take(place, "a", 0.0, asked_at=1_000)
    assert leases.take(place, "a", 61.0, asked_at=5)
    leases.give_back(place, "a", asked_at=6)
    assert leases.take(place, "b", 62.0, asked_at=7)
    leases.give_back(place, "b")
    assert leases.take(place, "a", 63.0)
    leases.give_back(place, "a", asked_at=1)
    assert leases.take(place, "b", 64.0)


def test_leases_that_ran_out_are_forgotten() -> None:
    """Expired leases are forgotten; those in force stay."""
    leases, kept = Leases(60.0), ("g", "t", 0)
    for number in range(5_000):
        now = number * 30.0
        assert leases.take(kept, "a", now)
        assert leases.take((f"g{number}", "t", 0), "b", now)
        assert not leases.take(kept, "b", now)
    assert len(leases) < 2_000


def test_no_lease_in_force_is_forgotten() -> None:
    """Many at one time."""
    leases = Leases(60.0)
    for number in range(5_000):
        assert leases.take(("g", "t", number), "a", 0.0)
    assert not any(leases.take(("g", "t", number), "b", 59.0) for number in range(5_000))
