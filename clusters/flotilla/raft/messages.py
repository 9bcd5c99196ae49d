"""What Raft members tell each other.

    VoteRequest  -> VoteReply      Raft 5.2; `pre` asks "would you?" without a new term (thesis 9.6)
    Append       -> AppendReply    Raft 5.3; without entries it is the heartbeat
    SnapshotPart -> SnapshotReply  Raft 7; a snapshot in parts, for who needs compacted entries

A request is answered on the connection it came by, once. `stamp` is the leader's own clock when it
sent an Append; the reply returns it, so that the leader knows since when it was surely followed.
`round` is the latest round of reads that had begun by then, and is returned too (thesis 6.4).

    packed     u8 kind | u64 term | u8 length of source | source | fields | tail

The tail is what the first edition did not say: the round of an Append and the kinds of its entries,
the round of an AppendReply. That edition ignores what follows the fields, and without a tail the
round is 0 and all entries are data, so members of both understand each other while a group is
upgraded. A MEMBERS entry or a snapshot may not come to the first edition: it has neither.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from .membership import Configuration


class Kind(IntEnum):
    DATA = 0  # the state machine's
    MEMBERS = 1  # a configuration (thesis 4.1)


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in the log. Empty data: a leader's first entry, which changes nothing (Raft 8)."""

    term: int
    data: bytes
    kind: int = Kind.DATA


@dataclass(frozen=True, kw_only=True)
class VoteRequest:
    term: int
    source: str
    last_index: int
    last_term: int
    pre: bool

    FIELDS: ClassVar = struct.Struct(">QQ?")


@dataclass(frozen=True, kw_only=True)
class VoteReply:
    """A pre-vote that is granted carries the term asked for, a refusal the voter's own."""

    term: int
    source: str
    granted: bool
    pre: bool

    FIELDS: ClassVar = struct.Struct(">??")


@dataclass(frozen=True, kw_only=True)
class Append:
    term: int
    source: str
    prev_index: int
    prev_term: int
    commit: int
    stamp: float
    round: int = 0
    entries: tuple[Entry, ...] = ()

    FIELDS: ClassVar = struct.Struct(">QQQdI")
    ENTRY: ClassVar = struct.Struct(">QI")


@dataclass(frozen=True, kw_only=True)
class AppendReply:
    """`index` is the last entry known to match, or the `prev_index` that did not.

    After a mismatch `hint_index` and `hint_term` say where the follower's conflicting term begins
    (Raft 5.3, last paragraphs); hint_term 0 means its log ends before `hint_index`.
    """

    term: int
    source: str
    matched: bool
    index: int
    stamp: float
    round: int = 0
    hint_index: int = 0
    hint_term: int = 0

    FIELDS: ClassVar = struct.Struct(">?QdQQ")


@dataclass(frozen=True, kw_only=True)
class SnapshotPart:
    """Bytes from `offset` on of the `total` of a packed snapshot that ends with entry `index`."""

    term: int
    source: str
    index: int
    offset: int
    total: int
    stamp: float
    round: int
    data: bytes

    FIELDS: ClassVar = struct.Struct(">QQQdQI")


@dataclass(frozen=True, kw_only=True)
class SnapshotReply:
    """`received` bytes of the snapshot are here; its `total`: it is installed, or not needed."""

    term: int
    source: str
    index: int
    received: int
    stamp: float
    round: int

    FIELDS: ClassVar = struct.Struct(">QQdQ")


Request = VoteRequest | Append | SnapshotPart
Reply = VoteReply | AppendReply | SnapshotReply
Message = Request | Reply
_HEAD = struct.Struct(">BQB")
_ROUND = struct.Struct(">Q")
_KINDS: tuple[type[Message], ...] = (
    VoteRequest,
    VoteReply,
    Append,
    AppendReply,
    SnapshotPart,
    SnapshotReply,
)


def pack(message: Message) -> bytes:
    source = message.source.encode()
    head = _HEAD.pack(_KINDS.index(type(message)), message.term, len(source)) + source
    match message:
        case VoteRequest(last_index=index, last_term=term, pre=pre):
            return head + message.FIELDS.pack(index, term, pre)
        case VoteReply(granted=granted, pre=pre):
            return head + message.FIELDS.pack(granted, pre)
        case AppendReply(matched=matched, index=index, stamp=stamp):
            hints = message.hint_index, message.hint_term
            fields = message.FIELDS.pack(matched, index, stamp, *hints)
            return head + fields + _ROUND.pack(message.round)
        case Append():
            return head + _pack_append(message)
        case SnapshotPart(index=index, offset=offset, total=total, stamp=stamp):
            size = len(message.data)
            fields = message.FIELDS.pack(index, offset, total, stamp, message.round, size)
            return head + fields + message.data
        case SnapshotReply(index=index, received=received, stamp=stamp):
            return head + message.FIELDS.pack(index, received, stamp, message.round)


def unpack(body: bytes) -> Message:
    """ValueError or struct.error: not a Raft message."""
    kind, term, source_size = _HEAD.unpack_from(body)
    at = _HEAD.size + source_size
    if kind >= len(_KINDS) or at > len(body):
        raise ValueError(f"no Raft message: kind {kind}, {len(body)} bytes")
    source = body[_HEAD.size : at].decode()
    return _UNPACK[_KINDS[kind]](term, source, body, at)


def _unpack_vote_request(term: int, source: str, body: bytes, at: int) -> Message:
    index, last_term, pre = VoteRequest.FIELDS.unpack_from(body, at)
    return VoteRequest(term=term, source=source, last_index=index, last_term=last_term, pre=pre)


def _unpack_vote_reply(term: int, source: str, body: bytes, at: int) -> Message:
    granted, pre = VoteReply.FIELDS.unpack_from(body, at)
    return VoteReply(term=term, source=source, granted=granted, pre=pre)


def _unpack_append_reply(term: int, source: str, body: bytes, at: int) -> Message:
    matched, index, stamp, *hints = AppendReply.FIELDS.unpack_from(body, at)
    round_, _ = _unpack_tail(body, at + AppendReply.FIELDS.size, 0)
    return AppendReply(
        term=term,
        source=source,
        matched=matched,
        index=index,
        stamp=stamp,
        round=round_,
        hint_index=hints[0],
        hint_term=hints[1],
    )


def _unpack_snapshot_part(term: int, source: str, body: bytes, at: int) -> Message:
    index, offset, total, stamp, round_, size = SnapshotPart.FIELDS.unpack_from(body, at)
    data = body[at + SnapshotPart.FIELDS.size :]
    if not data or len(data) != size or offset + size > total:
        raise ValueError(f"a part of {len(data)} bytes at {offset} of a snapshot of {total}")
    return SnapshotPart(
        term=term,
        source=source,
        index=index,
        offset=offset,
        total=total,
        stamp=stamp,
        round=round_,
        data=data,
    )


def _unpack_snapshot_reply(term: int, source: str, body: bytes, at: int) -> Message:
    index, received, stamp, round_ = SnapshotReply.FIELDS.unpack_from(body, at)
    return SnapshotReply(
        term=term, source=source, index=index, received=received, stamp=stamp, round=round_
    )


def _pack_append(message: Append) -> bytes:
    m = message
    parts = [m.FIELDS.pack(m.prev_index, m.prev_term, m.commit, m.stamp, len(m.entries))]
    for entry in m.entries:
        parts += (m.ENTRY.pack(entry.term, len(entry.data)), entry.data)
    parts += (_ROUND.pack(m.round), bytes(entry.kind for entry in m.entries))
    return b"".join(parts)


def _unpack_append(term: int, source: str, body: bytes, at: int) -> Message:
    prev_index, prev_term, commit, stamp, count = Append.FIELDS.unpack_from(body, at)
    at += Append.FIELDS.size
    rows = []
    for _ in range(count):
        entry_term, size = Append.ENTRY.unpack_from(body, at)
        at += Append.ENTRY.size + size
        if at > len(body):
            raise ValueError("an Append ends inside an entry")
        rows.append((entry_term, body[at - size : at]))
    round_, kinds = _unpack_tail(body, at, count)
    entries = [_sound(Entry(*row, Kind(kind))) for row, kind in zip(rows, kinds, strict=True)]
    return Append(
        term=term,
        source=source,
        prev_index=prev_index,
        prev_term=prev_term,
        commit=commit,
        stamp=stamp,
        round=round_,
        entries=tuple(entries),
    )


def _unpack_tail(body: bytes, at: int, entries: int) -> tuple[int, bytes]:
    """The round, and the kind of each entry; of the first edition 0, and data."""
    if at == len(body):
        return 0, bytes(entries)
    (round_,) = _ROUND.unpack_from(body, at)
    kinds = body[at + _ROUND.size :]
    if len(kinds) != entries:
        raise ValueError(f"{len(kinds)} kinds of {entries} entries")
    return round_, kinds


def _sound(entry: Entry) -> Entry:
    """A configuration that is none must not come into any log."""
    if entry.kind == Kind.MEMBERS:
        try:
            Configuration.unpack(entry.data)
        except (KeyError, TypeError) as e:
            raise ValueError(f"no configuration: {e!r}") from e
    return entry


_UNPACK: Mapping[type[Message], Callable[[int, str, bytes, int], Message]] = {
    VoteRequest: _unpack_vote_request,
    VoteReply: _unpack_vote_reply,
    Append: _unpack_append,
    AppendReply: _unpack_append_reply,
    SnapshotPart: _unpack_snapshot_part,
    SnapshotReply: _unpack_snapshot_reply,
}
