"""The controller: it keeps who is master of each broker set, agreed on by Raft (spec 4, 5.1).

Every controller takes heartbeats and watches the brokers' connections, so that the next leader
knows who is alive. Only the leader decides: requests pass through the docket one at a time, reads
among them, and are answered from memory while the leader surely leads.

What makes the leader look for a new master: a broker's process is gone or silent; a broker comes
back to a set that has none; this controller has become leader; and a scan, for ever, in case that
the first attempt failed. A broker that may have missed news gets the present ReplicaInfo: every
living member after an election and after a change of leader, one broker when it is heard again.
"""

import asyncio
from collections.abc import Callable

from . import net
from .config import Config
from .controller_requests import DECISIONS, Decision, Scene, replace_master
from .controller_state import (
    AlterSyncStateSet,
    ElectMaster,
    Event,
    State,
    apply,
    decode,
)
from .docket import Docket
from .doorbell import Doorbell
from .elect import Candidate, Standing
from .events import EventLog
from .liveness import Heartbeat, Key, Liveness
from .net import Connection, JsonHandler, Silent, Tasks, Unreachable, dial, refusal
from .ports import Ports
from .raft.core import Role, Timing
from .raft.core import State as RaftState
from .raft.messages import Entry
from .raft.node import Hooks, Member, NotLeader, RaftNode
from .raft.wal import WalDamaged
from .rules import Rules
from .wire import Json, Op, Status, to_json


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
        self._liveness = Liveness(config.heartbeat_timeout_s, rules.heartbeat_expired)
        self._doorbell = Doorbell(self._tasks, 3 * config.broker_heartbeat_interval_s)
        self._docket = Docket(
            self._leads, self._propose, self._not_leader, config.raft_write_timeout_s
        )
        self._state: State = {}
        self._raft: RaftNode | None = None
        self._role = Role(RaftState.FOLLOWER, 0, None)
        self._recovered_index = 0
        self._connections: dict[Connection, int] = {}  # those with heartbeats, numbered
        self._next_connection = 1
        self._replacing: dict[str, None] = {}
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self.handler = JsonHandler(
            {
                **{op: self._decide_by(op) for op in DECISIONS},
                Op.BROKER_HEARTBEAT: self._heartbeat,
                Op.CONTROLLER_METADATA: self._metadata,
                Op.DESCRIBE: self._describe,
                Op.PING: self._ping,
            },
            other=self._raft_frame,
            on_closed=self._closed,
        )

    async def start(self) -> None:
        config = self._config
        member = Member(
            config.controller_id,
            config.controller_peers,
            Timing(config.raft_heartbeat_s, config.raft_election_timeout_s),
            config.store,
        )
        hooks = Hooks(self._apply, self._on_role, self._on_leading)
        try:
            self._raft, recovered = await RaftNode.start(member, hooks, self._ports, self._rules)
        except WalDamaged as e:
            self._events.write("fatal", why=str(e))
            self._ports.exit.fatal(f"{config.store}: {e}")
        self._recovered_index = len(recovered.entries)
        self._events.write(
            "recover", term=recovered.vote.term, last=self._recovered_index, cut=recovered.cut
        )
        self._every(config.scan_not_active_broker_s, self._look_for_late)
        self._every(config.scan_inactive_master_s, self._look_for_headless)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._docket.shut()
        self._tasks.cancel()
        for connection in list(self.handler.connections):
            connection.abort()
        if self._raft:
            await self._raft.close()

    # Raft

    def _leads(self) -> bool:
        return self._raft is not None and self._raft.leads

    def _propose(self, data: bytes) -> "asyncio.Future[None]":
        if self._raft is None:
            raise NotLeader
        return self._raft.propose(data)

    def _raft_frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op != Op.RAFT:
            raise ValueError(f"an unknown operation {op}")
        if self._raft:
            self._raft.receive(connection, body)

    def _on_role(self, role: Role) -> None:
        self._role = role
        self._docket.shut()  # a new leader opens it when everything committed is applied
        self._liveness.leading_since(None)
        self._events.write("raft", term=role.term, state=role.state.value, leader=role.leader)

    def _on_leading(self, term: int) -> None:
        self._liveness.leading_since(self._loop.time())
        self._docket.open()
        for name in self._state:
            self._notify_all(name)
        self._look_for_late()
        self._look_for_headless()

    def _apply(self, index: int, entry: Entry) -> None:
        """An entry is committed. The leader tells what is news, not what its disk remembered."""
        leads = self._role.state is RaftState.LEADER
        news = leads and (index > self._recovered_index or entry.term == self._role.term)
        for event in decode(entry.data):
            before, self._state = self._state, apply(self._state, event)
            if news:
                self._announce(before, event)

    def _announce(self, before: State, event: Event) -> None:
        row = self._state.get(event.name)
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
                )
                self._notify_all(event.name)
            case AlterSyncStateSet():
                self._events.write(
                    "set", brokerName=event.name, set=list(row.sync_set), setEpoch=row.set_epoch
                )

    # requests

    def _decide_by(self, op: Op) -> Callable[[Connection, Json], "asyncio.Future[Json]"]:
        decide = DECISIONS[op]

        def serve(connection: Connection, fields: Json) -> "asyncio.Future[Json]":
            return self._submit(lambda: decide(self._scene(), fields))

        return serve

    def _submit(self, decide: Callable[[], Decision]) -> "asyncio.Future[Json]":
        if self._leads():
            return self._docket.submit(decide)
        answer: asyncio.Future[Json] = self._loop.create_future()
        answer.set_result(self._not_leader())
        return answer

    def _scene(self) -> Scene:
        return Scene(self._state, self._candidate, self._rules, self._config.elect_unclean_master)

    def _candidate(self, name: str, broker_id: int) -> Candidate:
        return self._liveness.candidate(name, broker_id, self._loop.time())

    def _not_leader(self) -> Json:
        leader = self._role.leader
        leader_addr = self._config.controller_peers.get(leader) if leader else None
        remark = f"this controller does not lead; {leader or 'nobody known'} does"
        return refusal(Status.NOT_LEADER, remark) | {"leaderAddr": leader_addr}

    async def _metadata(self, connection: Connection, fields: Json) -> Json:
        leader = self._role.leader
        return {
            "leaderId": leader,
            "leaderAddr": self._config.controller_peers.get(leader) if leader else None,
            "isLeader": self._leads(),
            "peers": self._config.controller_peers,
        }

    async def _describe(self, connection: Connection, fields: Json) -> Json:
        scene, state = self._scene(), self._role.state
        candidate = state in (RaftState.CANDIDATE, RaftState.PRE_CANDIDATE)
        return {
            "role": "controller",
            "node": self._config.node,
            "id": self._config.controller_id,
            "term": self._raft.raft.term if self._raft else 0,
            "state": "candidate" if candidate else state.value,
            "leaderId": self._role.leader,
            "commitIndex": self._raft.raft.commit if self._raft else 0,
            "lastIndex": self._raft.raft.log.last_index if self._raft else 0,
            "sets": {name: scene.info(name) for name in self._state},
        }

    async def _ping(self, connection: Connection, fields: Json) -> Json:
        return {}

    # who is alive

    async def _heartbeat(self, connection: Connection, fields: Json) -> Json:
        heartbeat = Heartbeat(
            (str(fields["brokerName"]), int(fields["brokerId"])),
            str(fields["addr"]),
            float(fields["timeoutMs"]) / 1000,
            int(fields["epoch"]),
            int(fields["maxOffset"]),
            int(fields["confirmOffset"]),
            int(fields["priority"]),
        )
        number = self._number(connection)
        if self._liveness.heard(heartbeat, number, self._loop.time()):
            self._welcome(heartbeat)
        return {}

    def _number(self, connection: Connection) -> int:
        if connection not in self._connections:
            self._connections[connection] = self._next_connection
            self._next_connection += 1
        return self._connections[connection]

    def _welcome(self, heartbeat: Heartbeat) -> None:
        """A broker is heard, for the first time or again: it may be needed, or behind."""
        name, _ = heartbeat.key
        row = self._state.get(name)
        if row is None or not self._leads():
            return
        self._replace_if_needed(name, "returned")
        if row.master_id is not None:
            self._notify(heartbeat.addr, name)

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
            gone=lambda: self._gone(key, "closed"),
        )

    def _gone(self, key: Key, why: str) -> None:
        name, broker_id = key
        if not self._liveness.gone(key):
            return
        if self._leads():
            self._events.write("expired", brokerName=name, brokerId=broker_id, why=why)
        self._replace_if_needed(name, why)

    def _look_for_late(self) -> None:
        """After a pause of this process itself, heartbeats may wait unread: look twice."""
        suspects = self._liveness.late(self._loop.time())
        if suspects:
            delay_s = self._config.broker_heartbeat_interval_s / 10
            self._loop.call_later(delay_s, self._expire, suspects)

    def _expire(self, suspects: list[Key]) -> None:
        late = self._liveness.late(self._loop.time())
        for key in suspects:
            if key in late:
                self._gone(key, "expired")

    # elections

    def _look_for_headless(self) -> None:
        for name in self._state:
            self._replace_if_needed(name, "scan")

    def _replace_if_needed(self, name: str, trigger: str) -> None:
        """Start the controllers' own election for a set, unless one is in line already."""
        row = self._state.get(name)
        if row is None or name in self._replacing or not self._leads():
            return
        master = row.master_id
        standing = None if master is None else self._candidate(name, master).standing
        if self._rules.needs_election(row.master_epoch, standing):
            self._replacing[name] = None
            answer = self._submit(lambda: replace_master(self._scene(), name, trigger))
            answer.add_done_callback(lambda _: self._replacing.pop(name))

    def _notify_all(self, name: str) -> None:
        for broker_id, member in self._state[name].members.items():
            if self._candidate(name, broker_id).standing is Standing.ALIVE:
                self._notify(member.addr, name)

    def _notify(self, addr: str, name: str) -> None:
        if self._config.notify_role_changed:
            self._tasks.start(self._tell(addr, to_json(self._scene().info(name))))

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
