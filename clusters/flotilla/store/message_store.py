"""A broker's store: the log, the indexes over it, and the confirm offset that bounds what is seen.

The store does not know roles. A master appends messages and raises the confirm offset as its set
acknowledges; a slave appends the master's bytes and takes the confirm offset from it. Both read
through `fetch`, which shows what is dispatched: whole records up to the confirm offset.

Whatever cuts the log (`truncate`, `reset`, `delete_before`) first makes the checkpoint durable that
allows it, then removes the segments' files, then cuts; one at a time, and meanwhile nothing else
writes the checkpoint. A crash in between leaves a log that the checkpoint allows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ..net.connection import Tasks
from ..net.wire import MAX_FRAME, Senseless
from ..world.ports import Ports, patiently
from . import copied, key_index, ledger, record
from .checkpoint import Checkpoint, Marks
from .commit_log import CommitLog, Window, nothing
from .consume_queue import ConsumeQueue, Key, QueueIndex
from .flushing import Flushing
from .key_index import KeyIndex
from .segment_files import SegmentFiles
from .segment_index import SegmentIndex


class StoreRules(Protocol):
    """The decisions a store asks for; see `rules.Rules`."""

    @property
    def dispatch_limit(self) -> Callable[[int, int], int]: ...
    @property
    def next_queue_offset(self) -> Callable[[int, int], int]: ...
    @property
    def recovered_records(self) -> Callable[[bytes, int], Iterator[record.Entry]]: ...
    @property
    def log_is_whole(self) -> Callable[[int, int], bool]: ...
    @property
    def flushed_by_write(self) -> Callable[[int, int, int], int]: ...
    @property
    def stored_content(self) -> Callable[[bytes, bytes, bool], tuple[bytes, bytes]]: ...
    @property
    def truncation_is_durable(self) -> bool: ...


class Overtaken(Exception):
    """The log is not any more what this was decided for; nothing was done."""


class Found(NamedTuple):
    """A message that carries a key."""

    entry: record.Entry
    payload: record.Payload


class Appended(NamedTuple):
    """Where a message went."""

    queue_offset: int
    start: int
    end: int


@dataclass
class MessageStore:
    """Log, indexes and checkpoint of one broker. `recovery.recover` makes one.

    `refuses`: the disk is so full that nothing new should be taken (see `retention`).
    """

    log: CommitLog
    index: QueueIndex
    keys: KeyIndex
    segments: SegmentFiles
    checkpoint: Checkpoint
    ports: Ports
    rules: StoreRules
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

    def append(self, key: Key, shard: bytes, body: bytes, epoch: int) -> Appended:
        """A new message at the end of its queue; visible once confirmed."""
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
        self.index.add(record.Entry(start, size, epoch, topic, queue_id, number, shard))
        self.keys.add(topic, shard, start)
        return Appended(number, start, log.max_offset)

    def _begin_segment(self, rest: int, message_size: int, epoch: int, now: int) -> None:
        """Fill what is left of this segment, and open the next one with a ledger."""
        if rest:
            self._add_bare(record.filler(self.log.max_offset, epoch, rest, now), epoch, b"")
        body = ledger.pack(self.index.standings()) if self.log.max_offset else b""
        data = record.encode(self.log.max_offset, epoch, b"", 0, 0, now, ledger.KEY, body)
        if body and ledger.fits(len(data), message_size, self.log.segment_size):
            self._add_bare(data, epoch, ledger.KEY)

    def _add_bare(self, data: bytes, epoch: int, key: bytes) -> None:
        start = self.log.max_offset
        self.log.append(data)
        self.index.add(record.Entry(start, len(data), epoch, b"", 0, 0, key))

    def append_raw(self, data: bytes, epoch: int) -> None:
        """The master's bytes at the end of the log. Senseless: not whole sound records of it, or
        no room for them."""
        found = list(record.entries(data, self.log.max_offset))
        if not found or found[-1].end != self.log.max_offset + len(data):
            raise Senseless(f"damaged records at offset {self.log.max_offset}")
        copied.check(found, data, epoch, self.log.segment_size, self.index)
        start = self.log.max_offset
        self.log.append_copy(data)
        for e in found:
            take_entry(self.index, self.keys, e, data, start)

    def has_room(self, topic: bytes, shard: bytes, body: bytes) -> bool:
        """Has the disk room for this message?"""
        return not self.refuses and self.log.reserve(record.size_of(topic, shard, body))

    def fits(self, topic: bytes, shard: bytes, body: bytes) -> bool:
        size = record.size_of(topic, shard, body)
        longest = min(self.log.segment_size - record.HEAD_SIZE, MAX_FRAME // 2)
        return len(body) <= self.max_message_size and size <= longest

    # what consumers see

    def confirm(self, offset: int) -> None:
        """Take a new confirm offset, and dispatch what it makes visible."""
        self.confirm_offset = offset
        self.dispatch()

    def dispatch(self) -> None:
        log = self.log
        limit = min(self.rules.dispatch_limit(self.confirm_offset, log.max_offset), log.written)
        if self.index.dispatch(limit):
            self.on_dispatched(self.index.take_fresh())

    def range(self, key: Key) -> tuple[int, int]:
        """(min, max) queue offset that consumers may ask for."""
        queue = self.index.queues.get(key)
        return (queue.base, queue.visible_end) if queue else (0, 0)

    def fetch(self, key: Key, offset: int, count: int, most_bytes: int) -> list[record.Payload]:
        """Visible messages from a queue offset on, at least one if there is any."""
        queue = self.index.queues.get(key)
        found: list[record.Payload] = []
        if queue is None:
            return found
        window, room = Window(), most_bytes
        for position in queue.visible(offset, count):
            payload = self._payload(position, window)
            room -= len(payload.body) + len(payload.key)
            if found and room < 0:
                break
            found.append(payload)
        return found

    def _payload(self, position: int, window: Window) -> record.Payload:
        try:
            return self.log.payload(position, window)
        except record.DamagedRecord:
            self.log.damaged(position)

    async def find(self, topic: bytes, key: bytes, most: int) -> list[Found]:
        """The visible messages of a topic with this key, in the order of the log."""
        found: list[Found] = []
        async for position in self._candidates(key_index.hash_of(topic, key)):
            if len(found) == most:
                break
            if self.log.min_offset <= position < self.index.dispatched:
                one = self._record(position)
                if (one.entry.topic, one.payload.key) == (topic, key):
                    found.append(one)
        return found

    async def _candidates(self, wanted: int) -> AsyncIterator[int]:
        """In the order of the log, each once: memory may still have what a segment's file has."""
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

        return await patiently(load)

    def _first_sealed(self, at: int) -> int | None:
        """The first segment from here on whose keys are in its file."""
        return min((b for b in self.segments.ends if b >= at and self._is_sealed(b)), default=None)

    def _record(self, position: int) -> Found:
        data = self.log.read(position, record.HEAD_SIZE)
        data = self.log.read(position, record.declared_size(data, 0))
        entry = record.entry(data, 0, position)
        if entry is None:
            self.log.damaged(position)
        return Found(entry, record.payload(data, 0, position))

    def queues(self) -> dict[Key, ConsumeQueue]:
        return self.index.queues

    # cutting and keeping

    async def truncate(self, point: int) -> None:
        """Overtaken: the log begins behind `point` by now."""
        async with self._cutting:
            if point < self.log.min_offset:
                raise Overtaken(f"the log to be cut at {point} begins at {self.log.min_offset} now")
            self.index.truncate(point)
            await self._truncate_keys(point)
            self.confirm_offset = min(self.confirm_offset, point)
            flushed = min(self.log.flushed, point)
            await self.checkpoint.settle(self._marks()._replace(flushed=flushed))
            await self._forget_segments(point - point % self.log.segment_size)
            await self.log.truncate(point, durably=self.rules.truncation_is_durable)

    async def _truncate_keys(self, point: int) -> None:
        """A sealed segment that is cut loses its file: what is left of its keys is ours again."""
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
        """Retention: the log begins at this segment's first byte from now on. False: the log was
        cut since that was decided, and what is left has to stay. Who is cancelled has changed log
        and indexes, or neither: an index without what is in the log would be saved as the log's."""
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
        """From this one on: they are about to change."""
        self._unsealed = {b: None for b in self._unsealed if b < base}
        await self.segments.remove(base, float("inf"))

    def full_segments(self) -> Iterator[tuple[int, int]]:
        """(end, when the next one began) of those that the log could begin behind, in order."""
        log = self.log
        for end in range(log.min_offset + log.segment_size, log.written, log.segment_size):
            if self._begins_with_ledger(end):
                yield end, log.stored_ms(end)

    def last_file(self) -> int:
        """The last segment that knows where all queues stand; else where the log begins."""
        low, size = self.log.min_offset, self.log.segment_size
        last = (self.log.written - 1) // size * size
        found = (base for base in range(last, low, -size) if self._begins_with_ledger(base))
        return next(found, low)

    def _begins_with_ledger(self, base: int) -> bool:
        found = next(iter(record.entries(self._head_record(base), base)), None)
        return found is not None and (found.topic, found.key) == (b"", ledger.KEY)

    def _head_record(self, base: int) -> bytes:
        head = self.log.read(base, record.HEAD_SIZE)
        return self.log.read(base, record.declared_size(head, 0))

    def is_boundary(self, point: int) -> bool:
        """Does a record end, or the log begin, at `point`?"""
        ends = (self.log.min_offset, self.log.max_offset)
        return point in ends or self.index.is_start(point)

    # making durable

    def flush_soon(self) -> None:
        """ASYNC_FLUSH: what the kernel has goes to disk if it is time, and the checkpoint."""
        log, now = self.log, asyncio.get_running_loop().time()
        if not self._cutting.locked():
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
        """What is true now; the checkpoint may say no more."""
        return Marks(self.confirm_offset, self.log.flushed, self.log.min_offset)

    async def seal(self) -> None:
        """Write the files of the segments that are full."""
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
        """In order: everything is on disk, and the next start need not read the log."""
        await self.flush()
        await self.seal()
        end = self.confirm_offset
        base = end - end % self.log.segment_size
        if base < end <= self.log.flushed and self.is_boundary(end):
            await self._save_segment(base, end)
        self.close()

    def close(self) -> None:
        self._tasks.cancel()
        self.log.on_written = self.log.on_flushed = nothing
        self.log.close()
        self.checkpoint.close()


def take_entry(index: QueueIndex, keys: KeyIndex, e: record.Entry, data: bytes, start: int) -> None:
    """Index a record of `data`, which begins at `start` in the log."""
    index.add(e)
    if e.topic:
        keys.add(e.topic, e.key, e.offset)
    elif e.key == ledger.KEY:
        index.learn(ledger.unpack(record.payload(data, e.offset - start, e.offset).body))
