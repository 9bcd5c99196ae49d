"""Three controllers and a nameserver as real processes, with brokers played by this test.

A played broker speaks the real protocol: it listens, answers PING, hears NOTIFY_ROLE, and sends
heartbeats to all controllers. It has no log, which the control plane never asks for.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clusters.flotilla import net
from clusters.flotilla.net import CallTimeout, ConnectionLost, JsonHandler, Pool, Unreachable
from clusters.flotilla.wire import Json, Op, Status, from_json

pytestmark = pytest.mark.bed
PATIENCE_S = 30.0
SCALE = 0.2
T = TypeVar("T")
LOST = (Unreachable, ConnectionLost, CallTimeout)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


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


async def eventually(find: Callable[[], Awaitable[T | None]]) -> T:
    """What `find` gives once it gives something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := await find():
                return found
            await asyncio.sleep(0.02)


class PlayedBroker:
    """What a controller sees of a broker."""

    def __init__(self, controllers: Controllers, port: int) -> None:
        self.controllers = controllers
        self.address = f"127.0.0.1:{port}"
        self.id = 0
        self.offset = 0
        self.beats = 0
        self.told: list[Json] = []
        self._pool = Pool(1)
        self._beat: asyncio.Task[None] | None = None
        self._server: asyncio.AbstractServer | None = None
        self._handler = JsonHandler({Op.PING: self._ping}, other=self._frame)

    @property
    def identity(self) -> Json:
        return {
            "cluster": "f",
            "brokerName": "b",
            "brokerId": self.id,
            "addr": self.address,
            "haAddr": "ha-" + self.address,
        }

    async def join(self) -> Json:
        """Listen, get an id, register, send heartbeats."""
        await self.listen()
        while True:
            next_id = await self.controllers.ask(Op.NEXT_BROKER_ID, **self.identity)
            self.id = next_id["brokerId"]
            fields = {**self.identity, "checkCode": self.address}
            if (await self.controllers.ask(Op.APPLY_BROKER_ID, **fields))["code"] == 0:
                break
        info = await self.controllers.ask(Op.REGISTER_TO_CONTROLLER, **self.identity)
        self.beat()
        return info

    async def listen(self) -> None:
        host, port = net.split(self.address)
        self._server = await net.serve(host, port, self._handler)

    def beat(self) -> None:
        self._beat = asyncio.ensure_future(self._heartbeats())

    async def die(self) -> None:
        """As a killed process does: all connections close, nobody listens."""
        await self.fall_silent()
        if self._server:
            self._server.close()
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
        }
        with suppress(*LOST):
            fields = {**self.identity, **rest}
            await self._pool.ask(controller, Op.BROKER_HEARTBEAT, fields, 1)

    async def _ping(self, connection: net.Connection, fields: Json) -> Json:
        return {}

    def _frame(self, connection: net.Connection, op: int, request: int, body: bytes) -> None:
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
        assert (info["code"], info["masterId"]) == (0, 1)

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
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    group = Controllers(tmp_path)
    group.start()
    yield group
    group.stop()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def info(controllers: Controllers) -> Json:
    return await controllers.ask(Op.REPLICA_INFO, brokerName="b")


def test_a_killed_leader_takes_nothing_with_it(controllers: Controllers) -> None:
    """Raft 5.4: what was answered is known to the next leader, and to all after a restart."""

    async def scenario() -> None:
        async with broker_set(controllers, 2):
            before = await info(controllers)
            assert (before["masterId"], before["set"]) == (1, [1, 2])
            leader = await controllers.leader()
            leader.stop()
            after = await info(controllers)
            assert (await controllers.leader()) is not leader
            for node in controllers.nodes.values():
                if node.process:
                    node.stop()
            controllers.start()
            restarted = await info(controllers)
            for later in (after, restarted):
                assert (later["masterId"], later["masterEpoch"]) == (1, 1)
                assert (later["set"], later["setEpoch"]) == ([1, 2], 2)

    run(scenario())


def test_a_killed_master_is_replaced_and_all_are_told(controllers: Controllers) -> None:
    """Spec 5.1 and 4.7: its connections close, the best of the set is elected at once."""

    async def scenario() -> None:
        async with broker_set(controllers, 3) as (first, second, third):
            second.offset, third.offset = 100, 200
            leader = await controllers.leader()

            await second.has_beaten(2)
            await third.has_beaten(2)
            await first.die()
            for survivor in (second, third):
                await survivor.hears(masterId=3, masterEpoch=2, set=[3])
            [election] = leader.events("election")[1:]
            assert election["trigger"] == "closed"
            assert (election["masterId"], election["previousSet"]) == (3, [1, 2, 3])
            [expired] = leader.events("expired")
            assert (expired["brokerId"], expired["why"]) == (1, "closed")

    run(scenario())


def test_a_silent_master_is_replaced_and_told_when_it_returns(controllers: Controllers) -> None:
    """Spec 5.1: hung or cut off, it is found by its missing heartbeats."""

    async def scenario() -> None:
        async with broker_set(controllers, 2) as (first, second):
            await first.fall_silent()
            await second.hears(masterId=2, masterEpoch=2)
            first.told.clear()
            first.beat()
            await first.hears(masterId=2, masterEpoch=2)

    run(scenario())


def test_a_living_master_that_reconnects_stays(controllers: Controllers) -> None:
    """A closed connection alone proves nothing: the broker is asked, and answers."""

    async def scenario() -> None:
        async with broker_set(controllers, 2) as (first, second):
            leader = await controllers.leader()
            for _ in range(5):
                first.drop_connections()
                await first.has_beaten(2)
            now = await info(controllers)
            assert (now["masterId"], now["masterEpoch"]) == (1, 1)
            assert leader.events("expired") == []
            await first.die()
            await second.hears(masterId=2)

    run(scenario())


def test_a_set_that_lost_everybody_gets_a_master_again(controllers: Controllers) -> None:
    """Bug 12: nobody to elect is not the end; the first member that returns is elected."""

    async def scenario() -> None:
        async with broker_set(controllers, 2) as (first, second):
            await second.die()
            await first.die()

            async def headless() -> bool:
                return (await info(controllers))["masterId"] is None

            await eventually(headless)
            await second.listen()
            second.beat()
            await second.hears(masterId=2, set=[2])

    run(scenario())


def test_master_and_controller_leader_may_die_together(controllers: Controllers) -> None:
    """Bugs 12 and 13: the next leader knows the living from their heartbeats, and acts."""

    async def scenario() -> None:
        async with broker_set(controllers, 2) as (first, second):
            leader = await controllers.leader()
            leader.stop()
            await first.die()
            await second.hears(masterId=2, masterEpoch=2)

    run(scenario())


def test_a_master_lost_without_a_quorum_is_replaced_when_it_returns(
    controllers: Controllers,
) -> None:
    """Bug 12: kill the master while the controllers can decide nothing, then heal them."""

    async def scenario() -> None:
        async with broker_set(controllers, 2) as (first, second):
            leader = await controllers.leader()
            others = [n for n in controllers.nodes.values() if n is not leader]
            for node in others:
                node.send_signal(signal.SIGSTOP)
            await first.die()

            async def steps_down() -> bool:
                state = (await controllers.describe(leader.folder.name))["state"]
                return bool(state != "leader")

            await eventually(steps_down)
            for node in others:
                node.send_signal(signal.SIGCONT)
            await second.hears(masterId=2, masterEpoch=2)

    run(scenario())


def test_a_paused_leader_comes_back_as_a_follower(controllers: Controllers) -> None:
    """Check-quorum and the lease: after its pause it answers nothing from memory."""

    async def scenario() -> None:
        async with broker_set(controllers, 2):
            old = await controllers.leader()
            old.send_signal(signal.SIGSTOP)

            async def another() -> bool:
                for name, node in controllers.nodes.items():
                    if node is not old:
                        with suppress(*LOST):
                            if (await controllers.describe(name))["state"] == "leader":
                                return True
                return False

            await eventually(another)
            old.send_signal(signal.SIGCONT)
            pool = Pool(1)
            reply = await pool.ask(old.address, Op.REPLICA_INFO, {"brokerName": "b"}, 5)
            pool.close()
            assert reply["code"] == Status.NOT_LEADER
            new = await controllers.leader()

            async def follows() -> bool:
                state = await controllers.describe(old.folder.name)
                return bool(state["leaderId"] == new.folder.name)

            await eventually(follows)

    run(scenario())


def test_a_minority_changes_nothing(controllers: Controllers) -> None:
    """Raft 5.3: alone, a controller answers NOT_LEADER or that the outcome is unknown."""

    async def scenario() -> None:
        async with broker_set(controllers, 1):
            leader = await controllers.leader()
            for node in controllers.nodes.values():
                if node is not leader:
                    node.send_signal(signal.SIGSTOP)
            fields = {"brokerName": "b", "brokerIds": [1], "cleanLiving": True}
            pool = Pool(1)
            reply = await pool.ask(leader.address, Op.CLEAN_BROKER_DATA, fields, 10)
            pool.close()
            assert reply["code"] in (Status.SYSTEM_ERROR, Status.NOT_LEADER)

    run(scenario())


def test_malformed_peers_are_dropped_with_a_reason(controllers: Controllers) -> None:
    """Wire: a frame that makes no sense ends its connection and nothing else."""

    async def scenario() -> None:
        node = next(iter(controllers.nodes.values()))
        connection = await net.dial(node.address, net.Silent(), 2)
        connection.tell(Op.RAFT, b"\xff" * 40)

        async def closed() -> bool:
            return not connection.is_open

        await eventually(closed)
        pool = Pool(1)
        refused = await pool.ask(node.address, Op.BROKER_HEARTBEAT, {"brokerName": "b"}, 2)
        pool.close()
        assert refused["code"] == Status.INVALID_REQUEST
        assert len(node.events("refused")) == 1

    run(scenario())


# nameserver


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, "ns", "nameserver")
    assert node.start() == f"ready nameserver ns {node.address}\n"
    yield node
    if node.process:
        node.stop()


def test_the_nameserver_routes_to_the_living(nameserver: Node) -> None:
    """Spec 10.1: registered, found, gone with the process; a reconnecting broker stays."""

    async def scenario() -> None:
        pool, other = Pool(1), Pool(1)
        broker = PlayedBroker(Controllers.__new__(Controllers), free_port("127.0.0.1"))
        await broker.listen()
        registration = {
            **broker.identity,
            "stateVersion": 3,
            "timeoutMs": 60_000,
            "topics": {"t": 4},
        }
        reply = await pool.ask(nameserver.address, Op.REGISTER_BROKER, registration, 2)
        assert reply["masterAddr"] == broker.address

        async def route() -> Json:
            return await other.ask(nameserver.address, Op.ROUTE, {"topic": "t"}, 2)

        assert (await route())["topics"] == {"t": [{"brokerName": "b", "queues": 4}]}
        stale = {**registration, "addr": "127.0.0.1:1", "stateVersion": 2}
        refused = await other.ask(nameserver.address, Op.REGISTER_BROKER, stale, 2)
        assert refused["code"] == Status.FENCED_MASTER_EPOCH
        pool.close()
        assert (await route())["brokers"]["b"]["addrs"] == {"0": broker.address}
        await broker.die()

        async def gone() -> bool:
            return (await route())["brokers"] == {}

        await eventually(gone)
        other.close()

    run(scenario())


# the process


def test_a_node_stops_when_told_to(nameserver: Node) -> None:
    """SIGTERM: exit code 0."""
    assert nameserver.stop(signal.SIGTERM) == 0
    assert [e["kind"] for e in nameserver.events("stop")] == ["stop"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("role =", "TOML"),
        ('role = "nameserver"', "nodeName"),
        ('role = "x"\nnodeName = "n"\nlistenHost = "h"\nstorePath = "s"', "role"),
        (
            'role = "controller"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"',
            "controllerDLegerSelfId",
        ),
        (None, "can not be read"),
    ],
)
def test_a_configuration_without_sense_is_refused(
    tmp_path: Path, text: str | None, word: str
) -> None:
    """One sentence that names the trouble, exit code 64."""
    path = tmp_path / "node.toml"
    if text is not None:
        path.write_text(text)
    code, stderr = complaint(path)
    assert code == 64
    assert word in stderr


def test_a_port_in_use_is_said_so(nameserver: Node) -> None:
    """One sentence, exit code 69."""
    code, stderr = complaint(nameserver.config)
    assert code == 69
    assert nameserver.address in stderr


def complaint(config: Path) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "clusters.flotilla", str(config)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    return ended.returncode, ended.stderr
