"""The controller: it keeps who is master of each broker set, agreed on by Raft (spec 4, 5.1).

Every controller takes heartbeats and watches the brokers' connections, so that the next leader
knows who is alive. Only the leader answers. What is agreed on and how is the matter of two
flavours, `dledger` and `jraft`, over one state machine (`agreed`).

What makes the leader look for a new master: a broker's process is gone or silent; a broker comes
back to a set that has none; this controller has become leader; and a scan, for ever, in case that
the first attempt failed. A broker that may have missed news gets the present ReplicaInfo: every
living member after an election and after a change of leader, one broker when it is heard again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..broker.tuning import Tuning
from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import Connection, JsonHandler, Silent, Tasks, Unreachable, dial, refusal
from ..net.peer_liveness import Doorbell
from ..net.wire import Json, Op, Senseless, Status, to_json
from ..raft.core import RaftTiming
from ..raft.effects import RaftState as RaftState
from ..raft.effects import Role
from ..raft.membership import Configuration
from ..raft.messages import LogEntry
from ..raft.node import Hooks, NotLeader, RaftConfig, RaftNode
from ..raft.storage import StorageDamaged
from ..rules import Rules
from ..world.ports import Ports
from . import controller_snapshot
from .consensus import ConsensusMode, ModeContext
from .controller_members import change_controllers, members_fields
from .controller_requests import DECISIONS
from .controller_state import AlterSyncStateSet, BrokerSets, CleanBrokerData, ElectMaster, Event
from .dledger import Dledger
from .elect import BrokerLiveness
from .handover import HandoverCoordinator, HandoverPlan, plan_handover
from .jraft import Jraft
from .liveness import Heartbeat, Key, LocalLiveness
from .state_machine import LeaderSettings, ReplicatedState, apply_entry


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
        self._doorbell = Doorbell(self._tasks, 3 * config.broker_heartbeat_interval_s)
        self._agreed = ReplicatedState()
        self._flavour = self._make_flavour()
        self._raft: RaftNode | None = None
        self._role = Role(RaftState.FOLLOWER, 0, None)
        self._recovered_index = 0
        self._connections: dict[Connection, int] = {}  # those with heartbeats, numbered
        self._next_connection = 1
        self._replacing: dict[str, None] = {}
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._tuning = Tuning(config, {"drillTimeout": lambda _: None}, self._events)
        self.handler = JsonHandler(
            {
                **{op: self._answer(op) for op in DECISIONS},
                Op.BROKER_HEARTBEAT: self._heartbeat,
                Op.DRILL: self._drill,
                Op.CONTROLLER_METADATA: self._metadata,
                Op.CHANGE_CONTROLLERS: self._change_controllers,
                Op.DESCRIBE: self._describe,
                Op.PING: self._ping,
                **self._tuning.table(),
            },
            other=self._raft_frame,
            on_closed=self._closed,
            on_senseless=self._events.senseless,
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
            self._events.senseless,
        )
        try:
            self._raft, recovered = await RaftNode.start(member, hooks, self._ports, self._rules)
        except StorageDamaged as e:
            self._events.write("fatal", why=str(e))
            self._ports.exit.fatal(str(e))
        self._recovered_index = recovered.last_index
        self._events.write(
            "recover", term=recovered.vote.term, last=self._recovered_index, cut=recovered.cut
        )
        self._every(config.scan_not_active_broker_s, self._flavour.look_for_late)
        self._every(config.scan_inactive_master_s, self._look_for_headless)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._flavour.deposed()
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

    def _raft_frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op != Op.RAFT:
            raise Senseless(f"an unknown operation {op}")
        if self._raft:
            self._raft.receive(connection, body)

    def _on_role(self, role: Role) -> None:
        self._role = role
        self._flavour.deposed()
        self._events.write("raft", term=role.term, state=role.state.value, leader=role.leader)

    def _on_members(self, members: Configuration) -> None:
        self._events.write("controllers", **members_fields(members))

    def _on_leading(self, term: int) -> None:
        self._flavour.complete(self._begin_to_decide)

    def _begin_to_decide(self) -> None:
        for name in self._agreed.sets:
            self._notify_all(name)
        self._flavour.look_for_late()
        self._look_for_headless()

    def _apply(self, index: int, entry: LogEntry) -> Json:
        """An entry is committed. The leader tells what is news, not what its disk remembered."""
        leads = self._role.state is RaftState.LEADER
        taken, before = apply_entry(self._agreed, entry.data, self._rules), self._agreed.sets
        self._agreed = taken.agreed
        if leads and (index > self._recovered_index or entry.term == self._role.term):
            for event in taken.events:
                self._announce(before, event)
            self._flavour.took(taken)
        return taken.reply

    def _snapshot(self) -> bytes:
        return controller_snapshot.pack(self._agreed, self._rules.set_in_snapshot)

    def _restore(self, data: bytes) -> None:
        self._agreed = controller_snapshot.unpack(data)

    def _announce(self, before: BrokerSets, event: Event) -> None:
        if not isinstance(event, ElectMaster | AlterSyncStateSet | CleanBrokerData):
            return
        row = self._agreed.sets.get(event.name)
        if row is None:
            return
        match event:
            case ElectMaster():
                self._events.write(
                    "election",
                    brokerName=event.name,
                    masterId=row.master_id,
                    epoch=row.master_epoch,
                    set=list(row.sync_set),
                    trigger=event.trigger,
                    previousSet=list(before[event.name].sync_set),
                    unclean=self._config.elect_unclean_master,
                )
                self._notify_all(event.name)
            case AlterSyncStateSet():
                self._events.write(
                    "set", brokerName=event.name, set=list(row.sync_set), setEpoch=row.set_epoch
                )
            case CleanBrokerData():
                gone = before[event.name].members.keys() - row.members.keys()
                self._events.write("cleaned", brokerName=event.name, brokerIds=sorted(gone))

    # requests

    def _make_flavour(self) -> ConsensusMode:
        config = self._config
        ground = ModeContext(
            self._rules,
            LeaderSettings(
                config.elect_unclean_master, config.elect_policy, config.heartbeat_timeout_s
            ),
            config.raft_write_timeout_s,
            config.broker_heartbeat_interval_s / 10,
            self._liveness,
            lambda: self._agreed,
            self._leads,
            self._propose,
            self._read,
            self._not_leader,
            self._welcome,
            self._lost,
        )
        return Jraft(ground) if config.controller_type == "jraft" else Dledger(ground)

    def _answer(self, op: Op) -> Callable[[Connection, Json], Awaitable[Json]]:
        return lambda connection, fields: self._flavour.submit(op, fields)

    async def _drill(self, connection: Connection, fields: Json) -> Json:
        if not self._leads():
            return self._not_leader()
        wanted = plan_handover(self._flavour.scene(), fields)
        if not isinstance(wanted, HandoverPlan):
            return wanted
        config = self._tuning.config
        drill = HandoverCoordinator(
            config.drill_timeout_s, config.controller_rpc_timeout_s, self._flavour.submit
        )
        return await drill.carry_out(wanted)

    def _not_leader(self) -> Json:
        leader = self._role.leader
        remark = f"this controller does not lead; {leader or 'nobody known'} does"
        return refusal(Status.NOT_LEADER, remark) | {"leaderAddr": self._leader_addr()}

    def _leader_addr(self) -> str | None:
        return self._members().addresses.get(self._role.leader or "")

    def _members(self) -> Configuration:
        return self._raft.members if self._raft else Configuration()

    async def _change_controllers(self, connection: Connection, fields: Json) -> Json:
        if self._raft is None:
            return self._not_leader()
        timeout_s = self._config.raft_write_timeout_s
        return await change_controllers(self._raft, fields, timeout_s, self._not_leader)

    async def _metadata(self, connection: Connection, fields: Json) -> Json:
        members = self._members()
        return {
            "leaderId": self._role.leader,
            "leaderAddr": self._leader_addr(),
            "isLeader": self._leads(),
            "peers": dict(members.voters),
            "learners": dict(members.learners),
        }

    async def _describe(self, connection: Connection, fields: Json) -> Json:
        scene, state = self._flavour.scene(), self._role.state
        candidate = state in (RaftState.CANDIDATE, RaftState.PRE_CANDIDATE)
        return {
            "role": "controller",
            "node": self._config.node,
            "id": self._config.controller_id,
            "term": self._raft.raft.term if self._raft else 0,
            "state": "candidate" if candidate else state.value,
            "leaderId": self._role.leader,
            "commitIndex": self._raft.raft.commit if self._raft else 0,
            "firstIndex": self._raft.raft.log.base.index + 1 if self._raft else 0,
            "lastIndex": self._raft.raft.log.last_index if self._raft else 0,
            "sets": {name: scene.info(name) for name in self._agreed.sets if scene.known(name)},
        }

    async def _ping(self, connection: Connection, fields: Json) -> Json:
        return {}

    # who is alive

    async def _heartbeat(self, connection: Connection, fields: Json) -> Json:
        self._flavour.heard(Heartbeat.of(fields), self._number(connection))
        if self._raft is None:
            return {}
        index, members = self._raft.agreed_members
        return {"controllers": sorted(members.addresses.values()), "asOf": index}

    def _number(self, connection: Connection) -> int:
        if connection not in self._connections:
            self._connections[connection] = self._next_connection
            self._next_connection += 1
        return self._connections[connection]

    def _welcome(self, keys: Sequence[Key]) -> None:
        """Brokers are heard, for the first time or again: they may be needed, or behind."""
        for name, broker_id in keys:
            row = self._agreed.sets.get(name)
            if row is None or not self._leads():
                continue
            self._replace_if_needed(name, "returned")
            if row.master_id is not None and broker_id in row.members:
                self._notify(row.members[broker_id].addr, name)

    def _closed(self, connection: Connection, why: str) -> None:
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
        self._doorbell.ring(
            addr,
            cares=lambda: key in self._liveness.by_connection(number),
            gone=lambda: self._flavour.gone(key, "closed"),
        )

    def _lost(self, keys: Sequence[Key], why: str) -> None:
        """These brokers are dead, as we have just learned."""
        for name, broker_id in keys:
            if self._leads():
                self._events.write("expired", brokerName=name, brokerId=broker_id, why=why)
            self._replace_if_needed(name, why)

    # elections

    def _look_for_headless(self) -> None:
        for name in self._rules.look_again(tuple(self._agreed.sets)):
            self._replace_if_needed(name, "scan")

    def _replace_if_needed(self, name: str, trigger: str) -> None:
        """Start the controllers' own election for a set, unless one is in line already."""
        row = self._agreed.sets.get(name)
        if row is None or name in self._replacing or not self._leads():
            return
        master = row.master_id
        standing = None if master is None else self._flavour.scene().standing(name, master)
        if self._rules.needs_election(row.reigns, standing):
            self._replacing[name] = None
            self._tasks.start(self._replace(name, trigger))

    async def _replace(self, name: str, trigger: str) -> None:
        try:
            await self._flavour.replace(name, trigger)
        finally:
            self._replacing.pop(name)

    def _notify_all(self, name: str) -> None:
        scene = self._flavour.scene()
        for broker_id, member in self._agreed.sets[name].members.items():
            if scene.standing(name, broker_id) is BrokerLiveness.ALIVE:
                self._notify(member.addr, name)

    def _notify(self, addr: str, name: str) -> None:
        if self._config.notify_role_changed:
            self._tasks.start(self._tell(addr, to_json(self._flavour.scene().info(name))))

    async def _tell(self, addr: str, info: bytes) -> None:
        """By a fresh connection: one kept from before a partition may take long to notice."""
        try:
            connection = await dial(addr, Silent(), self._config.controller_rpc_timeout_s)
        except Unreachable:
            return  # the broker asks from time to time
        connection.tell(Op.NOTIFY_ROLE, info)
        connection.close()

    def _every(self, period_s: float, work: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers[work] = self._loop.call_later(period_s, fire)
            work()

        self._timers[work] = self._loop.call_later(period_s, fire)
