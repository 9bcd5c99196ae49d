"""A pair whose state is kept by coordinators and switched by HA controllers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.config import ConfigError, loads
from clusters.systems.flotilla.layout import cluster_nodes
from clusters.systems.flotilla.modes import MODES
from harness.contracts import ClusterState
from harness.errors import BadRequest

PROFILE = "zk-ha"


def states(fleet: Fleet) -> list[tuple[str, int]]:
    """The states of the pair and their masters, in the order of their SequenceIDs."""
    names = [*fleet.nodes("hacontroller"), *fleet.nodes("broker")]
    rows = [row for name in names for row in fleet.events(name, "machine")]
    return [(row["state"], row["masterId"]) for row in sorted(rows, key=lambda row: row["seq"])]


async def in_state(sailor: Sailor, wanted: str) -> None:
    """Wait until the pair is in this state."""

    async def look() -> bool:
        now = states(sailor.fleet)
        return bool(now) and now[-1][0] == wanted

    await eventually(look)


def other(now: ClusterState) -> str:
    [slave] = now.slaves
    return slave


def test_the_way_up_and_the_slave_that_takes_over() -> None:
    """SINGLE, ASYNC, SEMI, SYNC; the slave has everything when the master is killed, and so has the
    former master afterwards."""
    fleet = Fleet(1, PROFILE)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        way = [state for state, _ in states(fleet)]
        assert way[-4:] == ["SINGLE", "ASYNC", "SEMI", "SYNC"]
        assert set(way[:-4]) <= {"SINGLE"}
        master, slave = now.masters[BROKER_SET], other(now)
        first = acknowledged(await sailor.send(100))
        assert len(first) == 100
        await sailor.kill(master)
        assert (await sailor.new_master(master)).masters[BROKER_SET] == slave
        await sailor.start(master)
        now = await sailor.healthy()
        assert now.masters[BROKER_SET] == slave
        second = acknowledged(await sailor.send(100))
        assert len(second) == 100
        assert first | second <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_a_restart_within_the_session_timeout_is_a_death() -> None:
    """The master's process is another one before its session ends; the slave takes over."""
    fleet = Fleet(2, PROFILE)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        master = now.masters[BROKER_SET]
        await sailor.kill(master)
        await sailor.start(master)
        assert (await sailor.new_master(master)).epochs[BROKER_SET] > now.epochs[BROKER_SET]
        await sailor.healthy()

    fleet.sail(scenario)
    ended = [e for name in fleet.nodes("coordinator") for e in fleet.events(name, "session-ended")]
    changes = [e for n in fleet.nodes("hacontroller") for e in fleet.events(n, "election")]
    assert all(e["mono"] > changes[-1]["mono"] for e in ended)


def test_only_a_single_master_has_everything() -> None:
    """Its slave is not elected when it is gone, and gets what it lacks when it is back."""
    fleet = Fleet(3, PROFILE)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        master, slave = now.masters[BROKER_SET], other(now)
        await sailor.kill(slave)
        await in_state(sailor, "SINGLE")
        alone = acknowledged(await sailor.send(50))
        assert len(alone) == 50
        await sailor.kill(master)
        await sailor.start(slave)
        await asyncio.sleep(20)
        assert states(fleet)[-1][0] == "SINGLE"
        assert not acknowledged(await sailor.send(5))
        await sailor.start(master)
        now = await sailor.healthy()
        assert now.masters[BROKER_SET] == master
        assert alone <= set(await sailor.read_all())

    fleet.sail(scenario)


@pytest.mark.parametrize("role", ["coordinator", "hacontroller"])
def test_without_those_that_decide_the_state_stays(role: str) -> None:
    """SYNC goes on; and without a slave nothing is acknowledged, until they are back."""
    fleet = Fleet(4, PROFILE)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        slave = other(now)
        await each(sailor.kill, fleet.nodes(role))
        await asyncio.sleep(20)
        assert len(acknowledged(await sailor.send(50))) == 50
        await sailor.kill(slave)
        assert not acknowledged(await sailor.send(5))
        await each(sailor.start, fleet.nodes(role))
        await in_state(sailor, "SINGLE")
        assert len(acknowledged(await sailor.send(50))) == 50

    fleet.sail(scenario)


async def each(act: object, names: Sequence[str]) -> None:
    for name in names:
        await act(name)  # type: ignore[operator]


async def until_held(sailor: Sailor, fleet: Fleet) -> tuple[str, str]:
    """The slave dies and comes back; return master and slave at the moment at which sends are held
    for it, in SEMI."""
    now = await sailor.healthy()
    master, slave = now.masters[BROKER_SET], other(now)
    await sailor.kill(slave)
    await in_state(sailor, "SINGLE")
    holds = len(fleet.events(master, "held"))
    await sailor.start(slave)
    while len(fleet.events(master, "held")) == holds:  # noqa: ASYNC110 - the moment itself
        await asyncio.sleep(0.0001)
    return master, slave


def test_a_hold_lasts_until_the_coordinators_say_otherwise() -> None:
    """They die while the master holds sends. Nothing is acknowledged however long that takes, and
    nothing is lost when they are back."""
    fleet = Fleet(5, PROFILE, {"zkHoldMax": 500})

    async def scenario(sailor: Sailor) -> None:
        master, _ = await until_held(sailor, fleet)
        holds = len(fleet.events(master, "held")) - 1
        await each(sailor.kill, fleet.nodes("coordinator"))
        assert not acknowledged(await sailor.send(10))
        assert len(fleet.events(master, "released")) == holds
        await each(sailor.start, fleet.nodes("coordinator"))
        await sailor.healthy()
        sent = acknowledged(await sailor.send(50))
        assert len(sent) == 50
        assert sent <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_holds_that_are_too_short_become_longer() -> None:
    """What a hold takes needs longer than zkHoldMax on this network. The pair reaches SYNC all the
    same."""
    fleet = Fleet(6, PROFILE, {"zkHoldMax": 100})
    fleet.network.wire = replace(fleet.network.wire, latency_ns=8_000_000)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        way = [state for state, _ in states(fleet)]
        assert {"SINGLE", "ASYNC"} <= set(way[: way.index("SEMI")])
        assert (way[-1], way.count("SEMI") > 1) == ("SYNC", True)

    fleet.sail(scenario)


def test_a_master_that_ends_a_hold_logs_the_state_that_it_wrote() -> None:
    """The HA controllers are dead when the slave dies in SEMI."""
    fleet = Fleet(7, PROFILE, {"zkHoldMax": 500})

    async def scenario(sailor: Sailor) -> None:
        master, slave = await until_held(sailor, fleet)
        await each(sailor.kill, [slave, *fleet.nodes("hacontroller")])
        await in_state(sailor, "ASYNC")
        [written] = fleet.events(master, "machine")
        held = fleet.events(master, "held")[-1]["seq"]
        assert (written["state"], written["replaces"], written["seq"] > held) == (
            *("ASYNC", held),
            True,
        )
        assert len(acknowledged(await sailor.send(20))) == 20

    fleet.sail(scenario)


def test_an_emptied_disk_is_not_a_new_set() -> None:
    """Both brokers die in SYNC, and only the one with the empty disk is back: it waits for the
    other one, which has everything."""
    fleet = Fleet(8, PROFILE)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        master, slave = now.masters[BROKER_SET], other(now)
        sent = acknowledged(await sailor.send(50))
        await each(sailor.kill, [*fleet.nodes("hacontroller"), master, slave])
        fleet.empty(master)
        await sailor.start(master)
        await asyncio.sleep(20)  # their sessions end
        await each(sailor.start, fleet.nodes("hacontroller"))
        await asyncio.sleep(20)
        assert states(fleet)[-1][0] == "SYNC"
        assert not acknowledged(await sailor.send(5))
        await sailor.start(slave)
        now = await sailor.healthy()
        assert now.masters[BROKER_SET] == slave
        assert sent <= set(await sailor.read_all())

    fleet.sail(scenario)


BROKER = (
    'role = "broker"\nnodeName = "n"\nlistenHost = "h"\nstorePath = "s"\nhaMode = "zookeeper"\n'
)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("", "needs allAckInSyncStateSet"),
        ("allAckInSyncStateSet = true\nminInSyncReplicas = 2", "has no minInSyncReplicas above 1"),
        ("allAckInSyncStateSet = true\nenableSemiSync = true", "has no enableSemiSync"),
        ('allAckInSyncStateSet = true\nzkServers = ["x"]', "zkServers must have addresses"),
    ],
)
def test_settings_that_contradict_the_mode_are_refused(settings: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loads(BROKER + settings)


def test_other_numbers_of_nodes_are_refused() -> None:
    """In one sentence, before anything is started."""
    with pytest.raises(BadRequest, match="a master and a slave in each set"):
        Fleet(6, PROFILE, nodes={"broker": 3})
    with pytest.raises(BadRequest, match="has no controllers"):
        cluster_nodes({"controller": 3}, MODES["zookeeper"])
    with pytest.raises(BadRequest, match="a controller cluster has none"):
        cluster_nodes({"coordinator": 3})
