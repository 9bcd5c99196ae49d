"""What a slave and its master say to each other (spec 7.1), on frames of `wire`.

    slave -> master   HA_HANDSHAKE   who I am, the epoch of the master I was told of, my log's shape
    master -> slave   the reply      a status, my epoch, my log's shape; the slave then cuts its log
    slave -> master   HA_ACK         what I hold: appended, or durable under SYNC_FLUSH. The first
                                     one comes right after the cut and starts the transfer
    master -> slave   HA_DATA        whole records of one epoch, with that epoch and its start, and
                                     the confirm offset; empty: a heartbeat, answered with HA_ACK

Both sides check the master's epoch in the handshake: a master refuses a slave that was told of a
later one, and a slave refuses a master that is older than what it was told.
"""

import struct
from dataclasses import dataclass

from .divergence import LogShape
from .epochs import EpochTable
from .wire import Status

_SHAPE = struct.Struct(">QQH")
_EPOCH = struct.Struct(">IQ")
_HELLO = struct.Struct(">IIQ")
_WELCOME = struct.Struct(">HII")
_DATA = struct.Struct(">QIQQ")
_ACK = struct.Struct(">Q")
DATA_HEAD = _DATA.size


def _pack_shape(shape: LogShape) -> bytes:
    rows = shape.epochs.entries
    head = _SHAPE.pack(shape.min_offset, shape.max_offset, len(rows))
    return head + b"".join(_EPOCH.pack(epoch, start) for epoch, start in rows)


def _unpack_shape(body: bytes, at: int) -> LogShape:
    min_offset, max_offset, count = _SHAPE.unpack_from(body, at)
    at += _SHAPE.size
    if len(body) != at + count * _EPOCH.size:
        raise ValueError("an epoch table of the wrong length")
    rows = tuple(_EPOCH.iter_unpack(body[at:]))
    return LogShape(min_offset, max_offset, EpochTable(rows))


@dataclass(frozen=True)
class Hello:
    """A slave's handshake. `epoch`: of the master that it was told to follow."""

    slave_id: int
    epoch: int
    confirm_offset: int
    shape: LogShape

    def pack(self) -> bytes:
        head = _HELLO.pack(self.slave_id, self.epoch, self.confirm_offset)
        return head + _pack_shape(self.shape)

    @classmethod
    def unpack(cls, body: bytes) -> "Hello":
        slave_id, epoch, confirm_offset = _HELLO.unpack_from(body)
        return cls(slave_id, epoch, confirm_offset, _unpack_shape(body, _HELLO.size))


@dataclass(frozen=True)
class Welcome:
    """The master's reply. Unless `status` is SUCCESS the connection ends here."""

    status: Status
    epoch: int
    segment_size: int
    shape: LogShape

    def pack(self) -> bytes:
        head = _WELCOME.pack(self.status, self.epoch, self.segment_size)
        return head + _pack_shape(self.shape)

    @classmethod
    def unpack(cls, body: bytes) -> "Welcome":
        status, epoch, segment_size = _WELCOME.unpack_from(body)
        return cls(Status(status), epoch, segment_size, _unpack_shape(body, _WELCOME.size))


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


def ack_position(sync_flush: bool, written: int, flushed: int) -> int:
    """What a slave may acknowledge: durable bytes under SYNC_FLUSH, else the kernel's."""
    return flushed if sync_flush else written
