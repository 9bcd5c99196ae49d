"""What a slave and its master say to each other (spec 7.1), on frames of `wire`.

    slave -> master   HA_HANDSHAKE   who I am, the epoch of the master that I was told of, the shape
                                     of my log, and whether I am a learner or begin at the last file
    master -> slave   the reply      a status, my epoch, my log's shape, and where the last file
                                     begins if the slave asked for it; the slave then cuts its log
    slave -> master   HA_ACK         what I hold: appended, or durable under SYNC_FLUSH. The first
                                     one comes right after the cut and starts the transfer
    master -> slave   HA_DATA        whole records of one epoch, with that epoch and its start, and
                                     the confirm offset; empty: a heartbeat, answered with HA_ACK

A shape that no log can have (it ends before it begins, its epochs do not rise) is malformed.

Both sides check the master's epoch in the handshake: a master refuses a slave that was told of a
later one, and a slave refuses a master that is older than what it was told.

What a slave asks beyond copying is a last byte of its handshake, which is left out when it asks for
nothing: the first edition knew neither, and ends a connection by which more comes.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise

from ..net.wire import Status
from .divergence import LogShape
from .epochs import EpochTable

_SHAPE = struct.Struct(">QQH")
_EPOCH = struct.Struct(">IQ")
_HELLO = struct.Struct(">IIQ")
_WELCOME = struct.Struct(">HII")
_LAST_FILE = struct.Struct(">Q")
_LEARNER, _ASKS_LAST_FILE = 1, 2
_DATA = struct.Struct(">QIQQ")
_ACK = struct.Struct(">Q")
DATA_HEAD = _DATA.size
MOST_OFFSET = 2**62


def _pack_shape(shape: LogShape) -> bytes:
    rows = shape.epochs.entries
    head = _SHAPE.pack(shape.min_offset, shape.max_offset, len(rows))
    return head + b"".join(_EPOCH.pack(epoch, start) for epoch, start in rows)


def _unpack_shape(body: bytes, at: int) -> tuple[LogShape, bytes]:
    """A shape, and what follows it."""
    min_offset, max_offset, count = _SHAPE.unpack_from(body, at)
    at += _SHAPE.size
    end = at + count * _EPOCH.size
    if len(body) < end:
        raise ValueError("an epoch table of the wrong length")
    rows = tuple(_EPOCH.iter_unpack(body[at:end]))
    if not min_offset <= max_offset < MOST_OFFSET or not _rise(rows, max_offset):
        raise ValueError("a shape that no log has")
    return LogShape(min_offset, max_offset, EpochTable(rows)), body[end:]


def _rise(rows: tuple[tuple[int, int], ...], end: int) -> bool:
    """Do the epochs rise, and their starts, up to the log's end?"""
    rising = all(a < b and c <= d for (a, c), (b, d) in pairwise(rows))
    return rising and (not rows or rows[-1][1] <= end)


@dataclass(frozen=True)
class Hello:
    """A slave's handshake. `epoch`: of the master that it was told to follow; `last_file`: it wants
    to know where that begins."""

    slave_id: int
    epoch: int
    confirm_offset: int
    shape: LogShape
    learner: bool = False
    last_file: bool = False

    def pack(self) -> bytes:
        head = _HELLO.pack(self.slave_id, self.epoch, self.confirm_offset)
        asks = self.learner * _LEARNER | self.last_file * _ASKS_LAST_FILE
        return head + _pack_shape(self.shape) + (bytes([asks]) if asks else b"")

    @classmethod
    def unpack(cls, body: bytes) -> "Hello":
        shape, rest = _unpack_shape(body, _HELLO.size)
        if len(rest) > 1:
            raise ValueError(f"{len(rest)} bytes behind the shape")
        asks = rest[0] if rest else 0
        learner, last_file = bool(asks & _LEARNER), bool(asks & _ASKS_LAST_FILE)
        slave_id, epoch, confirm_offset = _HELLO.unpack_from(body)
        return cls(slave_id, epoch, confirm_offset, shape, learner, last_file)


@dataclass(frozen=True)
class Welcome:
    """The master's reply. Unless `status` is SUCCESS the connection ends here.

    `last_file`: the latest place where a copy may begin, for who asked; see
    `MessageStore.last_file`.
    """

    status: Status
    epoch: int
    segment_size: int
    shape: LogShape
    last_file: int | None = None

    def pack(self) -> bytes:
        head = _WELCOME.pack(self.status, self.epoch, self.segment_size)
        rest = b"" if self.last_file is None else _LAST_FILE.pack(self.last_file)
        return head + _pack_shape(self.shape) + rest

    @classmethod
    def unpack(cls, body: bytes) -> "Welcome":
        status, epoch, segment_size = _WELCOME.unpack_from(body)
        shape, rest = _unpack_shape(body, _WELCOME.size)
        (last_file,) = _LAST_FILE.unpack(rest) if rest else (None,)
        if not segment_size or shape.min_offset % segment_size:
            raise ValueError(f"a log that begins at {shape.min_offset}, inside a segment")
        if last_file is not None and (
            not shape.min_offset <= last_file <= shape.max_offset or last_file % segment_size
        ):
            raise ValueError(f"a last file that begins at {last_file}")
        return cls(Status(status), epoch, segment_size, shape, last_file)


@dataclass(frozen=True)
class Data:
    """A piece of the log, or a heartbeat."""

    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int
    records: bytes = b""

    def pack(self) -> bytes:
        head = _DATA.pack(self.offset, self.epoch, self.epoch_start, self.confirm_offset)
        return head + self.records

    @classmethod
    def unpack(cls, body: bytes) -> "Data":
        offset, epoch, epoch_start, confirm_offset = _DATA.unpack_from(body)
        return cls(offset, epoch, epoch_start, confirm_offset, body[DATA_HEAD:])


def pack_ack(position: int) -> bytes:
    return _ACK.pack(position)


def unpack_ack(body: bytes) -> int:
    position: int = _ACK.unpack(body)[0]
    return position


def may_serve_slave(slave_epoch: int, own_epoch: int) -> bool:
    """Master's side: a slave that was told of a later master knows that we are deposed."""
    return slave_epoch <= own_epoch


def may_follow(master_epoch: int, told_epoch: int) -> bool:
    """Slave's side: a master older than what we were told is not our master."""
    return master_epoch >= told_epoch


def link_key(slave: int, connection: int) -> int:
    """What a slave's acks are counted under: its id, not the number of its connection.

    The original counts connections, so a slave that connects again before its dead connection is
    noticed counts twice.
    """
    return slave


def ack_position(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
    """What a replica may acknowledge, and a master count as its own copy: durable bytes under
    SYNC_FLUSH, else the kernel's; never those that are in memory alone."""
    return flushed if sync_flush else written
