"""The master's side of replication: one link to each slave, which sends the log as it grows.

A link sends only what the master has written, in batches of whole records that never cross an
epoch, at most one window ahead of the slave's acks. The epoch is looked up for each batch, so a new
reign of the same master needs no new connection (apache/rocketmq#9689). A slave that connects again
replaces its old link, so it counts once. An ack beyond what was written (apache/rocketmq#3015), an
ack that goes back, or a transfer that would begin inside a record is a protocol error and ends the
link.

A *learner* (`asyncLearner`) receives the log and nothing else: its acks are not reported, so it is
never counted, never enters the set and is never elected. The log is kept for it while it is
connected (`peer_positions`). A link that needs deleted log ends, and its slave starts a new copy.

**Flow control** (`haFlowControlEnable`): each link has a token bucket. `maxHaTransferByteInSecond`
tokens are added in a second, and at most a tenth of a second's worth is saved. A batch is sent
while the bucket is not empty and takes a token for each byte, so a record larger than the bucket
passes, too; the debt delays the next batch. RocketMQ's monitor of each connection counts from zero
in every second, so it may send two seconds' worth at once.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Protocol

from ..config import Config
from ..events import EventLog
from ..net.connection import FrameConnection
from ..net.wire import Op, ProtocolError, Status, decode
from ..rules import Rules
from ..store.commit_log import CommitLog
from ..store.record import HEAD_SIZE
from ..world.choices import USUAL, Choices
from ..world.timers import PeriodicTimer
from .divergence import LogShape
from .ha_protocol import HandshakeReply, HandshakeRequest, LogData, unpack_ack
from .sync_state import SlaveProgress

_WINDOW_BYTES = 2 * 1024 * 1024  # a few small batches would be too little on a long wire
_PROGRESS_EVENT_S = 0.5  # the period of the event `replication`
SAVED_S = 0.1  # of the flow control's rate, in tokens


class MasterBroker(Protocol):
    """What the links use of their broker."""

    @property
    def epoch(self) -> int: ...

    def is_master(self) -> bool: ...

    def is_promoting(self) -> bool:
        """Elected, and not ready yet."""
        ...

    def shape(self) -> LogShape: ...

    def confirm_offset(self) -> int: ...

    def is_boundary(self, offset: int) -> bool:
        """Return whether a record begins, or the log ends, at `offset`."""
        ...

    def last_file(self) -> int:
        """Return the latest offset at which a copy of the log may begin."""
        ...

    def progressed(self, slave: int) -> None:
        """Called when a slave acknowledged something."""
        ...

    def slave_gone(self, slave: int) -> None: ...


@dataclass(frozen=True)
class TokenBucket:
    """`level` tokens at the time `at`; a negative level is debt."""

    bytes_per_s: int
    level: float
    at: float

    @classmethod
    def full(cls, bytes_per_s: int, now: float) -> "TokenBucket":
        return cls(bytes_per_s, bytes_per_s * SAVED_S, now)

    def take(self, size_bytes: int, now: float) -> "TokenBucket":
        return TokenBucket(self.bytes_per_s, self._level(now) - size_bytes, now)

    def wait_s(self, now: float) -> float:
        """Return how long until something may be sent; 0: now.

        After that time there is a token, or a little less by rounding, which is enough.
        """
        level = self._level(now)
        return 0.0 if level > 0 else (1 - level) / self.bytes_per_s

    def _level(self, now: float) -> float:
        saved = self.bytes_per_s * SAVED_S
        return min(saved, self.level + (now - self.at) * self.bytes_per_s)


class Rate:
    """Recent bytes per second, by exponential decay with a time constant of one second."""

    def __init__(self) -> None:
        self._value = 0.0
        self._at = 0.0

    def add(self, size: int, now: float) -> None:
        self._value = self.value(now) + size
        self._at = now

    def value(self, now: float) -> float:
        return self._value * exp(min(0.0, self._at - now))


@dataclass(frozen=True)
class _Batch:
    """Records read at `offset`, when the log ended at `log_end`."""

    offset: int
    log_end: int
    records: bytes


@dataclass
class SlaveLink:
    """A connected slave. `sent` is None until its first ack starts the transfer."""

    key: int
    slave: int
    connection: FrameConnection
    last_heard_at: float
    bucket: TokenBucket | None  # None: no flow control
    learner: bool = False
    progress: SlaveProgress = field(default_factory=SlaveProgress)
    sent: int | None = None
    rate: Rate = field(default_factory=Rate)
    waiting: asyncio.TimerHandle | None = None  # to send the next batch


class HaMaster:
    """The handler of connections to the HA port."""

    def __init__(
        self,
        config: Config,
        log: CommitLog,
        rules: Rules,
        broker: MasterBroker,
        events: EventLog,
        choices: Choices = USUAL,
    ) -> None:
        self.links: dict[int, SlaveLink] = {}
        self.zones: dict[int, str] = {}  # of each slave that was ever connected, by id
        self._by_connection: dict[FrameConnection, SlaveLink] = {}
        self._unidentified: dict[FrameConnection, None] = {}
        self._admitted = 0
        self._early: dict[FrameConnection, tuple[int, HandshakeRequest]] = {}
        self._config = config
        self._log = log
        self._rules = rules
        self._broker = broker
        self._events = events
        self._choices = choices
        self._loop = asyncio.get_running_loop()
        self._batch: _Batch | None = None
        self._confirm_sent = 0
        self._confirm_timer: asyncio.TimerHandle | None = None
        period = min(
            config.ha_send_heartbeat_interval_s, config.ha_max_time_slave_not_catchup_s / 3
        )
        self._heartbeats = PeriodicTimer(period, self._heartbeat)
        self._progress_written: tuple[int, Mapping[int, int | None]] = (0, {})
        self._progress_events = PeriodicTimer(_PROGRESS_EVENT_S, self._write_progress)

    # called by the broker

    def acks(self) -> Mapping[int, int | None]:
        """Return the position of each slave except learners, whose copies do not count."""
        return {key: link.progress.ack for key, link in self.links.items() if not link.learner}

    def peer_positions(self) -> Mapping[int, int | None]:
        """Return the position of each slave, learners included: the log behind it must stay."""
        return {key: link.progress.ack for key, link in self.links.items()}

    def progress(self, slave: int) -> SlaveProgress | None:
        link = self.links.get(slave)
        return link.progress if link and not link.learner else None

    def open(self) -> None:
        """Start a reign: answer the slaves that connected early.

        The cached batch is dropped: the log may have been cut since, and grown to the same end.
        """
        self._batch = None
        early, self._early = self._early, {}
        for connection, (request, handshake) in early.items():
            self._reply_to(connection, request, handshake)

    def pump(self) -> None:
        """Send what was written to every slave whose window has room."""
        for link in self.links.values():
            self._pump(link)

    def confirmed(self) -> None:
        """Called when the confirm offset moved: it is sent with the next batch, or a little
        later."""
        if self._confirm_timer is None:
            delay_s = self._config.ha_send_heartbeat_interval_s / 50
            self._confirm_timer = self._loop.call_later(delay_s, self._send_confirm)

    def adopt(self, config: Config) -> None:
        """Send at another rate from now on, also to slaves that wait for tokens."""
        self._config = config
        for link in self.links.values():
            if link.waiting is not None:
                link.waiting.cancel()
                link.waiting = None
            link.bucket = self._bucket()
            self._pump(link)

    def drop_all(self, why: str) -> None:
        for connection in [*self._by_connection, *self._unidentified]:
            connection.refused = why
            connection.abort()

    def stop(self) -> None:
        self._heartbeats.stop()
        self._progress_events.stop()
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
        self.drop_all("the broker stops")

    # called by connections

    def opened(self, connection: FrameConnection) -> None:
        self._unidentified[connection] = None

    def closed(self, connection: FrameConnection, why: str) -> None:
        self._unidentified.pop(connection, None)
        self._early.pop(connection, None)
        link = self._by_connection.pop(connection, None)
        if link is None:
            if connection.refused:
                self._events.write("refused", peer=connection.peer, why=why)
            return
        if link.waiting is not None:
            link.waiting.cancel()
        self._events.write("connection", peer=link.slave, state="closed", why=why)
        if self.links.get(link.key) is link:
            del self.links[link.key]
            self._broker.slave_gone(link.slave)

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        self._events.protocol_error(connection.peer, why)

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op == Op.HA_ACK and connection in self._by_connection:
            self._acked(self._by_connection[connection], decode(unpack_ack, body))
        elif op == Op.HA_HANDSHAKE and connection in self._unidentified:
            self._on_handshake(connection, request, decode(HandshakeRequest.unpack, body))
        else:
            raise ProtocolError(f"an operation {op} that replication does not know here")

    def _on_handshake(
        self, connection: FrameConnection, request: int, handshake: HandshakeRequest
    ) -> None:
        if not self._broker.is_promoting():
            self._reply_to(connection, request, handshake)
        elif connection in self._early:
            raise ProtocolError("a second handshake")
        else:
            self._early[connection] = (request, handshake)

    def _reply_to(
        self, connection: FrameConnection, request: int, handshake: HandshakeRequest
    ) -> None:
        status = self._status_for(handshake)
        broker, slave = self._broker, handshake.slave_id
        last_file = broker.last_file() if handshake.last_file else None
        segment_size = self._log.segment_size
        own = self._config.generation
        reply = HandshakeReply(status, broker.epoch, segment_size, broker.shape(), last_file, own)
        converted = {"generation": own, "slaveGeneration": handshake.generation} if own else {}
        self._events.write(
            "handshake", peer=slave, epoch=handshake.epoch, status=int(status), **converted
        )
        connection.reply(Op.HA_HANDSHAKE, request, reply.pack())
        if status is Status.SUCCESS:
            self.zones[slave] = handshake.zone
            self._admit(connection, slave, handshake.learner)

    def _status_for(self, handshake: HandshakeRequest) -> Status:
        if not self._broker.is_master():
            return Status.INVALID_MASTER
        if not self._rules.is_of_generation(self._config.generation, handshake.generation):
            return Status.INVALID_REPLICAS
        fenced = not self._rules.may_serve_slave(handshake.epoch, self._broker.epoch)
        if fenced and self._config.ha_epoch_fencing:
            return Status.FENCED_MASTER_EPOCH
        return Status.SUCCESS

    def _admit(self, connection: FrameConnection, slave: int, learner: bool) -> None:
        del self._unidentified[connection]
        self._admitted += 1
        key = self._rules.link_key(slave, self._admitted)
        old = self.links.pop(key, None)
        if old is not None:
            old.connection.refused = "the slave connected again"
            old.connection.abort()
        link = SlaveLink(key, slave, connection, self._loop.time(), self._bucket(), learner)
        self.links[key] = self._by_connection[connection] = link

    def _bucket(self) -> TokenBucket | None:
        if not self._config.ha_flow_control:
            return None
        return TokenBucket.full(self._config.ha_flow_bytes_per_s, self._loop.time())

    def _check_ack(self, link: SlaveLink, position: int) -> None:
        """Raises Senseless if no correct slave can send this ack."""
        beyond_end = position > self._log.written
        if beyond_end and self._config.switchless_epochs:
            raise ProtocolError(f"an ack of {position}, beyond the log's end {self._log.written}")
        if link.progress.ack is not None and position < link.progress.ack:
            raise ProtocolError(f"an ack of {position} after one of {link.progress.ack}")
        if position < self._log.min_offset:
            return  # the log that it lacks was deleted after the handshake; the link will end
        if link.sent is None and not beyond_end and not self._broker.is_boundary(position):
            raise ProtocolError(f"a transfer from {position}, where no record begins")

    def _acked(self, link: SlaveLink, position: int) -> None:
        self._check_ack(link, position)
        now = self._loop.time()
        link.last_heard_at = now
        link.progress = link.progress.acked(position, self._log.max_offset, now)
        if link.sent is None:
            link.sent = position
            self._events.write("connection", peer=link.slave, state="opened", offset=position)
            self._send(link, link.sent, b"")
        self._broker.progressed(link.slave)
        self._pump(link)

    # sending

    def _pump(self, link: SlaveLink) -> None:
        written = self._log.written
        while (
            link.sent is not None
            and not self._lacks_deleted(link)
            and link.sent < written
            and not self._is_inside_record(link)
            and link.sent - (link.progress.ack or 0) < _WINDOW_BYTES
            and not self._must_wait(link)
        ):
            records = self._records(link.sent)
            self._send(link, link.sent, records)
            link.sent += len(records)

    def _lacks_deleted(self, link: SlaveLink) -> bool:
        """Close the link and return True if the slave needs log that is deleted."""
        if link.sent is None or link.sent >= self._log.min_offset:
            return False
        link.connection.refused = f"the log before {self._log.min_offset} is deleted"
        link.connection.abort()
        return True

    def _is_inside_record(self, link: SlaveLink) -> bool:
        """Close the link and return True if its slave ends inside a record of this log, which only
        a slave that never cuts its log does."""
        if (
            self._config.switchless_epochs
            or link.sent is None
            or self._broker.is_boundary(link.sent)
        ):
            return False
        link.connection.refused = f"the slave's log ends at {link.sent}, inside a record"
        link.connection.abort()
        return True

    def _must_wait(self, link: SlaveLink) -> bool:
        """Return whether flow control, or a choice, delays the next batch; it is then sent when
        there are tokens, or a moment later."""
        wait_s = link.bucket.wait_s(self._loop.time()) if link.bucket else 0.0
        most_s = self._config.ha_send_heartbeat_interval_s / 10
        wait_s = wait_s or self._choices.moment_s("batch-late", most_s)
        if wait_s and link.waiting is None:
            link.waiting = self._loop.call_later(wait_s, self._resume, link)
        return wait_s > 0

    def _resume(self, link: SlaveLink) -> None:
        link.waiting = None
        self._pump(link)

    def _records(self, offset: int) -> bytes:
        """Return the next batch from `offset` on. Slaves at the same offset share it."""
        batch = self._batch
        if batch and (batch.offset, batch.log_end) == (offset, self._log.written):
            return batch.records
        _, _, epoch_end = self._broker.shape().epochs.at(offset, self._log.written)
        size = min(self._config.ha_transfer_batch_size, epoch_end - offset)
        size = self._choices.fewer("batch-short", size, least=HEAD_SIZE)
        records = self._log.records(offset, size)
        self._batch = _Batch(offset, self._log.written, records)
        return records

    def _send(self, link: SlaveLink, offset: int, records: bytes) -> None:
        if self._lacks_deleted(link):
            return
        epoch, start, _ = self._broker.shape().epochs.at(offset, self._log.written)
        self._confirm_sent = self._broker.confirm_offset()
        data = LogData(offset, epoch, start, self._confirm_sent, records)
        link.connection.send_oneway(Op.HA_DATA, data.pack())
        now = self._loop.time()
        link.rate.add(len(records), now)
        if link.bucket:
            link.bucket = link.bucket.take(len(records), now)

    def _send_confirm(self) -> None:
        self._confirm_timer = None
        if self._broker.is_master() and self._confirm_sent != self._broker.confirm_offset():
            for link in self.links.values():
                if link.sent is not None:
                    self._send(link, link.sent, b"")

    def _heartbeat(self) -> None:
        now = self._loop.time()
        for link in list(self.links.values()):
            silent_s = now - link.last_heard_at - self._heartbeats.late_s
            if silent_s > self._config.ha_housekeeping_interval_s:
                link.connection.refused = f"silent for {silent_s:.1f} s"
                link.connection.abort()
            elif link.sent is not None:
                self._send(link, link.sent, b"")

    def _write_progress(self) -> None:
        acks = {link.slave: link.progress.ack for link in self.links.values()}
        progress = self._log.max_offset, acks
        if self._broker.is_master() and progress != self._progress_written:
            self._progress_written = progress
            self._events.write("replication", end=progress[0], acks=acks)
