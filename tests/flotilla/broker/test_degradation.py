"""Fewer copies when fewer replicas are in step, and what a master does that is left alone.

`enableAutoInSyncReplicas` and `haMaxGapNotInSync` are RIP-34's, here with controllers;
`forceSyncFlushWhenAlone` is ours: what a lone master acknowledges is lost with it.
"""

import asyncio
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quorum_stage import Stage
from simulated_fleet import Fleet, Sailor, acknowledged

from clusters.flotilla.config import ConfigError, loads
from clusters.flotilla.net.wire import Status
from clusters.flotilla.replication.quorum import count_in_step, degraded_acks
from clusters.flotilla.replication.sync_state import SyncState, may_be_alone

acks = st.dictionaries(st.integers(2, 6), st.none() | st.integers(0, 1000))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_degradation_is_that_of_rip_34(wanted: int, minimum: int, living: int) -> None:
    """calcNeedAckNums: as many as are in step, never more than wanted, never below the minimum."""
    needed = degraded_acks(wanted, minimum, living)
    assert needed == max(minimum, min(wanted, living))
    assert needed >= minimum


@given(acks, st.sets(st.integers(2, 6)), st.integers(0, 1000))
def test_who_is_in_step(known: dict[int, int | None], members: set[int], most: int) -> None:
    """The master, and each member that is connected and at most so many bytes behind."""
    behind = {m: 1000 - ack for m in members if (ack := known.get(m)) is not None}
    expected = 1 + len([m for m, gap in behind.items() if gap <= most])
    assert count_in_step(1000, known, tuple(members), most) == expected


def test_a_master_may_be_alone_before_it_is_told() -> None:
    """From the moment it asks for a set of itself the controllers may have agreed."""
    three = SyncState(1, (1, 2, 3), 5)
    assert not may_be_alone(three)
    assert not may_be_alone(three.propose((1, 2)))
    assert may_be_alone(three.propose((1,)))
    assert may_be_alone(three.install((1,), 6))
    assert may_be_alone(three.install((1,), 6).propose((1, 2)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("totalReplicas = 2\ninSyncReplicas = 3", "inSyncReplicas is 3, more than totalReplicas"),
        ("totalReplicas = 1\nminInSyncReplicas = 2", "minInSyncReplicas is 2, more than"),
        ("haMaxGapNotInSync = -1", "haMaxGapNotInSync"),
        ("lockInStrictMode = true", "lockInStrictMode needs totalReplicas"),
    ],
)
def test_contradictions_are_refused(more: str, says: str) -> None:
    """One clear sentence that names the key."""
    text = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\n'
    with pytest.raises(ConfigError, match=says):
        loads(text + more)


AUTO = {
    "allAckInSyncStateSet": False,
    "inSyncReplicas": 2,
    "enableAutoInSyncReplicas": True,
    "haMaxGapNotInSync": 4096,
}


@pytest.mark.parametrize(
    ("minimum", "status"),
    [(1, Status.SUCCESS), (2, Status.IN_SYNC_REPLICAS_NOT_ENOUGH)],
)
def test_who_is_too_many_bytes_behind_is_not_waited_for(minimum: int, status: Status) -> None:
    """Both slaves are silent: the send waits until they are 4 KiB behind; long before they leave
    the set one copy is enough, or with a minimum of two nothing is taken any more."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        with stage.cut_off(*stage.slaves):
            assert (await stage.send(body=b"x" * 2000)).status is Status.FLUSH_SLAVE_TIMEOUT
            await stage.wave(100)
            assert (await stage.send()).status is status
            assert len(await stage.members()) == 3

    Fleet(1, "allack-min2", {**AUTO, "minInSyncReplicas": minimum}).sail(scenario)


def test_degradation_never_counts_less_than_all_members() -> None:
    """With allAckInSyncStateSet it has no effect: only the set's own shrinking degrades."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        with stage.cut_off(*stage.slaves):
            await stage.wave(100)
            assert (await stage.send()).status is Status.FLUSH_SLAVE_TIMEOUT
            await stage.until_members(stage.master)
            assert (await stage.send()).status is Status.SUCCESS

    Fleet(1, "allack-min1", {**AUTO, "allAckInSyncStateSet": True}).sail(scenario)


def test_a_slave_out_of_step_does_not_enter_again() -> None:
    """Nobody writes, so a slave that was cut off lacks nothing; it left for its silence all the
    same, and the set changes once."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        before = len(stage.fleet.events(stage.master, "set"))
        with stage.cut_off(*stage.slaves):
            await stage.until_members(stage.master)
            await asyncio.sleep(1)
            changes = stage.fleet.events(stage.master, "set")[before:]
            assert [change["set"] for change in changes] == [[1]]
        await stage.until_members(*stage.brokers)

    Fleet(1, "allack-min1").sail(scenario)


@pytest.mark.parametrize("dead", [0, 1])
def test_a_master_that_was_stopped_blames_nobody_for_its_silence(dead: int) -> None:
    """One slave died meanwhile, and that is the first thing it hears; the other one's acks are not
    read yet, and it stays in the set."""
    patient = {
        "haMaxTimeSlaveNotCatchup": 5000,
        "checkSyncStateSetPeriod": 2000,
        "controllerHeartBeatTimeoutMills": 100000,
    }

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        fleet, lost, kept = stage.fleet, stage.slaves[dead], stage.slaves[1 - dead]
        number = (await stage.describe(kept))["controllerBrokerId"]
        before = len(fleet.events(stage.master, "set"))
        process = fleet.process(stage.master)
        assert process
        sailor.world.after(0, process.signal, signal.SIGSTOP)
        await sailor.kill(lost)
        with stage.cut_off(kept):
            await asyncio.sleep(0.9)
            sailor.world.after(0, process.signal, signal.SIGCONT)
            await asyncio.sleep(0.01)
        await stage.until_members(stage.master, kept)
        await asyncio.sleep(1)
        changes = fleet.events(stage.master, "set")[before:]
        assert len(changes) == 1
        assert number in changes[0]["set"]

    Fleet(1, "allack-min1", patient).sail(scenario)


async def _alone_in_the_dark(sailor: Sailor) -> tuple[set[bytes], set[bytes]]:
    """A master is left alone, acknowledges, and loses power: what it acknowledged, what is left."""
    stage = await Stage.of(sailor)
    with stage.cut_off(*stage.slaves):
        await stage.until_members(stage.master)
        got = acknowledged(await sailor.send(100))
        await sailor.power_cut(stage.master)
        await asyncio.sleep(0.5)
    await sailor.power_on(stage.master)
    await sailor.healthy()
    return got, set(await sailor.read_all())


def _lost(seed: int, **settings: Any) -> set[bytes]:
    lost: set[bytes] = set()

    async def scenario(sailor: Sailor) -> None:
        got, left = await _alone_in_the_dark(sailor)
        assert len(got) == 100
        lost.update(got - left)

    slow = {"flushIntervalCommitLog": 100_000}  # the timer requests no sync
    Fleet(seed, "allack-min1", slow | settings).sail(scenario)
    return lost


def test_a_lone_master_waits_for_its_disk_if_it_shall() -> None:
    """forceSyncFlushWhenAlone: its power may go at any time; without it something is lost."""
    assert any(_lost(seed) for seed in range(4))
    assert not any(_lost(seed, forceSyncFlushWhenAlone=True) for seed in range(4))


def test_a_master_that_is_not_alone_does_not_wait_for_its_disk() -> None:
    """The disk hangs, and sends are answered as fast as ever; alone, they wait for it."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        stage.fleet.aboard[stage.master].disk.delay_ns = 2_000_000_000
        assert (await stage.send()).status is Status.SUCCESS
        with stage.cut_off(*stage.slaves):
            await stage.until_members(stage.master)
            assert (await stage.send()).status is Status.FLUSH_DISK_TIMEOUT

    Fleet(1, "allack-min1", {"forceSyncFlushWhenAlone": True}).sail(scenario)
