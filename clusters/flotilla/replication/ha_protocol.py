"""Messages between a slave and its master (see "Replication" in docs/flotilla-design.md).

    slave -> master   HA_HANDSHAKE   the slave's id, the epoch of the master it follows, its log's
                                     shape; it may be a learner, or ask for the last file
    master -> slave   the reply      a status, the master's epoch, its log's shape, and where the
                                     last file begins if the slave asked; the slave cuts its log
    slave -> master   HA_ACK         the position it holds: written, or durable under SYNC_FLUSH.
                                     The first one follows the cut and starts the transfer
    master -> slave   HA_DATA        whole records of one epoch, with that epoch and its start, and
                                     the confirm offset; empty: a heartbeat, answered with HA_ACK

The dataclasses are the table of the fixed fields (see `net.fixed_fields`). A shape that no log can
have (it ends before it begins, or its epochs do not rise) is malformed.

Both sides check the master's epoch in the handshake: a master refuses a slave that follows a later
epoch, and a slave refuses a master of an earlier epoch than it was given.

Behind the shape of a handshake a byte holds the slave's flags, and the name of its zone may follow
(`ackZones`). Both are left out where they are not needed, because the first edition does not know
them and closes a connection on which more bytes arrive. The generation of a set that was converted
is behind the flags, and at the end of a reply; without it a broker is in generation 0.
"""

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from ..net.fixed_fields import U32, U64, FixedFields
from ..net.wire import Status
from .divergence import LogShape
from .epochs import EpochTable

_SHAPE = struct.Struct(">QQH")
_EPOCH = struct.Struct(">IQ")
_LAST_FILE = struct.Struct(">Q")
_GENERATION = struct.Struct(">I")
_ACK = struct.Struct(">Q")
_LEARNER, _ASKS_LAST_FILE, _HAS_ZONE, _HAS_GENERATION = 1, 2, 4, 8
MAX_OFFSET = 2**62


def _pack_shape(shape: LogShape) -> bytes:
    rows = shape.epochs.entries
    head = _SHAPE.pack(shape.min_offset, shape.max_offset, len(rows))
    return head + b"".join(_EPOCH.pack(epoch, start) for epoch, start in rows)


def _unpack_shape(body: bytes, at: int) -> tuple[LogShape, bytes]:
    """Return the shape, and the bytes behind it."""
    min_offset, max_offset, count = _SHAPE.unpack_from(body, at)
    at += _SHAPE.size
    end = at + count * _EPOCH.size
    if len(body) < end:
        raise ValueError("an epoch table of the wrong length")
    rows = tuple(_EPOCH.iter_unpack(body[at:end]))
    rising = all(a < b and c <= d for (a, c), (b, d) in pairwise(rows))
    rising = rising and (not rows or rows[-1][1] <= max_offset)
    if not rising or not min_offset <= max_offset < MAX_OFFSET:
        raise ValueError("a shape that no log has")
    return LogShape(min_offset, max_offset, EpochTable(rows)), body[end:]


@dataclass(frozen=True)
class HandshakeRequest:
    """A slave's handshake. `epoch`: of the master it follows; `last_file`: it asks where that
    begins; `zone`: its zone, if masters count zones."""

    slave_id: U32
    epoch: U32
    confirm_offset: U64
    shape: LogShape
    learner: bool = False
    last_file: bool = False
    zone: str = ""
    generation: int = 0

    def pack(self) -> bytes:
        flags = self.learner * _LEARNER | self.last_file * _ASKS_LAST_FILE
        flags |= bool(self.zone) * _HAS_ZONE | bool(self.generation) * _HAS_GENERATION
        number = _GENERATION.pack(self.generation) if self.generation else b""
        tail = bytes([flags]) + number + self.zone.encode() if flags else b""
        return _REQUEST.pack(self) + _pack_shape(self.shape) + tail

    @classmethod
    def unpack(cls, body: bytes) -> "HandshakeRequest":
        shape, rest = _unpack_shape(body, _REQUEST.size)
        flags, generation = rest[0] if rest else 0, 0
        if flags & _HAS_GENERATION:
            (generation,) = _GENERATION.unpack_from(rest, 1)
            rest = rest[:1] + rest[1 + _GENERATION.size :]
        if (len(rest) > 1) != bool(flags & _HAS_ZONE):
            raise ValueError(f"{len(rest)} bytes behind the shape")
        learner, last_file = bool(flags & _LEARNER), bool(flags & _ASKS_LAST_FILE)
        fields = _REQUEST.unpack(body)
        zone = rest[1:].decode()
        return cls(
            **fields,
            shape=shape,
            learner=learner,
            last_file=last_file,
            zone=zone,
            generation=generation,
        )


@dataclass(frozen=True)
class HandshakeReply:
    """The master's reply. Unless `status` is SUCCESS the connection ends here.

    `last_file`: the latest place where a copy may begin, if the slave asked; see
    `MessageStore.last_file`.
    """

    status: Annotated[Status, "H"]
    epoch: U32
    segment_size: U32
    shape: LogShape
    last_file: int | None = None
    generation: int = 0

    def pack(self) -> bytes:
        tail = b"" if self.last_file is None else _LAST_FILE.pack(self.last_file)
        tail += _GENERATION.pack(self.generation) if self.generation else b""
        return _REPLY.pack(self) + _pack_shape(self.shape) + tail

    @classmethod
    def unpack(cls, body: bytes) -> "HandshakeReply":
        fields = _REPLY.unpack(body)
        segment_size = fields["segment_size"]
        shape, rest = _unpack_shape(body, _REPLY.size)
        (generation,), (last_file,) = (0,), (None,)
        if len(rest) % _LAST_FILE.size == _GENERATION.size:
            (generation,) = _GENERATION.unpack(rest[-_GENERATION.size :])
            rest = rest[: -_GENERATION.size]
        if rest:
            (last_file,) = _LAST_FILE.unpack(rest)
        if not segment_size or shape.min_offset % segment_size:
            raise ValueError(f"a log that begins at {shape.min_offset}, inside a segment")
        if last_file is not None and (
            not shape.min_offset <= last_file <= shape.max_offset or last_file % segment_size
        ):
            raise ValueError(f"a last file that begins at {last_file}")
        fields["status"] = Status(fields["status"])
        return cls(**fields, shape=shape, last_file=last_file, generation=generation)


@dataclass(frozen=True)
class LogData:
    """A piece of the log, or a heartbeat."""

    offset: U64
    epoch: U32
    epoch_start: U64
    confirm_offset: U64
    records: bytes = b""

    def pack(self) -> bytes:
        return _DATA.pack(self) + self.records

    @classmethod
    def unpack(cls, body: bytes) -> "LogData":
        return cls(**_DATA.unpack(body), records=body[_DATA.size :])


_REQUEST, _REPLY, _DATA = (
    FixedFields(HandshakeRequest),
    FixedFields(HandshakeReply),
    FixedFields(LogData),
)


def pack_ack(position: int) -> bytes:
    return _ACK.pack(position)


def unpack_ack(body: bytes) -> int:
    position: int = _ACK.unpack(body)[0]
    return position


def may_serve_slave(slave_epoch: int, own_epoch: int) -> bool:
    """Decide whether a master serves a slave: one that follows a later master proves that this
    master is deposed."""
    return slave_epoch <= own_epoch


def may_follow(master_epoch: int, announced_epoch: int) -> bool:
    """Decide whether a slave follows a master: not one that is older than the announced one."""
    return master_epoch >= announced_epoch


def link_key(slave: int, connection: int) -> int:
    """Return the key under which a slave's acks are counted: its id, not its connection's number.

    RocketMQ counts connections, so a slave that connects again counts twice until its dead
    connection is noticed.
    """
    return slave


def ack_position(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
    """Return the position that a replica may acknowledge, and a master count as its own copy.

    Durable bytes under SYNC_FLUSH, else the kernel's; never bytes that are in memory only.
    """
    return flushed if sync_flush else written
