"""The slave's side of replication: dial the master, agree where the logs part, copy.

One task follows one master. It dials again, soon at first and then at `haReconnectInterval`,
whenever the connection ends, and at once when the role changes. Between the handshake's answer and
the first ack the log is cut (`divergence.plan`), durably, and never while anything is appended.

Acks tell what the slave holds: what it has written, or synced under SYNC_FLUSH. One goes out right
after the cut, one for each turn that wrote something, one for each heartbeat.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .config import Config
from .divergence import Action, LogShape, Plan, plan
from .events import EventLog
from .ha_protocol import Data, Hello, Welcome, pack_ack
from .net import CallTimeout, Connection, ConnectionLost, Tasks, Unreachable, dial
from .pace import Bell, Every
from .rules import Rules
from .store.message_store import MessageStore
from .wire import Op, Status

_FIRST_PAUSES = 128


class Copy(Protocol):
    """What the follower needs of the broker whose log it fills."""

    def shape(self) -> LogShape: ...

    def new_epoch(self, epoch: int, start: int) -> None:
        """Records of a new reign begin at `start`."""
        ...

    async def cut(self, plan: Plan) -> None:
        """Cut or reset the log and the epochs as planned, durably."""
        ...


@dataclass(frozen=True)
class Leader:
    """Whom to follow and under which id, as the controllers told it."""

    slave_id: int
    master_id: int
    ha_address: str
    epoch: int


class HaSlave:
    """Follows a master; a `net.Handler` for the connection to it."""

    def __init__(
        self, config: Config, store: MessageStore, rules: Rules, copy: Copy, events: EventLog
    ) -> None:
        self.state = "idle"
        self.on_connected: Callable[[], None] = lambda: None
        self._config = config
        self._store = store
        self._rules = rules
        self._copy = copy
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._leader: Leader | None = None
        self._connection: Connection | None = None
        self._run: asyncio.Task[None] | None = None
        self._bell = Bell()
        self._heard_at = 0.0
        self._acked = -1
        self._beat = Every(config.ha_send_heartbeat_interval_s, self._check_silence)

    # what the broker asks

    async def follow(self, leader: Leader) -> None:
        """Copy from this master from now on; a newer epoch of the same one changes nothing else."""
        known, self._leader = self._leader, leader
        same = known is not None and known.ha_address == leader.ha_address
        if same and self._run is not None and not self._run.done():
            self._bell.ring()
            return
        await self.stop()
        self._leader = leader
        self._run = self._tasks.start(self._follow())

    async def stop(self) -> None:
        """Copy nothing more; returns when no cut is under way."""
        self._leader = None
        self._drop("no longer following")
        self._bell.ring()
        if self._run is not None:
            if self.state != "cutting":
                self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
            self._run = None
        self.state = "idle"

    def close(self) -> None:
        self._beat.stop()
        self._tasks.cancel()
        self._drop("the broker stops")

    def acknowledge(self, *, always: bool = False) -> None:
        """Tell the master what we hold, if that is news."""
        log = self._store.log
        held = self._rules.ack_position(self._config.sync_flush, log.written, log.flushed)
        if self.state != "transfer" or self._connection is None:
            return
        if always or held > self._acked:
            self._acked = held
            self._connection.tell(Op.HA_ACK, pack_ack(held))

    # the task

    async def _follow(self) -> None:
        failures = 0
        while (leader := self._leader) is not None:
            try:
                await self._attach(leader)
                failures = 0
                await self._detached()
            except (Unreachable, ConnectionLost, CallTimeout, _Refused) as e:
                self._drop(str(e))
                failures += 1
            if self.state == "halted":
                return
            self.state = "waiting"
            longest = self._config.ha_reconnect_s
            await self._bell.wait(longest / max(_FIRST_PAUSES >> failures, 1))

    async def _attach(self, leader: Leader) -> None:
        self.state = "dialling"
        timeout_s = self._config.controller_rpc_timeout_s
        connection = await dial(leader.ha_address, self, timeout_s)
        if self._leader is None:
            connection.abort()
            raise _Refused("no longer following")
        self._connection, self.state = connection, "handshake"
        self._heard_at = self._loop.time()
        shape = self._copy.shape()
        confirm = self._store.confirm_offset
        hello = Hello(self._leader.slave_id, self._leader.epoch, confirm, shape)
        reply = await connection.call(Op.HA_HANDSHAKE, hello.pack(), timeout_s)
        welcome = Welcome.unpack(reply)
        self._check(welcome)
        await self._prepare(plan(shape, welcome.shape, self._rules.find_consistent_point))
        if self._leader is None or connection is not self._connection:
            raise _Refused("no longer following")
        self.state, self._acked = "transfer", -1
        self.acknowledge(always=True)
        self.on_connected()

    def _check(self, welcome: Welcome) -> None:
        if welcome.status is not Status.SUCCESS:
            raise _Refused(f"the master refused: {welcome.status.name}")
        told = self._leader.epoch if self._leader else 0
        if self._config.ha_epoch_fencing and not self._rules.may_follow(welcome.epoch, told):
            raise _Refused(f"a master of epoch {welcome.epoch}, but {told} was announced")
        if welcome.segment_size != self._store.log.segment_size:
            self._halt(f"the master's mappedFileSizeCommitLog is {welcome.segment_size}")

    async def _prepare(self, planned: Plan) -> None:
        if planned.action is Action.HALT:
            self._halt(f"case {planned.case}: our log begins behind the master's end")
        self.state = "cutting"
        try:
            await self._copy.cut(planned)
        except ValueError as e:
            self._halt(str(e))

    def _halt(self, why: str) -> None:
        self.state = "halted"
        self._events.write("halted", why=why)
        raise _Refused(why)

    async def _detached(self) -> None:
        """Until the connection ends."""
        while self._connection is not None and self._connection.is_open:
            await self._bell.wait(self._config.ha_housekeeping_interval_s)

    def _drop(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.refused = connection.refused or why
            connection.abort()

    def _check_silence(self) -> None:
        silent_s = self._loop.time() - self._heard_at - self._beat.late_s
        if self.state == "transfer" and silent_s > self._config.ha_housekeeping_interval_s:
            self._drop(f"silent for {silent_s:.1f} s")
            self._bell.ring()
        self.acknowledge(always=True)

    # what the connection tells

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection, why: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._events.write("connection", peer="master", state="closed", why=why)
            if self.state == "transfer":  # else the handshake's failure tells, and waits its turn
                self._bell.ring()

    def frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op != Op.HA_DATA:
            raise ValueError(f"an operation {op} from a master")
        if connection is not self._connection or self.state != "transfer":
            return
        self._heard_at = self._loop.time()
        self._copy_in(Data.unpack(body))

    def _copy_in(self, data: Data) -> None:
        store = self._store
        if data.offset != store.log.max_offset:
            raise ValueError(f"data for {data.offset}, but our log ends at {store.log.max_offset}")
        if data.epoch != self._copy.shape().epochs.last_epoch:
            self._copy.new_epoch(data.epoch, data.epoch_start)
        if data.records:
            store.append_raw(data.records, data.epoch)
        confirm = min(data.confirm_offset, store.log.max_offset)
        if confirm > store.confirm_offset:
            store.confirm(confirm)
        if not data.records:
            self.acknowledge(always=True)


class _Refused(Exception):
    """The handshake did not lead to a transfer."""
