"""Semi-synchronous replication: one designated slave, exchanged when it lags or dies (the article,
section 2-3, write)."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quorum_stage import Stage
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.config import ConfigError, loads
from clusters.flotilla.net.wire import Status
from clusters.flotilla.replication.sync_state import designate

slaves = st.sets(st.integers(2, 6))
times = st.dictionaries(st.integers(2, 6), st.floats(0, 100))


@given(slaves, slaves, times, st.floats(0, 10))
def test_one_is_designated_whenever_there_is_one(
    members: set[int], ready: set[int], caught_up_at: dict[int, float], limit_s: float
) -> None:
    """A slave, if there is one; a present member stays unless another one is clearly better."""
    ready -= members
    chosen = designate(members, ready, caught_up_at, limit_s)
    assert (chosen is None) == (not members | ready)
    if chosen in ready and members:
        best = max(caught_up_at.get(m, float("-inf")) for m in members)
        assert caught_up_at[chosen] - best > limit_s
    if chosen in members:
        assert all(
            caught_up_at.get(r, float("-inf")) - caught_up_at.get(chosen, float("-inf")) <= limit_s
            or caught_up_at.get(r, float("-inf")) == float("-inf")
            for r in ready
        )


def test_nobody_is_exchanged_for_being_as_old() -> None:
    """Without load, and after a pause of the master, all were in step equally long ago."""
    assert designate({2}, {3}, {2: 5.0, 3: 5.4}, 1.0) == 2
    assert designate({2}, {3}, {2: 5.0, 3: 6.4}, 1.0) == 3
    assert designate({2}, {3}, {2: 5.0}, 1.0) == 2
    assert designate((), {3, 4}, {4: 1.0, 3: 0.5}, 1.0) == 4


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", "enableSemiSync needs allAckInSyncStateSet = true"),
        ("allAckInSyncStateSet = true\nminInSyncReplicas = 3", "minInSyncReplicas is 3"),
    ],
)
def test_contradictions_are_refused(more: str, says: str) -> None:
    """One clear sentence that names the key."""
    text = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\n'
    with pytest.raises(ConfigError, match=says):
        loads(f"{text}enableSemiSync = true\n{more}")


async def designated(stage: Stage) -> str:
    """Return the one slave in the set."""

    async def look() -> list[str] | None:
        members = [name for name in await stage.members() if name != stage.master]
        return members if len(members) == 1 else None

    [slave] = await eventually(look)
    return slave


@pytest.mark.parametrize("seed", range(3))
def test_only_the_designated_slave_is_waited_for_and_elected(seed: int) -> None:
    """The other one may be cut off without effect; when the master dies, the designated one
    follows."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        slave = await designated(stage)
        [other] = [name for name in stage.slaves if name != slave]
        with stage.cut_off(other):
            results = await sailor.send(50)
            assert len(acknowledged(results)) == 50
            assert set(await stage.members()) == {stage.master, slave}
        assert (await stage.send()).status is Status.SUCCESS
        await sailor.kill(stage.master)
        assert (await sailor.new_master(stage.master)).masters[BROKER_SET] == slave
        await sailor.start(stage.master)
        await sailor.healthy()
        assert set(results) <= set(await sailor.read_all())

    Fleet(seed, "semi-sync").sail(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_slave_that_lags_is_exchanged(seed: int) -> None:
    """Long before haMaxTimeSlaveNotCatchup is over, and in one change: the set is never smaller."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        slow = await designated(stage)
        sending = asyncio.ensure_future(sailor.send(200))
        await asyncio.sleep(0.2)
        began_s = sailor.world.now_ns / 1e9
        with stage.cut_off(slow):
            [fit] = [name for name in stage.slaves if name != slow]
            await stage.until_members(stage.master, fit)
            assert sailor.world.now_ns / 1e9 - began_s < 0.8  # 1.5 s at this timeScale
            results = await sending
        changes = stage.fleet.events(stage.master, "set")
        assert all(len(change["set"]) == 2 for change in changes[1:])
        assert len(acknowledged(results)) > 150
        await sailor.healthy()
        assert acknowledged(results) <= set(await sailor.read_all())

    Fleet(seed, "semi-sync").sail(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_dead_slave_is_replaced_and_a_lone_master_finds_one_again(seed: int) -> None:
    """Also under steady load, when new messages must wait for the entering slave."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        sending = asyncio.ensure_future(sailor.send(400))
        first = await designated(stage)
        await sailor.kill(first)
        [second] = [name for name in stage.slaves if name != first]
        await stage.until_members(stage.master, second)
        await sailor.kill(second)
        await stage.until_members(stage.master)
        await sailor.start(first)
        await stage.until_members(stage.master, first)
        await sailor.start(second)
        results = await sending
        assert len(await stage.members()) == 2
        await sailor.healthy()
        assert acknowledged(results) <= set(await sailor.read_all())

    Fleet(seed, "semi-sync", {"minInSyncReplicas": 1}).sail(scenario)


def test_a_dead_slave_leaves_though_no_other_one_may_enter() -> None:
    """A set that may be its master alone, beside a slave that the controllers do not hear: the
    exchange is refused, so the dead slave is removed alone."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        await asyncio.sleep(5)  # both have long been in step: none is exchanged for the other
        dying = await designated(stage)
        [silent] = [name for name in stage.slaves if name != dying]
        number = (await stage.describe(silent))["controllerBrokerId"]

        async def taken_for_dead() -> bool:
            told = [row for c in stage.controllers for row in stage.fleet.events(c, "expired")]
            return any(row["brokerId"] == number for row in told)

        with stage.parted((silent,), stage.controllers):
            await eventually(taken_for_dead)
            await sailor.kill(dying)
            await stage.until_members(stage.master)
            assert (await stage.send()).status is Status.SUCCESS
        await stage.until_members(stage.master, silent)

    Fleet(1, "semi-sync", {"minInSyncReplicas": 1}).sail(scenario)
