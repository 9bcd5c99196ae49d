"""Copies in several zones: how far the log has them, and which members stay for their zone."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.config import ConfigError, loads
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import HandshakeRequest
from clusters.flotilla.replication.quorum import kept_for_zone, zone_offset
from clusters.systems.flotilla.driver import system
from harness.errors import BadRequest
from harness.trial import Trial

ids = st.integers(2, 7)
names = st.sampled_from(["", "a", "b", "c"])
of_slaves = st.dictionaries(ids, names)


@given(
    st.integers(1, 4),
    st.integers(0, 9),
    names,
    st.dictionaries(ids, st.none() | st.integers(0, 9)),
    of_slaves,
)
def test_a_byte_counts_when_it_is_in_enough_zones(
    needed: int, end: int, own: str, acks: dict[int, int | None], zones: dict[int, str]
) -> None:
    """Each byte below the offset, and no later one; with one zone all that the master has."""
    offset = zone_offset(needed, end, own, acks, zones)

    def enough(position: int) -> bool:
        here = {zones.get(i, "") for i, ack in acks.items() if ack is not None and ack >= position}
        return needed == 1 or len({own, *here} - {""}) >= needed

    reached = [position for position in range(end + 1) if enough(position)]
    assert offset == max(reached, default=-1)


@given(st.integers(1, 4), names, st.sets(ids), st.sets(ids), of_slaves)
def test_no_more_members_stay_than_zones_are_missing(
    needed: int, own: str, staying: set[int], silent: set[int], zones: dict[int, str]
) -> None:
    """The set has as many zones as before, or as many as are needed, and no smaller choice does."""
    leaving = sorted(silent - staying)
    kept = kept_for_zone(needed, own, sorted(staying), leaving, zones)

    def count(members: set[int]) -> int:
        return len({own, *(zones.get(i, "") for i in members)} - {""})

    wanted = min(needed, count(staying | set(leaving)))
    assert set(kept) <= set(leaving)
    assert count(staying | set(kept)) >= wanted
    fewer = combinations(leaving, len(kept) - 1) if kept else ()
    assert all(count(staying | set(some)) < wanted for some in fewer)


def test_a_zone_travels_with_the_handshake() -> None:
    """Behind the flags; a name without its flag is malformed, and so is text that is none."""
    shape = LogShape(0, 0, EpochTable())
    hello = HandshakeRequest(2, 3, 1, shape, zone="räume")
    assert HandshakeRequest.unpack(hello.pack()) == hello
    bare = HandshakeRequest(2, 3, 1, shape).pack()
    for tail in (b"\x01a", b"\x04", b"\x04\xff"):
        with pytest.raises(ValueError, match=r"behind the shape|decode"):
            HandshakeRequest.unpack(bare + tail)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("totalReplicas = 1", "ackZones is 2, more than totalReplicas, which is 1"),
        ('haMode = "switchless"', "ackZones needs haMode"),
        ("allAckInSyncStateSet = true\nenableSemiSync = true", "exclude each other"),
    ],
)
def test_impossible_zones_are_refused(more: str, says: str) -> None:
    text = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\nackZones = 2\n'
    with pytest.raises(ConfigError, match=says):
        loads(f"{text}{more}")


def test_a_trial_needs_as_many_zones_as_are_waited_for() -> None:
    """Of brokers that can be elected, in each set."""
    system(Trial(profile="two-rooms", zones={"count": 2}))
    split = {"broker-1": "a", "broker-2": "a", "broker-3": "b", "controller-3": "c"}
    system(Trial(profile="two-rooms", zones=split))
    for zones, settings in (
        ({}, {}),
        ({"count": 1}, {}),
        (split, {"learners": 1}),
        (split, {"ackZones": 3}),
    ):
        with pytest.raises(BadRequest, match=r"ackZones is ., but the brokers of set-1 are in"):
            system(Trial(profile="two-rooms", zones=zones, settings=settings))
