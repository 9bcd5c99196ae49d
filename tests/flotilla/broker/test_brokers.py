"""Brokers as real processes on loopback, with a nameserver and three controllers.

These tests show that processes, files and TCP do what the simulated world assumes. Elections,
lost masters, forks and the statuses of sends are tested there: test_ha_chained.py,
test_log_cases.py, test_statuses.py, and tests/simulated/cluster.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from loopback import eventually, free_port

from clusters.flotilla.net.connection import (
    CallTimeout,
    ConnectionLost,
    FrameConnection,
    Pool,
    Unreachable,
    dial,
)
from clusters.flotilla.net.wire import (
    Json,
    Op,
    PullReply,
    PullRequest,
    SendReply,
    SendRequest,
    Status,
)
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import HandshakeReply, HandshakeRequest, pack_ack
from clusters.flotilla.store.reader import messages

pytestmark = pytest.mark.bed
QUEUES = 4
LOST = (Unreachable, ConnectionLost, CallTimeout)
SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "slaveTimeout": 50_000}


class Brokers:
    """A broker set and a raw client."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.pool = Pool(1)
        self.acked: dict[bytes, tuple[int, int]] = {}  # body -> (queue, queue offset)
        self._next = 0

    def living(self) -> list[Any]:
        return [node for node in self.nodes if node.process]

    async def describe(self, node: Any) -> Json:
        with suppress(*LOST):
            return await self.pool.ask(node.address, Op.DESCRIBE, {}, 1)
        return {"role": "gone"}

    async def master(self, members: int = 1) -> Any:
        """The master, once its set has at least so many members."""

        async def find() -> Any:
            for node in self.living():
                told = await self.describe(node)
                if told["role"] == "master" and len(told["set"]) >= members:
                    return node
            return None

        return await eventually(find)

    async def abreast(self) -> list[Json]:
        """Every living broker once all hold and confirm the same."""

        async def same() -> list[Json] | None:
            told = [await self.describe(node) for node in self.living()]
            seen = {
                (t.get("maxOffset"), t.get("confirmOffset"), str(t.get("epochs"))) for t in told
            }
            whole = all(t.get("maxOffset") == t.get("confirmOffset") for t in told)
            return told if len(seen) == 1 and whole and "gone" not in str(told) else None

        return await eventually(same)

    async def send(self, node: Any, body: bytes = b"", timeout_s: float = 10) -> SendReply:
        self._next += 1
        body = body or f"message-{self._next}".encode()
        queue = self._next % QUEUES
        connection = await self.pool.get(node.address)
        packed = SendRequest("t", queue, b"key", body).pack()
        sent = SendReply.unpack(await connection.call(Op.SEND, packed, timeout_s))
        if sent.status is Status.SUCCESS:
            self.acked[body] = (queue, sent.queue_offset)
        return sent

    async def send_many(self, node: Any, count: int) -> None:
        sent = await asyncio.gather(*(self.send(node) for _ in range(count)))
        assert {s.status for s in sent} == {Status.SUCCESS}

    async def pull(self, node: Any, queue: int, offset: int, wait_ms: int = 0) -> PullReply:
        connection = await self.pool.get(node.address)
        body = PullRequest("t", queue, offset, 1000, wait_ms).pack()
        return PullReply.unpack(await connection.call(Op.PULL, body, 10))

    async def drain(self, node: Any) -> dict[bytes, tuple[int, int]]:
        """All that consumers of this master see."""
        found = {}
        for queue in range(QUEUES):
            offset = 0
            while (pulled := await self.pull(node, queue, offset)).status is Status.SUCCESS:
                assert [m.queue_offset for m in pulled.messages] == list(
                    range(offset, pulled.next_offset)
                )
                found |= {m.body: (queue, m.queue_offset) for m in pulled.messages}
                offset = pulled.next_offset
        return found


Scenario = Callable[[Brokers], Awaitable[None]]
Trial = Callable[..., None]


@pytest.fixture
def brokers(raise_node: Any, controllers: Any, nameserver: Any) -> Trial:
    """Runs a scenario with a broker set."""

    def run(scenario: Scenario, count: int = 3, **settings: Any) -> None:
        nodes = []
        for i in range(1, count + 1):
            host = f"127.0.0.{10 + i}"
            wired = {
                "host": host,
                "haListenPort": free_port(host),
                "brokerName": "b",
                "namesrvAddr": [nameserver.address],
                "controllerAddr": [c.address for c in controllers.nodes.values()],
                "topics": {"t": QUEUES},
                "mappedFileSizeCommitLog": 1024 * 1024,
            }
            nodes.append(raise_node(f"b{i}", "broker", **wired, **settings))
            nodes[-1].ha_port = wired["haListenPort"]
        asyncio.run(play(scenario, Brokers(nodes)))

    return run


async def play(scenario: Scenario, group: Brokers) -> None:
    try:
        await scenario(group)
    finally:
        group.pool.close()


def stored(node: Any) -> list[Any]:
    """A stopped broker's own copy."""
    return list(messages(str(Path(node.folder) / "store")))


def test_every_replica_holds_the_same_log(brokers: Trial) -> None:
    """What was acknowledged is on all three, byte for byte, and the nameserver knows the roles."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=3)
        await group.send_many(master, 300)
        await group.send(master, b"x" * 400_000)
        await group.send_many(master, 300)
        assert (await group.drain(master)) == group.acked
        told = await group.abreast()
        assert sorted(t["role"] for t in told) == ["master", "slave", "slave"]
        for node in group.nodes:
            assert node.stop(signal.SIGTERM) == 0
        copies = [stored(node) for node in group.nodes]
        assert copies[0] == copies[1] == copies[2]
        assert {m.body: (m.queue, m.queue_offset) for m in copies[0]} == group.acked

    brokers(scenario, **SAFE)


async def keep_sending(group: Brokers, node: Any, count: int = 50) -> None:
    """So many at a time until the broker is gone; sends that get no answer are nobody's."""
    while True:
        wave = [group.send(node) for _ in range(count)]
        sent = await asyncio.gather(*wave, return_exceptions=True)
        if any(isinstance(s, BaseException) for s in sent):
            return


async def more_acked(group: Brokers, count: int) -> None:
    wanted = len(group.acked) + count

    async def enough() -> bool:
        return len(group.acked) >= wanted

    await eventually(enough)


def test_a_waiting_pull_is_answered_when_a_message_comes(brokers: Trial) -> None:
    """Long polling: an answer comes with the message, or PULL_NOT_FOUND when the wait is over."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=2)
        nothing = await group.pull(master, 0, 0, wait_ms=50)
        assert (nothing.status, nothing.next_offset) == (Status.PULL_NOT_FOUND, 0)
        waiting = [asyncio.ensure_future(group.pull(master, q, 0, 9000)) for q in range(QUEUES)]
        await asyncio.gather(*(group.send(master) for _ in range(QUEUES)))
        for pulled in await asyncio.gather(*waiting):
            assert (pulled.status, pulled.next_offset) == (Status.SUCCESS, 1)

    brokers(scenario, count=2, **SAFE)


def test_a_slave_returns_to_a_busy_lone_master(brokers: Trial) -> None:
    """Under steady load it never finds the log's end, and enters the set all the same."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=2)
        slave = next(node for node in group.nodes if node is not master)
        slave.stop()
        sending = [asyncio.ensure_future(keep_sending(group, master, 1)) for _ in range(200)]
        await more_acked(group, 2000)
        slave.start()
        await group.master(members=2)
        master.stop()
        await asyncio.gather(*sending)
        successor = await group.master()
        seen = await group.drain(successor)
        assert group.acked.items() <= seen.items()

    brokers(scenario, count=2, allAckInSyncStateSet=True)


class Impostor:
    """A peer on the replication port that says what it likes."""

    def __init__(self) -> None:
        self.connections: list[FrameConnection] = []
        self.ended = 0

    def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

    def opened(self, connection: FrameConnection) -> None:
        self.connections.append(connection)

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None: ...

    def closed(self, connection: FrameConnection, why: str) -> None:
        self.ended += 1

    async def greet(
        self, node: Any, slave: int, epoch: int
    ) -> tuple[FrameConnection, HandshakeReply]:
        connection = await dial(f"{node.host}:{node.ha_port}", self, 2)
        hello = HandshakeRequest(slave, epoch, 0, LogShape(0, 0, EpochTable()))
        return connection, HandshakeReply.unpack(
            await connection.call(Op.HA_HANDSHAKE, hello.pack(), 2)
        )

    async def has_ended(self, times: int) -> bool:
        return self.ended >= times


def test_the_replication_port_trusts_nobody(brokers: Trial) -> None:
    """Fenced by epoch, closed to slaves' peers, and an ack beyond the log ends the connection."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=2)
        [slave] = [node for node in group.nodes if node is not master]
        await group.send_many(master, 10)
        epoch = (await group.describe(master))["masterEpoch"]
        peer = Impostor()
        for node, told, expected in [
            (master, epoch + 1, Status.FENCED_MASTER_EPOCH),
            (slave, epoch, Status.INVALID_MASTER),
            (master, epoch, Status.SUCCESS),
        ]:
            connection, welcome = await peer.greet(node, 9, told)
            assert welcome.status is expected
        connection.send_oneway(Op.HA_ACK, pack_ack(1 << 40))
        await eventually(lambda: peer.has_ended(1))
        first, _ = await peer.greet(master, 9, epoch)
        await peer.greet(master, 9, epoch)
        await eventually(lambda: peer.has_ended(2))
        assert not first.is_open
        assert "9" in (await group.describe(master))["slaves"]
        connection = await dial(f"{master.host}:{master.ha_port}", peer, 2)
        connection.write(b"\xff" * 64)
        await eventually(lambda: peer.has_ended(3))
        assert master.events("refused")
        assert (await group.send(master)).status is Status.SUCCESS
        for connection in peer.connections:
            connection.abort()

    brokers(scenario, count=2, **SAFE)
