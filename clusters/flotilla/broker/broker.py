"""The broker: stores messages, copies them to its slaves, and serves consumers.

This module wires the parts and dispatches requests:

    role              fenced, slave or master: replication and the controllers' decisions
    sends, handover   sends that wait for copies, sends that are held for a new master
    pulls             pulls, and pulls that wait for a message
    special           delayed messages, those of transactions, and those that groups pop
    request_handlers  topics, groups, offsets, locks, queries by key
    registrar         heartbeats to controllers, registrations at nameservers
    metadata          a slave's copy of the master's metadata
    store_lifecycle   opening the store, retention

One turn of the event loop appends what the sockets received, writes it once, sends each slave one
batch, and answers what is replicated by then. Only a master serves sends and pulls; other brokers
answer SERVICE_NOT_AVAILABLE. Consumers see the log up to the confirm offset.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from ..config import Config
from ..conversion.mode_file import ModeFile
from ..events import EventLog
from ..net import connection as net
from ..net.connection import FrameConnection, JsonHandler, refusal
from ..net.controller_client import ControllerClient
from ..net.wire import (
    Json,
    Op,
    ProtocolError,
    PullRequest,
    SendReply,
    SendRequest,
    Status,
    decode,
)
from ..replication.quorum import SendTimeouts
from ..replication.replica import Replica
from ..rules import Rules
from ..special.delay import DelayScan
from ..special.envelope import (
    ACK_TOPIC,
    ASK_TOPIC,
    DELAY_TOPIC,
    HALF_TOPIC,
    HIDE_TOPIC,
    OP_TOPIC,
    POP_TOPIC,
    RETRY_TOPIC,
    REVIVE_TOPIC,
)
from ..special.escape import ActingScans, EscapeBridge, Neighbour
from ..special.halves import HalfMessages
from ..special.pop import REVIVES, PopMessages
from ..store.consume_queue import Key
from ..store.message_store import AppendResult
from ..world.ports import Ports
from ..world.timers import PeriodicTimer
from .config_handler import ConfigHandler
from .handler import HandlerContext, HandlerTable
from .handover import HandoverHandler, HeldSend
from .metadata import MetadataSync
from .pulls import Pulls, unavailable
from .registrar import Announcer
from .request_handlers import (
    GroupHandler,
    KeyQueryHandler,
    LockHandler,
    QueueHandler,
    TopicHandler,
)
from .role import BrokerRole, describe
from .sends import MAX_WAITING_SENDS, Replier, WaitingSends
from .store_lifecycle import Retention, mark_clean_stop, open_replica


async def main(
    config: Config,
    ports: Ports,
    rules: Rules,
    ready: Callable[[str], None],
    neighbours: dict[str, Neighbour] | None = None,
) -> None:
    """Serve until cancelled. `neighbours`: the brokers of this process, by brokerName; this one is
    among them while it serves."""
    inner = config.broker_name if config.in_container else ""
    events = EventLog(config.event_log, config.node, ports, inner)
    await ModeFile(config, ports).load()
    replica = await open_replica(config, ports, rules, events)
    present = neighbours if neighbours is not None else {}
    broker = Broker(config, ports, rules, replica, events, neighbours=present)
    present[config.broker_name] = broker
    try:
        await serve(config, ports, replica, broker, (broker.handler, broker.ha), ready)
    finally:
        present.pop(config.broker_name, None)


async def serve(
    config: Config,
    ports: Ports,
    replica: Replica,
    broker: "Startable",
    handlers: tuple[net.Handler, net.Handler],
    ready: Callable[[str], None],
) -> None:
    """Open a broker's ports and let it serve until cancelled. `handlers`: of requests, and of
    replication. Raises OSError if a port cannot be opened; the store is closed then, since the
    process may have other brokers, and this one may be tried again."""
    servers: list[asyncio.Server] = []
    try:
        for port, handler in zip((config.port, config.ha_port), handlers, strict=True):
            servers.append(await net.serve(config.host, port, handler))
    except OSError:
        for server in servers:
            server.close()
        await replica.close()
        raise
    try:
        broker.start()
        ready(config.address)
        await asyncio.get_running_loop().create_future()
    finally:
        for server in servers:
            server.close()
        await broker.close()
        mark_clean_stop(config, ports)


class Startable(Protocol):
    """A broker, or brokers of which one follows the other."""

    def start(self) -> None: ...

    async def close(self) -> None: ...


class Broker:
    """One broker."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        events: EventLog,
        beats: Iterator[int] | None = None,
        operations: HandlerTable | None = None,
        neighbours: Mapping[str, Neighbour] | None = None,
    ) -> None:
        """`beats`: numbers of its messages to nameservers and controllers; `operations`: further
        requests that it serves; `neighbours`: the brokers of this process, by brokerName."""
        self._config, self._events, self._replica = config, events, replica
        self._loop = asyncio.get_running_loop()
        self._controllers = ControllerClient(config.controllers, config.controller_rpc_timeout_s)
        patience = SendTimeouts(config.ack_timeout_s, config.sync_flush_timeout_s)
        sends = WaitingSends(patience, rules.outcome_of)
        self.role = role = BrokerRole(
            config, ports, rules, replica, events, sends, self._controllers, self
        )
        self.ha = role.ha
        self._announcer = Announcer(
            config, ports, replica, self._controllers, role, beats or count(1)
        )
        self._pulls = Pulls(
            config,
            replica.store,
            replica.catalog,
            role.serves_as_master,
            role.slave_to_read,
            rules.next_pull_offset,
            rules.times_of_batch,
        )
        self._metadata = MetadataSync(config, rules, replica.catalog, events, role.master_to_copy)
        context = HandlerContext(
            config,
            ports,
            rules,
            replica,
            events,
            role.serves_as_master,
            role.current_changes,
            lambda: role.acting,
        )
        self._groups = GroupHandler(context)
        self._send_handler = SendHandler(context, role, sends)
        self._bridge = EscapeBridge(context, {} if neighbours is None else neighbours)
        self._acting_scans = ActingScans(context, self._bridge)
        self._retention = Retention(config, ports, replica, role.needed_from, events)
        self._timers: list[PeriodicTimer] = []
        self.handler = JsonHandler(
            {**self._table(context), **(operations or {})},
            other=self._serve_packed,
            on_closed=self._closed,
            on_protocol_error=events.protocol_error,
        )
        replica.store.on_dispatched = self._dispatched

    def _table(
        self, context: HandlerContext
    ) -> dict[int, Callable[[FrameConnection, Json], Awaitable[Json]]]:
        live: dict[str, Callable[[Config], object]] = {
            "brokerElectionPriority": self._announcer.apply_config,
            "fileReservedTime": self._retention.apply_config,
            "maxHaTransferByteInSecond": self.ha.adopt,
        }
        return {
            **QueueHandler(context).table(),
            **KeyQueryHandler(context).table(),
            **TopicHandler(context).table(),
            **LockHandler(context).table(),
            **self._groups.table(),
            **self._send_handler.handover.table(),
            **ConfigHandler(self._config, live, self._events).table(),
            **self._metadata.table(),
            **self.role.requests,
            Op.NOTIFY_ROLE: self._notify_role,
            Op.NOTIFY_MIN_BROKER_ID: self._notify_min_broker_id,
            Op.REVERSE_SYNC: self._reverse_sync,
            Op.DESCRIBE: self._describe,
            Op.PING: self._ping,
        }

    def start(self) -> None:
        self.role.link.start()
        self._announcer.start()
        self._metadata.start()
        self._timers = [
            PeriodicTimer(self._config.flush_interval_s, self._replica.store.flush_soon),
            PeriodicTimer(self._config.flush_consumer_offset_s, self._metadata.save_soon),
        ]
        self._retention.start()

    async def close(self) -> None:
        await self._end_parts("the broker stops")
        self._send_handler.handover.close()
        for connection in list(self.handler.connections):
            connection.close()
        await self._replica.close()

    async def retire(self) -> "Retired":
        """End, and leave the store, the connections of clients and the held sends to the broker
        that follows in another mode."""
        self.pause_scans(True)
        await self._retention.finish()
        await self._end_parts("the mode of the set changes")
        held = self.handover.take() if self.handover.is_holding else None
        self.handover.close()
        return Retired(tuple(self.handler.connections), held)

    async def _end_parts(self, why: str) -> None:
        for timer in self._timers:
            timer.stop()
        self.role.link.close()
        self._acting_scans.stop()
        self._bridge.close()
        self.role.step_down(why)
        await self.role.close()
        for part in (self._metadata, self._announcer, self._controllers, self._retention):
            part.close()

    def succeed(self, former: "Retired") -> None:
        """Take what a retired broker left. Sends stay held until this one admits them."""
        for connection in former.connections:
            self.handler.opened(connection)
        if former.held is not None:
            self.handover.adopt(former.held)

    @property
    def handover(self) -> HandoverHandler:
        return self._send_handler.handover

    def is_quiet(self) -> bool:
        """Return whether no send waits for its answer."""
        return not len(self._send_handler.sends)

    def admits(self) -> bool:
        """Return whether this broker is a master that would append a send."""
        return self.role.serves_as_master() and self._send_handler.admits()

    # special messages of other sets: escape.Neighbour

    def queues_of(self, topic: str) -> int:
        return self._replica.catalog.topics.get(topic, 0)

    def take(self, send: SendRequest) -> "asyncio.Future[SendReply]":
        answer: asyncio.Future[SendReply] = self._loop.create_future()
        self._send_handler.serve(_FutureReply(answer), 0, send)
        return answer

    def pause_scans(self, paused: bool) -> None:
        """Put nothing into the log by itself while paused; for a master."""
        if paused:
            self._send_handler.stop_scans()
        elif self.role.is_master():
            self._send_handler.start_scans()

    # what follows changes of the role

    def became_master(self) -> None:
        self._send_handler.start_scans()
        if not self._config.generation or self.admits():
            self._send_handler.handover.end()

    def hold_sends(self) -> None:
        self._send_handler.handover.hold()

    def release_sends(self) -> None:
        self._send_handler.handover.end()

    def stepped_down(self) -> None:
        self._send_handler.stop_scans()
        self._acting_scans.stop()
        self._pulls.abandon()

    def acts(self) -> None:
        """This broker, a slave, begins to serve for its master."""
        self._acting_scans.start()

    def role_changed(self) -> None:
        """The role, or the epoch of it, is another one."""
        self._announcer.announce()

    def topics_changed(self) -> None:
        self._announcer.register()

    def slave_progressed(self) -> None:
        """A slave acknowledged a part of the log, or metadata."""
        self._send_handler.handover.slave_progressed()

    def connected(self, master: str) -> None:
        """This broker, a slave, has connected to its master at this address."""
        self._metadata.sync_now()
        self._send_handler.handover.connected(master)

    async def beat(self) -> None:
        """Send a heartbeat to the leading controller and wait for the answer."""
        await self._announcer.beat()

    def _dispatched(self, fresh: Mapping[Key, None]) -> None:
        """These queues have new messages that consumers may read."""
        self._pulls.wake(fresh)
        self._send_handler.pops.wake()

    # requests

    def _serve_packed(
        self, connection: FrameConnection, op: int, request: int, body: bytes
    ) -> None:
        if op == Op.SEND:
            send = decode(SendRequest.unpack, body)
            self._send_handler.serve(connection, request, send)
        elif op == Op.PULL:
            pull = decode(PullRequest.unpack, body)
            if pull.topic.startswith(ASK_TOPIC) and self.role.serves_as_master():
                self._send_handler.transactions.serve_asker(pull, connection, request)
            elif pull.topic.startswith(POP_TOPIC) and self.role.serves_as_master():
                self._send_handler.pops.serve(pull, connection, request)
            elif self.role.serves() or self.role.serves_as_slave():
                self._pulls.serve(pull, connection, request)
            else:
                connection.reply(op, request, unavailable(pull).pack())
        else:
            raise ProtocolError(f"an unknown operation {op}")

    def _closed(self, connection: FrameConnection, why: str) -> None:
        self._groups.closed(connection)
        self._pulls.closed(connection)
        self._send_handler.transactions.closed(connection)
        self._send_handler.pops.closed(connection)
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)

    async def _notify_role(self, connection: FrameConnection, fields: Json) -> Json:
        self.role.link.notice(fields)
        return {}

    async def _notify_min_broker_id(self, connection: FrameConnection, fields: Json) -> Json:
        self.role.link.ask_soon()
        return {}

    async def _reverse_sync(self, connection: FrameConnection, fields: Json) -> Json:
        """Give the master that starts what this broker kept for it, and serve no longer."""
        if self.role.is_master():
            return refusal(Status.INVALID_REQUEST, "this broker is a master itself")
        self.role.link.hand_back()
        return {**self._replica.catalog.copy(), "acted": self._replica.catalog.acted}

    async def _ping(self, connection: FrameConnection, fields: Json) -> Json:
        return {}

    async def _describe(self, connection: FrameConnection, fields: Json) -> Json:
        return describe(self.role, self._loop.time())


@dataclass(frozen=True)
class Retired:
    """What a broker leaves to the one that follows it. `held`: None if it held no sends."""

    connections: Sequence[FrameConnection]
    held: Sequence[HeldSend] | None


@dataclass(frozen=True)
class _FutureReply:
    """Takes the answer to a send of another broker of this process."""

    answer: "asyncio.Future[SendReply]"

    def reply(self, op: int, request: int, body: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(SendReply.unpack(body))


class SendHandler:
    """Serves SEND: refuses what cannot be stored, appends the rest; `WaitingSends` answers it."""

    def __init__(self, context: HandlerContext, role: BrokerRole, sends: WaitingSends) -> None:
        self._catalog, self._store = context.replica.catalog, context.replica.store
        self._role, self.sends = role, sends
        self.handover = HandoverHandler(
            context,
            lambda: role.epoch,
            role.ha.acks,
            sends.__len__,
            self.serve,
            role.lease.renounce,
        )
        self.delays = DelayScan(context, lambda: role.epoch, self.admits)
        self.transactions = HalfMessages(context, lambda: role.epoch, self.admits)
        self.pops = PopMessages(context, self._epoch, self._no_room, self._append_record)
        self._scans = (self.delays, self.transactions, self.pops)

    def start_scans(self) -> None:
        """Put what is due into the log; for a master."""
        for scan in self._scans:
            scan.start()

    def stop_scans(self) -> None:
        for scan in self._scans:
            scan.stop()

    def serve(self, connection: Replier, request: int, send: SendRequest) -> None:
        if self.handover.holds(connection, request, send):
            return
        stored = self._checked(send)
        if isinstance(stored, SendReply):
            connection.reply(Op.SEND, request, stored.pack())
            return
        epoch = self._epoch()
        queue = (stored.topic.encode(), stored.queue)
        appended = self._store.append(queue, stored.key, stored.body, epoch)
        if stored.topic == REVIVE_TOPIC:
            appended = self.pops.appended(stored.body, appended)
        self.sends.add(appended, epoch, connection, request)
        if stored.topic == DELAY_TOPIC:
            self.delays.appended(stored.body, appended.queue_offset)
        elif stored.topic in (HALF_TOPIC, OP_TOPIC):
            self.transactions.appended(stored, appended.queue_offset)

    def _checked(self, send: SendRequest) -> SendRequest | SendReply:
        """Return the message to append for a send, or the answer to one that is not appended."""
        if self._role.leadership is None or not self._role.serves_as_master():
            return SendReply(Status.SERVICE_NOT_AVAILABLE, remark="not the master")
        if not self._role.may_serve_sends(self._role.leadership.epoch):
            return SendReply(Status.SERVICE_NOT_AVAILABLE, remark="the master's lease is over")
        if send.topic == OP_TOPIC:
            return self.transactions.decide(send)
        if send.topic in (ACK_TOPIC, HIDE_TOPIC):
            return self.pops.settle(send)
        if send.topic == RETRY_TOPIC:
            adopted = self.pops.adopt(send)
            return adopted if isinstance(adopted, SendReply) else self._no_room(adopted) or adopted
        if send.topic not in (DELAY_TOPIC, HALF_TOPIC):
            return self._refusal(send) or self._no_room(send) or send
        is_delayed = send.topic == DELAY_TOPIC
        stored = self.delays.accept(send) if is_delayed else self.transactions.prepare(send)
        return stored if isinstance(stored, SendReply) else self._no_room(stored) or stored

    def _epoch(self) -> int:
        assert self._role.leadership is not None, "only a master appends"
        return self._role.leadership.epoch

    def _append_record(self, record: bytes, asker: Replier | None, request: int) -> AppendResult:
        """Append a record to `%revive`; `asker` is answered once the set has it."""
        epoch = self._epoch()
        appended = self._store.append(REVIVES, b"", record, epoch)
        if asker is not None:
            self.sends.add(appended, epoch, asker, request)
        return appended

    def admits(self) -> bool:
        leadership = self._role.leadership
        if leadership is None or not self._role.may_serve_sends(leadership.epoch):
            return False
        return leadership.admits()

    def _refusal(self, send: SendRequest) -> SendReply | None:
        """Return the answer to a send of an impossible message, None if it is possible.

        The statuses are those of RocketMQ's DefaultMessageStore.
        """
        queues = self._catalog.topics.get(send.topic)
        if queues is None:
            return SendReply(Status.TOPIC_NOT_EXIST, remark=send.topic)
        if send.queue >= queues:
            return SendReply(Status.MESSAGE_ILLEGAL, remark=f"{send.topic} has {queues} queues")
        if not self._store.fits(send.topic.encode(), send.key, send.body):
            return SendReply(Status.MESSAGE_ILLEGAL, remark="the message is too large")
        return None

    def _no_room(self, send: SendRequest) -> SendReply | None:
        """Return the answer to a send that cannot be appended now, None if it can."""
        if not self._store.has_room(send.topic.encode(), send.key, send.body):
            return SendReply(Status.SERVICE_NOT_AVAILABLE, remark=self._store.log.why_full)
        if not self.admits():
            return SendReply(Status.IN_SYNC_REPLICAS_NOT_ENOUGH)
        if len(self.sends) >= MAX_WAITING_SENDS:
            return SendReply(Status.SYSTEM_BUSY, remark="too many sends wait")
        return None
