"""What the process tests of Flotilla share: nodes, three controllers, and played brokers.

A played broker speaks the real protocol to the controllers: it listens, answers PING, hears
NOTIFY_ROLE, and sends heartbeats to all of them. It has no log, which they never ask for.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from loopback import PATIENCE_S, eventually, free_port, stop_serving

from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import (
    CallTimeout,
    ConnectionLost,
    JsonHandler,
    Pool,
    Unreachable,
)
from clusters.flotilla.net.wire import Json, Op, Status, from_json

SCALE = 0.2
LIVES = count(1)  # of played brokers
LOST = (Unreachable, ConnectionLost, CallTimeout)


class Node:
    """A process `python -m clusters.flotilla`."""

    def __init__(self, folder: Path, name: str, role: str, **settings: Any) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.host = settings.pop("host", "127.0.0.1")
        self.port = settings.pop("port", None) or free_port(self.host)
        self.address = f"{self.host}:{self.port}"
        self.events_path = self.folder / "events.jsonl"
        table = {
            "role": role,
            "nodeName": name,
            "listenHost": self.host,
            "listenPort": self.port,
            "storePath": str(self.folder / "store"),
            "eventLogPath": str(self.events_path),
            "timeScale": SCALE,
            **settings,
        }
        self.config = self.folder / "node.toml"
        self.config.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in table.items()))
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Run it; what it says when it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clusters.flotilla", str(self.config)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        assert self.process.stdout
        return self.process.stdout.readline()

    def send_signal(self, number: int) -> None:
        assert self.process
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGKILL) -> int:
        assert self.process
        self.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout
        self.process.stdout.close()
        self.process = None
        return code

    def events(self, kind: str) -> list[Json]:
        lines = self.events_path.read_text().splitlines() if self.events_path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


class Controllers:
    """Three controllers, and who asks them finds the leader."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        hosts = {f"n{i}": f"127.0.0.{i + 2}" for i in range(3)}
        ports = {name: free_port(host) for name, host in hosts.items()}
        peers = {name: f"{hosts[name]}:{ports[name]}" for name in hosts}
        self.nodes = {
            name: Node(
                folder,
                name,
                "controller",
                host=hosts[name],
                port=ports[name],
                controllerDLegerSelfId=name,
                controllerDLegerPeers=peers,
                **settings,
            )
            for name in hosts
        }

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.process:
                node.stop()

    async def ask(self, op: Op, **fields: Any) -> Json:
        """Until some controller answers as leader."""
        pool = Pool(1)

        async def try_all() -> Json | None:
            for node in self.nodes.values():
                with suppress(*LOST):
                    reply = await pool.ask(node.address, op, fields, 2)
                    if reply["code"] not in (Status.NOT_LEADER, Status.SYSTEM_ERROR):
                        return reply
            return None

        try:
            return await eventually(try_all)
        finally:
            pool.close()

    def broker_set(self, count: int) -> AbstractAsyncContextManager[list["PlayedBroker"]]:
        return broker_set(self, count)

    async def info(self) -> Json:
        return await self.ask(Op.REPLICA_INFO, brokerName="b")

    async def describe(self, name: str) -> Json:
        pool = Pool(1)
        try:
            return await pool.ask(self.nodes[name].address, Op.DESCRIBE, {}, 2)
        finally:
            pool.close()

    async def leader(self) -> Node:
        async def find() -> Node | None:
            for name, node in self.nodes.items():
                with suppress(*LOST):
                    if (await self.describe(name))["state"] == "leader":
                        return node
            return None

        return await eventually(find)


class MortalHandler(JsonHandler):
    """A killed process also ends the connections it had accepted but not looked at."""

    dead = False

    def opened(self, connection: net.FrameConnection) -> None:
        super().opened(connection)
        if self.dead:
            connection.abort()


class PlayedBroker:
    """What a controller sees of a broker."""

    def __init__(self, controllers: "Controllers | None", port: int) -> None:
        self._asked = controllers
        self.address = f"127.0.0.1:{port}"
        self.id = 0
        self.offset = 0
        self.beats = 0
        self.life, self._counted = next(LIVES), count(1)
        self.told: list[Json] = []
        self._pool = Pool(1)
        self._beat: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._handler = MortalHandler({Op.PING: self._ping}, other=self._frame)

    @property
    def controllers(self) -> Controllers:
        assert self._asked
        return self._asked

    @property
    def identity(self) -> Json:
        return {
            "cluster": "f",
            "brokerName": "b",
            "brokerId": self.id,
            "addr": self.address,
            "haAddr": "ha-" + self.address,
            "checkCode": self.address,
        }

    async def join(self) -> Json:
        """Listen, get an id, register, send heartbeats, and be heard: nobody is elected unheard."""
        await self.listen()
        while True:
            next_id = await self.controllers.ask(Op.NEXT_BROKER_ID, **self.identity)
            self.id = next_id["brokerId"]
            if (await self.controllers.ask(Op.APPLY_BROKER_ID, **self.identity))["code"] == 0:
                break
        info = await self.controllers.ask(Op.REGISTER_TO_CONTROLLER, **self.identity)
        self.beat()
        await self.has_beaten(1)
        return info

    async def listen(self) -> None:
        self._handler.dead = False
        host, port = net.split(self.address)
        self._server = await net.serve(host, port, self._handler)

    def beat(self) -> None:
        self._beat = asyncio.ensure_future(self._heartbeats())

    async def die(self) -> None:
        """As a killed process does: all connections close, nobody listens."""
        await self.fall_silent()
        self._handler.dead = True
        if self._server:
            await stop_serving(self._server)
        for connection in list(self._handler.connections):
            connection.abort()
        self._pool.close()

    async def fall_silent(self) -> None:
        if self._beat:
            self._beat.cancel()
            await asyncio.wait([self._beat])

    async def has_beaten(self, times: int) -> None:
        """So many more rounds of heartbeats are over."""
        wanted = self.beats + times

        async def enough() -> bool:
            return self.beats >= wanted

        await eventually(enough)

    def drop_connections(self) -> None:
        """A living broker may lose its connections."""
        self._pool.close()

    async def elect(self) -> Json:
        return await self.controllers.ask(Op.ELECT_MASTER, **self.identity)

    async def hears(self, **expected: Any) -> None:
        """NOTIFY_ROLE with these values."""

        async def heard() -> bool:
            return any(expected.items() <= info.items() for info in self.told)

        await eventually(heard)

    async def _heartbeats(self) -> None:
        while True:
            beats = [self._send(node.address) for node in self.controllers.nodes.values()]
            await asyncio.gather(*beats, asyncio.sleep(0.5 * SCALE))
            self.beats += 1

    async def _send(self, controller: str) -> None:
        rest = {
            "timeoutMs": 10_000 * SCALE,
            "epoch": 1,
            "maxOffset": self.offset,
            "confirmOffset": 0,
            "priority": 1,
            "life": self.life,
            "beat": next(self._counted),
        }
        with suppress(*LOST):
            fields = {**self.identity, **rest}
            await self._pool.ask(controller, Op.BROKER_HEARTBEAT, fields, 1)

    async def _ping(self, connection: net.FrameConnection, fields: Json) -> Json:
        return {}

    def _frame(self, connection: net.FrameConnection, op: int, request: int, body: bytes) -> None:
        assert op == Op.NOTIFY_ROLE
        self.told.append(from_json(body))


@asynccontextmanager
async def broker_set(controllers: Controllers, count: int) -> AsyncIterator[list[PlayedBroker]]:
    """Brokers 1 to count: 1 is master, everybody is in the set."""
    brokers = [PlayedBroker(controllers, free_port("127.0.0.1")) for _ in range(count)]
    try:
        for broker in brokers:
            await broker.join()
        info = await brokers[0].elect()
        assert (info["code"], info.get("masterId")) == (0, 1), info

        async def full_set() -> bool:
            reply = await controllers.ask(
                Op.ALTER_SYNC_STATE_SET,
                brokerName="b",
                masterId=1,
                masterEpoch=1,
                set=list(range(1, count + 1)),
                setEpoch=1,
            )
            return bool(reply["code"] == 0)

        if count > 1:
            await eventually(full_set)
        yield brokers
    finally:
        for broker in brokers:
            await broker.die()


@pytest.fixture
def controllers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Controllers]:
    """Three of them, with the settings that the test is given, if any."""
    group = Controllers(tmp_path, **getattr(request, "param", {}))
    group.start()
    yield group
    group.stop()


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, "ns", "nameserver")
    assert node.start() == f"ready nameserver ns {node.address}\n"
    yield node
    if node.process:
        node.stop()


@pytest.fixture
def played_broker() -> PlayedBroker:
    """One that has no controllers."""
    return PlayedBroker(None, free_port("127.0.0.1"))


@pytest.fixture
def raise_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Nodes that run until the test ends."""
    nodes: list[Node] = []

    def raise_one(name: str, role: str, **more: Any) -> Node:
        node = Node(tmp_path, name, role, **more)
        nodes.append(node)
        assert node.start() == f"ready {role} {name} {node.address}\n"
        return node

    yield raise_one
    for node in nodes:
        if node.process:
            node.stop()
