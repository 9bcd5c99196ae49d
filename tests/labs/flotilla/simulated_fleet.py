"""A whole Flotilla in a simulated world: its own nodes, its own client, nothing patched.

    fleet = Fleet(seed=7)
    fleet.sail(scenario)       # boards all nodes, then runs `await scenario(sailor)` as a client

`python simulated_fleet.py SEED` prints the digest of a run with a bit of everything.

A scenario is a coroutine in a process of its own on the host client-1; the sailor is what it has in
hand: the client library, what each node says of itself, and faults.
"""

import asyncio
import json
import signal
import sys
import tomllib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import tomli_w

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.flotilla.client.admin import Admin
from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.net.wire import Json
from clusters.flotilla.node import serve
from clusters.hosts._world.disk import Disk, Folder
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, Transcript, World
from clusters.systems.flotilla import layout as layout
from clusters.systems.flotilla.cluster_state import cluster_state
from clusters.systems.flotilla.profiles import settings as settings_of
from harness.contracts import CLIENT, ClusterState, Node
from harness.trial import Trial

T = TypeVar("T")
TOPIC, QUEUES, BROKER_SET = "orders", 4, "set-1"
CONFIG, HOME, EVENTS = "/etc/node.toml", "/var/lib/node", "/var/lib/node/events.jsonl"
PATIENCE_S = 120.0  # of the virtual clock
Scenario = Callable[["Sailor"], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Aboard:
    """A node's host and its disk."""

    node: Node
    host: SimHost
    disk: Disk


class Fleet:
    """One nameserver, three controllers, three brokers, one client, unless `nodes` says more."""

    def __init__(
        self,
        seed: int,
        profile: str = "sync-flush",
        settings: Mapping[str, Any] = MappingProxyType({}),
        *,
        keep: bool = False,
        nodes: Mapping[str, int] = MappingProxyType({}),
        topics: Mapping[str, int] = MappingProxyType({TOPIC: QUEUES}),
    ) -> None:
        self.world = World(seed, transcript=Transcript(keep))
        self.network = SimNetwork(self.world)
        chosen = {"mappedFileSizeCommitLog": 1 << 22, **settings}
        trial = Trial(profile=profile, seed=seed, settings=chosen)
        of_trial = settings_of(trial)
        there = layout.cluster_nodes({CLIENT: 1, **nodes}, of_trial.mode)
        crew = [
            replace(node, address=f"10.0.0.{number}") for number, node in enumerate(there, start=1)
        ]
        self.layout = layout.Layout(crew, of_trial, topics, seed)
        self.aboard = {node.name: self._board(node) for node in crew}
        self.latest: dict[str, SimProcess] = {}  # dead ones too
        self.client_settings = self.layout.client(crew)

    def _board(self, node: Node) -> Aboard:
        host = SimHost(self.world, self.network, node.name, node.address)
        disk = disk_of(host)
        if node.role != CLIENT:
            disk.put(CONFIG, self.layout.config(node, HOME).encode())
            disk.put(EVENTS, b"", spared=True)
            for path, inner in self.layout.inner_files(node, HOME).items():
                disk.put(path, inner.encode())
        return Aboard(node, host, disk)

    def nodes(self, role: str) -> list[str]:
        return [name for name, aboard in self.aboard.items() if aboard.node.role == role]

    def address(self, name: str) -> str:
        return layout.address(self.aboard[name].node)

    def process(self, name: str) -> SimProcess | None:
        return self.aboard[name].host.processes.get(name)

    def start(self, name: str) -> None:
        aboard = self.aboard[name]

        async def node(process: SimProcess) -> int:
            return await serve([CONFIG], lambda seed: ports_of(process, aboard.disk))

        self.latest[name] = aboard.host.start(name, node)

    def empty(self, name: str) -> None:
        """Empty a node's folder, as an operator does when its store is damaged."""
        disk = self.aboard[name].disk
        _empty(disk, f"{HOME}/store")

    def reconfigure(self, name: str, **settings: Any) -> None:
        """Set these from the node's next start on."""
        disk = self.aboard[name].disk
        content = disk.file(CONFIG)
        now = tomllib.loads(content.read(content.size, 0).decode())
        disk.put(CONFIG, tomli_w.dumps(now | settings).encode())

    def events(self, name: str, kind: str = "") -> list[Json]:
        """Return the node's event log, as it is on its disk now."""
        content = self.aboard[name].disk.file(EVENTS)
        lines, named = content.read(content.size, 0).splitlines(), f'"{kind}"'.encode()
        rows = [json.loads(line) for line in lines if line and (not kind or named in line)]
        return [row for row in rows if kind in ("", row["kind"])]

    def sail(self, scenario: Scenario, within_s: float = 600.0) -> str:
        """Run a scenario to its end. Return the digest of all that happened."""
        for role in layout.PORTS:
            for name in self.nodes(role):
                self.start(name)

        async def main(process: SimProcess) -> int:
            await scenario(Sailor(self, process))
            return 0

        crew = self.aboard["client-1"].host.start("crew", main)
        crew.on_exit(lambda code: self.world.stop())
        try:
            self.world.run(until_ns=int(within_s * SECOND))
            assert crew.code == 0, "\n".join(crew.error_lines) or "the scenario took too long"
            return self.world.digest()
        finally:
            self.sink()

    def sink(self) -> None:
        """Stop all nodes; nothing is left behind."""
        for aboard in self.aboard.values():
            for process in list(aboard.host.processes.values()):
                process.kill()
        self.world.close()


def _empty(disk: Disk, folder: str) -> None:
    for name, node in list(disk.folder(folder).entries.items()):
        if isinstance(node, Folder):
            _empty(disk, f"{folder}/{name}")
        else:
            disk.remove(f"{folder}/{name}")


class Sailor:
    """What a scenario has in hand: the client library, the nodes, and faults."""

    def __init__(self, fleet: Fleet, process: SimProcess) -> None:
        self.fleet, self.world = fleet, fleet.world
        self.client = ClusterClient(ClientSettings.of(fleet.client_settings))
        self.client.start()
        self.admin = Admin([fleet.address(name) for name in fleet.nodes(layout.CONTROLLER)])

    # what there is

    async def cluster_state(self) -> ClusterState:
        names = [name for name in self.fleet.aboard if name != "client-1"]
        asked = {name: (name, self.fleet.address(name)) for name in names}
        for of in self.fleet.layout.sets:
            if of.inner_port:
                asked |= {of.replica(n): (n, where) for where, n in of.addresses.items()}
        answers = [await self._described(*where) for where in asked.values()]
        return cluster_state(dict(zip(asked, answers, strict=True)), self.fleet.layout.sets)

    async def healthy(self) -> ClusterState:
        """Wait for full redundancy."""

        async def look() -> ClusterState | None:
            now = await self.cluster_state()
            return now if now.redundant and now.controller_leader else None

        return await eventually(look)

    async def new_master(self, old: str, of: str = BROKER_SET) -> ClusterState:
        """Wait for a master other than this one."""

        async def look() -> ClusterState | None:
            now = await self.cluster_state()
            return now if now.masters.get(of) not in (None, old) else None

        return await eventually(look)

    async def _described(self, name: str, address: str = "") -> Json | None:
        if self.fleet.process(name) is None:
            return None
        with suppress(*CALL_ERRORS):
            async with asyncio.timeout(0.5):
                return await self.admin.describe(address or self.fleet.address(name))
        return None

    # the load

    async def send(self, count: int, every_s: float = 0.01) -> dict[bytes, SendResult]:
        """Send this many messages through the queues in turn. Return their outcomes."""
        results: dict[bytes, SendResult] = {}
        for number in range(count):
            body = b"message %d" % number
            done = partial(results.__setitem__, body)
            self.client.producer.send(TOPIC, number % QUEUES, b"k", body, done)
            await asyncio.sleep(every_s)

        async def all_ended() -> bool:
            return len(results) == count

        await eventually(all_ended)
        return results

    async def read_all(self) -> list[bytes]:
        """Return the bodies in all queues, from first to last, of the present master."""

        async def attempt() -> list[list[bytes]] | None:
            try:
                return [await self._read_all()]
            except CALL_ERRORS:
                return None

        [bodies] = await eventually(attempt)
        return bodies

    async def _read_all(self) -> list[bytes]:
        bodies = []
        for queue in range(QUEUES):
            at, high = await self.client.consumer.range(TOPIC, queue)
            while at < high:
                pulled = await self.client.consumer.pull(TOPIC, queue, at, 32, 0.5)
                bodies += [message.body for message in pulled.messages]
                at = pulled.next_offset
        return bodies

    # faults

    async def kill(self, name: str) -> None:
        process = self.fleet.process(name)
        assert process
        self.world.after(0, process.signal, signal.SIGKILL)
        await asyncio.sleep(0.001)

    async def power_cut(self, name: str) -> None:
        self.world.after(0, self.fleet.aboard[name].host.power_cut)
        await asyncio.sleep(0.001)

    async def power_on(self, name: str) -> None:
        self.world.after(0, self.fleet.aboard[name].host.power_on)
        self.world.after(0, self.fleet.start, name)
        await asyncio.sleep(0.001)

    async def start(self, name: str) -> None:
        self.world.after(0, self.fleet.start, name)
        await asyncio.sleep(0.001)


async def eventually(find: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `find` returns once it is not empty."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := await find():
                return found
            await asyncio.sleep(0.05)


def acknowledged(results: dict[bytes, SendResult]) -> set[bytes]:
    return {body for body, result in results.items() if result.outcome is CallOutcome.HAPPENED}


async def eventful(sailor: Sailor) -> None:
    """Some of everything, for digests."""
    old = (await sailor.healthy()).masters[BROKER_SET]
    sending = asyncio.ensure_future(sailor.send(200))
    await asyncio.sleep(0.5)
    await sailor.power_cut(old)
    await sailor.new_master(old)
    await sailor.power_on(old)
    results = await sending
    await sailor.healthy()
    read = len(await sailor.read_all())
    sailor.world.record(f"{len(acknowledged(results))} acknowledged, {read} read")


if __name__ == "__main__":
    print(Fleet(seed=int(sys.argv[1])).sail(eventful))
