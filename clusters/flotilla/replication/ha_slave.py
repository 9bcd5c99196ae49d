"""The slave's side of replication: connect to the master, find where the logs diverge, copy.

One task follows one master. When the connection ends it connects again, soon at first and then
every `haReconnectInterval`, and at once when the role changes. Between the handshake's reply and
the first ack the log is cut (`divergence.plan_cut`), durably, and never while anything is appended.

An ack is the position that the slave holds: what it has written, or synced under SYNC_FLUSH. One is
sent right after the cut, one for each turn of the event loop that wrote something, and one for each
heartbeat. The first one is where the transfer begins, so under SYNC_FLUSH everything is synced
before it. RocketMQ sends none before its timer when nothing was cut.

A slave whose log lies above its master's (case 3-3), or that has another segment size, *halts*: it
follows no master until an election gives it another one, and reports that it needs an operator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ..config import Config
from ..events import EventLog
from ..net.connection import CallTimeout, ConnectionLost, FrameConnection, Tasks, Unreachable, dial
from ..net.wire import Op, ProtocolError, Status, decode
from ..rules import Rules
from ..store.commit_log import DiskFull
from ..store.message_store import MessageStore, TruncationPointDeleted
from ..world.ports import is_out_of_space
from ..world.timers import PeriodicTimer, WakeEvent
from .divergence import Action, CutPlan, LogShape, plan_cut
from .epochs import keep_everything
from .ha_protocol import HandshakeReply, HandshakeRequest, LogData, pack_ack
from .replica import Replica

_FIRST_PAUSES = 128


class SlaveState(StrEnum):
    """The state of a slave's connection, as `describe` shows it."""

    IDLE = "idle"
    DIALLING = "dialling"
    HANDSHAKE = "handshake"
    CUTTING = "cutting"
    TRANSFER = "transfer"
    WAITING = "waiting"  # until it is time to connect again
    HALTED = "halted"


@dataclass(frozen=True)
class FollowTarget:
    """The master to follow, and this slave's id, by the controllers."""

    slave_id: int
    master_id: int
    ha_address: str
    epoch: int

    def is_same_node(self, other: "FollowTarget") -> bool:
        return (self.master_id, self.ha_address) == (other.master_id, other.ha_address)


class HaSlave:
    """Follows a master; the handler of the connection to it."""

    def __init__(
        self, config: Config, store: MessageStore, rules: Rules, copy: Replica, events: EventLog
    ) -> None:
        self.state = SlaveState.IDLE
        self.halted = ""  # the reason, in the state HALTED
        self.on_connected: Callable[[], None] = lambda: None
        self._config = config
        self._store = store
        self._rules = rules
        self._copy = copy
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._target: FollowTarget | None = None
        self._connection: FrameConnection | None = None
        self._run: asyncio.Task[None] | None = None
        self._wake = WakeEvent()
        self._heard_at = 0.0
        self._acked = -1
        self._heartbeats = PeriodicTimer(config.ha_send_heartbeat_interval_s, self._check_silence)

    # called by the broker

    async def follow(self, target: FollowTarget) -> None:
        """Copy from this master from now on. A newer epoch of the same master changes nothing
        else."""
        known, self._target = self._target, target
        same = known is not None and known.is_same_node(target)
        if same and self._run is not None and not self._run.done():
            self._wake.set()
            return
        await self.stop()
        self._target = target
        self._run = self._tasks.start(self._follow())

    async def stop(self) -> None:
        """Stop copying. Returns when no cut is in progress."""
        self._target = None
        self._drop("no longer following")
        self._wake.set()
        if self._run is not None:
            if self.state != SlaveState.CUTTING:
                self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
            self._run = None
        self.state = SlaveState.IDLE

    def close(self) -> None:
        self._heartbeats.stop()
        self._tasks.cancel()
        self._drop("the broker stops")

    def acknowledge(self, *, always: bool = False) -> None:
        """Send an ack if this slave holds more than it acknowledged."""
        if self.state != SlaveState.TRANSFER or self._connection is None:
            return
        log = self._store.log
        held = self._rules.ack_position(
            self._config.sync_flush, log.max_offset, log.written, log.flushed
        )
        if not always and held > self._acked and self._is_late():
            return
        if always or held > self._acked:
            self._acked = held
            self._connection.send_oneway(Op.HA_ACK, pack_ack(held))

    def confirm_up_to(self, offset: int, epoch: int) -> None:
        """Confirm what the master of this epoch has confirmed, if this slave copies from it."""
        if self.state == SlaveState.TRANSFER and self._target and self._target.epoch == epoch:
            self._confirm(offset)

    def _confirm(self, offset: int) -> None:
        confirm = min(offset, self._store.log.max_offset)
        if confirm > self._store.confirm_offset:
            self._store.confirm(confirm)

    def _is_late(self) -> bool:
        """Return whether the ack is put off by a choice; it is then sent a moment later."""
        most_s = self._config.ha_send_heartbeat_interval_s / 10
        late_s = self._store.ports.choices.moment_s("ack-late", most_s)
        if late_s:
            self._loop.call_later(late_s, self.acknowledge)
        return late_s > 0

    # the task

    async def _follow(self) -> None:
        """Connect again and again. A connection that ends soon counts as a failure for the
        pause."""
        failures = 0
        while (target := self._target) is not None:
            try:
                await self._attach(target)
                attached_at = self._loop.time()
                await self._detached()
                lasted_s = self._loop.time() - attached_at
                failures = failures + 1 if lasted_s < self._config.ha_reconnect_s else 0
            except (Unreachable, ConnectionLost, CallTimeout, _AttachFailed) as e:
                self._drop(str(e))
                failures += 1
            if self.state == SlaveState.HALTED:
                return
            self.state = SlaveState.WAITING
            longest = self._config.ha_reconnect_s
            await self._wake.wait(longest / max(_FIRST_PAUSES >> failures, 1))

    async def _attach(self, target: FollowTarget) -> None:
        if self._store.log.full:
            raise _AttachFailed(self._store.log.why_full)
        self.state, self.halted = SlaveState.DIALLING, ""
        timeout_s = self._config.controller_rpc_timeout_s
        connection = await dial(target.ha_address, self, timeout_s)
        if self._target is None:
            connection.abort()
            raise _AttachFailed("no longer following")
        self._connection, self.state = connection, SlaveState.HANDSHAKE
        self._heard_at = self._loop.time()
        reply = await self._shake_hands(connection, self._target, timeout_s)
        self._check(reply)
        await self._prepare(reply)
        if self._target is None or connection is not self._connection:
            raise _AttachFailed("no longer following")
        self.state, self._acked = SlaveState.TRANSFER, -1
        self.acknowledge(always=True)
        self.on_connected()

    async def _shake_hands(
        self, connection: FrameConnection, target: FollowTarget, timeout_s: float
    ) -> HandshakeReply:
        request = HandshakeRequest(
            target.slave_id,
            target.epoch,
            self._store.confirm_offset,
            self._copy.shape(),
            self._config.async_learner,
            self._config.sync_from_last_file,
            self._config.zone if self._config.ack_zones > 1 else "",
            self._config.generation,
        )
        packed = await connection.call(Op.HA_HANDSHAKE, request.pack(), timeout_s)
        try:
            return decode(HandshakeReply.unpack, packed)
        except ProtocolError as e:
            connection.report_protocol_error(f"a malformed handshake reply: {e}")
            self._events.write(
                "refused", peer=connection.peer, why=f"a malformed handshake reply: {e}"
            )
            raise _AttachFailed(f"a malformed handshake reply: {e}") from e

    def _check(self, reply: HandshakeReply) -> None:
        if reply.status is not Status.SUCCESS:
            raise _AttachFailed(f"the master refused: {reply.status.name}")
        announced = self._target.epoch if self._target else 0
        if self._config.ha_epoch_fencing and not self._rules.may_follow(reply.epoch, announced):
            raise _AttachFailed(f"a master of epoch {reply.epoch}, but {announced} was announced")
        own = self._config.generation
        if not self._rules.is_of_generation(own, reply.generation):
            raise _AttachFailed(
                f"a master of generation {reply.generation}; this broker is in {own}"
            )
        if reply.segment_size != self._store.log.segment_size:
            self._halt(f"the master's mappedFileSizeCommitLog is {reply.segment_size}")

    async def _prepare(self, reply: HandshakeReply) -> None:
        """Cut the log as planned. Under SYNC_FLUSH sync the rest, so the first ack covers it."""
        master, ours = reply.shape, self._copy.shape()
        start = master.min_offset
        if self._config.sync_from_last_file and reply.last_file is not None:
            start = reply.last_file
        compare = self._config.switchless_epochs
        find_point = self._rules.find_consistent_point if compare else keep_everything
        planned = plan_cut(ours, master, start, find_point)
        self._write_case(planned, ours, master)
        if planned.action is Action.HALT:
            self._halt(f"case {planned.reason}: our log begins behind the master's end")
        self.state = SlaveState.CUTTING
        try:
            await self._copy.cut(planned)
        except ValueError as e:
            self._halt(str(e))
        except TruncationPointDeleted as e:  # the next handshake plans again
            raise _AttachFailed(str(e)) from e
        except OSError as e:
            if not is_out_of_space(e):
                raise
            raise _AttachFailed(str(e)) from e
        if self._config.sync_flush:
            await self._store.flush()

    def _write_case(self, planned: CutPlan, ours: LogShape, master: LogShape) -> None:
        self._events.write(
            "log-case",
            case=planned.reason,
            action=planned.action.value,
            point=planned.point,
            slave=[ours.min_offset, ours.max_offset],
            master=[master.min_offset, master.max_offset],
        )

    def _halt(self, why: str) -> None:
        self.state, self.halted = SlaveState.HALTED, why
        self._events.write("halted", why=f"{why}; needs an operator")
        raise _AttachFailed(why)

    async def _detached(self) -> None:
        """Wait until the connection ends."""
        while self._connection is not None and self._connection.is_open:
            await self._wake.wait(self._config.ha_housekeeping_interval_s)

    def _drop(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.refused = connection.refused or why
            connection.abort()

    def _check_silence(self) -> None:
        silent_s = self._loop.time() - self._heard_at - self._heartbeats.late_s
        if self.state == SlaveState.TRANSFER and silent_s > self._config.ha_housekeeping_interval_s:
            self._drop(f"silent for {silent_s:.1f} s")
            self._wake.set()
        self.acknowledge(always=True)

    # called by the connection

    def opened(self, connection: FrameConnection) -> None: ...

    def closed(self, connection: FrameConnection, why: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._events.write("connection", peer="master", state="closed", why=why)
            # during the handshake its failure reaches the task, which then pauses as after others
            if self.state == SlaveState.TRANSFER:
                self._wake.set()

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        self._events.protocol_error(connection.peer, why)

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op != Op.HA_DATA:
            raise ProtocolError(f"an operation {op} from a master")
        if connection is not self._connection or self.state != SlaveState.TRANSFER:
            return
        if not connection.is_open:
            return  # closed by this side; these frames were read before
        self._heard_at = self._loop.time()
        try:
            self._copy_in(decode(LogData.unpack, body))
        except DiskFull as e:  # not a protocol error
            connection.refused = str(e)
            connection.abort()

    def _copy_in(self, data: LogData) -> None:
        store = self._store
        if data.offset != store.log.max_offset:
            raise ProtocolError(
                f"data for {data.offset}, but our log ends at {store.log.max_offset}"
            )
        if data.epoch != self._copy.shape().epochs.last_epoch:
            self._begin_epoch(data)
        if data.records:
            store.append_raw(data.records, data.epoch)
            self.acknowledge()
        self._confirm(data.confirm_offset)
        if not data.records:
            self.acknowledge(always=True)

    def _begin_epoch(self, data: LogData) -> None:
        """Start an epoch. A batch never crosses epochs, so it begins here; or earlier, with our
        empty log."""
        here = data.epoch_start == data.offset
        if not here and (data.epoch_start > data.offset or not self._copy.shape().is_empty):
            raise ProtocolError(
                f"epoch {data.epoch} from {data.epoch_start}, in a batch at {data.offset}"
            )
        try:
            self._copy.new_epoch(data.epoch, data.epoch_start)
        except ValueError as e:
            raise ProtocolError(str(e)) from e


class _AttachFailed(Exception):
    """The handshake did not lead to a transfer."""
