"""A broker's store: the log, its indexes, and the confirm offset that bounds what is visible.

The store does not know roles. A master appends messages and raises the confirm offset as its set
acknowledges; a slave appends the master's bytes and takes the confirm offset from it. Both read
through `fetch`, which returns dispatched messages: whole records up to the confirm offset.

An operation that shortens the log (`truncate`, `reset`, `delete_before`) first makes the checkpoint
durable that allows it, then removes the files of segments, then shortens the log. Only one runs at
a time, and nothing else writes the checkpoint meanwhile. A crash in between leaves a log that the
checkpoint allows.

A slave checks its master's records before it appends them. The CRC shows that bytes arrived as they
were sent, not that a sound master sent them. Records that no sound log contains raise
ProtocolError, which ends the connection: records of another epoch than announced; one that crosses
a segment or leaves a rest that no filler fits into; a queue offset that leaves a hole (filling one
of 2**60 would take all memory) or is before the queue's first; a record of queue ends that cannot
be read.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..net.connection import Tasks
from ..net.wire import MAX_FRAME, ProtocolError
from ..rules import Rules
from ..world.ports import Ports, retry_when_out_of_files
from . import key_index, queue_ends, record
from .checkpoint import Marks, StoreCheckpoint
from .commit_log import CommitLog, DiskFull, ReadWindow, ignore
from .consume_queue import ConsumeQueue, Key, QueueIndex
from .flushing import Flushing
from .key_index import KeyIndex
from .segment_files import SegmentFiles
from .segment_index import SegmentIndex

MAX_QUEUE_OFFSET = 2**62


class TruncationPointDeleted(Exception):
    """The log has been deleted beyond the truncation point; nothing was done."""


class KeyMatch(NamedTuple):
    """A message that carries a key."""

    entry: record.RecordHeader
    payload: record.Payload


class AppendResult(NamedTuple):
    """The position of an appended message."""

    queue_offset: int
    start: int
    end: int


@dataclass
class MessageStore:
    """Log, indexes and checkpoint of one broker. `recovery.recover` makes one.

    `refuses`: the disk is so full that new messages are refused (see `retention`).
    """

    log: CommitLog
    index: QueueIndex
    keys: KeyIndex
    segments: SegmentFiles
    checkpoint: StoreCheckpoint
    ports: Ports
    rules: Rules
    max_message_size: int
    flushing: Flushing
    confirm_offset: int = 0
    refuses: bool = False

    def __post_init__(self) -> None:
        self.on_dispatched: Callable[[Mapping[Key, None]], None] = lambda fresh: None
        self.log.on_damaged = self.segments.distrust
        self._tasks = Tasks()
        self._cutting = asyncio.Lock()
        self._sealing: asyncio.Task[None] | None = None
        self._unsealed: dict[int, None] = {}
        self._sync_asked_at = 0.0

    # writing

    def append(self, key: Key, shard: bytes, body: bytes, epoch: int) -> AppendResult:
        """Append a message to its queue; it is visible once confirmed."""
        topic, queue_id = key
        log, queue = self.log, self.index.queue(key)
        now = self.ports.clock.wall_ms()
        size = record.size_of(topic, shard, body)
        rest = log.room(size)
        if rest or log.max_offset % log.segment_size == 0:
            self._begin_segment(rest, size, epoch, now)
        shard, body = self.rules.stored_content(shard, body, rest > 0)
        number = self.rules.next_queue_offset(queue.visible_end, queue.end)
        start = log.max_offset
        log.append(record.encode(start, epoch, topic, queue_id, number, now, shard, body))
        self.index.add(record.RecordHeader(start, size, epoch, topic, queue_id, number, shard))
        self.keys.add(topic, shard, start)
        return AppendResult(number, start, log.max_offset)

    def append_opening(self, epoch: int) -> None:
        """Append a record without a message, the first one of an epoch. Raises DiskFull."""
        log, now = self.log, self.ports.clock.wall_ms()
        if not self.has_room(b"", b"", b""):
            raise DiskFull(log.why_full)
        rest = log.room(record.HEAD_SIZE)
        if not rest and log.max_offset % log.segment_size == 0:
            self._begin_segment(0, record.HEAD_SIZE, epoch, now)
        size = rest or record.HEAD_SIZE
        self._add_bare(record.filler(log.max_offset, epoch, size, now), epoch, b"")

    def _begin_segment(self, rest: int, message_size: int, epoch: int, now: int) -> None:
        """Fill the rest of this segment; begin the next one with the queue ends."""
        if rest:
            self._add_bare(record.filler(self.log.max_offset, epoch, rest, now), epoch, b"")
        body = queue_ends.pack(self.index.ends()) if self.log.max_offset else b""
        data = record.encode(self.log.max_offset, epoch, b"", 0, 0, now, queue_ends.KEY, body)
        if body and queue_ends.fits(len(data), message_size, self.log.segment_size):
            self._add_bare(data, epoch, queue_ends.KEY)

    def _add_bare(self, data: bytes, epoch: int, key: bytes) -> None:
        start = self.log.max_offset
        self.log.append(data)
        self.index.add(record.RecordHeader(start, len(data), epoch, b"", 0, 0, key))

    def append_raw(self, data: bytes, epoch: int) -> None:
        """Append the master's bytes. Raises ProtocolError unless they are whole, sound records that
        continue this log; DiskFull."""
        found = list(record.entries(data, self.log.max_offset))
        if not found or found[-1].end != self.log.max_offset + len(data):
            raise ProtocolError(f"damaged records at offset {self.log.max_offset}")
        check_copied_records(found, data, epoch, self.log.segment_size, self.index)
        start = self.log.max_offset
        self.log.append_copy(data)
        for e in found:
            index_record(self.index, self.keys, e, data, start)

    def has_room(self, topic: bytes, shard: bytes, body: bytes) -> bool:
        """Return whether the disk has room for this message."""
        return not self.refuses and self.log.reserve(record.size_of(topic, shard, body))

    def fits(self, topic: bytes, shard: bytes, body: bytes) -> bool:
        return len(body) <= self.max_message_size and self.fits_into_segment(topic, shard, body)

    def fits_into_segment(self, topic: bytes, shard: bytes, body: bytes) -> bool:
        longest = min(self.log.segment_size - record.HEAD_SIZE, MAX_FRAME // 2)
        return record.size_of(topic, shard, body) <= longest

    # what consumers see

    def confirm(self, offset: int) -> None:
        """Set the confirm offset; dispatch what becomes visible."""
        self.confirm_offset = offset
        self.dispatch()

    def dispatch(self) -> None:
        log = self.log
        limit = min(self.rules.dispatch_limit(self.confirm_offset, log.max_offset), log.written)
        if self.index.dispatch(limit):
            self.on_dispatched(self.index.take_fresh())

    def range(self, key: Key) -> tuple[int, int]:
        """Return the minimum and maximum queue offset that consumers may ask for."""
        queue = self.index.queues.get(key)
        return (queue.base, queue.visible_end) if queue else (0, 0)

    def fetch(self, key: Key, offset: int, count: int, max_bytes: int) -> list[record.Payload]:
        """Return visible messages from a queue offset on, at least one if there is any."""
        queue = self.index.queues.get(key)
        found: list[record.Payload] = []
        if queue is None:
            return found
        window, room = ReadWindow(), max_bytes
        for position in queue.visible(offset, count):
            payload = self._payload(position, window)
            room -= len(payload.body) + len(payload.key)
            if found and room < 0:
                break
            found.append(payload)
        return found

    def _payload(self, position: int, window: ReadWindow) -> record.Payload:
        try:
            return self.log.payload(position, window)
        except record.DamagedRecord:
            self.log.damaged(position)

    async def find(self, topic: bytes, key: bytes, limit: int) -> list[KeyMatch]:
        """Return the visible messages of a topic with this key, in log order."""
        found: list[KeyMatch] = []
        async for position in self._candidates(key_index.hash_of(topic, key)):
            if len(found) == limit:
                break
            if self.log.min_offset <= position < self.index.dispatched:
                match = self._record(position)
                if (match.entry.topic, match.payload.key) == (topic, key):
                    found.append(match)
        return found

    async def _candidates(self, wanted: int) -> AsyncIterator[int]:
        """Yield positions in log order, each once; memory may repeat what a file has."""
        at = 0
        while (base := self._first_sealed(at)) is not None:
            for position in key_index.find(*self.keys.segment(at, base), wanted):
                yield position
            kept = await self._sealed(base)
            for position in key_index.find(kept.hashes, kept.places, wanted) if kept else ():
                yield position
            at = base + self.log.segment_size
            await asyncio.sleep(0)
        for position in key_index.find(*self.keys.segment(at, self.log.max_offset), wanted):
            yield position

    async def _sealed(self, base: int) -> SegmentIndex | None:
        async def load() -> SegmentIndex | None:
            return self.segments.load(base)

        return await retry_when_out_of_files(load)

    def _first_sealed(self, at: int) -> int | None:
        """Return the first segment from `at` on whose keys are in its file."""
        return min((b for b in self.segments.ends if b >= at and self._is_sealed(b)), default=None)

    def _record(self, position: int) -> KeyMatch:
        data = self.log.read(position, record.HEAD_SIZE)
        data = self.log.read(position, record.declared_size(data, 0))
        entry = record.entry(data, 0, position)
        if entry is None:
            self.log.damaged(position)
        return KeyMatch(entry, record.payload(data, 0, position))

    def queues(self) -> dict[Key, ConsumeQueue]:
        return self.index.queues

    # truncating and deleting

    async def truncate(self, point: int) -> None:
        """Truncate at `point`. Raises TruncationPointDeleted if the log begins after it."""
        async with self._cutting:
            if point < self.log.min_offset:
                raise TruncationPointDeleted(
                    f"the log to be cut at {point} begins at {self.log.min_offset} now"
                )
            self.index.truncate(point)
            await self._truncate_keys(point)
            self.confirm_offset = min(self.confirm_offset, point)
            flushed = min(self.log.flushed, point)
            await self.checkpoint.settle(self._marks()._replace(flushed=flushed))
            await self._forget_segments(point - point % self.log.segment_size)
            await self.log.truncate(point, durably=self.rules.truncation_is_durable)

    async def _truncate_keys(self, point: int) -> None:
        """Truncate the key index. A truncated segment loses its file, so load its keys."""
        base = point - point % self.log.segment_size
        kept = await self._sealed(base) if self._is_sealed(base) else None
        if kept is not None:
            self.keys.truncate(base)
            self.keys.extend(kept.hashes, kept.places)
        self.keys.truncate(point)

    async def reset(self, offset: int) -> None:
        async with self._cutting:
            self.index.reset(offset)
            self.keys.truncate(0)
            self.confirm_offset = offset
            await self.checkpoint.settle(Marks(offset, offset, offset))
            await self._forget_segments(0)
            await self.log.reset(offset)

    async def delete_before(self, offset: int) -> bool:
        """Delete the segments before `offset`, a segment's first byte (retention).

        Return False if the log was truncated since that was decided and has to stay. If the task is
        cancelled, log and indexes have both changed, or neither: an index that lacks a part of the
        log must not be saved.
        """
        async with self._cutting:
            if not self.log.min_offset < offset <= min(self.confirm_offset, self.log.written):
                return False
            await self.log.sync()  # or a power cut could leave neither the old segments nor the new
            await self.checkpoint.settle(self._marks()._replace(min_offset=offset))
            await self.log.delete_before(offset)
            self.index.delete_before(offset)
            self.keys.forget_before(offset)
            await self.segments.remove(0, offset)
            return True

    async def _forget_segments(self, base: int) -> None:
        """Remove the files of segments from `base` on, which are about to change."""
        self._unsealed = {b: None for b in self._unsealed if b < base}
        await self.segments.remove(base, float("inf"))

    def full_segments(self) -> Iterator[tuple[int, int]]:
        """Yield (end, when the next segment began) of segments after which the log may begin."""
        log = self.log
        for end in range(log.min_offset + log.segment_size, log.written, log.segment_size):
            if self._begins_with_queue_ends(end):
                yield end, log.stored_ms(end)

    def last_file(self) -> int:
        """Return the start of the last segment with queue ends, else the start of the log."""
        low, size = self.log.min_offset, self.log.segment_size
        last = (self.log.written - 1) // size * size
        found = (base for base in range(last, low, -size) if self._begins_with_queue_ends(base))
        return next(found, low)

    def _begins_with_queue_ends(self, base: int) -> bool:
        found = next(iter(record.entries(self._head_record(base), base)), None)
        return found is not None and (found.topic, found.key) == (b"", queue_ends.KEY)

    def _head_record(self, base: int) -> bytes:
        head = self.log.read(base, record.HEAD_SIZE)
        return self.log.read(base, record.declared_size(head, 0))

    def is_boundary(self, point: int) -> bool:
        """Return whether a record ends, or the log begins, at `point`."""
        ends = (self.log.min_offset, self.log.max_offset)
        return point in ends or self.index.is_start(point)

    # making durable

    def flush_soon(self) -> None:
        """Sync the log if it is due, and write the checkpoint (timer)."""
        log, now = self.log, asyncio.get_running_loop().time()
        skipped = self.ports.choices.chance("checkpoint-skipped")
        if not (skipped or self._cutting.locked()):
            self.checkpoint.write(self._marks())
            self._tasks.start(self.checkpoint.sync())
        if self.flushing.is_due(log.written - log.flushed, now - self._sync_asked_at):
            self._sync_asked_at = now
            log.request_sync()
        if self._next_full() is not None and (self._sealing is None or self._sealing.done()):
            self._sealing = self._tasks.start(self.seal())

    async def flush(self) -> None:
        async with self._cutting:
            await self.log.sync()
            self.checkpoint.write(self._marks())
            await self.checkpoint.sync()

    def _marks(self) -> Marks:
        """Return the present offsets; the checkpoint may not be ahead of them."""
        return Marks(self.confirm_offset, self.log.flushed, self.log.min_offset)

    async def seal(self) -> None:
        """Write the files of full segments."""
        async with self._cutting:
            while (base := self._next_full()) is not None:
                end = base + self.log.segment_size
                if not await self._save_segment(base, end):
                    self._unsealed[base] = None
                elif not self._unsealed:
                    self.keys.forget_before(end)

    def _next_full(self) -> int | None:
        log = self.log
        last = min(log.flushed, self.confirm_offset) - log.segment_size
        for base in range(log.min_offset, last + 1, log.segment_size):
            if base not in self._unsealed and not self._is_sealed(base):
                return base
        return None

    def _is_sealed(self, base: int) -> bool:
        return self.segments.ends.get(base) == base + self.log.segment_size

    async def _save_segment(self, base: int, end: int) -> bool:
        found = self.index.segment(base, end)
        if found is None:
            return False
        hashes, places = self.keys.segment(base, end)
        return await self.segments.save(replace(found, hashes=hashes, places=places))

    async def leave(self) -> None:
        """Sync the store, save the indexes for the next start, and close it."""
        await self.flush()
        await self.seal()
        end = self.confirm_offset
        base = end - end % self.log.segment_size
        if base < end <= self.log.flushed and self.is_boundary(end):
            await self._save_segment(base, end)
        self.close()

    def close(self) -> None:
        self._tasks.cancel()
        self.log.on_written = self.log.on_flushed = ignore
        self.log.close()
        self.checkpoint.close()


def index_record(
    index: QueueIndex, keys: KeyIndex, e: record.RecordHeader, data: bytes, start: int
) -> None:
    """Index a record of `data`, which begins at `start` in the log."""
    index.add(e)
    if e.topic:
        keys.add(e.topic, e.key, e.offset)
    elif e.key == queue_ends.KEY:
        index.take_ends(queue_ends.unpack(record.payload(data, e.offset - start, e.offset).body))


def check_copied_records(
    found: Sequence[record.RecordHeader],
    data: bytes,
    epoch: int,
    segment_size: int,
    index: QueueIndex,
) -> None:
    """Check a master's records, the `found` ones of `data`. Raises ProtocolError."""
    start = found[0].offset
    ends: dict[Key, int] = {}
    for e in found:
        if e.epoch != epoch:
            raise ProtocolError(f"records of another epoch than {epoch}")
        rest = -e.end % segment_size
        if e.size + rest > segment_size - e.offset % segment_size or 0 < rest < record.HEAD_SIZE:
            raise ProtocolError(
                f"a record from {e.offset} to {e.end} in segments of {segment_size}"
            )
        if e.topic:
            _check_queue_offset(e, ends, index)
        elif e.key == queue_ends.KEY:
            _check_queue_ends(record.payload(data, e.offset - start, e.offset).body)


def _check_queue_offset(e: record.RecordHeader, ends: dict[Key, int], index: QueueIndex) -> None:
    key = (e.topic, e.queue)
    queue = index.queues.get(key)
    known = queue is not None and len(queue.positions) > 0
    end = ends.get(key, queue.end if queue and known else None)
    low = queue.base if queue and known else 0
    if e.queue_offset >= MAX_QUEUE_OFFSET or (end is not None and not low <= e.queue_offset <= end):
        raise ProtocolError(f"queue offset {e.queue_offset} after {end} at {e.offset}")
    ends[key] = max(end or 0, e.queue_offset + 1)


def _check_queue_ends(body: bytes) -> None:
    try:
        ends = list(queue_ends.unpack(body))
    except (IndexError, struct.error) as e:
        raise ProtocolError(f"queue ends that cannot be read: {e}") from e
    if any(following >= MAX_QUEUE_OFFSET for _, _, following in ends):
        raise ProtocolError("queue ends that no queue has")
