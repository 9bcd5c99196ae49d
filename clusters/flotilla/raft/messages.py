"""Messages between Raft members.

    VoteRequest  -> VoteReply      Raft 5.2; `pre`: a pre-vote, which starts no term (thesis 9.6)
    Append       -> AppendReply    Raft 5.3; without entries it is the heartbeat
    SnapshotPart -> SnapshotReply  Raft 7; a snapshot is sent in parts

Each request is answered once, on the connection it came by. `stamp` is the leader's clock when it
sent the request; the reply returns it, so the leader knows since when it was followed. `round` is
the latest round of reads that had begun by then, and is returned too (thesis 6.4).

    packed     u8 type | u64 term | u8 length of source | source | fixed fields | tail

The dataclasses below are the table of the fixed fields (see `net.fixed_fields`). The tail of an
Append holds its entries; that of a SnapshotPart its data. An Append and an AppendReply of today end
with the round, and an Append with the kinds of its entries. The first edition sends neither and
ignores what follows the fields it knows, so members of both editions understand each other during
an upgrade: a missing round is 0, and a missing kind is DATA. A MEMBERS entry or a snapshot must not
reach a member of the first edition.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..net.fixed_fields import F64, U64, FixedFields, Flag
from .membership import Configuration


class EntryKind(IntEnum):
    DATA = 0  # for the state machine
    MEMBERS = 1  # a configuration (thesis 4.1)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the log. Empty data: a leader's first entry, which changes nothing (Raft 8)."""

    term: int
    data: bytes
    kind: int = EntryKind.DATA


@dataclass(frozen=True, kw_only=True)
class VoteRequest:
    term: int
    source: str
    last_index: U64
    last_term: U64
    pre: Flag


@dataclass(frozen=True, kw_only=True)
class VoteReply:
    """A granted pre-vote carries the term of the request, a refusal the voter's own term."""

    term: int
    source: str
    granted: Flag
    pre: Flag


@dataclass(frozen=True, kw_only=True)
class Append:
    term: int
    source: str
    prev_index: U64
    prev_term: U64
    commit: U64
    stamp: F64
    entries: tuple[LogEntry, ...] = ()
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class AppendReply:
    """`index` is the last entry known to match, or the `prev_index` that did not match.

    After a mismatch `hint_index` and `hint_term` say where the follower's conflicting term begins
    (Raft 5.3, last paragraphs); hint_term 0: the follower's log ends before `hint_index`.
    """

    term: int
    source: str
    matched: Flag
    index: U64
    stamp: F64
    hint_index: U64 = 0
    hint_term: U64 = 0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class SnapshotPart:
    """`data` is at `offset` of the `total` bytes of a packed snapshot up to the entry `index`."""

    term: int
    source: str
    index: U64
    offset: U64
    total: U64
    stamp: F64
    round: U64
    data: bytes


@dataclass(frozen=True, kw_only=True)
class SnapshotReply:
    """The follower has `received` bytes of the snapshot. All of them: it is installed, or not
    needed."""

    term: int
    source: str
    index: U64
    received: U64
    stamp: F64
    round: U64


Request = VoteRequest | Append | SnapshotPart
Reply = VoteReply | AppendReply | SnapshotReply
Message = Request | Reply
_TYPES: tuple[type[Message], ...] = (
    VoteRequest,
    VoteReply,
    Append,
    AppendReply,
    SnapshotPart,
    SnapshotReply,
)
_FIXED = {message: FixedFields(message) for message in _TYPES}
_HEAD = struct.Struct(">BQB")
_COUNT = struct.Struct(">I")
_ENTRY = struct.Struct(">QI")
_ROUND = struct.Struct(">Q")


def pack(message: Message) -> bytes:
    source = message.source.encode()
    head = _HEAD.pack(_TYPES.index(type(message)), message.term, len(source)) + source
    return head + _FIXED[type(message)].pack(message) + _pack_tail(message)


def _pack_tail(message: Message) -> bytes:
    match message:
        case Append(entries=entries, round=round_):
            parts = [_COUNT.pack(len(entries))]
            for entry in entries:
                parts += (_ENTRY.pack(entry.term, len(entry.data)), entry.data)
            parts += (_ROUND.pack(round_), bytes(entry.kind for entry in entries))
            return b"".join(parts)
        case AppendReply(round=round_):
            return _ROUND.pack(round_)
        case SnapshotPart(data=data):
            return _COUNT.pack(len(data)) + data
    return b""


def unpack(body: bytes) -> Message:
    """Raises ValueError or struct.error if `body` is not a Raft message."""
    number, term, source_size = _HEAD.unpack_from(body)
    at = _HEAD.size + source_size
    if number >= len(_TYPES) or at > len(body):
        raise ValueError(f"no Raft message: type {number}, {len(body)} bytes")
    source = body[_HEAD.size : at].decode()
    message = _TYPES[number]
    fixed = _FIXED[message]
    fields = fixed.unpack(body, at)
    at += fixed.size
    if message is Append:
        fields |= _unpack_entries(body, at)
    elif message is AppendReply:
        fields["round"], _ = _unpack_round(body, at, 0)
    elif message is SnapshotPart:
        fields["data"] = _unpack_data(body, at, fields["offset"], fields["total"])
    unpacked: Message = message(term=term, source=source, **fields)
    return unpacked


def _unpack_entries(body: bytes, at: int) -> dict[str, Any]:
    (count,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    rows = []
    for _ in range(count):
        term, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size + size
        if at > len(body):
            raise ValueError("an Append ends inside an entry")
        rows.append((term, body[at - size : at]))
    round_, kinds = _unpack_round(body, at, count)
    entries = (LogEntry(*row, EntryKind(kind)) for row, kind in zip(rows, kinds, strict=True))
    return {"entries": tuple(_checked(entry) for entry in entries), "round": round_}


def _unpack_round(body: bytes, at: int, entries: int) -> tuple[int, bytes]:
    """Return the round and the kind of each entry; for the first edition 0 and DATA."""
    if at == len(body):
        return 0, bytes(entries)
    (round_,) = _ROUND.unpack_from(body, at)
    kinds = body[at + _ROUND.size :]
    if len(kinds) != entries:
        raise ValueError(f"{len(kinds)} kinds of {entries} entries")
    return round_, kinds


def _unpack_data(body: bytes, at: int, offset: int, total: int) -> bytes:
    (size,) = _COUNT.unpack_from(body, at)
    data = body[at + _COUNT.size :]
    if not data or len(data) != size or offset + size > total:
        raise ValueError(f"a part of {len(data)} bytes at {offset} of a snapshot of {total}")
    return data


def _checked(entry: LogEntry) -> LogEntry:
    """Return the entry. Raises ValueError if it should hold a configuration and does not."""
    if entry.kind == EntryKind.MEMBERS:
        try:
            Configuration.unpack(entry.data)
        except (KeyError, TypeError) as e:
            raise ValueError(f"not a configuration: {e!r}") from e
    return entry
