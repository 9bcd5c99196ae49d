"""Flotilla's coordinators in a simulated world: they keep what ZooKeeper promises, also while their
leader is killed and cut off."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import tomli_w
from zk_conformance import SCENARIOS, Clients, play, until

from clusters.flotilla.node import serve
from clusters.flotilla.world.ports import Ports
from clusters.flotilla.zk.jute import EPHEMERAL, ZkError
from clusters.flotilla.zk.session import ConnectionLoss, SessionState
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World

CONFIG, RAFT, CLIENTS = "/etc/node.toml", 9880, 2181
NAMES = ("coordinator-1", "coordinator-2", "coordinator-3")
ADDRESSES = {name: f"10.0.0.{n}" for n, name in enumerate(NAMES, start=1)}
SERVERS = [f"{address}:{CLIENTS}" for address in ADDRESSES.values()]
Scenario = Callable[["Ensemble", Clients], Coroutine[Any, Any, None]]


class Ensemble:
    """Three coordinators and a client's host."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = SimNetwork(self.world)
        self.hosts = {
            name: SimHost(self.world, self.network, name, address)
            for name, address in (ADDRESSES | {"client": "10.0.0.9"}).items()
        }
        self.disks = {name: disk_of(host) for name, host in self.hosts.items()}
        peers = {name: f"{address}:{RAFT}" for name, address in ADDRESSES.items()}
        for name, address in ADDRESSES.items():
            table = {
                "role": "coordinator",
                "nodeName": name,
                "listenHost": address,
                "listenPort": RAFT,
                "storePath": "/var/lib/node",
                "eventLogPath": "/var/lib/events.jsonl",
                "coordinatorPeers": peers,
                "zkTickTime": 200,
                "raftSnapshotEntries": 20,
            }
            self.disks[name].put(CONFIG, tomli_w.dumps(table).encode())
            self.disks[name].put("/var/lib/events.jsonl", b"")

    def start(self, name: str) -> None:
        host = self.hosts[name]

        async def node(process: SimProcess) -> int:
            return await serve([CONFIG], lambda seed: ports_of(process, self.disks[name]))

        host.start("node", node)

    def kill(self, name: str) -> None:
        self.hosts[name].processes["node"].kill()

    def play(self, scenario: Scenario) -> None:
        for name in NAMES:
            self.start(name)

        async def main(process: SimProcess) -> int:
            ports: Ports = ports_of(process, self.disks["client"])
            clients = Clients(SERVERS, 2.0, ports.randomness, "/test")
            await play(lambda given: scenario(self, given), clients)
            return 0

        client = self.hosts["client"].start("client", main)
        client.on_exit(lambda code: self.world.stop())
        try:
            self.world.run(until_ns=600 * SECOND)
            assert client.code == 0, "\n".join(client.error_lines) or "it took too long"
        finally:
            for host in self.hosts.values():
                for process in list(host.processes.values()):
                    process.kill()
            self.world.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_coordinators_do_what_zookeeper_does(
    scenario: Callable[[Clients], Awaitable[None]],
) -> None:
    async def conform(ensemble: Ensemble, clients: Clients) -> None:
        await scenario(clients)

    Ensemble().play(conform)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_with_any_coordinator(seed: int) -> None:
    """Each is killed and started again in turn; sessions go on, and a change that was answered is
    there. A change whose answer was lost is there or not."""

    async def scenario(ensemble: Ensemble, clients: Clients) -> None:
        z = await clients.begin()
        before = z.id
        path = await z.create("/test/e", b"", EPHEMERAL)
        answered, uncertain = 0, 0
        for round_ in range(6):
            name = NAMES[round_ % 3]
            ensemble.world.after(0, ensemble.kill, name)
            for _ in range(20):
                try:
                    answered = (await z.set(path, b"")).version
                except ConnectionLoss:
                    uncertain += 1
                await asyncio.sleep(0.05)
            ensemble.world.after(0, ensemble.start, name)
            await asyncio.sleep(1)
            version = (await z.get(path))[1].version
            assert answered <= version <= answered + uncertain
        assert uncertain, "no leader was killed during a change"
        assert z.id == before

    Ensemble(seed).play(scenario)


def test_a_session_that_its_client_cannot_use_ends_once() -> None:
    """A cut for longer than the timeout ends it, and the client learns it after the cut."""

    async def scenario(ensemble: Ensemble, clients: Clients) -> None:
        z = await clients.begin()
        owner = await clients.session()
        path = await owner.create("/test/e", b"", EPHEMERAL)
        for address in ADDRESSES.values():
            ensemble.world.after(0, ensemble.network.cut, "10.0.0.9", address)
        await until(lambda: owner.state is SessionState.CONNECTING)
        await asyncio.sleep(10)
        assert owner.state is SessionState.CONNECTING
        for address in ADDRESSES.values():
            ensemble.world.after(0, ensemble.network.heal, "10.0.0.9", address)
        await until(lambda: owner.state is SessionState.EXPIRED)
        await until(lambda: z.state is SessionState.EXPIRED)
        fresh = await clients.session()
        with pytest.raises(ZkError):
            await fresh.get(path)

    Ensemble().play(scenario)
