"""The controller: keeps the master of each broker set, agreed on by Raft (RIP-44).

Every controller receives heartbeats and watches the brokers' connections, so that the next leader
knows which brokers are alive. Only the leader answers. What is agreed on and how depends on the
mode, `dledger` or `jraft`, over one state machine (see `state_machine`).

The leader looks for a new master when a broker's process is gone or silent, when a broker returns
to a set without a master, when it has become the leader, and in a periodic scan, in case that an
earlier attempt failed. A broker that may have missed news receives the present ReplicaInfo: every
living member after an election and after a change of leader, and a single broker when it is heard
again.

The controllers themselves change one at a time (thesis 4; see raft/membership):

    CHANGE_CONTROLLERS   add: {id: "ip:port"} or remove: id -> voters, learners

The leader answers when the change is committed. A new controller is a learner then, and the leader
makes it a voter when it holds everything, which CONTROLLER_METADATA shows. A repeated request is a
success, so a caller without an answer may ask again. `controllerDLegerPeers` is the first
configuration only. A controller that is to join is started with an empty one and waits; one that
was removed may be stopped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..broker.config_handler import ConfigHandler
from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import (
    CallTimeout,
    ConnectionLost,
    FrameConnection,
    JsonHandler,
    RejectingHandler,
    Tasks,
    Unreachable,
    dial,
    refusal,
)
from ..net.peer_liveness import PeerLiveness
from ..net.schemas import is_address, is_text
from ..net.wire import Json, Op, ProtocolError, Status, from_json, to_json
from ..raft.core import RaftTiming
from ..raft.effects import RaftState as RaftState
from ..raft.effects import Role
from ..raft.membership import Add, Change, ChangeMustWait, ChangeRefused, Configuration, Remove
from ..raft.messages import LogEntry
from ..raft.node import Hooks, Indeterminate, NotLeader, RaftConfig, RaftNode
from ..rules import Rules
from ..world.choices import delay
from ..world.ports import Ports
from .consensus import ConsensusMode, ControllerAccess, majority_timeout
from .controller_requests import DECISIONS, HandoverPlan, plan_handover
from .controller_state import (
    AlterSyncStateSet,
    BrokerSets,
    CleanBrokerData,
    ConvertSet,
    ElectMaster,
    Event,
)
from .dledger import Dledger
from .elect import BrokerStatus
from .jraft import Jraft
from .liveness import Heartbeat, Key, LocalLiveness
from .master_lease import GrantedLeases
from .preferred import PreferenceWatch, preferred_broker
from .registers import PutValue
from .state_machine import LeaderSettings, ReplicatedState, apply_entry
from .zones import NAMESPACE as CLOSED_ZONES
from .zones import closed_zones

MAX_NAME_BYTES = 255  # Raft's messages have one byte for the length of a name


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    controller = Controller(config, ports, rules)
    server = await net.serve(config.host, config.port, controller.handler)
    try:
        await controller.start()
        ready(config.address)
        await asyncio.get_running_loop().create_future()
    finally:
        server.close()
        await controller.close()


class Controller:
    def __init__(self, config: Config, ports: Ports, rules: Rules) -> None:
        self._config, self._ports, self._rules = config, ports, rules
        self._loop = asyncio.get_running_loop()
        self._events = EventLog(config.event_log, config.node, ports)
        self._tasks = Tasks()
        self._liveness = LocalLiveness(config.heartbeat_timeout_s, rules.heartbeat_expired)
        self._doorbell = PeerLiveness(self._tasks, 3 * config.broker_heartbeat_interval_s)
        self._state = ReplicatedState()
        self._mode = self._make_mode()
        self._raft: RaftNode | None = None
        self._role = Role(RaftState.FOLLOWER, 0, None)
        self._recovered_index = 0
        self._connections: dict[FrameConnection, int] = {}  # numbered, if heartbeats arrived
        self._next_connection = 1
        self._replacing: dict[str, None] = {}
        self._emptying = asyncio.Lock()  # closed zones
        self._leases = GrantedLeases(config.controller_lease_s, rules.may_elect_after_lease)
        self._preference = PreferenceWatch(
            config.preferred_stable_s, config.preferred_pause_s, rules.may_return
        )
        self._lease_ends: dict[str, asyncio.TimerHandle] = {}
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._tuning = ConfigHandler(config, {"drillTimeout": lambda _: None}, self._events)
        self.handler = JsonHandler(
            {
                **{op: self._answer(op) for op in DECISIONS},
                Op.BROKER_HEARTBEAT: self._heartbeat,
                Op.DRILL: self._hand_over,
                Op.DRILL_ZONE: self._drill_zone,
                Op.CONTROLLER_METADATA: self._metadata,
                Op.CHANGE_CONTROLLERS: self._change_controllers,
                Op.DESCRIBE: self._describe,
                Op.PING: self._ping,
                **self._tuning.table(),
            },
            other=self._raft_frame,
            on_closed=self._closed,
            on_protocol_error=self._events.protocol_error,
        )

    async def start(self) -> None:
        config = self._config
        member = RaftConfig(
            config.controller_id,
            config.controller_peers,
            RaftTiming(config.raft_heartbeat_s, config.raft_election_timeout_s),
            config.store,
            config.raft_snapshot_entries,
        )
        hooks = Hooks(
            self._apply,
            self._snapshot,
            self._restore,
            self._on_role,
            self._on_leading,
            self._on_members,
            self._events.protocol_error,
        )
        self._raft, recovered = await RaftNode.start_recorded(
            member, hooks, self._ports, self._rules, self._events
        )
        self._recovered_index = recovered.last_index
        self._every(config.scan_not_active_broker_s, self._mode.check_heartbeats)
        self._every(config.scan_inactive_master_s, self._scan_masters)
        if config.preferred_masters:
            self._every(config.scan_inactive_master_s, self._return_masters)

    async def close(self) -> None:
        for timer in [*self._timers.values(), *self._lease_ends.values()]:
            timer.cancel()
        self._mode.on_deposed()
        self._tasks.cancel()
        for connection in list(self.handler.connections):
            connection.abort()
        if self._raft:
            await self._raft.close()

    # Raft

    def _leads(self) -> bool:
        return self._raft is not None and self._raft.leads

    def _propose(self, data: bytes) -> "asyncio.Future[Any]":
        if self._raft is None:
            raise NotLeader
        return self._raft.propose(data)

    def _read(self) -> Awaitable[None]:
        if self._raft is None:
            raise NotLeader
        return self._raft.read()

    def _raft_frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op != Op.RAFT:
            raise ProtocolError(f"an unknown operation {op}")
        if self._raft:
            self._raft.receive(connection, body)

    def _on_role(self, role: Role) -> None:
        self._role = role
        self._mode.on_deposed()
        self._leases.on_deposed()
        self._events.write("raft", term=role.term, state=role.state.value, leader=role.leader)

    def _on_members(self, members: Configuration) -> None:
        self._events.write("controllers", **_members_fields(members))

    def _on_leading(self, term: int) -> None:
        self._mode.on_leading(self._start_deciding)

    def _start_deciding(self) -> None:
        self._leases.on_leading(self._loop.time())
        self._preference.on_leading(self._loop.time())
        for name in self._state.sets:
            self._notify_all(name)
        self._mode.check_heartbeats()
        self._scan_masters()

    def _apply(self, index: int, entry: LogEntry) -> Json:
        """Apply a committed entry. The leader reports it, unless it was on its disk at the
        start."""
        leads = self._role.state is RaftState.LEADER
        result, before = apply_entry(self._state, entry.data, self._rules), self._state.sets
        self._state = result.state
        if leads and (index > self._recovered_index or entry.term == self._role.term):
            for event in result.events:
                self._report(before, event)
            self._mode.on_applied(result)
        return result.reply

    def _snapshot(self) -> bytes:
        rules = self._rules
        return self._state.pack(rules.set_in_snapshot, rules.registers_in_snapshot)

    def _restore(self, data: bytes) -> None:
        self._state = ReplicatedState.unpack(data)

    def _report(self, before: BrokerSets, event: Event) -> None:
        if isinstance(event, PutValue) and event.namespace == CLOSED_ZONES:
            self._events.write("zone", zone=event.key, closed=event.value is not None)
        kinds = ElectMaster | AlterSyncStateSet | CleanBrokerData | ConvertSet
        if not isinstance(event, kinds):
            return
        row = self._state.sets.get(event.name)
        if row is None:
            return
        match event:
            case ElectMaster():
                zone = self._mode.context().candidate(event.name, row.master_id or 0).zone
                self._events.write(
                    "election",
                    brokerName=event.name,
                    masterId=row.master_id,
                    epoch=row.master_epoch,
                    set=list(row.sync_set),
                    trigger=event.trigger,
                    previousSet=list(before[event.name].sync_set),
                    unclean=self._config.elect_unclean_master,
                    **({"zone": zone} if zone else {}),
                )
                self._notify_all(event.name)
            case AlterSyncStateSet():
                self._events.write(
                    "set", brokerName=event.name, set=list(row.sync_set), setEpoch=row.set_epoch
                )
            case ConvertSet():
                self._events.write(
                    "conversion",
                    brokerName=event.name,
                    mode=event.mode,
                    generation=event.generation,
                    masterId=event.master,
                    epoch=event.epoch,
                )
            case CleanBrokerData():
                gone = before[event.name].members.keys() - row.members.keys()
                self._events.write("cleaned", brokerName=event.name, brokerIds=sorted(gone))

    # requests

    def _make_mode(self) -> ConsensusMode:
        config = self._config
        access = ControllerAccess(
            self._rules,
            LeaderSettings(
                config.elect_unclean_master, config.elect_policy, config.heartbeat_timeout_s
            ),
            config.raft_write_timeout_s,
            config.broker_heartbeat_interval_s / 10,
            self._liveness,
            lambda: self._state,
            self._leads,
            self._propose,
            self._read,
            self._not_leader,
            self._on_returned,
            self._on_lost,
        )
        return Jraft(access) if config.controller_type == "jraft" else Dledger(access)

    def _answer(self, op: Op) -> Callable[[FrameConnection, Json], Awaitable[Json]]:
        async def answer(connection: FrameConnection, fields: Json) -> Json:
            if op == Op.ELECT_MASTER:
                answered = await self._elect_master(fields)
            else:
                answered = await self._mode.submit(op, fields)
            most_s = 1.5 * self._config.controller_rpc_timeout_s
            await delay(self._ports.choices, "answer-late", most_s)
            return answered

        return answer

    async def _elect_master(self, fields: Json) -> Json:
        """Hold an election that a broker or an operator requests, unless the master has a lease."""
        row = self._state.sets.get(name := str(fields.get("brokerName")))
        if self._config.master_lease and self._leads() and row and row.master_id is not None:
            now, context = self._loop.time(), self._mode.context()
            if not self._leases.may_elect(name, now):
                lives = context.status(name, row.master_id) is not BrokerStatus.DEAD
                if lives and not fields.get("designate", False):
                    return context.info(name) | {"code": Status.MASTER_STILL_EXIST}
                left_s = self._leases.ends_at(name) - now
                why = f"the master's lease lasts for {left_s:.1f} s more"
                return refusal(Status.ELECT_MASTER_FAILED, why)
        return await self._election(name, self._mode.submit(Op.ELECT_MASTER, fields))

    async def _election(self, name: str, election: Awaitable[Json]) -> Json:
        """Hold an election, and grant no lease meanwhile, nor later if its outcome is unknown."""
        row = self._state.sets.get(name)
        in_doubt = row.master_epoch if row else 0
        self._leases.begin_election(name)
        try:
            reply = await election
            if reply.get("code", Status.SUCCESS) != Status.SYSTEM_ERROR:
                in_doubt = 0
            return reply
        finally:
            self._leases.end_election(name, in_doubt)

    async def _hand_over(self, connection: FrameConnection, fields: Json) -> Json:
        """Move the mastership of a set as planned: the controllers' part of a *drill*.

        The master is asked to hold its sends until the successor has everything. The successor is
        elected if the master is then still the one of that epoch. If anything fails, the master
        goes on: because it is asked to, or by itself when the time is over.
        """
        return await self._drill(fields)

    async def _drill(self, fields: Json, *, preferred: bool = False) -> Json:
        """`preferred`: the controllers themselves want it, not an operator."""
        if not self._leads():
            return self._not_leader()
        plan = plan_handover(self._mode.context(), fields)
        if not isinstance(plan, HandoverPlan):
            return plan
        rpc_timeout_s, timeout_s = (
            self._config.controller_rpc_timeout_s,
            self._tuning.config.drill_timeout_s,
        )
        return await self._election(
            plan.name, self._hand_over_to(plan, rpc_timeout_s, timeout_s, preferred)
        )

    async def _drill_zone(self, connection: FrameConnection, fields: Json) -> Json:
        """Close a zone for masters, and hand over those in it, one after the other."""
        reply = await self._mode.submit(Op.DRILL_ZONE, fields)
        if reply.get("code", Status.SUCCESS) != Status.SUCCESS:
            return reply
        before = {name: row.master_id for name, row in self._state.sets.items()}
        left = await self._empty_closed_zones()
        context = self._mode.context()
        moved = [n for n, master in before.items() if self._state.sets[n].master_id != master]
        return {"masters": [context.info(name) for name in moved], "left": left}

    async def _empty_closed_zones(self) -> dict[str, str]:
        """Hand over the masters in closed zones; return those that could not be, with the reason,
        by broker set."""
        left = {}
        async with self._emptying:
            for name in tuple(self._state.sets):
                context, row = self._mode.context(), self._state.sets[name]
                if row.master_id is not None and not context.may_lead(name, row.master_id):
                    reply = await self._drill({"brokerName": name, "to": None})
                    if reply.get("code", Status.SUCCESS) != Status.SUCCESS:
                        left[name] = str(reply.get("remark", ""))
        return left

    async def _hand_over_to(
        self, plan: HandoverPlan, rpc_timeout_s: float, timeout_s: float, preferred: bool
    ) -> Json:
        try:
            master = await dial(plan.address, RejectingHandler(), rpc_timeout_s)
        except Unreachable as e:
            return refusal(Status.ELECT_MASTER_FAILED, f"the master is out of reach: {e}")
        request = {"masterEpoch": plan.epoch, "to": plan.to, "timeoutMs": timeout_s * 1000}
        try:
            call = master.call(Op.HAND_OVER, to_json(request), timeout_s + rpc_timeout_s)
            ready = from_json(await call)
            if ready["code"] != Status.SUCCESS:
                return refusal(Status.ELECT_MASTER_FAILED, str(ready["remark"]))
            election = {
                "brokerName": plan.name,
                "brokerId": plan.to,
                "designate": True,
                "masterEpoch": plan.epoch,
                **({"preferred": True} if preferred else {}),
            }
            elected = await self._mode.submit(Op.ELECT_MASTER, election)
            if elected.get("code", Status.SUCCESS) != Status.SUCCESS:
                master.send_oneway(Op.RESUME, to_json({"masterEpoch": plan.epoch}))
            return elected
        except (ConnectionLost, CallTimeout) as e:
            return refusal(Status.ELECT_MASTER_FAILED, f"the master does not answer: {e}")
        finally:
            master.close()

    def _not_leader(self) -> Json:
        leader = self._role.leader
        remark = f"this controller does not lead; the leader is {leader or 'not known'}"
        return refusal(Status.NOT_LEADER, remark) | {"leaderAddr": self._leader_addr()}

    def _leader_addr(self) -> str | None:
        return self._members().addresses.get(self._role.leader or "")

    def _members(self) -> Configuration:
        return self._raft.members if self._raft else Configuration()

    async def _change_controllers(self, connection: FrameConnection, fields: Json) -> Json:
        """Raises Senseless if the request is malformed."""
        if self._raft is None:
            return self._not_leader()
        try:
            async with asyncio.timeout(self._config.raft_write_timeout_s):
                await self._raft.change(_change_of(fields))
        except ChangeRefused as e:
            return refusal(Status.INVALID_REQUEST, str(e))
        except ChangeMustWait as e:
            return refusal(Status.SYSTEM_BUSY, f"not tried: {e}")
        except NotLeader:
            return self._not_leader()
        except Indeterminate:
            return refusal(Status.SYSTEM_ERROR, "leadership was lost: the outcome is unknown")
        except TimeoutError:
            return majority_timeout()
        return _members_fields(self._raft.members)

    async def _metadata(self, connection: FrameConnection, fields: Json) -> Json:
        members = self._members()
        return {
            "leaderId": self._role.leader,
            "leaderAddr": self._leader_addr(),
            "isLeader": self._leads(),
            "peers": dict(members.voters),
            "learners": dict(members.learners),
        }

    async def _describe(self, connection: FrameConnection, fields: Json) -> Json:
        context, state = self._mode.context(), self._role.state
        candidate = state in (RaftState.CANDIDATE, RaftState.PRE_CANDIDATE)
        return {
            "role": "controller",
            "node": self._config.node,
            "id": self._config.controller_id,
            "controllerType": self._config.controller_type,
            "term": self._raft.raft.term if self._raft else 0,
            "state": "candidate" if candidate else state.value,
            "leaderId": self._role.leader,
            "commitIndex": self._raft.raft.commit if self._raft else 0,
            "firstIndex": self._raft.raft.log.base.index + 1 if self._raft else 0,
            "lastIndex": self._raft.raft.log.last_index if self._raft else 0,
            "sets": {
                name: context.info(name) for name in self._state.sets if context.broker_set(name)
            },
        }

    async def _ping(self, connection: FrameConnection, fields: Json) -> Json:
        return {}

    # liveness

    async def _heartbeat(self, connection: FrameConnection, fields: Json) -> Json:
        heartbeat = Heartbeat.from_fields(fields)
        self._mode.on_heartbeat(heartbeat, self._number(connection))
        if self._raft is None:
            return {}
        index, members = self._raft.committed_members
        lease = self._lease_of(heartbeat.key) if self._config.master_lease else {}
        return {"controllers": sorted(members.addresses.values()), "asOf": index, **lease}

    def _lease_of(self, key: Key) -> Json:
        """Return the lease that a broker gets with this answer, if it is a master, else {}."""
        name, broker_id = key
        row = self._state.sets.get(name)
        if row is None or row.master_id != broker_id or not self._leads():
            return {}
        if not self._leases.grant(name, row.master_epoch, self._loop.time()):
            return {}
        config = self._config
        own_s = self._rules.own_lease_s(config.controller_lease_s, config.lease_clock_margin_s)
        return {"leaseEpoch": row.master_epoch, "leaseMs": own_s * 1000}

    def _number(self, connection: FrameConnection) -> int:
        if connection not in self._connections:
            self._connections[connection] = self._next_connection
            self._next_connection += 1
        return self._connections[connection]

    def _on_returned(self, keys: Sequence[Key]) -> None:
        """Brokers are heard, for the first time or again: they may be needed, or behind."""
        for name, broker_id in keys:
            row = self._state.sets.get(name)
            if row is None or not self._leads():
                continue
            self._replace_if_needed(name, "returned")
            if row.master_id is not None and broker_id in row.members:
                self._notify(row.members[broker_id].addr, name)

    def _closed(self, connection: FrameConnection, why: str) -> None:
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)
        if self._raft:
            self._raft.forget(connection)
        number = self._connections.pop(connection, None)
        if number is None:
            return
        for key, addr in self._liveness.by_connection(number).items():
            self._watch(key, addr, number)

    def _watch(self, key: Key, addr: str, number: int) -> None:
        self._doorbell.watch(
            addr,
            cares=lambda: key in self._liveness.by_connection(number),
            gone=lambda: self._mode.on_gone(key, "closed"),
        )

    def _on_lost(self, keys: Sequence[Key], why: str) -> None:
        for name, broker_id in keys:
            if self._leads():
                self._events.write("expired", brokerName=name, brokerId=broker_id, why=why)
                row = self._state.sets.get(name)
                if why == "closed" and row is not None and row.master_id == broker_id:
                    self._leases.on_ended(name, self._loop.time())
            self._replace_if_needed(name, why)

    # elections

    def _scan_masters(self) -> None:
        for name in self._rules.sets_to_scan(tuple(self._state.sets)):
            self._replace_if_needed(name, "scan")
        closed = closed_zones(self._state.registers)
        if closed and self._leads() and not self._emptying.locked():
            self._tasks.start(self._empty_closed_zones())

    def _replace_if_needed(self, name: str, trigger: str) -> None:
        """Start the controllers' own election for a set, unless one is queued already."""
        row = self._state.sets.get(name)
        if row is None or name in self._replacing or not (self._leads() and row.elects):
            return
        master = row.master_id
        status = None if master is None else self._mode.context().status(name, master)
        if self._rules.needs_election(row.master_changes, status):
            leased = self._config.master_lease and master is not None
            if leased and not self._leases.may_elect(name, self._loop.time()):
                self._replace_after_lease(name)
                return
            self._replacing[name] = None
            self._tasks.start(self._replace(name, trigger))

    async def _replace(self, name: str, trigger: str) -> None:
        try:
            await self._election(name, self._mode.replace(name, trigger))
        finally:
            self._replacing.pop(name)

    def _return_masters(self) -> None:
        """Hand over to preferred brokers that are ready for long enough."""
        if not self._leads():
            return
        context, config = self._mode.context(), self._config
        for name in self._state.sets:
            row, wanted = context.broker_set(name), None
            if row is not None and row.master_id in row.sync_set:
                addresses = {i: member.addr for i, member in row.members.items()}
                may = [i for i in row.sync_set if i == row.master_id or context.may_lead(name, i)]
                in_set = {i: context.candidate(name, i) for i in may}
                near = config.ha_transfer_batch_size
                wanted = preferred_broker(
                    config.preferred_masters, addresses, in_set, row.master_id, near
                )
            if self._preference.begin_return(name, wanted, self._loop.time()):
                self._tasks.start(self._return_to(name, wanted))

    async def _return_to(self, name: str, broker: int | None) -> None:
        try:
            await self._drill({"brokerName": name, "to": broker}, preferred=True)
        finally:
            self._preference.end_return(name, self._loop.time())

    def _replace_after_lease(self, name: str) -> None:
        """Try again when the master's lease is over."""
        if (waiting := self._lease_ends.get(name)) is not None:
            waiting.cancel()
        soon_s = self._config.scan_inactive_master_s / 50
        wait_s = self._leases.wait_s(name, self._loop.time(), soon_s)
        self._lease_ends[name] = self._loop.call_later(
            wait_s, self._replace_if_needed, name, "lease"
        )

    def _notify_all(self, name: str) -> None:
        context = self._mode.context()
        for broker_id, member in self._state.sets[name].members.items():
            if context.status(name, broker_id) is BrokerStatus.ALIVE:
                self._notify(member.addr, name)

    def _notify(self, addr: str, name: str) -> None:
        if self._config.notify_role_changed:
            self._tasks.start(self._send_notice(addr, to_json(self._mode.context().info(name))))

    async def _send_notice(self, addr: str, info: bytes) -> None:
        """Use a new connection: one from before a partition may be dead without a sign of it."""
        most_s = self._config.sync_broker_metadata_s / 4
        await delay(self._ports.choices, "notice-late", most_s)
        try:
            connection = await dial(addr, RejectingHandler(), self._config.controller_rpc_timeout_s)
        except Unreachable:
            return  # the broker polls
        connection.send_oneway(Op.NOTIFY_ROLE, info)
        connection.close()

    def _every(self, period_s: float, work: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers[work] = self._loop.call_later(period_s, fire)
            work()

        self._timers[work] = self._loop.call_later(period_s, fire)


def _members_fields(members: Configuration) -> Json:
    return {"voters": dict(members.voters), "learners": dict(members.learners)}


def _change_of(fields: Json) -> Change:
    """Return the requested change. Raises Senseless if there is none."""
    added, removed = fields.get("add"), fields.get("remove")
    if isinstance(added, dict) and len(added) == 1 and removed is None:
        [(member, place)] = added.items()
        if not is_text(member) or not 0 < len(member.encode()) <= MAX_NAME_BYTES:
            raise ProtocolError(f"a controller's id has 1 to {MAX_NAME_BYTES} bytes")
        if not is_address(place):
            raise ProtocolError(f"a controller's address is ip:port, not {str(place)[:80]!r}")
        return Add(member, place)
    if isinstance(removed, str) and is_text(removed) and added is None:
        return Remove(removed)
    raise ProtocolError('either add: {id: "ip:port"}, one controller, or remove: its id')
