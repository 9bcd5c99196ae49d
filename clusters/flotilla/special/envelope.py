"""System topics, and the envelope in which a special message lies there.

A special message is an ordinary record of a system topic, whose name begins with `%`. The record's
body is an envelope, which has the final message and what the broker has to remember of it. So logs,
replication and recovery know nothing of special messages, and brokers of older editions keep them.

    envelope   u8 version | u8 kind | u16 queue | i64 due ms | i64 id | i64 born ms | u16 tries |
               u8 topic size | u16 key size | topic | key | body

Clients can neither make, read nor delete a system topic. They send to one: a SEND to `%delay` asks
the broker to deliver the message later (`DelayRequest`), one to `%half` and `%op` to prepare and to
decide a transaction (`HalfRequest`, `HalfDecision`), one to `%ack` and `%hide` is about a message
that a group was given by a PULL of `%pop:` (pop_records.py), and one to `%retry` brings a message
that a group of another set is to be given again (escape.py). A broker of an older edition has no
such topic and refuses it by name: TOPIC_NOT_EXIST %delay.
"""

import struct
from typing import NamedTuple

DELAY_TOPIC = "%delay"
HALF_TOPIC, OP_TOPIC, DEAD_TOPIC = "%half", "%op", "%dead"
ASK_TOPIC = "%ask:"  # followed by a group of producers
REVIVE_TOPIC, ACK_TOPIC, HIDE_TOPIC = "%revive", "%ack", "%hide"
RETRY_TOPIC = "%retry"
POP_TOPIC = "%pop:"  # followed by a topic, GROUP_FOLLOWS and a group of consumers
GROUP_FOLLOWS = "\n"  # in no name of a topic or group, since those are printable
DELAYED, HALF = 1, 2  # kinds of envelope
CHECKPOINT, RETRY_CHECKPOINT, ACKED, RETRY = 3, 4, 5, 6
VERSION = 1
# RocketMQ's messageDelayLevel, from level 1 on
DELAY_LEVELS_MS = tuple(
    1000 * s
    for s in (1, 5, 10, 30, *(60 * m for m in (*range(1, 11), 20, 30)), 60 * 60, 2 * 60 * 60)
)
_HEAD = struct.Struct(">BBHqqqHBH")
_DELAY = struct.Struct(">qB")  # delay in ms, topic size; then topic, body
_HALF = struct.Struct(">BB")  # topic size, group size; then topic, group, body
_DECISION = struct.Struct(">q?")  # offset of the half, whether it is committed


class EnvelopeError(ValueError):
    """A body is not an envelope, or not the body of a request for a special message."""


class Envelope(NamedTuple):
    """A final message, and when it is due. `due_ms` and `born_ms` are of the broker's wall clock;
    `id` and `tries` are 0 for kinds that need none."""

    kind: int
    topic: str
    queue: int
    key: bytes
    body: bytes
    due_ms: int = 0
    id: int = 0
    born_ms: int = 0
    tries: int = 0

    def pack(self) -> bytes:
        topic = self.topic.encode()
        numbers = (self.kind, self.queue, self.due_ms, self.id, self.born_ms, self.tries)
        head = _HEAD.pack(VERSION, *numbers, len(topic), len(self.key))
        return b"".join((head, topic, self.key, self.body))

    @classmethod
    def unpack(cls, data: bytes) -> "Envelope":
        """Raises EnvelopeError."""
        try:
            version, kind, queue, due, id_, born, tries, *sizes = _HEAD.unpack_from(data)
            key_at = _HEAD.size + sizes[0]
            body_at = key_at + sizes[1]
            topic = data[_HEAD.size : key_at].decode()
        except (struct.error, UnicodeDecodeError) as e:
            raise EnvelopeError(f"not an envelope: {e}") from e
        if version != VERSION or body_at > len(data):
            raise EnvelopeError(f"not an envelope of version {VERSION}, or cut short")
        key, body = bytes(data[key_at:body_at]), bytes(data[body_at:])
        return cls(kind, topic, queue, key, body, due, id_, born, tries)


class DelayRequest(NamedTuple):
    """The body of a SEND to `%delay`, whose queue and key are those of the final message."""

    topic: str
    delay_ms: int
    body: bytes

    def pack(self) -> bytes:
        topic = self.topic.encode()
        return _DELAY.pack(self.delay_ms, len(topic)) + topic + self.body

    @classmethod
    def unpack(cls, data: bytes) -> "DelayRequest":
        """Raises EnvelopeError."""
        try:
            delay_ms, size = _DELAY.unpack_from(data)
            topic = bytes(data[_DELAY.size : _DELAY.size + size]).decode()
        except (struct.error, UnicodeDecodeError) as e:
            raise EnvelopeError(f"not a request for a delayed message: {e}") from e
        return cls(topic, delay_ms, bytes(data[_DELAY.size + size :]))


class HalfRequest(NamedTuple):
    """The body of a SEND to `%half`, whose queue and key are those of the final message. `group`:
    the producers that may be asked for its decision."""

    topic: str
    group: str
    body: bytes

    def pack(self) -> bytes:
        topic, group = self.topic.encode(), self.group.encode()
        return _HALF.pack(len(topic), len(group)) + topic + group + self.body

    @classmethod
    def unpack(cls, data: bytes) -> "HalfRequest":
        """Raises EnvelopeError."""
        try:
            sizes = _HALF.unpack_from(data)
            group_at = _HALF.size + sizes[0]
            body_at = group_at + sizes[1]
            topic = bytes(data[_HALF.size : group_at]).decode()
            group = bytes(data[group_at:body_at]).decode()
        except (struct.error, UnicodeDecodeError) as e:
            raise EnvelopeError(f"not a request for a half message: {e}") from e
        return cls(topic, group, bytes(data[body_at:]))


class HalfDecision(NamedTuple):
    """The body of a SEND to `%op`, and of a record there. `half`: the queue offset of the half
    message in `%half`, with which its SEND was answered. The SEND's key is that of the half."""

    half: int
    commit: bool

    def pack(self) -> bytes:
        return _DECISION.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> "HalfDecision":
        """Raises EnvelopeError."""
        try:
            return cls(*_DECISION.unpack(data))
        except struct.error as e:
            raise EnvelopeError(f"not a decision: {e}") from e


class HalfCheck(NamedTuple):
    """A record of `%op`: a producer was asked about this half message. Brokers of an older edition
    take it for the rollback of a half message that is not there: its offset is negative."""

    half: int

    def pack(self) -> bytes:
        return HalfDecision(~self.half, commit=False).pack()


def op_record(data: bytes) -> HalfDecision | HalfCheck:
    """Return what a record of `%op` says. Raises EnvelopeError."""
    found = HalfDecision.unpack(data)
    return found if found.half >= 0 else HalfCheck(~found.half)
