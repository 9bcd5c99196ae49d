"""A broker's store: the log, the index over it, and the confirm offset that bounds what is seen.

The store does not know roles. A master appends messages and raises the confirm offset as its set
acknowledges; a slave appends the master's bytes and takes the confirm offset from it. Both read
through `fetch`, which shows what is dispatched: whole records up to the confirm offset.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..net import Tasks
from ..ports import Ports
from ..wire import MAX_FRAME
from . import record
from .checkpoint import Checkpoint
from .commit_log import CommitLog, Window, nothing
from .consume_queue import ConsumeQueue, Key, QueueIndex


class StoreRules(Protocol):
    """The decisions a store asks for; see `rules.Rules`."""

    @property
    def dispatch_limit(self) -> Callable[[int, int], int]: ...
    @property
    def next_queue_offset(self) -> Callable[[int, int], int]: ...
    @property
    def truncation_is_durable(self) -> bool: ...


class Appended(NamedTuple):
    """Where a message went."""

    queue_offset: int
    start: int
    end: int


@dataclass
class MessageStore:
    """Log, index and checkpoint of one broker. `recovery.recover` makes one."""

    log: CommitLog
    index: QueueIndex
    checkpoint: Checkpoint
    ports: Ports
    rules: StoreRules
    max_message_size: int
    confirm_offset: int = 0

    def __post_init__(self) -> None:
        self.on_dispatched: Callable[[Mapping[Key, None]], None] = lambda fresh: None
        self._tasks = Tasks()

    # writing

    def append(self, key: Key, shard: bytes, body: bytes, epoch: int) -> Appended:
        """A new message at the end of its queue; visible once confirmed."""
        topic, queue_id = key
        log, queue = self.log, self.index.queue(key)
        now = self.ports.clock.wall_ms()
        rest = log.room(record.size_of(topic, shard, body))
        if rest:
            self._take(record.filler(log.max_offset, epoch, rest, now))
        number = self.rules.next_queue_offset(queue.visible_end, queue.end)
        start = log.max_offset
        self._take(record.encode(start, epoch, topic, queue_id, number, now, shard, body))
        return Appended(number, start, log.max_offset)

    def _take(self, data: bytes) -> None:
        e = record.entry(data, 0, self.log.max_offset)
        assert e is not None, "a record that was just made is sound"
        self.log.append(data)
        self.index.add(e)

    def append_raw(self, data: bytes, epoch: int) -> None:
        """The master's bytes at the end of the log. ValueError: not whole sound records of it."""
        found = list(record.entries(data, self.log.max_offset))
        if not found or found[-1].end != self.log.max_offset + len(data):
            raise ValueError(f"damaged records at offset {self.log.max_offset}")
        if any(e.epoch != epoch for e in found):
            raise ValueError(f"records of another epoch than {epoch}")
        self.log.append(data)
        for e in found:
            self.index.add(e)

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
        except record.DamagedRecord as e:
            self.ports.exit.fatal(f"{e}; at the next start the log is cut there and copied anew")

    def queues(self) -> dict[Key, ConsumeQueue]:
        return self.index.queues

    # cutting and keeping

    async def truncate(self, point: int) -> None:
        self.index.truncate(point)
        self.confirm_offset = min(self.confirm_offset, point)
        self.checkpoint.write(self.confirm_offset)
        await self.checkpoint.sync()
        await self.log.truncate(point, durably=self.rules.truncation_is_durable)

    async def reset(self, offset: int) -> None:
        self.index.reset(offset)
        self.confirm_offset = offset
        self.checkpoint.write(offset)
        await self.checkpoint.sync()
        await self.log.reset(offset)

    async def delete_before(self, offset: int) -> None:
        await self.log.delete_before(offset)
        self.index.delete_before(self.log.min_offset)

    def is_boundary(self, point: int) -> bool:
        """Does a record end, or the log begin, at `point`?"""
        ends = (self.log.min_offset, self.log.max_offset)
        return point in ends or self.index.is_start(point)

    def flush_soon(self) -> None:
        """ASYNC_FLUSH: what the kernel has goes to disk, and the checkpoint with it."""
        self.checkpoint.write(self.confirm_offset)
        self._tasks.start(self.checkpoint.sync())
        if self.log.flushed < self.log.written:
            self.log.request_sync()

    async def flush(self) -> None:
        self.checkpoint.write(self.confirm_offset)
        await self.checkpoint.sync()
        await self.log.sync()

    def close(self) -> None:
        self._tasks.cancel()
        self.log.on_written = self.log.on_flushed = nothing
        self.log.close()
        self.checkpoint.close()
