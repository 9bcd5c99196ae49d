"""Kinds of Flotilla's messages, read from the beginning of their frames, for recordings.

    send, send reply               an operation of `net/wire.py`, and its reply
    send reply: no permission      ... with its status, unless that is SUCCESS
    ha data, ha heartbeat, ha ack  the replication stream
    pre-vote request, vote reply   Raft between controllers
    append, append reply: no match
    raft heartbeat                 an append without entries
    1,234 bytes                    no frame, or one that cannot be read

A message is routine if its kind repeats by the clock (heartbeats, polls, registrations) or if it
says the same as the one before it: an empty append, an acknowledgement of the same position.
"""

import json
import struct
from typing import Any

from clusters.flotilla.net.wire import HEADER, MAX_FRAME, REPLY, Op, Status
from clusters.flotilla.raft import messages as raft
from clusters.flotilla.replication.ha_protocol import LogData
from harness.contracts.cluster_view import Frame

POLLS = frozenset(
    {
        *(Op.PULL, Op.QUEUE_RANGE, Op.OFFSET_QUERY, Op.GROUP_HEARTBEAT, Op.METADATA),
        *(Op.METADATA_SYNC, Op.REGISTER_BROKER, Op.ROUTE, Op.MEMBER_GROUP, Op.PING),
        *(Op.NAMESERVER_HEARTBEAT, Op.CONTROLLER_METADATA, Op.BROKER_HEARTBEAT),
        *(Op.REPLICA_INFO, Op.SYNC_STATE_DATA, Op.DESCRIBE, Op.GET_CONFIG),
    }
)
PACKED = frozenset({Op.SEND, Op.PULL, Op.HA_HANDSHAKE})  # replies that are not JSON
PULLED = 29  # size_bytes of a packed reply to PULL without messages
UNREADABLE = (struct.error, ValueError, LookupError, TypeError, AttributeError)


class FlotillaFrames:
    """Reads one direction of a connection."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}  # by kind: what the last one said

    def read(self, data: bytes) -> Frame | None:
        """Return the frame that begins these bytes; None if its header is not complete. Bytes that
        are no frame are a message of their own."""
        if len(data) < HEADER.size:
            return None
        length, op, _ = HEADER.unpack_from(data)
        size = 4 + length
        try:
            kind, routine = self._kind(Op(op & ~REPLY), bool(op & REPLY), data[HEADER.size : size])
        except UNREADABLE:
            if not 5 <= length <= MAX_FRAME:
                size = len(data)
            kind, routine = f"{size:,} bytes", False
        return Frame(size, kind, routine)

    def _kind(self, op: Op, reply: bool, body: bytes) -> tuple[str, bool]:
        if op is Op.RAFT:
            return self._raft(raft.unpack(body))
        name = op.name.lower().replace("_", " ")
        if op is Op.HA_DATA:
            data = LogData.unpack(body)
            same = self._repeats(name, (data.offset, data.epoch, data.confirm_offset))
            return (name, False) if data.records else ("ha heartbeat", same)
        if op is Op.HA_ACK:
            return name, self._repeats(name, body)
        if not reply:
            return name, op in POLLS
        status = _status(op, body)
        refused = f": {status.name.lower().replace('_', ' ')}" if status else ""
        delivers = op is Op.PULL and len(body) > PULLED
        return f"{name} reply{refused}", op in POLLS and not delivers

    def _raft(self, message: raft.Message) -> tuple[str, bool]:
        match message:
            case raft.VoteRequest(pre=pre):
                return "pre-vote request" if pre else "vote request", False
            case raft.VoteReply(pre=pre, granted=granted):
                refused = "" if granted else ": refused"
                return f"{'pre-vote' if pre else 'vote'} reply{refused}", False
            case raft.Append(entries=(), prev_index=index, commit=commit, term=term):
                return "raft heartbeat", self._repeats("raft heartbeat", (term, index, commit))
            case raft.Append():
                return "append", False
            case raft.AppendReply(matched=matched, index=index, term=term):
                kind = "append reply" if matched else "append reply: no match"
                return kind, self._repeats(kind, (term, index))
            case raft.SnapshotPart():
                return "snapshot part", False
        return "snapshot reply", False

    def _repeats(self, kind: str, content: Any) -> bool:
        before, self._before[kind] = self._before.get(kind), content
        return bool(before == content)


def _status(op: Op, body: bytes) -> Status:
    """Return the status of a reply."""
    if op not in PACKED:
        return Status(json.loads(body)["code"])
    if op is Op.HA_HANDSHAKE:
        return Status(int.from_bytes(body[:2], "big"))
    return Status(body[0])
