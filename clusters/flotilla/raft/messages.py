"""What Raft members tell each other.

    VoteRequest -> VoteReply       Raft 5.2; `pre` asks "would you?" without a new term (thesis 9.6)
    Append      -> AppendReply     Raft 5.3; without entries it is the heartbeat

A request is answered on the connection it came by, once. `stamp` is the leader's own clock when it
sent an Append; the reply returns it, so that the leader knows since when it was surely followed.

    packed     u8 kind | u64 term | u8 length of source | source | fields
"""

import struct
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in the log. Empty data: a leader's first entry, which changes nothing (Raft 8)."""

    term: int
    data: bytes


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
    hint_index: int = 0
    hint_term: int = 0

    FIELDS: ClassVar = struct.Struct(">?QdQQ")


Message = VoteRequest | VoteReply | Append | AppendReply
_HEAD = struct.Struct(">BQB")
_KINDS: tuple[type[Message], ...] = (VoteRequest, VoteReply, Append, AppendReply)


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
            return head + message.FIELDS.pack(matched, index, stamp, *hints)
        case Append():
            return head + _pack_append(message)


def unpack(body: bytes) -> Message:
    """ValueError or struct.error: not a Raft message."""
    kind, term, source_size = _HEAD.unpack_from(body)
    at = _HEAD.size + source_size
    source = body[_HEAD.size : at].decode()
    if kind >= len(_KINDS) or at > len(body):
        raise ValueError(f"no Raft message: kind {kind}, {len(body)} bytes")
    fields = _KINDS[kind].FIELDS.unpack_from(body, at)
    if kind == 0:
        index, last_term, pre = fields
        return VoteRequest(term=term, source=source, last_index=index, last_term=last_term, pre=pre)
    if kind == 1:
        return VoteReply(term=term, source=source, granted=fields[0], pre=fields[1])
    if kind == 2:
        return _unpack_append(term, source, body, at)
    matched, index, stamp, hint_index, hint_term = fields
    return AppendReply(
        term=term,
        source=source,
        matched=matched,
        index=index,
        stamp=stamp,
        hint_index=hint_index,
        hint_term=hint_term,
    )


def _pack_append(message: Append) -> bytes:
    m = message
    parts = [m.FIELDS.pack(m.prev_index, m.prev_term, m.commit, m.stamp, len(m.entries))]
    for entry in m.entries:
        parts += (m.ENTRY.pack(entry.term, len(entry.data)), entry.data)
    return b"".join(parts)


def _unpack_append(term: int, source: str, body: bytes, at: int) -> Append:
    prev_index, prev_term, commit, stamp, count = Append.FIELDS.unpack_from(body, at)
    at += Append.FIELDS.size
    entries = []
    for _ in range(count):
        entry_term, size = Append.ENTRY.unpack_from(body, at)
        at += Append.ENTRY.size + size
        if at > len(body):
            raise ValueError("an Append ends inside an entry")
        entries.append(Entry(entry_term, body[at - size : at]))
    return Append(
        term=term,
        source=source,
        prev_index=prev_index,
        prev_term=prev_term,
        commit=commit,
        stamp=stamp,
        entries=tuple(entries),
    )
