"""Brokers as real processes: replication, elections, what a send is answered, what a fork becomes.

One nameserver, three controllers, up to three brokers on loopback; kill -9 and SIGSTOP are real.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
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
SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2}
UNSAFE = {"inSyncReplicas": 1}


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


@asynccontextmanager
async def stopped(*nodes: Any) -> AsyncIterator[None]:
    for node in nodes:
        node.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            if node.process:
                node.send_signal(signal.SIGCONT)


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


def test_a_killed_master_is_replaced_and_nothing_is_lost(brokers: Trial) -> None:
    """Killed under load, three times; each returns as a slave, and the set is whole again."""

    async def scenario(group: Brokers) -> None:
        for _ in range(3):
            master = await group.master(members=3)
            sending = asyncio.ensure_future(keep_sending(group, master))
            await more_acked(group, 200)
            master.stop()
            await sending
            successor = await group.master(members=2)
            assert successor is not master
            assert (await group.send(successor)).status is Status.SUCCESS
            seen = await group.drain(successor)
            assert group.acked.items() <= seen.items()
            master.start()
        await group.master(members=3)
        await group.abreast()

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


def test_a_returning_master_cuts_its_fork(brokers: Trial, controllers: Any) -> None:
    """Unsafe profile: what only the old master had is lost, cut off, and never comes back.

    The slaves die while the controllers can not hear that the master wants a smaller set.
    """

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=3)
        await group.send_many(master, 50)
        await group.abreast()
        slaves = [node for node in group.nodes if node is not master]
        async with stopped(*controllers.nodes.values()):
            for node in slaves:
                node.stop()
            await group.send_many(master, 40)
            lost = list(group.acked)[50:]
            assert len(await group.drain(master)) == 90
            master.stop()
        for node in slaves:
            node.start()
        successor = await group.master(members=2)
        await group.send_many(successor, 20)
        master.start()
        await group.master(members=3)
        told = await group.abreast()
        [cut] = master.events("truncate")
        assert (cut["action"], cut["case"][:2]) == ("truncate", "2-")
        assert cut["point"] == told[0]["epochs"][-1][1]
        seen = await group.drain(successor)
        assert not seen.keys() & set(lost)
        assert len(seen) == 70
        for node in group.nodes:
            node.stop()
        copies = [[(m.physical_offset, m.body) for m in stored(node)] for node in group.nodes]
        assert copies[0] == copies[1] == copies[2]

    brokers(scenario, **UNSAFE)


def test_a_stopped_member_holds_acknowledgement_until_it_leaves(brokers: Trial) -> None:
    """FLUSH_SLAVE_TIMEOUT while it is in the set; after it has left, SUCCESS; then it returns."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=3)
        hung = next(node for node in group.nodes if node is not master)
        async with stopped(hung):
            sent = await group.send(master)
            assert sent.status is Status.FLUSH_SLAVE_TIMEOUT
            assert sent.physical_offset >= 0

            async def smaller() -> bool:
                return len((await group.describe(master))["set"]) == 2

            await eventually(smaller)
            assert (await group.send(master)).status is Status.SUCCESS
        await group.master(members=3)

    brokers(scenario, **SAFE)


def test_below_the_minimum_nothing_is_appended(brokers: Trial) -> None:
    """IN_SYNC_REPLICAS_NOT_ENOUGH, and the log stays empty."""

    async def scenario(group: Brokers) -> None:
        master = await group.master()
        assert (await group.send(master)).status is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert (await group.describe(master))["maxOffset"] == 0

    brokers(scenario, count=1, **SAFE)


def test_what_is_refused_and_how(brokers: Trial) -> None:
    """A slave serves nobody; unknown topics, queues and sizes are told apart."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=2)
        slave = next(node for node in group.nodes if node is not master)
        assert (await group.send(slave)).status is Status.SERVICE_NOT_AVAILABLE
        assert (await group.pull(slave, 0, 0)).status is Status.SERVICE_NOT_AVAILABLE
        range_of = {"topic": "t", "queueId": 0}
        ask = {"brokerId": 2, "addr": "10.9.9.9:1", "version": [0, 0], "waitMs": 0}
        for op, fields in ((Op.QUEUE_RANGE, range_of), (Op.METADATA_SYNC, ask)):
            reply = await group.pool.ask(slave.address, op, fields, 2)
            assert reply["code"] == Status.SERVICE_NOT_AVAILABLE
        connection = await group.pool.get(master.address)
        for send, status in [
            (SendRequest("unknown", 0, b"", b"x"), Status.TOPIC_NOT_EXIST),
            (SendRequest("t", QUEUES, b"", b"x"), Status.MESSAGE_ILLEGAL),
            (SendRequest("t", 0, b"", b"x" * 2001), Status.MESSAGE_ILLEGAL),
        ]:
            sent = SendReply.unpack(await connection.call(Op.SEND, send.pack(), 2))
            assert (sent.status, sent.physical_offset) == (status, -1)
        moved = await group.pull(master, 0, 5)
        assert (moved.status, moved.next_offset) == (Status.PULL_OFFSET_MOVED, 0)

    brokers(scenario, count=2, maxMessageSize=2000, **UNSAFE)


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


def test_group_offsets_follow_the_master(brokers: Trial) -> None:
    """Committed on the old master, known to the new one, never lowered by a late commit."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=3)
        await group.send_many(master, 40)
        place = {"group": "g", "topic": "t", "queueId": 0}
        for offset in (7, 3):
            fields = {**place, "offset": offset}
            assert (await group.pool.ask(master.address, Op.OFFSET_COMMIT, fields, 2))["code"] == 0

        async def copied() -> bool:
            kept = [Path(node.folder) / "store" / "consumerOffset.json" for node in group.nodes]
            return all(path.exists() and '"t", 0, 7' in path.read_text() for path in kept)

        await eventually(copied)
        master.stop()
        successor = await group.master(members=2)
        reply = await group.pool.ask(successor.address, Op.OFFSET_QUERY, place, 2)
        assert (reply["code"], reply["offset"]) == (0, 7)

    brokers(scenario, **SAFE)


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


def test_a_whole_set_that_was_killed_comes_back(brokers: Trial) -> None:
    """kill -9 of all three at once: every acknowledged message, and queue offsets go on."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=3)
        await group.send_many(master, 100)
        for node in group.nodes:
            node.send_signal(signal.SIGKILL)
        for node in group.nodes:
            node.stop()
        for node in group.nodes:
            node.start()
        master = await group.master(members=3)
        await group.send_many(master, 20)
        assert await group.drain(master) == group.acked
        assert len(set(group.acked.values())) == 120

    brokers(scenario, flushDiskType="SYNC_FLUSH", **SAFE)


def test_a_new_reign_of_the_same_master_needs_no_new_connection(brokers: Trial) -> None:
    """A later epoch reaches the slaves over the links that are there (apache/rocketmq#9689)."""

    async def scenario(group: Brokers) -> None:
        master = await group.master(members=2)
        await group.send_many(master, 10)
        told = await group.describe(master)
        news = {
            "brokerName": "b",
            "masterId": told["masterId"],
            "masterAddr": master.address,
            "masterHaAddr": "10.9.9.9:1",  # not asked for
            "masterEpoch": told["masterEpoch"] + 5,
            "set": [told["masterId"]],
            "setEpoch": told["setEpoch"] + 5,
            "members": {},
        }
        await group.pool.ask(master.address, Op.NOTIFY_ROLE, news, 2)
        await eventually(lambda: epoch_of(group, master, news["masterEpoch"]))
        await group.send_many(master, 10)
        for described in await group.abreast():
            assert described["epochs"][-1][0] == news["masterEpoch"]
            assert described["epochs"][-1][1] > 0
        assert not [e for e in master.events("connection") if e["state"] == "closed"]

    brokers(scenario, count=2, **UNSAFE)


async def epoch_of(group: Brokers, node: Any, epoch: int) -> bool:
    return bool((await group.describe(node)).get("masterEpoch") == epoch)


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
