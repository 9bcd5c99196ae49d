"""Nobody who sends nonsense stops a node, or has anything acknowledged that is not stored.

Three controllers, a nameserver and a broker live in one simulated process and talk to each other;
100,000 inputs are handed to their handlers (see `tests/labs/flotilla/hostile.py`).
"""

import asyncio
import json
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from ha_lab import HaLab, Side, eventually, play, record_at
from hostile import Input, Malice
from table_sizes import share

from clusters.flotilla.broker.broker import Broker
from clusters.flotilla.broker.store_lifecycle import open_replica
from clusters.flotilla.config import Config, ConfigError, loads
from clusters.flotilla.controllers.controller import Controller
from clusters.flotilla.events import EventLog
from clusters.flotilla.nameserver.nameserver import Nameserver
from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, Handler, Pool
from clusters.flotilla.net.wire import (
    HEADER,
    REPLY,
    Json,
    Op,
    SendReply,
    SendRequest,
    Status,
    from_json,
)
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import (
    HandshakeReply,
    HandshakeRequest,
    LogData,
    pack_ack,
)
from clusters.flotilla.replication.ha_slave import FollowTarget
from clusters.flotilla.rules import RULES
from clusters.flotilla.store import record
from clusters.hosts._world.disk import Disk
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimProcess

ADDRESS = "10.0.0.1"
INPUTS, BATCH = share(50_000), 500  # for each flavour of the controllers
SHAPED = 10_000
CONTROLLERS = {f"n{i}": f"{ADDRESS}:{9870 + i}" for i in (1, 2, 3)}


class Wire:
    """The socket of an attacker: what the node did with it."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.lost = False
        self.connection: FrameConnection | None = None

    def get_extra_info(self, name: str) -> Any:
        return ("10.6.6.6", 666) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.lost

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        if not self.lost:
            self.lost = True
            assert self.connection
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    close = abort


class Attack:
    """One input at one handler."""

    def __init__(self, handler: Handler, given: Input) -> None:
        self.given = given
        self.wire = Wire()
        self.connection = self.wire.connection = FrameConnection(handler)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        for piece in given.pieces:
            if not self.wire.lost:
                self.connection.data_received(piece)

    def replies(self) -> list[tuple[int, bytes]]:
        found, at = [], 0
        while at < len(self.wire.sent):
            length, op, _ = HEADER.unpack_from(self.wire.sent, at)
            found.append((op & ~REPLY, bytes(self.wire.sent[at + HEADER.size : at + 4 + length])))
            at += 4 + length
        return found

    def end(self) -> None:
        """The peer goes away."""
        self.wire.abort()


class Rig:
    """The nodes, and what they wrote into their event logs."""

    def __init__(self, process: SimProcess, disk: Disk) -> None:
        self._process, self.disk = process, disk

    def config(self, name: str, role: str, port: int, **more: Any) -> Config:
        table = {
            "role": role,
            "nodeName": name,
            "listenHost": ADDRESS,
            "listenPort": port,
            "haListenPort": port + 1,
            "storePath": f"/{name}",
            "eventLogPath": f"/{name}.jsonl",
            "namesrvAddr": [f"{ADDRESS}:9860"],
            "controllerAddr": list(CONTROLLERS.values()),
            "mappedFileSizeCommitLog": 1 << 22,
            **more,
        }
        return loads("".join(f"{key} = {_toml(value)}\n" for key, value in table.items()))

    async def raise_all(self, flavour: str = "dledger", **settings: Any) -> None:
        ports = ports_of(self._process, self.disk)
        named = self.config("ns", "nameserver", 9860)
        self.nameserver = Nameserver(named, ports, RULES)
        await net.serve(ADDRESS, named.port, self.nameserver.handler)
        self.controllers: dict[str, Controller] = {}
        for name in CONTROLLERS:
            port = int(CONTROLLERS[name].rpartition(":")[2])
            own = {
                "controllerDLegerSelfId": name,
                "controllerDLegerPeers": CONTROLLERS,
                "controllerType": flavour,
            }
            config = self.config(name, "controller", port, **own)
            ports.files.makedirs(config.store)
            controller = Controller(config, ports, RULES)
            await net.serve(ADDRESS, port, controller.handler)
            await controller.start()
            self.controllers[name] = controller
        config = self.config("b1", "broker", 10911, brokerName="b", topics={"t": 4}, **settings)
        events = EventLog(config.event_log, "b1", ports)
        self.replica = await open_replica(config, ports, RULES, events)
        self.broker = Broker(config, ports, RULES, self.replica, events)
        await net.serve(ADDRESS, config.port, self.broker.handler)
        await net.serve(ADDRESS, config.ha_port, self.broker.ha)
        self.broker.start()
        await eventually(self.broker.role.is_master)

    def handlers(self) -> list[tuple[str, str, Handler]]:
        """(role, node, handler), the busiest ones more than once."""
        broker: list[tuple[str, str, Handler]] = [
            ("broker", "b1", self.broker.handler),
            ("replication", "b1", self.broker.ha),
        ]
        return [
            *broker * 3,
            ("nameserver", "ns", self.nameserver.handler),
            *(("controller", name, node.handler) for name, node in self.controllers.items()),
        ]

    def events(self, node: str, kind: str) -> list[Json]:
        content = self.disk.file(f"/{node}.jsonl")
        rows = map(json.loads, content.read(content.size, 0).splitlines())
        return [row for row in rows if row["kind"] == kind]

    async def send(self, body: bytes) -> SendReply:
        pool = Pool(1)
        connection = await pool.get(f"{ADDRESS}:10911")
        packed = await connection.call(Op.SEND, SendRequest("t", 0, b"", body).pack(), 10)
        pool.close()
        return SendReply.unpack(packed)

    def stored(self, queue: int, queue_offset: int) -> bytes:
        return self.replica.store.fetch((b"t", queue), queue_offset, 1, 1 << 20)[0].body


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def on_rig(scenario: Callable[[Rig], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main(lab: HaLab) -> None:
        rig, broken = Rig(lab.process, disk_of(lab.process.host)), list[str]()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, told: broken.append(_shown(told))
        )
        await rig.raise_all(**settings)
        await scenario(rig)
        assert not broken, "\n".join(broken)  # as processes, the nodes would have stopped

    play(main)


def _shown(told: dict[str, Any]) -> str:
    return (
        "".join(traceback.format_exception(told["exception"])) if "exception" in told else str(told)
    )


def judge(attack: Attack) -> str:
    """What became of it, once the node had time; "" when that is what had to be."""
    dropped, replies = attack.wire.lost, attack.replies()
    why = attack.connection.refused
    fate = {
        "dropped": dropped and bool(why),
        "quiet": not dropped and not replies,
        "free": not dropped or bool(why),
    }[attack.given.fate]
    return "" if fate else f"{attack.given}: dropped {dropped} ({why}), answered {replies}"


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
def test_hostile_inputs(flavour: str) -> None:
    """Each meets its fate; every dropped connection has its reason in the event log; what was
    acknowledged is stored; the nodes serve on."""

    async def scenario(rig: Rig) -> None:
        assert (await rig.send(b"before")).status is Status.SUCCESS
        log = rig.replica.store.log
        malice, refused, stored = Malice(1, lambda: log.written), Counter[str](), 0
        places = rig.handlers()
        for _ in range(INPUTS // BATCH):
            attacks = []
            for number in range(BATCH):
                role, node, handler = places[number % len(places)]
                attacks.append((node, Attack(handler, malice.draw(role))))
                log.write_out()
            await asyncio.sleep(0.05)
            for node, attack in attacks:
                assert not (wrong := judge(attack)), wrong
                refused[node] += attack.wire.lost
                stored += acknowledged(rig, attack)
                attack.end()
        assert stored > INPUTS // 500
        for node, count in refused.items():
            assert told(rig, node) == count
        assert rig.broker.ha.links == {}
        assert (await rig.send(b"after")).status is Status.SUCCESS
        assert len({c._role.leader for c in rig.controllers.values()}) == 1

    on_rig(scenario, flavour=flavour)


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
def test_requests_that_look_right_break_no_handler(flavour: str) -> None:
    """Fields of the right types, and absurd: they may be obeyed, and no exception comes of them."""

    async def scenario(rig: Rig) -> None:
        malice, places = Malice(2, lambda: 0), rig.handlers()
        for number in range(SHAPED):
            _, _, handler = places[number % len(places)]
            if handler is not rig.broker.ha:
                Attack(handler, malice.shaped())
            if number % BATCH == 0:
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)

    on_rig(scenario, flavour=flavour)


def told(rig: Rig, node: str) -> int:
    """Connections that ended for a reason, as the event log has them."""
    closed = [row for row in rig.events(node, "connection") if row["state"] == "closed"]
    ours = [row for row in closed if row["why"] not in ("closed by the peer", "connected again")]
    return len(rig.events(node, "refused")) + len(ours)


def acknowledged(rig: Rig, attack: Attack) -> int:
    """Sends of this attacker that succeeded; what they said is in the log."""
    found = 0
    for op, body in attack.replies():
        if op == Op.SEND and (sent := SendReply.unpack(body)).status is Status.SUCCESS:
            send = SendRequest.unpack(attack.given.pieces[0][HEADER.size :])
            assert rig.stored(send.queue, sent.queue_offset) == send.body
            found += 1
    return found


def test_a_slave_that_lies_has_nothing_acknowledged() -> None:
    """Acks count only for members of the set and for what was sent (apache/rocketmq#3015),
    however many connections and ids it uses (#21)."""

    async def scenario(rig: Rig) -> None:
        log = rig.replica.store.log
        sending = asyncio.ensure_future(rig.send(b"x"))
        await eventually(lambda: log.written > 0)
        for slave in (1, 2, 2, 3, 2**32 - 1):
            hello = HandshakeRequest(slave, 1, 0, LogShape(0, 0, EpochTable())).pack()
            data = net.frame(Op.HA_HANDSHAKE, 1, hello) + net.frame(Op.HA_ACK, 0, pack_ack(0))
            liar = Attack(rig.broker.ha, Input("liar", (data,), "free"))
            liar.connection.data_received(net.frame(Op.HA_ACK, 0, pack_ack(log.written)))
        assert (await sending).status is Status.FLUSH_SLAVE_TIMEOUT

    on_rig(scenario, inSyncReplicas=2, totalReplicas=3)


class LyingMaster:
    """Answers the handshake with what it is told to, and sends what it likes."""

    def __init__(self, welcome: bytes, data: bytes) -> None:
        self.welcome, self.data = welcome, data
        self.met = 0

    def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

    def opened(self, connection: FrameConnection) -> None: ...

    def closed(self, connection: FrameConnection, why: str) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op == Op.HA_HANDSHAKE:
            self.met += 1
            connection.reply(op, request, self.welcome)
        elif self.data:
            connection.send_oneway(Op.HA_DATA, self.data)


def welcome(low: int, high: int, *rows: tuple[int, int], segment: int = 100) -> bytes:
    shape = LogShape(low, high, EpochTable(rows))
    return HandshakeReply(Status.SUCCESS, 5, segment, shape, low).pack()


def huge_queue_offset(at: int, queue: int = 0, queue_offset: int = 2**60) -> bytes:
    """A sound record, but for the hole that it would make."""
    body = bytes(50 - record.size_of(b"t", b"", b""))
    return record.encode(at, 1, b"t", queue, queue_offset, 0, b"", body)


SOUND = welcome(0, 500, (1, 0))
LIES: dict[str, tuple[bytes, bytes]] = {
    "no welcome": (b"", b""),
    "half a welcome": (SOUND[:-3], b""),
    "an unknown status": (b"\xff" + SOUND[1:], b""),
    "a log that ends before it begins": (welcome(500, 0, (1, 0)), b""),
    "epochs that fall": (welcome(0, 500, (3, 0), (2, 100)), b""),
    "a beginning inside a segment": (welcome(250, 500, (1, 250)), b""),
    "an end beyond all": (welcome(0, 2**63, (1, 0)), b""),
    "half a head": (SOUND, b"xyz"),
    "records elsewhere": (SOUND, LogData(0, 1, 0, 0, record_at(0, 1)).pack()),
    "records of elsewhere": (SOUND, LogData(200, 1, 0, 0, record_at(0, 1)).pack()),
    "another epoch than announced": (SOUND, LogData(200, 1, 0, 0, record_at(200, 2)).pack()),
    "an epoch that began before": (SOUND, LogData(200, 2, 100, 0, record_at(200, 2)).pack()),
    "an epoch that fell": (SOUND, LogData(200, 0, 200, 0, record_at(200, 0)).pack()),
    "half a record": (SOUND, LogData(200, 1, 0, 0, record_at(200, 1)[:-1]).pack()),
    "a flipped bit": (SOUND, LogData(200, 1, 0, 0, record_at(200, 1)[:-1] + b"\x01").pack()),
    "a queue offset out of sight": (SOUND, LogData(200, 1, 0, 0, huge_queue_offset(200)).pack()),
    "an offset that no queue has": (
        SOUND,
        LogData(200, 1, 0, 0, huge_queue_offset(200, 5, 2**63)).pack(),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_master_that_lies_is_left_and_asked_again(lie: str) -> None:
    """Nothing of it is taken, the reason is told, and the sound master that comes is followed."""

    async def scenario(lab: HaLab) -> None:
        slave, master = await lab.side(), await lab.side()
        await slave.fill((1, 200))
        held = slave.bytes()
        liar = LyingMaster(*LIES[lie])
        server = await net.serve(ADDRESS, 7777, liar)
        await slave.slave.follow(FollowTarget(1, 9, f"{ADDRESS}:7777", 5))
        await eventually(lambda: liar.met > 3)
        assert slave.bytes() == held
        assert slave.shape().epochs.entries == ((1, 0),)
        assert reasons(slave)
        server.close()
        await master.fill((1, 500))
        await master.reign(6)
        await slave.follow(master, 6)
        await eventually(lambda: slave.shape() == master.shape())
        assert slave.bytes() == master.bytes()

    play(scenario)


def reasons(side: Side) -> list[str]:
    """Why it left its master."""
    rows = [*side.events("refused"), *side.events("connection")]
    return [row["why"] for row in rows if row.get("why") not in (None, "closed by the peer")]


@pytest.mark.parametrize("key", ["haTransferBatchSize", "maxHaTransferByteInSecond"])
def test_settings_with_which_nothing_would_move_are_refused(key: str) -> None:
    """A batch smaller than a record's head would be empty, and sent again and again."""
    told = 'role = "broker"\nnodeName = "b"\nlistenHost = "x"\nstorePath = "s"\n'
    with pytest.raises(ConfigError, match=f"{key} must be at least 1024, not 1"):
        loads(f"{told}{key} = 1\n")


def test_json_is_an_object() -> None:
    """What the handlers rely on."""
    with pytest.raises(ValueError, match="must be an object"):
        from_json(b"[]")
