"""Pulls: messages that consumers may read now, and pulls that wait for the next message.

A pull at the end of its queue waits as long as it asks for, for half a minute at most; it is
answered when the queue grows, or with PULL_NOT_FOUND, and dropped with its connection. An offset
outside of the queue is answered PULL_OFFSET_MOVED. A deleted topic cannot be read, although its
messages are still in the log.

With `slaveReadEnable` slaves answer as well, up to the confirm offset that they know. A consumer
that lags so far that its messages are no longer in the page cache (by more than
`accessMessageInMemoryMaxRatio` percent of `accessMessageInMemoryBytes`) is sent to a slave, so that
its reads do not evict what other consumers need. An offset outside of a slave's queue may be in the
master's log, so the slave does not move it: beyond its end it answers PULL_NOT_FOUND, and before
its beginning SERVICE_NOT_AVAILABLE, which sends the consumer back to the master.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..config import Config
from ..net.connection import FrameConnection
from ..net.wire import Message, Op, PullReply, PullRequest, Status
from ..store.consume_queue import Key, next_pull_offset, times_of_batch
from ..store.message_store import MessageStore
from ..world.timers import MAX_WAIT_S
from .catalog import Catalog

_MAX_BYTES, _MAX_MESSAGES = 1024 * 1024, 4096


def lags_far(lag_bytes: int, in_memory_bytes: int) -> bool:
    """Return whether the next messages of a consumer are probably on disk only."""
    return lag_bytes > in_memory_bytes


@dataclass
class _WaitingPull:
    """A pull that waits for a message."""

    pull: PullRequest
    connection: FrameConnection
    request: int
    timer: asyncio.TimerHandle


class Pulls:
    """Answers pulls from the store, now or when a message arrives."""

    def __init__(
        self,
        config: Config,
        store: MessageStore,
        catalog: Catalog,
        is_master: Callable[[], bool],
        slave_to_read: Callable[[], int],
        next_offset: Callable[[int, int, int, int], int] = next_pull_offset,
        times_of: Callable[[Sequence[int]], Sequence[int]] = times_of_batch,
    ) -> None:
        """`slave_to_read`: returns the id of a slave for consumers that lag, 0 if there is none."""
        self._reads_slave = config.slave_read_enable
        self._in_memory_bytes = config.in_memory_bytes * config.in_memory_max_ratio // 100
        self._is_master, self._slave_to_read = is_master, slave_to_read
        self._store, self._catalog = store, catalog
        self._next_offset, self._times_of = next_offset, times_of
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Key, dict[int, _WaitingPull]] = {}
        self._next = 0

    def __len__(self) -> int:
        """Return the number of waiting pulls."""
        return sum(map(len, self._waiting.values()))

    def serve(self, pull: PullRequest, connection: FrameConnection, request: int) -> None:
        pulled = self._read(pull)
        if pulled.status is Status.PULL_NOT_FOUND and pull.wait_ms:
            self._wait(pull, connection, request)
        else:
            connection.reply(Op.PULL, request, pulled.pack())

    def wake(self, fresh: Mapping[Key, None]) -> None:
        """Answer the pulls that wait for these queues, which have grown."""
        for key in fresh:
            for waiting in self._waiting.pop(key, {}).values():
                waiting.timer.cancel()
                waiting.connection.reply(Op.PULL, waiting.request, self._read(waiting.pull).pack())

    def abandon(self) -> None:
        """Answer all waiting pulls: this broker no longer serves them."""
        waiting, self._waiting = self._waiting, {}
        for row in waiting.values():
            for p in row.values():
                p.timer.cancel()
                p.connection.reply(Op.PULL, p.request, unavailable(p.pull).pack())

    def closed(self, connection: FrameConnection) -> None:
        """Drop the pulls of a closed connection."""
        for key, row in list(self._waiting.items()):
            for number in [n for n, waiting in row.items() if waiting.connection is connection]:
                row.pop(number).timer.cancel()
            if not row:
                del self._waiting[key]

    def _read(self, pull: PullRequest) -> PullReply:
        if (unknown := self._unknown(pull)) is not None:
            return PullReply(unknown, pull.offset, -1, -1)
        key = (pull.topic.encode(), pull.queue)
        low, high = self._store.range(key)
        if pull.offset > high and not self._is_master():
            return PullReply(Status.PULL_NOT_FOUND, pull.offset, low, high)
        if pull.offset < low and not self._is_master():
            return unavailable(pull)
        if not low <= pull.offset <= high:
            nearest = min(max(pull.offset, low), high)
            return PullReply(Status.PULL_OFFSET_MOVED, nearest, low, high)
        count = min(pull.max_count, _MAX_MESSAGES)
        count = self._store.ports.choices.fewer("pull-fewer", count)
        found = self._store.fetch(key, pull.offset, count, _MAX_BYTES)
        if not found:
            return PullReply(Status.PULL_NOT_FOUND, pull.offset, low, high)
        times = self._times_of([payload.stored_ms for payload in found])
        messages = tuple(
            Message(*payload[:-1], stored_ms=time)
            for payload, time in zip(found, times, strict=True)
        )
        suggested = self._suggested(key, pull.offset, count) if self._reads_slave else 0
        after = self._next_offset(found[-1].queue_offset, len(found), count, high)
        return PullReply(Status.SUCCESS, after, low, high, messages, suggested, pull.times)

    def _unknown(self, pull: PullRequest) -> Status | None:
        """Return the status for an unknown queue, None for a known one.

        A slave may lack a queue that its master has.
        """
        queues = self._catalog.topics.get(pull.topic, 0)
        if pull.queue < queues:
            return None
        if not self._is_master():
            return Status.SERVICE_NOT_AVAILABLE
        return Status.MESSAGE_ILLEGAL if queues else Status.TOPIC_NOT_EXIST

    def _suggested(self, key: Key, offset: int, count: int) -> int:
        """Return the broker to read from next; a slave sends consumers that caught up back."""
        first = self._store.queues()[key].visible(offset, count)[0]
        lags_bytes = self._store.log.max_offset - first
        return self._slave_to_read() if lags_far(lags_bytes, self._in_memory_bytes) else 0

    def _wait(self, pull: PullRequest, connection: FrameConnection, request: int) -> None:
        key = (pull.topic.encode(), pull.queue)
        self._next += 1
        wait_s = min(pull.wait_ms / 1000, MAX_WAIT_S)
        timer = self._loop.call_later(wait_s, self._expire, key, self._next)
        waiting = _WaitingPull(pull, connection, request, timer)
        self._waiting.setdefault(key, {})[self._next] = waiting

    def _expire(self, key: Key, number: int) -> None:
        row = self._waiting.get(key, {})
        waiting = row.pop(number, None)
        if waiting is not None:
            if not row:
                del self._waiting[key]
            pulled = self._read(waiting.pull)
            waiting.connection.reply(Op.PULL, waiting.request, pulled.pack())


def unavailable(pull: PullRequest) -> PullReply:
    return PullReply(Status.SERVICE_NOT_AVAILABLE, pull.offset, -1, -1)
