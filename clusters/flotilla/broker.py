"""The broker: takes messages, copies them to its slaves, hands them to consumers.

This module wires the parts and serves requests. Who does what:

    store/*      the log and what is seen of it        replicas    the controllers, id and role
    replica      log, epochs and offsets together      mastery     confirm, acks, the SyncStateSet
    ha_master    feeds the slaves                      sends       sends that wait
    ha_slave     follows a master                      pulls       pulls, and pulls that wait

A turn of the event loop takes what the sockets brought, appends it, writes it once, sends each
slave one batch, and answers what is replicated by then. Only a master serves sends and pulls;
others answer SERVICE_NOT_AVAILABLE. Consumers see no further than the confirm offset.
"""

import asyncio
from collections.abc import Awaitable, Callable

from . import net
from .config import Config
from .controllers import Controllers
from .description import Parts, describe
from .divergence import LogShape
from .events import EventLog
from .ha_master import HaMaster
from .ha_slave import HaSlave, Leader
from .mastery import Context, Mastery
from .metadata import MetadataSync
from .net import Connection, JsonHandler, refusal
from .pace import Every
from .ports import Ports
from .pulls import Pulls, unavailable
from .registrar import Heartbeats, Registrar
from .replica import Replica
from .replicas import Replicas, Standing
from .rules import Rules
from .sends import MOST_WAITING, WaitingSends
from .store import recovery
from .store.commit_log import StoreError
from .sync_state import SyncState
from .wire import Json, Op, Pull, Send, Sent, Status


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    events = EventLog(config.event_log, config.node, ports)
    place = _place(config)
    replica = await _open(config, ports, rules, events)
    broker = Broker(config, ports, rules, replica, events)
    servers = [
        await net.serve(config.host, config.port, broker.handler),
        await net.serve(config.host, config.ha_port, broker.ha),
    ]
    try:
        broker.start()
        ready(config.address)
        await asyncio.get_running_loop().create_future()
    finally:
        for server in servers:
            server.close()
        await broker.close()
        recovery.close(place, ports)


def _place(config: Config) -> recovery.Place:
    return recovery.Place(
        config.store, config.segment_size, config.max_message_size, config.sync_flush
    )


async def _open(config: Config, ports: Ports, rules: Rules, events: EventLog) -> Replica:
    try:
        found = await recovery.recover(_place(config), ports, rules)
    except (StoreError, ValueError) as e:
        ports.exit.fatal(f"{config.store} can not be opened: {e}")
    store = found.store
    events.write(
        "recover",
        min=store.log.min_offset,
        max=store.log.max_offset,
        confirm=store.confirm_offset,
        records=found.records,
        clean=found.clean,
        epochs=[list(e) for e in found.epochs.entries],
    )
    return Replica(config, ports, rules, store, found.epochs, events)


class Broker:
    """One broker; implements `ha_master.Reign` and `replicas.Roles`."""

    def __init__(
        self, config: Config, ports: Ports, rules: Rules, replica: Replica, events: EventLog
    ) -> None:
        self._config, self._ports, self._rules, self._events = config, ports, rules, events
        self._loop = asyncio.get_running_loop()
        self._replica, self._store = replica, replica.store
        self._controllers = Controllers(config.controllers, config.controller_rpc_timeout_s)
        self._heartbeats = self._make_heartbeats()
        self._registrar = self._make_registrar()
        self._sends = WaitingSends(config.slave_timeout_s, config.sync_flush_timeout_s)
        self._pulls = Pulls(self._store)
        self._mastery: Mastery | None = None
        self._promoting = False
        self.ha = HaMaster(config, self._store.log, rules, self, events)
        self._slave = HaSlave(config, self._store, rules, replica, events)
        self._replicas = Replicas(config, ports, self._controllers, self, events, self._beat)
        self._metadata = MetadataSync(config, replica.offsets, self._master_to_copy)
        self._timers: list[Every] = []
        self._topics = {name.encode(): count for name, count in config.topics.items()}
        self.handler = JsonHandler(self._table(), other=self._hot, on_closed=self._closed)
        self._store.log.on_written = self._on_written
        self._store.log.on_flushed = self._on_flushed
        self._store.on_dispatched = self._pulls.wake
        self._slave.on_connected = self._metadata.sync_now

    def start(self) -> None:
        self._replicas.start()
        self._heartbeats.start()
        self._registrar.start()
        self._metadata.start()
        self._timers = [
            Every(self._config.flush_interval_s, self._store.flush_soon),
            Every(self._config.flush_consumer_offset_s, self._metadata.save_soon),
        ]

    async def close(self) -> None:
        for timer in self._timers:
            timer.stop()
        self._replicas.close()
        self._end_reign("the broker stops")
        self.ha.stop()
        await self._slave.stop()
        self._slave.close()
        for part in (self._metadata, self._heartbeats, self._registrar, self._controllers):
            part.close()
        for connection in list(self.handler.connections):
            connection.close()
        await self._replica.close()

    # the log moved

    def _on_written(self) -> None:
        if self._mastery is not None:
            self.ha.pump()
            self._mastery.advance()
        else:
            self._store.dispatch()
            if not self._config.sync_flush:
                self._slave.acknowledge()

    def _on_flushed(self) -> None:
        if not self._config.sync_flush:
            return
        if self._mastery is not None:
            self._mastery.advance()
        else:
            self._slave.acknowledge()

    # ha_master.Reign

    @property
    def epoch(self) -> int:
        return self._replicas.standing.epoch

    def is_master(self) -> bool:
        return self._mastery is not None

    def is_promoting(self) -> bool:
        return self._promoting

    def shape(self) -> LogShape:
        return self._replica.shape()

    def confirm_offset(self) -> int:
        return self._store.confirm_offset

    def progressed(self, slave: int) -> None:
        if self._mastery is not None:
            self._mastery.progressed(slave)

    def slave_gone(self, slave: int) -> None:
        if self._mastery is not None:
            self._mastery.slave_gone(slave)

    # replicas.Roles

    async def reign(self, standing: Standing) -> None:
        """Become the master of this epoch, or go on as it."""
        self._refuse_old_epoch(standing)
        if self._mastery is not None:
            self._replica.record_epoch(standing.epoch)
            self._mastery.renew(standing.epoch, standing.members, standing.set_epoch)
            await self._replica.save()
        else:
            self._promoting = True
            await self._slave.stop()
            await self._replica.begin_reign(standing.epoch)
            state = SyncState(self._replicas.id, standing.members, standing.set_epoch)
            self._mastery = Mastery(self._context(), standing.epoch, state)
            self._promoting = False
            self._mastery.advance()
            self.ha.open()
        self._registrar.renew()
        self._heartbeats.beat_now()

    async def follow(self, standing: Standing) -> None:
        """Become the slave of this master, or learn that it has a new epoch."""
        self._end_reign("another broker is the master now")
        assert standing.master_id is not None, "a standing without a master is not applied"
        leader = Leader(
            self._replicas.id, standing.master_id, standing.master_ha_addr, standing.epoch
        )
        await self._slave.follow(leader)
        self._registrar.renew()
        self._heartbeats.beat_now()

    def install_set(self, standing: Standing) -> None:
        if self._mastery is not None:
            self._mastery.install(standing.members, standing.set_epoch, "told")

    def _end_reign(self, why: str) -> None:
        mastery, self._mastery = self._mastery, None
        if mastery is not None:
            mastery.end()
            self._sends.abandon(why)
            self._pulls.abandon()
            self.ha.drop_all(why)

    def _refuse_old_epoch(self, standing: Standing) -> None:
        known = self._replica.epochs.last_epoch
        if standing.epoch < known:
            self._ports.exit.fatal(
                f"the controllers elected this broker for epoch {standing.epoch}, but its log "
                f"already has epoch {known}: was their data wiped? Clean the stores as well, or "
                "bring the controllers' data back"
            )

    def _context(self) -> Context:
        return Context(
            self._config,
            self._rules,
            self._replica,
            self.ha,
            self._sends,
            self._controllers,
            self._events,
            self._replicas.notice,
        )

    # requests

    def _table(self) -> dict[int, Callable[[Connection, Json], Awaitable[Json]]]:
        return {
            Op.QUEUE_RANGE: self._queue_range,
            Op.OFFSET_QUERY: self._offset_query,
            Op.OFFSET_COMMIT: self._offset_commit,
            Op.METADATA_SYNC: self._metadata_sync,
            Op.NOTIFY_ROLE: self._notify_role,
            Op.DESCRIBE: self._describe,
            Op.PING: self._ping,
        }

    def _closed(self, connection: Connection, why: str) -> None:
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)

    def _hot(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op == Op.SEND:
            self._send(connection, request, Send.unpack(body))
        elif op == Op.PULL:
            pull = Pull.unpack(body)
            if self._mastery is None:
                connection.reply(op, request, unavailable(pull).pack())
            else:
                self._pulls.serve(pull, connection, request)
        else:
            raise ValueError(f"an unknown operation {op}")

    def _send(self, connection: Connection, request: int, send: Send) -> None:
        topic = send.topic.encode()
        refused = self._refusal(topic, send)
        if refused is not None:
            connection.reply(Op.SEND, request, refused.pack())
            return
        assert self._mastery is not None, "only a master admits a send"
        epoch = self._mastery.epoch
        appended = self._store.append((topic, send.queue), send.key, send.body, epoch)
        self._sends.add(appended, epoch, connection, request)

    def _refusal(self, topic: bytes, send: Send) -> Sent | None:
        """Why nothing is appended, if so (spec 9.1)."""
        if self._mastery is None:
            return Sent(Status.SERVICE_NOT_AVAILABLE, remark="not the master")
        queues = self._topics.get(topic)
        if queues is None:
            return Sent(Status.TOPIC_NOT_EXIST, remark=send.topic)
        if send.queue >= queues:
            return Sent(Status.MESSAGE_ILLEGAL, remark=f"{send.topic} has {queues} queues")
        if not self._store.fits(topic, send.key, send.body):
            return Sent(Status.MESSAGE_ILLEGAL, remark="the message is too large")
        if not self._mastery.admits():
            return Sent(Status.IN_SYNC_REPLICAS_NOT_ENOUGH)
        if len(self._sends) >= MOST_WAITING:
            return Sent(Status.SYSTEM_BUSY, remark="too many sends wait")
        return None

    async def _queue_range(self, connection: Connection, fields: Json) -> Json:
        if self._mastery is None:
            return _not_master()
        low, high = self._store.range((str(fields["topic"]).encode(), int(fields["queueId"])))
        return {"minOffset": low, "maxOffset": high}

    async def _offset_query(self, connection: Connection, fields: Json) -> Json:
        if self._mastery is None:
            return _not_master()
        group, topic = str(fields["group"]), str(fields["topic"])
        return {"offset": self._replica.offsets.query(group, topic, int(fields["queueId"]))}

    async def _offset_commit(self, connection: Connection, fields: Json) -> Json:
        if self._mastery is None:
            return _not_master()
        topic, queue = str(fields["topic"]), int(fields["queueId"])
        row = (str(fields["group"]), topic, queue, int(fields["offset"]))
        self._replica.offsets.merge([row])
        return {}

    async def _metadata_sync(self, connection: Connection, fields: Json) -> Json:
        if self._mastery is None:
            return _not_master()
        return {"topics": self._config.topics, "offsets": self._replica.offsets.rows()}

    async def _notify_role(self, connection: Connection, fields: Json) -> Json:
        self._replicas.notice(fields)
        return {}

    async def _ping(self, connection: Connection, fields: Json) -> Json:
        return {}

    async def _describe(self, connection: Connection, fields: Json) -> Json:
        parts = Parts(
            self._config,
            self._rules,
            self._replica,
            self._replicas,
            self._mastery,
            self.ha,
            self._slave,
        )
        return describe(parts, self._loop.time())

    # what the links to controllers and nameservers tell

    def _make_heartbeats(self) -> Heartbeats:
        config = self._config
        return Heartbeats(
            config.controllers,
            config.broker_heartbeat_interval_s,
            config.heartbeat_rpc_timeout_s,
            config.heartbeat_timeout_s,
            self._heartbeat,
        )

    async def _beat(self) -> None:
        await self._heartbeats.beat(self._controllers.leader)

    def _heartbeat(self) -> Json | None:
        """The epoch is the log's own last one: elections compare logs."""
        if not self._replicas.registered:
            return None
        config = self._config
        return {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": self._replicas.id,
            "addr": config.address,
            "timeoutMs": config.heartbeat_timeout_s * 1000,
            "epoch": self._replica.epochs.last_epoch,
            "maxOffset": self._store.log.max_offset,
            "confirmOffset": self._store.confirm_offset,
            "priority": config.election_priority,
        }

    def _make_registrar(self) -> Registrar:
        config = self._config
        period_s = min(config.register_nameserver_s, config.nameserver_timeout_s / 3)
        timeout_s = config.controller_rpc_timeout_s
        return Registrar(config.nameservers, period_s, timeout_s, self._registration)

    def _registration(self) -> Json | None:
        standing, config = self._replicas.standing, self._config
        if standing.master_id is None:
            return None
        if standing.master_id == self._replicas.id and self._mastery is None:
            return None
        return {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": 0 if self._mastery is not None else self._replicas.id,
            "addr": config.address,
            "haAddr": config.ha_address,
            "stateVersion": standing.epoch,
            "timeoutMs": config.nameserver_timeout_s * 1000,
            "topics": config.topics,
        }

    def _master_to_copy(self) -> str | None:
        """Whose group offsets we take."""
        return None if self._mastery is not None else self._replicas.standing.master_addr or None


def _not_master() -> Json:
    return refusal(Status.SERVICE_NOT_AVAILABLE, "not the master")
