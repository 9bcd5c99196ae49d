"""A broker's role (fenced, slave or master) and what changes with it.

`Steering` decides the role (steering/); `BrokerRole` carries it out. It owns both
sides of replication and, while the broker is master, two objects that live for one term as master:
`Leadership` (confirm offset, acknowledgement, SyncStateSet) and `MetadataChanges`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..config import Config
from ..events import EventLog
from ..ha_machine.machine import SlaveReport
from ..net.connection import FrameConnection, refusal
from ..net.controller_client import ControllerClient
from ..net.wire import Json, Op, Status
from ..replication.divergence import LogShape
from ..replication.ha_master import HaMaster, SlaveLink
from ..replication.ha_slave import FollowTarget, HaSlave
from ..replication.replica import Replica
from ..replication.sync_state import SyncState
from ..rules import Rules
from ..steering.ballot_role import BallotRole, Handler
from ..steering.controller_link import ControllerLink
from ..steering.static_role import StaticRole
from ..steering.steering import ReplicaInfo, Steering
from ..steering.zookeeper_role import ZookeeperRole
from ..store.retention import needed_from
from ..world.choices import delay
from ..world.ports import Ports
from .acting import ActingChanges
from .changes import MetadataChanges
from .leader import Leadership, LeadershipContext
from .sends import WaitingSends

if TYPE_CHECKING:
    from .broker import Broker


class BrokerRole:
    """The present role; implements `ha_master.MasterBroker` and `steering.RoleHandler`."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        events: EventLog,
        sends: WaitingSends,
        controllers: ControllerClient,
        observer: "Broker",
    ) -> None:
        self.config, self.replica = config, replica
        self.leadership: Leadership | None = None
        self.changes: MetadataChanges | None = None
        self.acting: ActingChanges | None = None  # while it serves for an absent master
        self.ha = HaMaster(config, replica.store.log, rules, self, events, ports.choices)
        self.slave = HaSlave(config, replica.store, rules, replica, events)
        self.lease = OwnLease(config.master_lease, rules.lease_lasts)
        self.link: Steering
        self.requests: Mapping[int, Handler] = {}  # of brokers of the set to each other
        if config.zookeeper:
            self.link = ZookeeperRole(config, ports, rules, replica, self, events)
        elif config.switchless:
            self.link = StaticRole(config, ports, rules, replica, self, events)
        elif config.raft_log:
            self.link = ballot = BallotRole(config, ports, rules, replica, self, events)
            self.requests = ballot.table()
        else:
            self.link = ControllerLink(
                config, ports, controllers, self, events, observer.beat, rules.may_lead
            )
        if config.convertible and not config.raft_log:
            self.requests = dict.fromkeys((Op.VOTE, Op.BEAT), _refuse_vote)
        self._ports, self._rules, self._events = ports, rules, events
        self._store, self._sends = replica.store, sends
        self._observer = observer
        self._promoting = False
        self._take_back = rules.take_back
        self._store.log.on_written = self._on_written
        self._store.log.on_flushed = self._on_flushed
        self.slave.on_connected = lambda: observer.connected(self.link.info.master_addr)

    # what the rest of the broker asks

    def is_master(self) -> bool:
        return self.leadership is not None

    def serves(self) -> bool:
        """Return whether it serves consumers, as a master or for an absent one."""
        return self.serves_as_master() or self.acting is not None

    def serves_as_master(self) -> bool:
        """Return whether this broker is a master that clients may use."""
        return self.leadership is not None and self.leadership.serves

    def current_changes(self) -> MetadataChanges | None:
        return self.changes

    def serves_as_slave(self) -> bool:
        reads = self.config.slave_read_enable and self.link.info.master_id is not None
        return reads or self.acting is not None

    def slave_to_read(self) -> int:
        """Return the id of an in-sync slave for consumers that lag, 0 if there is none.

        A slave returns its own id.
        """
        if self.leadership is None:
            return self.link.id
        return min((i for i in self.leadership.members() if i != self.link.id), default=0)

    def master_to_copy(self) -> tuple[str, int] | None:
        """Return the address of the master whose metadata to copy, and this broker's id."""
        address = self.link.info.master_addr
        serves = self.leadership is not None or self.acting is not None
        if serves or self._promoting or not address:
            return None
        return address, self.link.id

    def may_serve_sends(self, epoch: int) -> bool:
        """Return whether the lease of this master lasts, if it needs one."""
        return self.lease.lasts(epoch, asyncio.get_running_loop().time())

    def grant_lease(self, epoch: int, own_s: float, sent_at: float) -> None:
        """Take a lease; answer the sends that waited for it."""
        self.lease.grant(epoch, own_s, sent_at)
        if self.leadership is not None:
            self.leadership.advance()

    def needed_from(self) -> int:
        """Return the offset before which no replica needs this log any more."""
        confirmed = self._store.confirm_offset
        if self.leadership is None:
            return confirmed
        counted = self._rules.counted_members(self.leadership.state)
        members = counted if self.link.authority is not None else ()
        return needed_from(confirmed, self.ha.peer_positions(), members)

    # the log has moved

    def _on_written(self) -> None:
        if self.leadership is not None:
            self.ha.pump()
            self.leadership.advance()
        else:
            self._store.dispatch()
            if not self.config.sync_flush:
                self.slave.acknowledge()

    def _on_flushed(self) -> None:
        if self.leadership is not None:
            self.leadership.advance()
        elif self.config.sync_flush:
            self.slave.acknowledge()

    # ha_master.MasterBroker

    @property
    def epoch(self) -> int:
        return self.link.info.epoch

    def is_promoting(self) -> bool:
        return self._promoting

    def shape(self) -> LogShape:
        return self.replica.shape()

    def confirm_offset(self) -> int:
        return self._store.confirm_offset

    def is_boundary(self, offset: int) -> bool:
        return self._store.is_boundary(offset)

    def last_file(self) -> int:
        return self._store.last_file()

    def progressed(self, slave: int) -> None:
        if self.leadership is not None:
            self.leadership.progressed(slave)
            self._observer.slave_progressed()

    def slave_gone(self, slave: int) -> None:
        if self.leadership is not None:
            self.leadership.slave_gone(slave)

    # steering.RoleHandler

    async def become_master(self, info: ReplicaInfo) -> None:
        """Become the master of this epoch, or continue as master in a new epoch."""
        self._refuse_old_epoch(info)
        if self.leadership is not None:
            self.replica.record_epoch(info.epoch)
            self.leadership.renew(info.epoch, info.members, info.set_epoch)
            self._begin_changes(info.epoch)
            await self.replica.save_if_room()
        else:
            self._promoting = True
            begin = await self._stop_copying()
            most_s = self.config.broker_heartbeat_interval_s / 4
            await delay(self._ports.choices, "promotion-late", most_s)
            await self.replica.begin_reign(info.epoch, begin)
            if self.link.info != info:
                self._promoting = False
                self.ha.drop_all("it was deposed before it reigned")
                return
            state = SyncState(self.link.id, info.members, info.set_epoch)
            self._promoting = False
            if self._rules.opens_epoch(self.config.raft_log, self._store.log.max_offset):
                self._store.append_opening(info.epoch)
            self.leadership = Leadership(self._leadership_context(), info.epoch, state)
            self._begin_changes(info.epoch)
            self.leadership.advance()
            self.ha.open()
        self._observer.became_master()
        self._observer.role_changed()

    async def _stop_copying(self) -> int:
        """Stop acknowledging to the former master; return where the reign begins. What is
        acknowledged after the end of the log was read would not be part of the reign."""
        if self._rules.stops_acknowledging_first:
            await self.slave.stop()
            return self._store.log.max_offset
        begin = self._store.log.max_offset
        await self._store.flush()
        await self.slave.stop()
        return begin

    async def become_slave(self, info: ReplicaInfo) -> None:
        """Become the slave of this master, or follow it into a new epoch."""
        self.step_down("another broker is the master now")
        assert info.master_id is not None, "info without a master is not applied"
        await self.slave.follow(
            FollowTarget(self.link.id, info.master_id, info.master_ha_addr, info.epoch)
        )
        self._observer.role_changed()

    async def stand_by(self, why: str) -> None:
        self.step_down(why)
        self.ha.drop_all(why)
        await self.slave.stop()

    def heard_commit(self, epoch: int, commit: int) -> None:
        self.slave.confirm_up_to(commit, epoch)

    def install_set(self, info: ReplicaInfo) -> None:
        if self.leadership is not None:
            self.leadership.install(info.members, info.set_epoch, "told")

    def act(self, acting: bool) -> None:
        before, self.acting = self.acting, None
        if acting:
            self.acting = ActingChanges(
                self.config, self.replica.catalog, self._rules.acted_is_durable
            )
            self._observer.acts()
        if before is not None:
            before.end()
            self._observer.stepped_down()

    async def take_back(self, replies: Sequence[Json]) -> None:
        self._take_back(self.replica.catalog, replies)
        await self.replica.catalog.save()

    def hold_sends(self) -> None:
        self._observer.hold_sends()

    def release_sends(self) -> None:
        self._observer.release_sends()

    def slave_reports(self) -> dict[int, SlaveReport]:
        changes, config, now = self.changes, self.config, asyncio.get_running_loop().time()
        if self.leadership is None or changes is None:
            return {}
        end, reports = self._store.log.max_offset, {}
        for slave, ack in sorted(self.ha.acks().items()):
            late = self._rules.may_leave(self.ha.progress(slave), now, config.zk_sync_lag_s)
            near = ack is not None and end - ack <= config.zk_near_gap and changes.holds(slave)
            whole = ack is not None and ack >= end and changes.holds(slave)
            reports[slave] = SlaveReport(near, whole, late)
        return reports

    def step_down(self, why: str) -> None:
        """End the term as master, if there is one. Waiting requests are answered."""
        leadership, self.leadership = self.leadership, None
        changes, self.changes = self.changes, None
        if changes is not None:
            changes.end()
        if leadership is not None:
            leadership.end()
            self._sends.abandon(why)
            self._observer.stepped_down()
            self.ha.drop_all(why)

    async def close(self) -> None:
        self.ha.stop()
        await self.slave.stop()
        self.slave.close()

    def _refuse_old_epoch(self, info: ReplicaInfo) -> None:
        known = self.replica.epochs.last_epoch
        if info.epoch < known:
            self._ports.exit.fatal(
                f"the controllers elected this broker for epoch {info.epoch}, but its log "
                f"already has epoch {known}: was their data wiped? Clean the stores as well and "
                "start nameservers and clients again, or bring the controllers' data back"
            )

    def _leadership_context(self) -> LeadershipContext:
        return LeadershipContext(
            self.config,
            self._rules,
            self.replica,
            self.ha,
            self._sends,
            self.link.authority,
            self._events,
            on_info=self.link.notice,
            holds_metadata=lambda slave: self.changes is None or self.changes.holds(slave),
            may_serve_sends=self.may_serve_sends,
            on_serving=self._observer.role_changed,
        )

    def _begin_changes(self, epoch: int) -> None:
        """Start this term's metadata changes. Changes of a term that ends with it are settled."""
        before = self.changes
        self.changes = MetadataChanges(
            self.config,
            self.replica.catalog,
            epoch,
            self._electable,
            self.progressed,
            self._rules.change_is_held,
        )
        if before is not None:
            self.changes.addresses |= before.addresses  # slaves do not connect again
            before.end()
        self.changes.on_topics = self._observer.topics_changed

    def _electable(self) -> tuple[int, ...] | None:
        """Return the slaves that may be elected next, None while too few are in sync."""
        if self.leadership is None or not self.leadership.admits():
            return None
        return self._rules.counted_members(self.leadership.state)


async def _refuse_vote(connection: FrameConnection, fields: Json) -> Json:
    """Refuse a broker whose set was converted to raft-log, or back, before this one noticed."""
    return refusal(Status.INVALID_REPLICAS, "this broker's set does not elect by votes")


class OwnLease:
    """The lease of this process as a master, by its monotonic clock (`controllers.master_lease`).

    `needed`: whether a master needs one; `lasts`: the rule, of now and the end of the last lease.
    """

    def __init__(self, needed: bool, lasts: Callable[[float, float], bool]) -> None:
        self._needed, self._rule = needed, lasts
        self._epoch, self._until = 0, 0.0
        self._counts_from = 0.0

    def grant(self, epoch: int, own_s: float, sent_at: float) -> None:
        """Take a lease for an epoch, which came with the answer to a heartbeat sent then."""
        if sent_at < self._counts_from or epoch < self._epoch:
            return
        if epoch > self._epoch:
            self._epoch, self._until = epoch, 0.0
        self._until = max(self._until, sent_at + own_s)

    def renounce(self, now: float) -> None:
        """End the lease: another broker is about to be elected in a handover."""
        self._until, self._counts_from = 0.0, now

    def lasts(self, epoch: int, now: float) -> bool:
        """Return whether a master of this epoch may serve sends."""
        if not self._needed:
            return True
        return self._rule(now, self._until if epoch == self._epoch else 0.0)


def describe(role: BrokerRole, now: float) -> Json:
    """Return what DESCRIBE answers: a read-only view for operators and checkers."""
    return {
        "node": role.config.node,
        "brokerName": role.config.broker_name,
        "controllerBrokerId": role.link.id,
        **_describe_role(role),
        **(_describe_mode(role.config) if role.config.convertible else {}),
        **_describe_log(role.replica),
        "connected": role.slave.state,
        "needsOperator": role.slave.halted or role.link.halted or None,
        "slaves": {
            str(i): _describe_slave(role.replica, link, now)
            for i, link in sorted(role.ha.links.items())
        },
        "queues": {
            f"{topic.decode()}-{queue}": [q.base, q.visible_end]
            for (topic, queue), q in sorted(role.replica.store.queues().items())
        },
    }


def _describe_role(role: BrokerRole) -> Json:
    info, leadership = role.link.info, role.leadership
    if leadership is not None and leadership.serves:
        own = {"role": "master", "brokerId": 0, "synchronizing": leadership.synchronizing}
        members, set_epoch = leadership.members(), leadership.state.epoch
    else:
        follows = info.master_id not in (None, role.link.id)
        own = {"role": "slave" if follows else "fenced", "synchronizing": False}
        own["brokerId"] = role.link.id
        own |= {"acting": True} if role.acting else {}
        members, set_epoch = info.members, info.set_epoch
    return {
        **own,
        "masterId": info.master_id,
        "masterEpoch": info.epoch,
        "set": list(members),
        "setEpoch": set_epoch,
    }


def _describe_mode(config: Config) -> Json:
    return {"haMode": config.ha_mode, "generation": config.generation}


def _describe_log(replica: Replica) -> Json:
    store = replica.store
    return {
        "epochs": [list(entry) for entry in replica.epochs.entries],
        "minOffset": store.log.min_offset,
        "maxOffset": store.log.max_offset,
        "confirmOffset": store.confirm_offset,
        "flushedOffset": store.log.flushed,
        "dispatchedOffset": store.index.dispatched,
        "metadataVersion": list(replica.catalog.version),
    }


def _describe_slave(replica: Replica, link: SlaveLink, now: float) -> Json:
    ack, caught_up_at = link.progress.ack, link.progress.caught_up_at
    return {
        "ack": ack,
        "learner": link.learner,
        "gap": None if ack is None else replica.store.log.max_offset - ack,
        "bytesPerSecond": round(link.rate.value(now)),
        "caughtUpAgoS": None if caught_up_at is None else round(now - caught_up_at, 3),
    }
