"""The records of `%revive`, and what follows from them: which messages are invisible, and to whom.

A group *pops* messages: each is invisible to the others of the group for a while. Every step is one
record of the system topic `%revive`, in an envelope:

    CHECKPOINT        these messages of a queue are given to a group until they are due
    RETRY_CHECKPOINT  the same, of messages that come again: their RETRY records
    ACKED             one message of a checkpoint is done with
    RETRY             one message of a checkpoint was due: a copy of it, to be given again

`PopLedger` applies records in their order, so a master that reads the topic knows what the last one
knew. A RETRY record settles its message and offers it again in one step; RocketMQ puts a message
into a retry topic and notes its progress later, so a failover may put it twice. Everything here is
pure.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .envelope import ACKED, CHECKPOINT, RETRY, RETRY_CHECKPOINT, Envelope, EnvelopeError

MAX_POPPED = 32  # messages of one POP, as in RocketMQ
_GROUP_QUEUE = struct.Struct(">BH")  # group size, number of offsets; then group, offsets
_POPPED = struct.Struct(">qi")  # queue offset of the checkpoint, number in it
_HANDLE = struct.Struct(">qiHq")  # queue offset and epoch of the checkpoint, number, invisible ms
_RETRY = struct.Struct(">qHBq")  # checkpoint, number, group size, offset; then group, body
Place = tuple[str, str, int]  # group, topic, queue


class PopHandle(NamedTuple):
    """Names one message that a group was given: the place and the epoch of its checkpoint, and its
    number there. Two checkpoints of one place, before and after a truncation, differ in epoch."""

    checkpoint: int
    epoch: int
    number: int

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> "PopHandle":
        """Raises ValueError."""
        checkpoint, epoch, number = text.split(":")
        return cls(int(checkpoint), int(epoch), int(number))


class HandleRequest(NamedTuple):
    """The body of a SEND to `%ack`, and to `%hide`. `invisible_ms`: from now on, for `%hide`. The
    SEND's key is the group."""

    handle: PopHandle
    invisible_ms: int = 0

    def pack(self) -> bytes:
        return _HANDLE.pack(*self.handle, self.invisible_ms)

    @classmethod
    def unpack(cls, data: bytes) -> "HandleRequest":
        """Raises EnvelopeError."""
        try:
            *handle, invisible_ms = _HANDLE.unpack(data)
        except struct.error as e:
            raise EnvelopeError(f"not a handle of a message: {e}") from e
        return cls(PopHandle(*handle), invisible_ms)


@dataclass
class Checkpoint:
    """Messages that a group was given, as long as one is neither acknowledged nor given again.

    sources  their offsets: in their queue, or in `%revive` if they came again (`is_retry`)
    tries    how often they were given before
    left     numbers of those that are open
    """

    place: Place
    sources: tuple[int, ...]
    due_ms: int
    epoch: int
    tries: int
    is_retry: bool
    left: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, envelope: Envelope, epoch: int) -> "Checkpoint":
        size, count = _GROUP_QUEUE.unpack_from(envelope.body)
        at = _GROUP_QUEUE.size + size
        group = envelope.body[_GROUP_QUEUE.size : at].decode()
        sources = struct.unpack_from(f">{count}q", envelope.body, at)
        place = group, envelope.topic, envelope.queue
        is_retry = envelope.kind == RETRY_CHECKPOINT
        times = envelope.due_ms, epoch, envelope.tries
        return cls(place, sources, *times, is_retry, set(range(count)))

    def record(self, sources: Sequence[int], born_ms: int) -> bytes:
        """Return a record with the same fields for these sources."""
        group, topic, queue = self.place
        name = group.encode()
        body = _GROUP_QUEUE.pack(len(name), len(sources)) + name
        body += struct.pack(f">{len(sources)}q", *sources)
        kind = RETRY_CHECKPOINT if self.is_retry else CHECKPOINT
        times = {"due_ms": self.due_ms, "born_ms": born_ms, "tries": self.tries}
        return Envelope(kind, topic, queue, b"", body, **times).pack()


def acked_record(checkpoint: int, number: int) -> bytes:
    body = _POPPED.pack(checkpoint, number)
    return Envelope(ACKED, "", 0, b"", body).pack()


class RetriedMessage(NamedTuple):
    """A RETRY record: a copy of a message. `offset`: where it was in its queue."""

    checkpoint: int
    number: int
    place: Place
    offset: int
    tries: int
    key: bytes
    body: bytes

    def pack(self) -> bytes:
        group, topic, queue = self.place
        name = group.encode()
        head = _RETRY.pack(self.checkpoint, self.number, len(name), self.offset)
        body = head + name + self.body
        return Envelope(RETRY, topic, queue, self.key, body, tries=self.tries).pack()

    @classmethod
    def unpack(cls, data: bytes) -> "RetriedMessage":
        """Read the body of a SEND to `%retry`. Raises EnvelopeError."""
        envelope = Envelope.unpack(data)
        try:
            if envelope.kind == RETRY:
                return cls.read(envelope)
        except (struct.error, UnicodeDecodeError) as e:
            raise EnvelopeError(f"not a message that is given again: {e}") from e
        raise EnvelopeError("not a message that is given again")

    @classmethod
    def read(cls, envelope: Envelope) -> "RetriedMessage":
        checkpoint, number, size, offset = _RETRY.unpack_from(envelope.body)
        at = _RETRY.size + size
        group = envelope.body[_RETRY.size : at].decode()
        place = group, envelope.topic, envelope.queue
        message = envelope.tries, envelope.key, envelope.body[at:]
        return cls(checkpoint, number, place, offset, *message)


class PopLedger:
    """What the records of `%revive` say.

    open       checkpoints by their place in `%revive`
    waiting    RETRY records that are not given again yet, by group and queue, in their order
    positions  behind the last message of a queue that a group was given
    """

    def __init__(self) -> None:
        self.open: dict[int, Checkpoint] = {}
        self.waiting: dict[Place, dict[int, None]] = {}
        self.positions: dict[Place, int] = {}
        self._settled: dict[int, int] = {}  # a record -> the last one that it needed

    def apply(self, body: bytes, offset: int, epoch: int) -> None:
        """Apply the record at this place of `%revive`, of this epoch. Raises EnvelopeError."""
        envelope = Envelope.unpack(body)
        if envelope.kind in (CHECKPOINT, RETRY_CHECKPOINT):
            self._give(Checkpoint.read(envelope, epoch), offset)
        elif envelope.kind == ACKED:
            checkpoint, number = _POPPED.unpack(envelope.body)
            self.settle(checkpoint, number, offset)
        elif envelope.kind == RETRY:
            retried = RetriedMessage.read(envelope)
            self.settle(retried.checkpoint, retried.number, offset)
            self.waiting.setdefault(retried.place, {})[offset] = None

    def _give(self, checkpoint: Checkpoint, offset: int) -> None:
        self.open[offset] = checkpoint
        place = checkpoint.place
        if not checkpoint.is_retry:
            after = checkpoint.sources[-1] + 1
            self.positions[place] = max(self.positions.get(place, 0), after)
            return
        waiting = self.waiting.get(place, {})
        for source in checkpoint.sources:
            waiting.pop(source, None)
            self._settled[source] = offset
        if not waiting:
            self.waiting.pop(place, None)

    def settle(self, checkpoint: int, number: int, by: int) -> None:
        """Settle one message of a checkpoint by the record at `by`."""
        found = self.open.get(checkpoint)
        if found is None:
            return
        found.left.discard(number)
        if not found.left:
            del self.open[checkpoint]
            self._settled[checkpoint] = by

    def find(self, handle: PopHandle, group: str) -> Checkpoint | None:
        """Return the checkpoint of a message that this group was given; None if it is not open."""
        found = self.open.get(handle.checkpoint)
        if found is None or (found.epoch, found.place[0]) != (handle.epoch, group):
            return None
        return found if handle.number in found.left else None

    def floor(self, end: int) -> int:
        """Return the place before which a new master need not read, if the set has all records
        before `end`. Forgets what was settled before it."""
        settled = (record for record, by in self._settled.items() if by >= end)
        waiting = (offset for row in self.waiting.values() for offset in row)
        floor = min((*self.open, *settled, *waiting, end))
        self._settled = {r: by for r, by in self._settled.items() if r >= floor}
        return floor


def escaped_number(checkpoint: int, number: int) -> int:
    """Return what names one message of a checkpoint among escaped records."""
    return checkpoint * MAX_POPPED + number


# the decisions: see rules.py


def group_moves_to(appended: int, confirmed: int, strict: bool) -> int:
    """Return the offset of a group: behind the messages whose checkpoint the set has (strict), or
    whose checkpoint is in the own log."""
    return confirmed if strict else appended


def revived_source(sources: Sequence[int], number: int) -> int:
    """Return the source of the message with this number of a checkpoint that is due."""
    return sources[number]


def revives(due_ms: int, began_ms: int) -> bool:
    """Return whether a checkpoint is revived. `began_ms`: when this master's scan began."""
    return True


def acked_number(number: int) -> int:
    """Return the number of the message that an acknowledgement of this one settles."""
    return number
