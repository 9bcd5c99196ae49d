"""A snapshot: the state machine's state after one entry of the log, and the members then (Raft 7).

    8 bytes magic | u32 CRC-32 of the head | head | members (JSON) | data
    head     u64 index | u64 term | u32 size of members | u64 size of data | u32 CRC-32 of both

The file `raft.snapshot` holds it and is replaced as a whole. A follower that is too far behind gets
the same bytes. A snapshot with a wrong checksum is refused: no state is guessed.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from .log import EntryId
from .membership import Configuration

MAGIC = b"RAFTSNP1"
_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">QQIQI")
_BODY_AT = len(MAGIC) + _CRC.size + _HEAD.size


class SnapshotDamaged(Exception):
    """These bytes are not a snapshot; the text says from which byte on."""


@dataclass(frozen=True)
class Snapshot:
    """The state after the entry at `place`."""

    place: EntryId
    members: Configuration
    data: bytes

    @property
    def index(self) -> int:
        return self.place.index

    @property
    def data_at(self) -> int:
        """The offset of the data in the packed snapshot."""
        return _BODY_AT + len(self.members.pack())

    @cached_property
    def packed(self) -> bytes:
        members = self.members.pack()
        body = members + self.data
        sizes = len(members), len(self.data)
        head = _HEAD.pack(self.place.index, self.place.term, *sizes, crc32(body))
        return MAGIC + _CRC.pack(crc32(head)) + head + body


def parse(packed: bytes) -> Snapshot:
    """Raises SnapshotDamaged, with the offset of the first bad byte."""
    if packed[: len(MAGIC)] != MAGIC:
        raise SnapshotDamaged("byte 0: it does not begin as a snapshot does")
    head = packed[len(MAGIC) + _CRC.size : _BODY_AT]
    if len(head) < _HEAD.size or packed[len(MAGIC) :][: _CRC.size] != _CRC.pack(crc32(head)):
        raise SnapshotDamaged(f"byte {len(MAGIC)}: the head does not match its checksum")
    index, term, members_size, data_size, crc = _HEAD.unpack(head)
    body = packed[_BODY_AT:]
    if len(body) != members_size + data_size:
        raise SnapshotDamaged(
            f"byte {len(packed)}: it ends there, not at {_BODY_AT + members_size + data_size}"
        )
    if crc32(body) != crc:
        raise SnapshotDamaged(f"byte {_BODY_AT}: what follows does not match its checksum")
    members = Configuration.unpack(body[:members_size])
    return Snapshot(EntryId(index, term), members, body[members_size:])
