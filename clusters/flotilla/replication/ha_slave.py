"""The slave's side of replication: dial the master, agree where the logs part, copy.

One task follows one master. It dials again, soon at first and then at `haReconnectInterval`,
whenever the connection ends, and at once when the role changes. Between the handshake's answer and
the first ack the log is cut (`divergence.plan`), durably, and never while anything is appended.

Acks tell what the slave holds: what it has written, or synced under SYNC_FLUSH. One goes out right
after the cut, one for each turn that wrote something, one for each heartbeat. The first one says
where the transfer begins, so under SYNC_FLUSH everything is synced before it; the original sends
none before its timer when nothing was cut.

A slave whose log lies above its master's (case 3-3), or that has another segment size, *halts*: it
follows nobody until an election gives it another master, and says that it needs an operator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..config import Config
from ..events import EventLog
from ..net.connection import CallTimeout, Connection, ConnectionLost, Tasks, Unreachable, dial
from ..net.wire import Op, Senseless, Status, understood
from ..rules import Rules
from ..store.commit_log import DiskFull
from ..store.message_store import MessageStore, Overtaken
from ..world.ports import no_room
from ..world.timers import Bell, Every
from .divergence import Action, CutPlan, LogShape, plan_cut
from .ha_protocol import HandshakeReply, HandshakeRequest, LogData, pack_ack

_FIRST_PAUSES = 128


class FollowerLog(Protocol):
    """What the follower needs of the broker whose log it fills."""

    def shape(self) -> LogShape: ...

    def new_epoch(self, epoch: int, start: int) -> None:
        """Records of a new reign begin at `start`."""
        ...

    async def cut(self, plan: CutPlan) -> None:
        """Cut or reset the log and the epochs as planned, durably."""
        ...


@dataclass(frozen=True)
class FollowTarget:
    """Whom to follow and under which id, as the controllers told it."""

    slave_id: int
    master_id: int
    ha_address: str
    epoch: int

    def is_same_node(self, other: "FollowTarget") -> bool:
        return (self.master_id, self.ha_address) == (other.master_id, other.ha_address)


class HaSlave:
    """Follows a master; a `net.Handler` for the connection to it."""

    def __init__(
        self, config: Config, store: MessageStore, rules: Rules, copy: FollowerLog, events: EventLog
    ) -> None:
        self.state = "idle"
        self.halted = ""  # why, while the state is that
        self.on_connected: Callable[[], None] = lambda: None
        self._config = config
        self._store = store
        self._rules = rules
        self._copy = copy
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._leader: FollowTarget | None = None
        self._connection: Connection | None = None
        self._run: asyncio.Task[None] | None = None
        self._bell = Bell()
        self._heard_at = 0.0
        self._acked = -1
        self._beat = Every(config.ha_send_heartbeat_interval_s, self._check_silence)

    # what the broker asks

    async def follow(self, leader: FollowTarget) -> None:
        """Copy from this master from now on; a newer epoch of the same one changes nothing else."""
        known, self._leader = self._leader, leader
        same = known is not None and known.is_same_node(leader)
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
        if self.state != "transfer" or self._connection is None:
            return
        log = self._store.log
        held = self._rules.ack_position(
            self._config.sync_flush, log.max_offset, log.written, log.flushed
        )
        if always or held > self._acked:
            self._acked = held
            self._connection.tell(Op.HA_ACK, pack_ack(held))

    # the task

    async def _follow(self) -> None:
        """Who is refused soon after a handshake waits longer each time, as who gets no answer."""
        failures = 0
        while (leader := self._leader) is not None:
            try:
                await self._attach(leader)
                attached_at = self._loop.time()
                await self._detached()
                lasted_s = self._loop.time() - attached_at
                failures = failures + 1 if lasted_s < self._config.ha_reconnect_s else 0
            except (Unreachable, ConnectionLost, CallTimeout, _AttachFailed) as e:
                self._drop(str(e))
                failures += 1
            if self.state == "halted":
                return
            self.state = "waiting"
            longest = self._config.ha_reconnect_s
            await self._bell.wait(longest / max(_FIRST_PAUSES >> failures, 1))

    async def _attach(self, leader: FollowTarget) -> None:
        if self._store.log.full:
            raise _AttachFailed(self._store.log.why_full)
        self.state, self.halted = "dialling", ""
        timeout_s = self._config.controller_rpc_timeout_s
        connection = await dial(leader.ha_address, self, timeout_s)
        if self._leader is None:
            connection.abort()
            raise _AttachFailed("no longer following")
        self._connection, self.state = connection, "handshake"
        self._heard_at = self._loop.time()
        welcome = await self._shake_hands(connection, self._leader, timeout_s)
        self._check(welcome)
        await self._prepare(welcome)
        if self._leader is None or connection is not self._connection:
            raise _AttachFailed("no longer following")
        self.state, self._acked = "transfer", -1
        self.acknowledge(always=True)
        self.on_connected()

    async def _shake_hands(
        self, connection: Connection, leader: FollowTarget, timeout_s: float
    ) -> HandshakeReply:
        hello = HandshakeRequest(
            leader.slave_id,
            leader.epoch,
            self._store.confirm_offset,
            self._copy.shape(),
            self._config.async_learner,
            self._config.sync_from_last_file,
        )
        reply = await connection.call(Op.HA_HANDSHAKE, hello.pack(), timeout_s)
        try:
            return understood(HandshakeReply.unpack, reply)
        except Senseless as e:
            connection.is_senseless(f"a malformed welcome: {e}")
            self._events.write("refused", peer=connection.peer, why=f"a malformed welcome: {e}")
            raise _AttachFailed(f"a malformed welcome: {e}") from e

    def _check(self, welcome: HandshakeReply) -> None:
        if welcome.status is not Status.SUCCESS:
            raise _AttachFailed(f"the master refused: {welcome.status.name}")
        told = self._leader.epoch if self._leader else 0
        if self._config.ha_epoch_fencing and not self._rules.may_follow(welcome.epoch, told):
            raise _AttachFailed(f"a master of epoch {welcome.epoch}, but {told} was announced")
        if welcome.segment_size != self._store.log.segment_size:
            self._halt(f"the master's mappedFileSizeCommitLog is {welcome.segment_size}")

    async def _prepare(self, welcome: HandshakeReply) -> None:
        """Cut the log as it has to be, and have all that is left acknowledged by the first ack."""
        master, ours = welcome.shape, self._copy.shape()
        start = master.min_offset
        if self._config.sync_from_last_file and welcome.last_file is not None:
            start = welcome.last_file
        planned = plan_cut(ours, master, start, self._rules.find_consistent_point)
        self._tell_case(planned, ours, master)
        if planned.action is Action.HALT:
            self._halt(f"case {planned.reason}: our log begins behind the master's end")
        self.state = "cutting"
        try:
            await self._copy.cut(planned)
        except ValueError as e:
            self._halt(str(e))
        except Overtaken as e:  # the next handshake plans anew
            raise _AttachFailed(str(e)) from e
        except OSError as e:
            if not no_room(e):
                raise
            raise _AttachFailed(str(e)) from e
        if self._config.sync_flush:
            await self._store.flush()

    def _tell_case(self, planned: CutPlan, ours: LogShape, master: LogShape) -> None:
        self._events.write(
            "log-case",
            case=planned.reason,
            action=planned.action.value,
            point=planned.point,
            slave=[ours.min_offset, ours.max_offset],
            master=[master.min_offset, master.max_offset],
        )

    def _halt(self, why: str) -> None:
        self.state, self.halted = "halted", why
        self._events.write("halted", why=f"{why}; needs an operator")
        raise _AttachFailed(why)

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

    def senseless(self, connection: Connection, why: str) -> None:
        self._events.senseless(connection.peer, why)

    def frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op != Op.HA_DATA:
            raise Senseless(f"an operation {op} from a master")
        if connection is not self._connection or self.state != "transfer":
            return
        if not connection.is_open:
            return  # it was given up, and more had come by then
        self._heard_at = self._loop.time()
        try:
            self._copy_in(understood(LogData.unpack, body))
        except DiskFull as e:  # no fault of anybody's
            connection.refused = str(e)
            connection.abort()

    def _copy_in(self, data: LogData) -> None:
        store = self._store
        if data.offset != store.log.max_offset:
            raise Senseless(f"data for {data.offset}, but our log ends at {store.log.max_offset}")
        if data.epoch != self._copy.shape().epochs.last_epoch:
            self._begin_epoch(data)
        if data.records:
            store.append_raw(data.records, data.epoch)
            self.acknowledge()
        confirm = min(data.confirm_offset, store.log.max_offset)
        if confirm > store.confirm_offset:
            store.confirm(confirm)
        if not data.records:
            self.acknowledge(always=True)

    def _begin_epoch(self, data: LogData) -> None:
        """Batches never cross an epoch, so it begins here; or earlier, where our empty log does."""
        here = data.epoch_start == data.offset
        if not here and (data.epoch_start > data.offset or not self._copy.shape().is_empty):
            raise Senseless(f"epoch {data.epoch} from {data.epoch_start}, told at {data.offset}")
        try:
            self._copy.new_epoch(data.epoch, data.epoch_start)
        except ValueError as e:
            raise Senseless(str(e)) from e


class _AttachFailed(Exception):
    """The handshake did not lead to a transfer."""
