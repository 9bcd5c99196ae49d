"""A broker that obeys the state machine of its pair in ZooKeeper (`ha_machine.machine`).

The broker writes into its ephemeral node which state is in force here, and, as master, how far its
slave is. It reads the state and changes its role only by that: nothing else makes it master, or
lets it acknowledge alone, or ends a hold.

- **Disconnected is not expired.** A broker that lost its server keeps its role, and goes on in the
  state that it read last. There is no lease: in SYNC a master that was replaced gets no more
  acknowledgements, because its slave stops acknowledging before it serves; in the other states no
  other broker is elected.
- **A hold is ended by a state.** In SEMI the master holds all sends. If that takes too long, it
  writes ASYNC itself, like a controller, and goes on when it has read it.
- **A broker that is being converted keeps still.** A master that has prepared obeys no further
  state until that is over, as if it had lost ZooKeeper, so its log stays as it is; a slave that has
  promised to leave the mode obeys none that makes it master.
- **A restart must look like a death.** A node of this broker's name that another session owns is of
  an earlier process. It is removed, and the new one has another `life`.
"""

import asyncio
from dataclasses import replace

from ..config import Config
from ..events import EventLog
from ..ha_machine.machine import BrokerReport, MachineState, MachineView, Phase, hold_limit_s
from ..ha_machine.nodes import MachinePaths, ReadState, change_state, read_state, record_change
from ..net.connection import Tasks
from ..net.wire import Json, Op, from_json, to_json
from ..replication.replica import Replica
from ..rules import Rules
from ..world.ports import Ports, incarnation_of
from ..world.timers import WakeEvent
from ..zk.jute import EPHEMERAL, WatchEvent, ZkCode, ZkError
from ..zk.session import (
    ConnectionLoss,
    MultiFailed,
    SessionEnded,
    SessionState,
    ZkSession,
    serve_sessions,
)
from .steering import ReplicaInfo, RoleHandler, SetAuthority


class ZookeeperRole:
    """Decides the role of one broker; implements `steering.Steering`."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        roles: RoleHandler,
        events: EventLog,
    ) -> None:
        self.id = config.broker_id + 1
        self.registered = True
        self.halted = ""
        self.info = ReplicaInfo()
        self.authority: SetAuthority | None = MachinesSet()
        self._config, self._ports, self._rules, self._replica = config, ports, rules, replica
        self._roles, self._events = roles, events
        self._loop = asyncio.get_running_loop()
        self._paths = MachinePaths(config.cluster)
        self._life = str(incarnation_of(ports))
        self._begin = replica.epochs.last_epoch, replica.store.log.max_offset
        self._tasks = Tasks()
        self._wake = WakeEvent()
        self._session: ZkSession | None = None
        self._obeyed: MachineState | None = None
        self._read = ReadState(None, 0)
        self._stale = True
        self._announced = False
        self._reported: Json = {}
        self._held_since: float | None = None
        self._frozen = self._suspended = False

    def start(self) -> None:
        self._tasks.start(self._run())

    def close(self) -> None:
        """Stop. The node in ZooKeeper ends with the session's timeout, as after a kill."""
        self._tasks.cancel()
        if self._session:
            self._session.abandon()

    def hand_back(self) -> None:
        """Do nothing: no broker serves for an absent master here."""

    def notice(self, info: Json) -> None:
        """Do nothing: the machine is read from ZooKeeper."""

    def ask_soon(self) -> None:
        self._wake.set()

    def freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        self._look_again()

    def suspend(self, suspended: bool) -> None:
        self._suspended = suspended
        self._look_again()

    def _look_again(self) -> None:
        """Report now, and read the state."""
        self._stale = True
        self._wake.set()

    async def _run(self) -> None:
        config, randomness = self._config, self._ports.randomness
        servers, timeout_s = config.zk_servers, config.zk_session_timeout_s
        await serve_sessions(servers, timeout_s, randomness, self._state, self._serve)

    def _state(self, state: SessionState) -> None:
        self._events.write("session", state=state.value)
        self._wake.set()
        info = self.info
        members = self._rules.members_when_disconnected(info.members, self.id)
        if state is not SessionState.CONNECTED and members != info.members:
            self.info = replace(info, members=members, set_epoch=info.set_epoch + 1)
            self._roles.install_set(self.info)

    async def _serve(self, session: ZkSession) -> None:
        """Report and obey until the session ends."""
        self._session = session
        self._announced, self._stale = False, True
        while not session.ended:
            try:
                if not self._announced:
                    await self._announce(session)
                if self._stale:
                    await self._look(session)
                await self._report(session)
                await self._end_hold(session)
            except (ConnectionLoss, MultiFailed):
                self._announced, self._stale = False, True
            except ZkError as e:
                if e.code not in (ZkCode.NO_NODE, ZkCode.NODE_EXISTS, ZkCode.BAD_VERSION):
                    raise
                self._announced, self._stale = False, True
            await self._wake.wait(self._config.zk_report_interval_s)

    # the broker's own node

    async def _announce(self, session: ZkSession) -> None:
        """Make the node of this process, in place of one of an earlier process."""
        name, path = self._config.broker_name, self._own_path()
        await self._paths.create(session, name)
        await session.sync(path)
        found = await session.exists(path)
        if found is not None and found.owner != session.id:
            data, _ = await session.get(path)
            self._life = self._rules.life_of(self._life, str(from_json(data)["life"]))
            await session.delete(path)
            found = None
        report = self._report_now()
        if found is None:
            await session.create(path, to_json(report), EPHEMERAL)
        else:
            await session.set(path, to_json(report))
        self._reported, self._announced = report, True

    def _own_path(self) -> str:
        return self._paths.broker(self._config.broker_name, self.id)

    async def _report(self, session: ZkSession) -> None:
        """Write the report if it has changed."""
        report = self._report_now()
        if report != self._reported:
            await session.set(self._own_path(), to_json(report))
            self._reported = report

    def _report_now(self) -> Json:
        config, obeyed = self._config, self._obeyed
        epoch, end = self._begin
        leads = obeyed is not None and obeyed.master == self.id
        return BrokerReport(
            self._life,
            config.address,
            config.ha_address,
            config.zone,
            obeyed.seq if obeyed else 0,
            epoch,
            end,
            self._roles.slave_reports() if leads else {},
            config.generation,
            config.first_master,
            config.epoch_before,
            self._frozen or self._suspended,
        ).fields()

    # the machine

    def _changed(self, event: WatchEvent) -> None:
        self._look_again()

    async def _look(self, session: ZkSession) -> None:
        """Read the state, watch it, and obey it."""
        self._stale = False
        path = self._paths.state(self._config.broker_name)
        follows = self._obeyed is not None and self._obeyed.master != self.id
        watches = self._rules.watches_next_state(follows)
        self._read = await read_state(session, path, self._changed if watches else None)
        if self._read.state is not None:
            await self._obey(self._read.state)

    async def _obey(self, state: MachineState) -> None:
        """Put a state in force. One that names an earlier process of this broker is not for it."""
        mine = state.master == self.id
        if self._obeyed and state.seq <= self._obeyed.seq:
            return
        if mine and state.life != self._life:
            return
        if not self._rules.is_of_generation(self._config.generation, state.generation):
            return
        if self._suspended or (mine and not self._rules.may_lead(self._frozen)):
            return
        begins = self._obeyed is None or state.epoch > self.info.epoch
        self.info = ReplicaInfo(
            state.epoch,
            state.master,
            state.address,
            state.ha_address,
            tuple(sorted(state.sync)),
            state.seq,
        )
        if begins:
            self._record_role()
        if not mine:
            if begins:
                await self._roles.become_slave(self.info)
            self._roles.release_sends()  # now they are refused, and in no log
            self._held_since = None
        else:
            await self._obey_as_master(state, begins)
        self._obeyed = state

    async def _obey_as_master(self, state: MachineState, begins: bool) -> None:
        if begins:
            await self._roles.become_master(self.info)
        if state.phase is Phase.SEMI:
            self._roles.hold_sends()
            self._held_since = self._loop.time()
            self._events.write("held", seq=state.seq)
        if not begins:
            self._roles.install_set(self.info)
        if state.phase is not Phase.SEMI:
            self._release(state.seq)

    def _release(self, seq: int) -> None:
        if self._held_since is not None:
            self._events.write("released", seq=seq)
            self._held_since = None
        self._roles.release_sends()

    async def _end_hold(self, session: ZkSession) -> None:
        """Write ASYNC if SEMI has lasted too long."""
        obeyed = self._obeyed
        if obeyed is None or self._held_since is None:
            return
        limit_s = hold_limit_s(self._config.zk_hold_max_s, obeyed.holds)
        held_s = self._loop.time() - self._held_since
        if self._rules.may_release(obeyed.phase, held_s, limit_s):
            self._release(obeyed.seq)
            return
        if held_s < 2 * limit_s or self._read.state != obeyed:
            return  # the controllers end it sooner
        report = BrokerReport.of(self._report_now())
        view = MachineView(obeyed, {self.id: report}, held_too_long=True)
        wanted = self._rules.next_machine_state(view)
        if wanted is not None:
            name, version = self._config.broker_name, self._rules.counted_version
            new = await change_state(session, self._paths, name, self._read, wanted, version)
            record_change(self._events, name, obeyed, new, self._config.elect_unclean_master)

    def _record_role(self) -> None:
        info = self.info
        self._events.write(
            "role",
            role="master" if info.master_id == self.id else "slave",
            brokerName=self._config.broker_name,
            brokerId=self.id,
            masterId=info.master_id,
            masterAddr=info.master_addr,
            epoch=info.epoch,
        )


async def reaches_zookeeper(config: Config, ports: Ports, within_s: float) -> bool:
    """Return whether a session can be opened in this time."""
    session = ZkSession(config.zk_servers, config.zk_session_timeout_s, ports.randomness)
    session.start()
    try:
        async with asyncio.timeout(within_s):
            await session.exists("/")
    except (ConnectionLoss, SessionEnded, TimeoutError):
        return False
    finally:
        await session.close()
    return True


class MachinesSet:
    """The SyncStateSet of a pair: the machine's. The master proposes nothing."""

    takes_proposals = False

    async def ask(self, op: Op, fields: Json) -> Json:
        raise AssertionError("a master proposes no set where the machine decides")
