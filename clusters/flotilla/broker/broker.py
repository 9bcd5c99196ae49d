"""The broker: takes messages, copies them to its slaves, hands them to consumers.

This module wires the parts and serves requests. Who does what:

    store/*      the log and what is seen of it        replicas    the controllers, id and role
    replica      log, epochs and offsets together      mastery     confirm, acks, the SyncStateSet
    ha_master    feeds the slaves                      sends       sends that wait
    ha_slave     follows a master                      pulls       pulls, and pulls that wait

A turn of the event loop takes what the sockets brought, appends it, writes it once, sends each
slave one batch, and answers what is replicated by then. Only a master serves sends, and pulls;
others answer SERVICE_NOT_AVAILABLE. Consumers see no further than the confirm offset.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from ..capacity.concurrency import has_place
from ..capacity.qos import class_of
from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import Connection, JsonHandler
from ..net.controller_client import Controllers
from ..net.wire import Json, Op, Pull, Send, Senseless, Sent, Status, understood
from ..replication.divergence import LogShape
from ..replication.ha_master import HaMaster
from ..replication.ha_slave import FollowTarget, HaSlave
from ..replication.quorum import SendTimeouts
from ..replication.replica import Replica
from ..replication.sync_state import SyncState
from ..rules import Rules
from ..store.retention import needed_from
from ..world.ports import Ports, life_of
from ..world.timers import Every
from .changes import Changes
from .controller_link import Replicas, Standing
from .groups import Groups
from .handler import Desk
from .handover import Handover
from .key_queries import KeyQueries
from .leader import Context, Mastery
from .locks import Locks
from .metadata import MetadataSync
from .pulls import Pulls, unavailable
from .queues import Queues
from .registrar import Heartbeats, Pace, Registrar
from .retention import Retention
from .send_throttle import Gate
from .sends import MOST_WAITING, WaitingSends
from .startup import leave_in_order, open_replica
from .status import Parts, describe
from .topics import Topics
from .tuning import Tuning


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    events = EventLog(config.event_log, config.node, ports)
    replica = await open_replica(config, ports, rules, events)
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
        leave_in_order(config, ports)


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
        self._life, self._beats = life_of(ports), count(1)
        self._registrar = self._make_registrar()
        patience = SendTimeouts(config.slave_timeout_s, config.sync_flush_timeout_s)
        self._sends = WaitingSends(patience, rules.outcome_of)
        self._pulls = Pulls(
            config,
            self._store,
            replica.catalog,
            self.is_master,
            self._slave_to_read,
            rules.next_pull_offset,
            rules.times_of_batch,
        )
        self._mastery: Mastery | None = None
        self._promoting = False
        self.ha = HaMaster(config, self._store.log, rules, self, events)
        self._slave = HaSlave(config, self._store, rules, replica, events)
        self._replicas = Replicas(config, ports, self._controllers, self, events, self._beat)
        self._changes: Changes | None = None
        self._metadata = MetadataSync(config, rules, replica.catalog, events, self._master_to_copy)
        self._desk = Desk(config, ports, rules, replica, events, self.is_master, self._reigning)
        self._groups = Groups(self._desk)
        self._gate = Gate(config, self._send, self._sends.oldest_s)
        self._handover = Handover(
            self._desk, lambda: self.epoch, self.ha.acks, self._sends.__len__, self._send
        )
        self._retention = Retention(config, ports, replica, self._needed_from, events)
        self._tuning = self._make_tuning()
        self._timers: list[Every] = []
        self.handler = JsonHandler(
            self._table(),
            other=self._hot,
            on_closed=self._closed,
            on_senseless=events.senseless,
        )
        self._store.log.on_written = self._on_written
        self._store.log.on_flushed = self._on_flushed
        self._store.on_dispatched = self._pulls.wake
        self._slave.on_connected = self._on_connected

    def start(self) -> None:
        self._replicas.start()
        self._heartbeats.start()
        self._registrar.start()
        self._metadata.start()
        self._timers = [
            Every(self._config.flush_interval_s, self._store.flush_soon),
            Every(self._config.flush_consumer_offset_s, self._metadata.save_soon),
        ]
        self._retention.start()

    async def close(self) -> None:
        for timer in self._timers:
            timer.stop()
        self._replicas.close()
        self._gate.close()
        self._end_reign("the broker stops")
        self._handover.close()
        self.ha.stop()
        await self._slave.stop()
        self._slave.close()
        parts = (self._metadata, self._heartbeats, self._registrar, self._controllers)
        for part in (*parts, self._retention):
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
        if self._mastery is not None:
            self._mastery.advance()
        elif self._config.sync_flush:
            self._slave.acknowledge()

    def _on_connected(self) -> None:
        self._metadata.sync_now()
        self._handover.connected(self._replicas.standing.master_addr)

    def _needed_from(self) -> int:
        """Before this offset nobody needs our log any more."""
        mastery, confirmed = self._mastery, self._store.confirm_offset
        if mastery is None:
            return confirmed
        return needed_from(
            confirmed, self.ha.peer_positions(), self._rules.counted_members(mastery.state)
        )

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

    def is_boundary(self, offset: int) -> bool:
        return self._store.is_boundary(offset)

    def last_file(self) -> int:
        return self._store.last_file()

    def progressed(self, slave: int) -> None:
        if self._mastery is not None:
            self._mastery.progressed(slave)
            self._handover.look()

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
            self._begin_changes(standing.epoch)
            await self._replica.save_if_room()
        else:
            self._promoting = True
            await self._slave.stop()
            await self._replica.begin_reign(standing.epoch)
            state = SyncState(self._replicas.id, standing.members, standing.set_epoch)
            self._mastery = Mastery(self._context(), standing.epoch, state)
            self._promoting = False
            self._begin_changes(standing.epoch)
            self._mastery.advance()
            self.ha.open()
        self._handover.end()
        self._registrar.renew()
        self._heartbeats.beat_now()

    async def follow(self, standing: Standing) -> None:
        """Become the slave of this master, or learn that it has a new epoch."""
        self._end_reign("another broker is the master now")
        assert standing.master_id is not None, "a standing without a master is not applied"
        leader = FollowTarget(
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
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.end()
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
                f"already has epoch {known}: was their data wiped? Clean the stores as well and "
                "start nameservers and clients again, or bring the controllers' data back"
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
            self._holds_metadata,
        )

    # requests

    def _table(self) -> dict[int, Callable[[Connection, Json], Awaitable[Json]]]:
        return {
            **Queues(self._desk).table(),
            **KeyQueries(self._desk).table(),
            **self._handover.table(),
            **Topics(self._desk).table(),
            **Locks(self._desk).table(),
            **self._groups.table(),
            **self._tuning.table(),
            **self._metadata.table(),
            Op.NOTIFY_ROLE: self._notify_role,
            Op.NOTIFY_MIN_BROKER_ID: self._notify_min_broker_id,
            Op.DESCRIBE: self._describe,
            Op.PING: self._ping,
        }

    def _closed(self, connection: Connection, why: str) -> None:
        self._groups.closed(connection)
        self._pulls.closed(connection)
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)

    def _hot(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op == Op.SEND:
            self._gate.pass_(connection, request, understood(Send.unpack, body))
        elif op == Op.PULL:
            pull = understood(Pull.unpack, body)
            if self._mastery is not None or self._serves_as_slave():
                self._pulls.serve(pull, connection, request)
            else:
                connection.reply(op, request, unavailable(pull).pack())
        else:
            raise Senseless(f"an unknown operation {op}")

    def _serves_as_slave(self) -> bool:
        return self._config.slave_read_enable and self._replicas.standing.master_id is not None

    def _slave_to_read(self) -> int:
        """For consumers that lag: a slave that is in step; a slave says itself."""
        if self._mastery is None:
            return self._replicas.id
        return min(self._mastery.state.slaves, default=0)

    def _send(self, connection: Connection, request: int, send: Send) -> None:
        if self._handover.holds(connection, request, send):
            return
        refused = self._refusal(send)
        if refused is not None:
            connection.reply(Op.SEND, request, refused.pack())
            return
        assert self._mastery is not None, "only a master admits a send"
        epoch = self._mastery.epoch
        place = (send.topic.encode(), send.queue)
        appended = self._store.append(place, send.key, send.body, epoch)
        self._sends.add(appended, epoch, connection, request)

    def _refusal(self, send: Send) -> Sent | None:
        """Why nothing is appended, if so (spec 9.1)."""
        if self._mastery is None:
            return Sent(Status.SERVICE_NOT_AVAILABLE, remark="not the master")
        queues = self._replica.catalog.topics.get(send.topic)
        if queues is None:
            return Sent(Status.TOPIC_NOT_EXIST, remark=send.topic)
        if send.queue >= queues:
            return Sent(Status.MESSAGE_ILLEGAL, remark=f"{send.topic} has {queues} queues")
        if not self._store.fits(send.topic.encode(), send.key, send.body):
            return Sent(Status.MESSAGE_ILLEGAL, remark="the message is too large")
        if not self._store.has_room(send.topic.encode(), send.key, send.body):
            return Sent(Status.SERVICE_NOT_AVAILABLE, remark=self._store.log.why_full)
        if not self._mastery.admits():
            return Sent(Status.IN_SYNC_REPLICAS_NOT_ENOUGH)
        qos = class_of(send.topic, self._config.topic_qos)
        if not has_place(len(self._sends), MOST_WAITING, qos):
            return Sent(Status.SYSTEM_BUSY, remark="too many sends wait")
        return None

    async def _notify_role(self, connection: Connection, fields: Json) -> Json:
        self._replicas.notice(fields)
        return {}

    async def _notify_min_broker_id(self, connection: Connection, fields: Json) -> Json:
        self._replicas.ask_soon()
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
            self._controllers,
            config.broker_heartbeat_interval_s,
            config.heartbeat_rpc_timeout_s,
            config.heartbeat_timeout_s,
            self._heartbeat,
        )

    def _make_tuning(self) -> Tuning:
        live: dict[str, Callable[[Config], object]] = {
            "brokerElectionPriority": lambda _: self._heartbeats.beat_now(),
            "fileReservedTime": self._retention.adopt,
            "maxHaTransferByteInSecond": self.ha.adopt,
            "sendRateLimit": self._gate.adopt,
        }
        return Tuning(self._config, live, self._events)

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
            "priority": self._tuning.config.election_priority,
            "zone": config.zone,
            "resources": config.node_resources,
            "learner": config.async_learner,
            "life": self._life,
            "beat": next(self._beats),
        }

    def _make_registrar(self) -> Registrar:
        config = self._config
        light_s = config.broker_heartbeat_interval_s if config.lite_heartbeat else None
        pace = Pace(
            config.register_nameserver_s,
            light_s,
            config.heartbeat_rpc_timeout_s,
            config.controller_rpc_timeout_s,
        )
        return Registrar(config.nameservers, pace, self._registration)

    def _registration(self) -> Json | None:
        standing, config = self._replicas.standing, self._config
        if standing.master_id is None:
            return None
        if standing.master_id == self._replicas.id and self._mastery is None:
            return None
        light_s = config.nameserver_timeout_s
        return {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": 0 if self._mastery is not None else self._replicas.id,
            "addr": config.address,
            "haAddr": config.ha_address,
            "stateVersion": standing.epoch,
            "timeoutMs": 1000 * (light_s if config.lite_heartbeat else config.channel_expired_s),
            "topics": self._replica.catalog.topics,
            "life": self._life,
            "beat": next(self._beats),
        }

    # metadata

    def _master_to_copy(self) -> tuple[str, int] | None:
        """Whose metadata we take, and our id."""
        address = self._replicas.standing.master_addr
        if self._mastery is not None or self._promoting or not address:
            return None
        return address, self._replicas.id

    def _reigning(self) -> Changes | None:
        return self._changes

    def _begin_changes(self, epoch: int) -> None:
        """A reign's changes; those of the one before, if it goes on, come to an end."""
        before, catalog = self._changes, self._replica.catalog
        self._changes = Changes(
            self._config,
            catalog,
            epoch,
            self._electable,
            self.progressed,
            self._rules.change_is_held,
        )
        if before is not None:
            self._changes.addresses |= before.addresses  # nobody connects anew
            before.end()
        self._changes.on_topics = self._registrar.renew

    def _electable(self) -> tuple[int, ...] | None:
        """The slaves that may be elected after us; None while too few are in step."""
        mastery = self._mastery
        if mastery is None or not mastery.admits():
            return None
        return self._rules.counted_members(mastery.state)

    def _holds_metadata(self, slave: int) -> bool:
        return self._changes is None or self._changes.holds(slave)
