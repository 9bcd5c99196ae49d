"""A broker's id survives the end of its process at any instant of its registration (spec 5.3).

RocketMQ deletes the file that it is about to replace (bug 32): a crash in between costs the broker
its identity, and its old id stays in the set as a member that never comes alive.
"""

import asyncio
import signal
from collections.abc import Iterator

import pytest
from simulated_fleet import BROKER_SET, HOME, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.net.wire import Json, Op
from clusters.hosts._world.disk import Disk
from clusters.hosts._world.world import SECOND

ALONE = {"broker": 1, "controller": 1}
SETTINGS = {"minInSyncReplicas": 1, "inSyncReplicas": 1}
INSTANTS = 40
FILES = ("broker.meta", "broker.meta.claim")


def fleet() -> Fleet:
    return Fleet(1, settings=SETTINGS, nodes=ALONE)


def exists(disk: Disk, name: str) -> bool:
    try:
        disk.file(f"{HOME}/store/{name}")
    except FileNotFoundError:
        return False
    return True


async def reigns(sailor: Sailor) -> None:
    async def look() -> bool:
        return (await sailor.cluster_state()).masters.get(BROKER_SET) == "broker-1"

    await eventually(look)


def registration() -> tuple[float, float]:
    """Return its begin and end in an undisturbed world: leader known, role known."""
    calm = fleet()
    calm.sail(reigns)
    [led] = [e["mono"] for e in calm.events("controller-1", "raft") if e["state"] == "leader"]
    [told] = [e["mono"] for e in calm.events("broker-1", "role")]
    return led, told


def instants() -> Iterator[float]:
    first_s, last_s = registration()
    step_s = (last_s - first_s) / INSTANTS
    return (first_s + step_s * number for number in range(INSTANTS + 3))


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_an_id_is_kept_from_any_instant_on(power: bool) -> None:
    """Killed or cut from power at each of many instants, the broker returns with the same id."""
    files = set()
    for at_s in instants():
        world = fleet()
        host = world.aboard["broker-1"].host

        def strike(world: Fleet = world) -> None:
            host = world.aboard["broker-1"].host
            process = world.process("broker-1")
            assert process
            host.power_cut() if power else process.signal(signal.SIGKILL)

        world.world.at(int(at_s * SECOND), strike)
        if power:
            world.world.at(int((at_s + 0.05) * SECOND), host.power_on)
        world.world.at(int((at_s + 0.1) * SECOND), world.start, "broker-1")

        async def scenario(sailor: Sailor, at_s: float = at_s) -> None:
            disk = sailor.fleet.aboard["broker-1"].disk
            await asyncio.sleep(at_s + 0.08)
            files.add(tuple(n for n in FILES if exists(disk, n)))
            await reigns(sailor)
            row = (await sailor.admin.sync_state_data(BROKER_SET))[BROKER_SET]
            assert list(row["members"]) == ["1"], f"struck at {at_s}: {row}"

        world.sail(scenario)
    assert {(), ("broker.meta.claim",), ("broker.meta",)} <= files, "the instants were badly chosen"


async def ids(sailor: Sailor) -> Json:
    """Return the members of the broker set, by address."""
    row = (await sailor.admin.sync_state_data()).get(BROKER_SET, {"members": {}})
    return {member["addr"]: int(i) for i, member in row["members"].items()}


def test_a_forgotten_set_and_the_new_one_of_its_name_are_told_apart() -> None:
    """All brokers are removed while they are down, a new set is made, and the old brokers return
    with their disks: no id and no epoch is used twice, and there is never a second master."""

    async def scenario(sailor: Sailor) -> None:
        fleet = sailor.fleet
        old, new, other = fleet.nodes("broker")
        await sailor.healthy()
        for name in (old, new, other):
            await sailor.kill(name)
        fields = {"brokerName": BROKER_SET, "brokerIds": [1, 2, 3]}

        async def forgotten() -> bool:
            await sailor.admin.order(Op.CLEAN_BROKER_DATA, fields)
            return not await ids(sailor)

        await eventually(forgotten)
        fleet.empty(new)
        await sailor.start(new)

        async def begun() -> bool:
            return (await sailor.cluster_state()).masters.get(BROKER_SET) == new

        await eventually(begun)
        assert await ids(sailor) == {fleet.address(new): 4}
        sending = asyncio.ensure_future(sailor.send(40, every_s=0.1))
        for name in (old, other):
            await sailor.start(name)
        await sailor.healthy()
        reigns = [(e["epoch"], e["masterAddr"]) for e in fleet.events(new, "role")]
        assert reigns[-1][1] == fleet.address(new)
        for name in (old, other):
            [*_, last] = fleet.events(name, "role")
            assert (last["role"], last["epoch"], last["masterAddr"]) == ("slave", *reigns[-1])
        assert acknowledged(await sending) <= set(await sailor.read_all())

    Fleet(1, profile="allack-min1").sail(scenario)
