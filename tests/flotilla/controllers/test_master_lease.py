"""Leases of masters: no master serves when another one may be elected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.broker.role import OwnLease
from clusters.flotilla.config import ConfigError, loads
from clusters.flotilla.controllers.master_lease import (
    GrantedLeases,
    lease_lasts,
    may_elect_after_lease,
    own_lease_s,
)

LEASE_S, MARGIN_S = 20.0, 2.0
SET, EPOCH = "set-1", 3
moments = st.floats(0, 100)


def granted(since: float = 0.0) -> GrantedLeases:
    leases = GrantedLeases(LEASE_S, may_elect_after_lease)
    leases.on_leading(since)
    return leases


@given(
    st.lists(st.tuples(moments, st.floats(0, 5), st.floats(0, 5)), max_size=6),
    moments,
    st.floats(0.96, 1.04),
    st.floats(0, 1000),
)
def test_a_master_stops_before_another_one_may_be_elected(
    beats: list[tuple[float, float, float]], now: float, rate: float, ahead_s: float
) -> None:
    """Whatever the delays of heartbeats and answers, the difference of the clocks, and their rates
    if they differ by less than margin / lease. A beat: sent at, way there, way back."""
    leases, own = granted(), OwnLease(True, lease_lasts)

    def on_master(time: float) -> float:
        return ahead_s + time * rate

    for sent_at, there_s, back_s in sorted(beats):
        arrives_at = sent_at + there_s
        answered = leases.grant(SET, EPOCH, arrives_at) if arrives_at <= now else False
        if answered and arrives_at + back_s <= now:
            own.grant(EPOCH, own_lease_s(LEASE_S, MARGIN_S), on_master(sent_at))
    if own.lasts(EPOCH, on_master(now)):
        assert not leases.may_elect(SET, now)
        assert not own.lasts(EPOCH + 1, on_master(now))


def test_a_new_leader_waits_for_what_its_predecessor_may_have_granted() -> None:
    leases = granted(since=50.0)
    assert not leases.may_elect(SET, 50.0 + LEASE_S - 0.1)
    assert leases.may_elect(SET, 50.0 + LEASE_S)
    leases.on_deposed()
    assert not leases.may_elect(SET, 1000.0)
    assert not leases.grant(SET, EPOCH, 1000.0)


def test_an_election_is_tried_again_after_a_while() -> None:
    """Never at once, also while a new leader cannot decide yet."""
    leases = granted(since=50.0)
    assert leases.wait_s(SET, 51.0, 0.1) == LEASE_S - 1.0
    leases.on_deposed()
    assert leases.wait_s(SET, 1000.0, 0.1) == 0.1


def test_the_end_of_a_process_ends_its_lease() -> None:
    leases = granted()
    assert leases.grant(SET, EPOCH, 1.0)
    leases.on_ended(SET, 2.0)
    assert leases.may_elect(SET, 2.0)


def test_no_lease_is_granted_while_an_election_may_take_effect() -> None:
    """Nor after one whose outcome is unknown, until the set has a later epoch."""
    leases = granted()
    for _ in range(2):
        leases.begin_election(SET)
    leases.end_election(SET)
    assert not leases.grant(SET, EPOCH, 1.0)
    leases.end_election(SET)
    assert leases.grant(SET, EPOCH, 1.0)
    leases.begin_election(SET)
    leases.end_election(SET, in_doubt=EPOCH)
    assert not leases.grant(SET, EPOCH, 1.0)
    assert leases.grant(SET, EPOCH + 1, 1.0)


def test_a_lease_that_was_renounced_is_not_renewed_by_an_older_answer() -> None:
    """The answer to a heartbeat from before the handover may arrive after it."""
    own = OwnLease(True, lease_lasts)
    own.grant(EPOCH, 18.0, 1.0)
    assert own.lasts(EPOCH, 2.0)
    own.renounce(2.0)
    own.grant(EPOCH, 18.0, 1.5)
    assert not own.lasts(EPOCH, 2.0)
    own.grant(EPOCH, 18.0, 2.5)
    assert own.lasts(EPOCH, 3.0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("leaseClockMargin = 19000", "at least twice brokerHeartbeatInterval"),
        ('haMode = "switchless"', "enableMasterLease needs haMode"),
    ],
)
def test_impossible_leases_are_refused(more: str, says: str) -> None:
    text = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\n'
    with pytest.raises(ConfigError, match=says):
        loads(f"{text}enableMasterLease = true\n{more}\n")
