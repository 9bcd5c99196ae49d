"""Elections, and liveness by heartbeats ("Election" in docs/flotilla-design.md)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.controllers.elect import (
    POLICIES,
    Ballot,
    BrokerStatus,
    Candidate,
    elect,
    may_hand_over,
    needs_election,
)
from clusters.flotilla.controllers.liveness import Heartbeat, Key, LocalLiveness, heartbeat_expired

ALIVE, UNKNOWN, DEAD = BrokerStatus.ALIVE, BrokerStatus.UNKNOWN, BrokerStatus.DEAD
KEY = ("b", 1)

candidates = st.lists(
    st.builds(
        Candidate,
        st.integers(1, 9),
        st.sampled_from(BrokerStatus),
        st.integers(-1, 3),
        st.integers(-1, 2**40),
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from(["", "east", "west"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=5,
    unique_by=lambda c: c.broker_id,
)


def alive(broker_id: int, epoch: int = 1, offset: int = 0, priority: int = 0) -> Candidate:
    return Candidate(broker_id, ALIVE, epoch, offset, priority)


def choose(*in_set: Candidate, old: int | None = None) -> int | None:
    return elect(Ballot(in_set, (), old))


def test_the_longest_log_of_the_last_epoch_wins() -> None:
    """Epoch, then offset, then the smaller priority, then the smaller id."""
    assert choose(alive(1, 1, 900), alive(2, 2, 100)) == 2
    assert choose(alive(1, 2, 100), alive(2, 2, 101)) == 2
    assert choose(alive(1, 2, 100, priority=5), alive(2, 2, 100, priority=4)) == 2
    assert choose(alive(2, 2, 100), alive(1, 2, 100)) == 1


def test_offsets_further_apart_than_32_bits_are_compared_rightly() -> None:
    """RocketMQ narrows the difference to an int."""
    assert choose(alive(1, 1, 0), alive(2, 1, 2**31 + 1)) == 2
    assert choose(alive(1, 1, 2**33), alive(2, 1, 1)) == 1


@given(
    candidates,
    candidates,
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.sampled_from(sorted(POLICIES)),
)
def test_no_election_leaves_the_set_or_picks_the_dead(
    in_set: list[Candidate],
    others: list[Candidate],
    old: int | None,
    prefer: int | None,
    policy: str,
) -> None:
    """Under every policy the winner of a clean election is alive and in the set, and no learner
    (apache/rocketmq#10013); only the old master may be unknown."""
    winner = elect(Ballot(in_set, others, old, prefer, policy=policy, zone="east"))
    if winner is not None:
        [chosen] = [c for c in in_set if c.broker_id == winner]
        assert chosen.status is ALIVE or (winner == old and chosen.status is UNKNOWN)
        assert not chosen.learner or winner == old
        assert prefer in (None, winner)
    elif prefer is None:
        assert not any(c.status is ALIVE and not c.learner for c in in_set)


@given(candidates, candidates)
def test_unclean_elects_somebody_if_anybody_lives(
    in_set: list[Candidate], others: list[Candidate]
) -> None:
    """Availability before safety, if configured, and once no member of the set can be elected."""
    others = [c for c in others if c.broker_id not in {s.broker_id for s in in_set}]
    winner = elect(Ballot(in_set, others, None, unclean=True))
    living = [c for c in (*in_set, *others) if c.status is ALIVE and not c.learner]
    if living and not any(c.status is UNKNOWN for c in in_set):
        assert winner in {c.broker_id for c in living}
    if any(c in living for c in in_set):
        assert winner in {c.broker_id for c in in_set}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("water-level", 1),
        ("join-time", 2),
        ("priority", 3),
        ("zone", 4),
        ("node-resources", 5),
    ],
)
def test_each_policy_has_its_own_favourite(policy: str, expected: int) -> None:
    """`electPolicy`: one candidate is the best by each policy, and the policy finds it."""
    plain = Candidate(0, ALIVE, 1, 100, 5, joined=9, zone="west", resources=1)
    row = [
        replace(plain, broker_id=1, max_offset=101),
        replace(plain, broker_id=2, joined=3),
        replace(plain, broker_id=3, priority=4),
        replace(plain, broker_id=4, zone="east"),
        replace(plain, broker_id=5, resources=2),
    ]
    assert elect(Ballot(row, (), None, policy=policy, zone="east")) == expected
    dead = [replace(c, status=DEAD) if c.broker_id == expected else c for c in row]
    fallback = elect(Ballot(dead, (), None, policy=policy, zone="east"))
    assert fallback == (3 if expected == 1 else 1), "among equals the water level decides"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ("a2 a1 b1", 2),  # in the old master's rack
        ("b1 a2 b1", 2),  # elsewhere in its zone; another zone's rack may have the same name
        ("b2 b1 b1", 1),  # no other is near, so the water level decides
    ],
)
def test_the_zone_is_compared_before_the_rack(places: str, expected: int) -> None:
    """`electPolicy = "zone"`: the old master was in rack 1 of zone a."""
    row = [
        Candidate(number, ALIVE, 1, 100 - number, zone=place[0], rack=place[1])
        for number, place in enumerate(places.split(), start=1)
    ]
    assert elect(Ballot(row, (), None, policy="zone", zone="a", rack="1")) == expected


def test_a_successor_is_ready_when_nothing_is_missing() -> None:
    """Planned handover: the successor has the whole log, and no send waits for an answer."""
    assert may_hand_over(100, 100, 0)
    assert not may_hand_over(99, 100, 0)
    assert not may_hand_over(100, 100, 1)
    assert not may_hand_over(None, 0, 0)


def test_a_set_that_had_a_master_needs_one() -> None:
    """The set has no master or a dead one; the controllers do not start the first election."""
    assert needs_election(1, None)
    assert needs_election(1, DEAD)
    assert not needs_election(1, ALIVE)
    assert not needs_election(1, UNKNOWN)
    assert not needs_election(0, None)


# liveness


MATE, STRANGER = (KEY[0], 2), ("another set", 1)


def heartbeat(max_offset: int = 0, *, life: int = 7, beat: int = 1, key: Key = KEY) -> Heartbeat:
    return Heartbeat(key, "ip:1", 10, 2, max_offset, 0, 0, life, beat)


def table() -> LocalLiveness:
    return LocalLiveness(grace_s=10, expired=heartbeat_expired)


def test_a_broker_is_late_when_silent_for_longer_than_it_announced() -> None:
    """A broker is late after its timeout, not before (apache/rocketmq#8380)."""
    liveness = table()
    assert liveness.on_heartbeat(heartbeat(), 1, now=0)
    liveness.on_heartbeat(heartbeat(key=MATE), 2, now=4)
    liveness.on_heartbeat(heartbeat(beat=2, key=MATE), 2, now=8)
    assert liveness.late(now=10) == []
    assert liveness.late(now=10.1) == [KEY]
    assert liveness.candidate(*KEY, now=10.1).status is ALIVE
    assert liveness.mark_gone(KEY)
    assert not liveness.mark_gone(KEY)
    assert liveness.candidate(*KEY, now=10.1).status is DEAD
    assert liveness.on_heartbeat(heartbeat(), 1, now=11)
    assert liveness.candidate(*KEY, now=11).status is ALIVE


def test_the_last_heartbeat_is_the_truth() -> None:
    """After a truncation the offset goes back; by an older heartbeat it does not."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(900, beat=1), 1, now=0)
    liveness.on_heartbeat(heartbeat(500, beat=3), 2, now=1)
    liveness.on_heartbeat(heartbeat(800, beat=2), 1, now=2)
    assert liveness.candidate(*KEY, now=2).max_offset == 500


def test_a_connection_that_was_given_up_may_speak_last_and_silences_nobody() -> None:
    """A kernel delivers what it received, however late, and old heartbeats first."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(900, beat=30), 1, now=0)
    liveness.on_heartbeat(
        heartbeat(100, beat=20), 2, now=1
    )  # dialled first, heard of for the first time
    liveness.on_heartbeat(heartbeat(901, beat=31), 1, now=9)
    assert liveness.by_connection(2) == {}
    assert liveness.candidate(*KEY, now=9).max_offset == 901
    assert liveness.late(now=19) == []


def test_what_comes_late_of_a_former_life_is_forgotten_with_the_next_heartbeat() -> None:
    """A restarted broker counts from one again, and neither process can silence the other for
    good."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(900, life=7, beat=400), 1, now=0)
    liveness.on_heartbeat(heartbeat(300, life=8, beat=1), 2, now=1)
    assert liveness.candidate(*KEY, now=1).max_offset == 300
    liveness.on_heartbeat(heartbeat(900, life=7, beat=401), 3, now=2)
    liveness.on_heartbeat(heartbeat(301, life=8, beat=2), 2, now=3)
    assert liveness.candidate(*KEY, now=3).max_offset == 301


def test_only_the_newest_connection_speaks_for_a_broker() -> None:
    """A broker that reconnected is not dead because its old connection closes."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(), 1, now=0)
    assert liveness.by_connection(1) == {KEY: "ip:1"}
    liveness.on_heartbeat(heartbeat(beat=2), 2, now=1)
    assert liveness.by_connection(1) == {}
    assert liveness.by_connection(2) == {KEY: "ip:1"}


def test_a_new_leader_has_patience_for_one_timeout() -> None:
    """Unknown, then dead. A follower makes no decisions and gives no grace."""
    liveness = table()
    assert liveness.candidate(*KEY, now=5).status is DEAD
    liveness.set_leader_since(5)
    liveness.on_heartbeat(heartbeat(key=MATE), 1, now=4)
    assert liveness.candidate(*KEY, now=14.9).status is UNKNOWN
    assert liveness.candidate(*KEY, now=15).status is DEAD
    liveness.set_leader_since(None)
    assert liveness.candidate(*KEY, now=6).status is DEAD


def test_who_is_silent_with_its_whole_set_is_not_late_for_a_long_time() -> None:
    """The controllers may be cut off. Another set does not matter."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(), 1, now=0)
    liveness.on_heartbeat(heartbeat(key=MATE), 2, now=1)
    for now in range(5, 120, 5):
        liveness.on_heartbeat(heartbeat(beat=now, key=STRANGER), 3, now=now)
        assert liveness.late(now=now) == []
    assert liveness.late(now=120.1) == [KEY]
    assert liveness.late(now=121.1) == [KEY, MATE]


def test_a_lone_broker_is_late_after_a_long_time_too_and_gone_at_once() -> None:
    """No other broker could be elected; a closed connection is not silence."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(), 1, now=0)
    assert liveness.late(now=120) == []
    assert liveness.late(now=120.1) == [KEY]
    assert liveness.mark_gone(KEY)
    assert liveness.late(now=120.1) == []


@pytest.mark.parametrize("known_gone", [False, True])
def test_the_first_heartbeat_after_a_silence_of_all_renews_the_others_time(
    known_gone: bool,
) -> None:
    """The master may have served all the while. If it died meanwhile, one timeout shows it. A
    broker that is known to be gone stays dead, and one that returns from that renews the others'
    time as well."""
    liveness = table()
    third = (KEY[0], 3)
    for connection, key in enumerate([KEY, MATE, third]):
        liveness.on_heartbeat(heartbeat(key=key), connection, now=0)
    if known_gone:
        liveness.mark_gone(MATE)
    liveness.on_heartbeat(heartbeat(beat=2, key=MATE), 1, now=30)
    assert liveness.late(now=40) == []
    liveness.on_heartbeat(heartbeat(beat=3, key=MATE), 1, now=35)
    liveness.on_heartbeat(heartbeat(beat=4, key=MATE), 1, now=39)
    assert liveness.late(now=40.1) == [KEY, third]
    assert liveness.by_connection(0) == {KEY: "ip:1"}
    liveness.mark_gone(third)
    liveness.on_heartbeat(heartbeat(beat=5, key=MATE), 1, now=70)
    assert liveness.candidate(*third, now=70).status is DEAD


def test_nobody_lives_on_by_the_heartbeats_of_others() -> None:
    """Even if these are so rare that each might be the first one after a silence of all."""
    liveness = table()
    liveness.on_heartbeat(heartbeat(), 1, now=0)
    for beat in range(1, 4):
        liveness.on_heartbeat(heartbeat(beat=beat, key=MATE), 2, now=9 * beat)
    assert liveness.late(now=27) == [KEY]


def test_what_a_kernel_delivers_late_is_no_sign_of_life_for_anybody() -> None:
    liveness = table()
    liveness.on_heartbeat(heartbeat(), 1, now=0)
    liveness.on_heartbeat(heartbeat(beat=9, key=MATE), 2, now=0)
    liveness.on_heartbeat(heartbeat(beat=8, key=MATE), 3, now=100)
    assert liveness.late(now=120.1) == [KEY, MATE]


def test_a_new_leader_that_hears_nobody_of_a_set_is_patient_until_it_does() -> None:
    """A controller that started while it was cut off knows no broker: the master has one timeout
    from the first heartbeat on."""
    liveness = table()
    liveness.set_leader_since(5)
    liveness.on_heartbeat(heartbeat(key=STRANGER), 1, now=5)
    assert liveness.candidate(*KEY, now=124.9).status is UNKNOWN
    assert liveness.candidate(*KEY, now=125).status is DEAD
    liveness.on_heartbeat(heartbeat(key=MATE), 2, now=60)
    assert liveness.candidate(*KEY, now=69.9).status is UNKNOWN
    assert liveness.candidate(*KEY, now=70).status is DEAD
