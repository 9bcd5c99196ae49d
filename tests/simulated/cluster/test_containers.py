"""Several brokers in one process: added, removed and remembered, each with its own store."""

import asyncio
import errno
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from simulated_fleet import CONFIG, HOME, QUEUES, TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.node import serve
from clusters.flotilla.world.ports import Ports
from clusters.hosts._world.ports import ports_of
from clusters.hosts._world.process import SimProcess
from clusters.systems.flotilla.event_view import EventView
from clusters.systems.flotilla.layout import PORTS
from harness.contracts import ClusterState

FIRST, SECOND = "container-1", "container-2"
MASTERS, SLAVES = {"set-1": FIRST, "set-2": SECOND}, {"set-1": SECOND, "set-2": FIRST}
TOPICS = {TOPIC: QUEUES}


def fleet_of(seed: int, profile: str = "container-cross", **settings: Any) -> Fleet:
    return Fleet(seed, profile, settings, topics=TOPICS)


def alike(fleet: Fleet, now: ClusterState) -> None:
    """The roles in the events so far are those in the answers."""
    found = EventView(fleet.layout.sets)
    names = [name for role in PORTS for name in fleet.nodes(role)]
    rows = [(row["mono"], name, row) for name in names for row in fleet.events(name)]
    for _, name, row in sorted(rows, key=lambda each: each[:2]):
        found.read(name, row["kind"], row)
    for part in ("masters", "slaves", "in_set", "out_of_set", "controller_leader", "epochs"):
        assert getattr(found.cluster_state(), part) == getattr(now, part), part


async def whole(sailor: Sailor) -> dict[str, int]:
    """Wait until all replicas are in step; return the epochs."""

    async def look() -> dict[str, int] | None:
        now = await sailor.cluster_state()
        return dict(now.epochs) if now.redundant else None

    return await eventually(look)


async def order(sailor: Sailor, node: str, op: Op, **fields: Any) -> Json:
    return await sailor.admin.ask(sailor.fleet.address(node), op, fields)


async def remove(sailor: Sailor, node: str, broker: str) -> Json:
    broker_id = 0 if MASTERS[broker] == node else 1
    names = {"cluster": "flotilla", "brokerName": broker, "brokerId": broker_id}
    return await order(sailor, node, Op.REMOVE_INNER, **names)


async def add(sailor: Sailor, node: str, broker: str, **changed: Any) -> Json:
    fleet = sailor.fleet
    of = next(each for each in fleet.layout.sets if each.name == broker)
    config = fleet.layout.inner_config(fleet.aboard[node].node, of, HOME)
    return await order(sailor, node, Op.ADD_INNER, config={**config, **changed})


async def inside(sailor: Sailor, node: str) -> list[str]:
    return [b["brokerName"] for b in (await order(sailor, node, Op.LIST_INNER))["brokers"]]


async def listens(sailor: Sailor, node: str, port: int) -> bool:
    host = sailor.fleet.aboard[node].node.address
    with suppress(*CALL_ERRORS):
        await sailor.admin.ask(f"{host}:{port}", Op.PING, {})
        return True
    return False


def test_each_process_has_a_master_and_a_slave() -> None:
    """Killing one process costs each set one member; both sets are whole when it is back. The roles
    in the events are those in the answers."""
    fleet = fleet_of(1)

    async def scenario(sailor: Sailor) -> None:
        assert await whole(sailor) == {"set-1": 1, "set-2": 1}
        now = await sailor.cluster_state()
        assert now.masters == MASTERS
        assert now.slaves == now.in_set == (FIRST, SECOND)
        alike(fleet, now)
        first = acknowledged(await sailor.send(100))
        assert len(first) == 100
        await sailor.kill(FIRST)
        await asyncio.sleep(2)  # until it is out of the set, which goes on alone
        during = acknowledged(await sailor.send(40))
        assert len(during) == 20  # set-2 has half of the queues
        await sailor.start(FIRST)
        assert await whole(sailor) == {"set-1": 2, "set-2": 1}
        alike(fleet, await sailor.cluster_state())
        assert first | during <= set(await sailor.read_all())

    fleet.sail(scenario)
    assert {row.get("inner") for row in fleet.events(FIRST, "role")} == {"set-1", "set-2"}


def test_a_removed_broker_is_gone_until_it_is_added() -> None:
    """Also over a restart of its process; then it has its old log. Its ports are closed at once,
    and the nameservers forget it."""
    fleet = fleet_of(2)

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        sent = acknowledged(await sailor.send(60))
        assert (await remove(sailor, FIRST, "set-2"))["code"] == Status.SUCCESS
        assert await inside(sailor, FIRST) == ["set-1"]
        assert not await listens(sailor, FIRST, 10921)
        assert not await listens(sailor, FIRST, 10922)
        nameserver = fleet.address("nameserver-1")

        async def forgotten() -> bool:
            fields = {"brokerName": "set-2"}
            group = await sailor.admin.ask(nameserver, Op.MEMBER_GROUP, fields)
            return list(group["members"]) == ["0"]

        assert await eventually(forgotten)
        await sailor.kill(FIRST)
        await sailor.start(FIRST)

        async def restarted() -> bool:
            with suppress(*CALL_ERRORS):
                return await inside(sailor, FIRST) == ["set-1"]
            return False

        assert await eventually(restarted)
        assert (await add(sailor, FIRST, "set-2"))["code"] == Status.SUCCESS
        await whole(sailor)
        await sailor.kill(FIRST)
        await sailor.start(FIRST)
        await whole(sailor)
        assert sent <= set(await sailor.read_all())

    fleet.sail(scenario)
    found = [row for row in fleet.events(FIRST, "recover") if row["inner"] == "set-2"]
    assert [row["max"] > 0 for row in found] == [False, True, True]


def test_without_memory_a_restart_goes_back_to_the_files() -> None:
    """As in RocketMQ."""
    fleet = fleet_of(3, containerRemembers=False)

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await remove(sailor, FIRST, "set-2")
        await sailor.kill(FIRST)
        await sailor.start(FIRST)
        await whole(sailor)

    fleet.sail(scenario)


def test_what_can_not_be_in_a_container_is_refused_by_name() -> None:
    """A second broker of a set, the store of another broker, a port that is in use, an unknown key;
    and none of them leaves anything behind."""
    fleet = fleet_of(4)
    ports = {"listenPort": 10951, "haListenPort": 10952}

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        second = await add(sailor, FIRST, "set-2", **ports, storePath=f"{HOME}/store/x", brokerId=7)
        assert (second["code"], second["remark"]) == (
            Status.INVALID_REQUEST,
            "flotilla:set-2:1 is in this container already",
        )
        path = f"{HOME}/store//set-2/"
        shared = await add(sailor, FIRST, "set-2", **ports, brokerName="set-3", storePath=path)
        assert shared["code"] == Status.INVALID_REQUEST
        assert "is the store of flotilla:set-2:1" in shared["remark"]
        unknown = await add(sailor, FIRST, "set-2", storPath="/x")
        assert "unknown key storPath" in unknown["remark"]
        await remove(sailor, FIRST, "set-2")
        failed = await add(sailor, FIRST, "set-2", haListenPort=10811)
        assert failed["code"] == Status.SYSTEM_ERROR
        assert "did not start" in failed["remark"]
        assert not await listens(sailor, FIRST, 10921)
        absent = await remove(sailor, FIRST, "set-2")
        assert "its brokers: flotilla:set-1:0" in absent["remark"]
        assert (await add(sailor, FIRST, "set-2"))["code"] == Status.SUCCESS
        await whole(sailor)

    fleet.sail(scenario)


class FailingSyncs:
    """Files, or a file, whose syncs fail below one folder while `fails` is set."""

    fails = False

    def __init__(self, real: Any, path: str = "") -> None:
        self._real, self._path = real, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, path: str) -> "FailingSyncs":
        return FailingSyncs(self._real.open(path), path)

    async def sync(self) -> None:
        if FailingSyncs.fails and "/store/set-1/commitlog/" in self._path:
            raise OSError(errno.EIO, "Input/output error")
        await self._real.sync()


class FailingFleet(Fleet):
    """A fleet in which the first container's syncs fail on demand."""

    def start(self, name: str) -> None:
        aboard = self.aboard[name]

        def ports(process: SimProcess, seed: int | None) -> Ports:
            real = ports_of(process, aboard.disk)
            return replace(real, files=FailingSyncs(real.files)) if name == FIRST else real

        async def node(process: SimProcess) -> int:
            return await serve([CONFIG], partial(ports, process))

        self.latest[name] = aboard.host.start(name, node)


@pytest.mark.parametrize("isolates", [False, True])
def test_a_failed_sync_of_one_broker(isolates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the process, or only that broker: the others go on, its ports are closed, and its
    store is not marked as cleanly closed. The operator can add it again."""
    settings = {"containerIsolatesFaults": isolates}
    fleet = FailingFleet(5, "container-cross", settings, topics=TOPICS)
    monkeypatch.setattr(FailingSyncs, "fails", False)

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        sent = acknowledged(await sailor.send(40))
        monkeypatch.setattr(FailingSyncs, "fails", True)
        await sailor.send(4)

        async def ended() -> bool:
            if not isolates:
                return fleet.process(FIRST) is None
            return await inside(sailor, FIRST) == ["set-2"]

        assert await eventually(ended)
        monkeypatch.setattr(FailingSyncs, "fails", False)
        if not isolates:
            assert fleet.latest[FIRST].code == 70
            await sailor.start(FIRST)
        else:
            assert not await listens(sailor, FIRST, 10911)
            assert not await listens(sailor, FIRST, 10912)
            assert (await sailor.cluster_state()).masters == {"set-2": SECOND}
            assert len(acknowledged(await sailor.send(40))) == 20
            assert (await add(sailor, FIRST, "set-1"))["code"] == Status.SUCCESS
        await whole(sailor)
        assert sent <= set(await sailor.read_all())

    fleet.sail(scenario)
    first, again = [row for row in fleet.events(FIRST, "recover") if row["inner"] == "set-1"]
    assert not again["clean"]
    assert again["max"] > first["max"]
    failures = [row for row in fleet.events(FIRST, "inner") if row["action"] == "failed"]
    assert len(failures) == isolates


def test_controllers_elect_brokers_in_containers() -> None:
    """When a process is killed the set whose master was inside gets another one."""
    fleet = fleet_of(6, "container-controllers")

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        old = now.masters["set-1"]
        sent = acknowledged(await sailor.send(40))
        await sailor.kill(old)
        await sailor.new_master(old, "set-1")
        await sailor.start(old)
        alike(fleet, await sailor.healthy())
        assert sent <= set(await sailor.read_all())

    fleet.sail(scenario)
