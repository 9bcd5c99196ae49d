"""The master's side of replication: one link to each slave, fed from the log as it grows.

A link sends only what the master itself has written, in batches of whole records that never cross
an epoch, at most one window ahead of the slave's acks. The epoch of a batch is looked up in the
table for every batch, so a new reign of the same master needs no new connection
(apache/rocketmq#9689). A slave that connects again replaces its old link: a slave counts once.
An ack beyond what was written is a broken peer's and ends the link (apache/rocketmq#3015), and so
does one that goes back, or a transfer that would begin inside a record.

A *learner* (`asyncLearner`) is fed like any slave, and that is all: nobody is told of its acks, so
it is never counted, never enters the set and is never elected. The log is kept for it (`held`), as
long as it lives. A link that lacks what is deleted nonetheless ends, and its slave begins anew.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Protocol

from ..config import Config
from ..events import EventLog
from ..net.connection import Connection
from ..net.wire import Op, Senseless, Status, understood
from ..rules import Rules
from ..store.commit_log import CommitLog
from ..world.timers import Every
from .divergence import LogShape
from .ha_flow import TokenBucket
from .ha_protocol import HandshakeReply, HandshakeRequest, LogData, unpack_ack
from .sync_state import SlaveProgress

_WINDOW_BYTES = 2 * 1024 * 1024  # not a few batches: on a long wire small ones would throttle it
_TELL_EVERY_S = 0.5  # what slaves hold, for people
_NO_BATCH = (-1, 0, b"")  # offset, the log's end when it was read, records


class MasterBroker(Protocol):
    """What the links need of the broker they serve."""

    @property
    def epoch(self) -> int: ...

    def is_master(self) -> bool: ...

    def is_promoting(self) -> bool:
        """Elected, and getting ready."""
        ...

    def shape(self) -> LogShape: ...

    def confirm_offset(self) -> int: ...

    def is_boundary(self, offset: int) -> bool:
        """Does a record begin, or the log end, there?"""
        ...

    def last_file(self) -> int:
        """The latest place where a copy of the log may begin."""
        ...

    def progressed(self, slave: int) -> None:
        """A slave acknowledged something."""
        ...

    def slave_gone(self, slave: int) -> None: ...


class Rate:
    """Bytes per second of late, each byte fading with a time constant of a second."""

    def __init__(self) -> None:
        self._value = 0.0
        self._at = 0.0

    def add(self, size: int, now: float) -> None:
        self._value = self.value(now) + size
        self._at = now

    def value(self, now: float) -> float:
        return self._value * exp(min(0.0, self._at - now))


@dataclass
class SlaveLink:
    """A connected slave. `sent` is None until its first ack starts the transfer."""

    key: int
    slave: int
    connection: Connection
    heard_at: float
    bucket: TokenBucket | None  # None: no flow control
    learner: bool = False
    progress: SlaveProgress = field(default_factory=SlaveProgress)
    sent: int | None = None
    rate: Rate = field(default_factory=Rate)
    waiting: asyncio.TimerHandle | None = None  # for tokens


class HaMaster:
    """Serves the HA port; a `net.Handler`."""

    def __init__(
        self, config: Config, log: CommitLog, rules: Rules, reign: MasterBroker, events: EventLog
    ) -> None:
        self.links: dict[int, SlaveLink] = {}
        self._by_connection: dict[Connection, SlaveLink] = {}
        self._strangers: dict[Connection, None] = {}
        self._admitted = 0
        self._early: dict[Connection, tuple[int, HandshakeRequest]] = {}
        self._config = config
        self._log = log
        self._rules = rules
        self._reign = reign
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._batch = _NO_BATCH
        self._confirm_told = 0
        self._confirm_timer: asyncio.TimerHandle | None = None
        period = min(
            config.ha_send_heartbeat_interval_s, config.ha_max_time_slave_not_catchup_s / 3
        )
        self._beat = Every(period, self._heartbeat)
        self._told: tuple[int, Mapping[int, int | None]] = (0, {})
        self._teller = Every(_TELL_EVERY_S, self._tell_progress)

    # what the broker asks

    def acks(self) -> Mapping[int, int | None]:
        """What each slave holds, learners aside: they hold nothing that counts."""
        return {key: link.progress.ack for key, link in self.links.items() if not link.learner}

    def held(self) -> Mapping[int, int | None]:
        """What each connection's peer holds, learners too: the log behind it has to stay."""
        return {key: link.progress.ack for key, link in self.links.items()}

    def progress(self, slave: int) -> SlaveProgress | None:
        link = self.links.get(slave)
        return link.progress if link and not link.learner else None

    def open(self) -> None:
        """The reign has begun: answer the slaves that came early.

        What was read in an earlier reign may have been cut since, and the log filled again to the
        very same byte.
        """
        self._batch = _NO_BATCH
        early, self._early = self._early, {}
        for connection, (request, hello) in early.items():
            self._handshake(connection, request, hello)

    def pump(self) -> None:
        """Send what was written to every slave that has room."""
        for link in self.links.values():
            self._pump(link)

    def confirmed(self) -> None:
        """The confirm offset moved: slaves learn it with the next batch, or a little later."""
        if self._confirm_timer is None:
            delay_s = self._config.ha_send_heartbeat_interval_s / 50
            self._confirm_timer = self._loop.call_later(delay_s, self._tell_confirm)

    def adopt(self, config: Config) -> None:
        """Feed the slaves at another rate from now on, those too that wait for tokens."""
        self._config = config
        for link in self.links.values():
            if link.waiting is not None:
                link.waiting.cancel()
                link.waiting = None
            link.bucket = self._bucket()
            self._pump(link)

    def drop_all(self, why: str) -> None:
        for connection in [*self._by_connection, *self._strangers]:
            connection.refused = why
            connection.abort()

    def stop(self) -> None:
        self._beat.stop()
        self._teller.stop()
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
        self.drop_all("the broker stops")

    # what the connections tell

    def opened(self, connection: Connection) -> None:
        self._strangers[connection] = None

    def closed(self, connection: Connection, why: str) -> None:
        self._strangers.pop(connection, None)
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
            self._reign.slave_gone(link.slave)

    def senseless(self, connection: Connection, why: str) -> None:
        self._events.senseless(connection.peer, why)

    def frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op == Op.HA_ACK and connection in self._by_connection:
            self._acked(self._by_connection[connection], understood(unpack_ack, body))
        elif op == Op.HA_HANDSHAKE and connection in self._strangers:
            self._greeted(connection, request, understood(HandshakeRequest.unpack, body))
        else:
            raise Senseless(f"an operation {op} that replication does not know here")

    def _greeted(self, connection: Connection, request: int, hello: HandshakeRequest) -> None:
        if not self._reign.is_promoting():
            self._handshake(connection, request, hello)
        elif connection in self._early:
            raise Senseless("a second handshake")
        else:
            self._early[connection] = (request, hello)

    def _handshake(self, connection: Connection, request: int, hello: HandshakeRequest) -> None:
        status = self._judge(hello)
        reign, log = self._reign, self._log
        last_file = reign.last_file() if hello.last_file else None
        welcome = HandshakeReply(status, reign.epoch, log.segment_size, reign.shape(), last_file)
        self._events.write("handshake", peer=hello.slave_id, epoch=hello.epoch, status=int(status))
        connection.reply(Op.HA_HANDSHAKE, request, welcome.pack())
        if status is Status.SUCCESS:
            self._admit(connection, hello.slave_id, hello.learner)

    def _judge(self, hello: HandshakeRequest) -> Status:
        if not self._reign.is_master():
            return Status.INVALID_MASTER
        fenced = not self._rules.may_serve_slave(hello.epoch, self._reign.epoch)
        if fenced and self._config.ha_epoch_fencing:
            return Status.FENCED_MASTER_EPOCH
        return Status.SUCCESS

    def _admit(self, connection: Connection, slave: int, learner: bool) -> None:
        del self._strangers[connection]
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
        """Senseless: no sound slave says that."""
        if position > self._log.written:
            raise Senseless(f"an ack of {position}, beyond the log's end {self._log.written}")
        if link.progress.ack is not None and position < link.progress.ack:
            raise Senseless(f"an ack of {position} after one of {link.progress.ack}")
        if position < self._log.min_offset:
            return  # what it lacks was deleted after the handshake: no transfer comes of it
        if link.sent is None and not self._reign.is_boundary(position):
            raise Senseless(f"a transfer from {position}, where no record begins")

    def _acked(self, link: SlaveLink, position: int) -> None:
        self._check_ack(link, position)
        now = self._loop.time()
        link.heard_at = now
        link.progress = link.progress.acked(position, self._log.max_offset, now)
        if link.sent is None:
            link.sent = position
            self._events.write("connection", peer=link.slave, state="opened", offset=position)
            self._send(link, link.sent, b"")
        self._reign.progressed(link.slave)
        self._pump(link)

    # sending

    def _pump(self, link: SlaveLink) -> None:
        written = self._log.written
        while (
            link.sent is not None
            and not self._lacks_deleted(link)
            and link.sent < written
            and link.sent - (link.progress.ack or 0) < _WINDOW_BYTES
            and not self._must_wait(link)
        ):
            records = self._records(link.sent)
            self._send(link, link.sent, records)
            link.sent += len(records)

    def _lacks_deleted(self, link: SlaveLink) -> bool:
        """Then this link comes to nothing."""
        if link.sent is None or link.sent >= self._log.min_offset:
            return False
        link.connection.refused = f"the log before {self._log.min_offset} is deleted"
        link.connection.abort()
        return True

    def _must_wait(self, link: SlaveLink) -> bool:
        """Flow control: no token is left. The link is pumped again when there is one."""
        wait_s = link.bucket.wait_s(self._loop.time()) if link.bucket else 0.0
        if wait_s and link.waiting is None:
            link.waiting = self._loop.call_later(wait_s, self._waited, link)
        return wait_s > 0

    def _waited(self, link: SlaveLink) -> None:
        link.waiting = None
        self._pump(link)

    def _records(self, offset: int) -> bytes:
        """The next batch from `offset` on; slaves that are abreast share it."""
        at, end, records = self._batch
        if at == offset and end == self._log.written:
            return records
        _, _, epoch_end = self._reign.shape().epochs.at(offset, self._log.written)
        size = min(self._config.ha_transfer_batch_size, epoch_end - offset)
        records = self._log.records(offset, size)
        self._batch = (offset, self._log.written, records)
        return records

    def _send(self, link: SlaveLink, offset: int, records: bytes) -> None:
        if self._lacks_deleted(link):
            return
        epoch, start, _ = self._reign.shape().epochs.at(offset, self._log.written)
        self._confirm_told = self._reign.confirm_offset()
        data = LogData(offset, epoch, start, self._confirm_told, records)
        link.connection.tell(Op.HA_DATA, data.pack())
        now = self._loop.time()
        link.rate.add(len(records), now)
        if link.bucket:
            link.bucket = link.bucket.take(len(records), now)

    def _tell_confirm(self) -> None:
        self._confirm_timer = None
        if self._reign.is_master() and self._confirm_told != self._reign.confirm_offset():
            for link in self.links.values():
                if link.sent is not None:
                    self._send(link, link.sent, b"")

    def _heartbeat(self) -> None:
        now = self._loop.time()
        for link in list(self.links.values()):
            silent_s = now - link.heard_at - self._beat.late_s
            if silent_s > self._config.ha_housekeeping_interval_s:
                link.connection.refused = f"silent for {silent_s:.1f} s"
                link.connection.abort()
            elif link.sent is not None:
                self._send(link, link.sent, b"")

    def _tell_progress(self) -> None:
        """How far replication is, if it has moved."""
        told = self._log.max_offset, {link.slave: link.progress.ack for link in self.links.values()}
        if self._reign.is_master() and told != self._told:
            self._told = told
            end, acks = told
            self._events.write("replication", end=end, acks=acks)
