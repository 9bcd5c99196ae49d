"""Pulls: what consumers may read now, and pulls that wait for the next message of a queue.

A pull behind the end of its queue waits as long as it asked to, for half a minute at most, and is
answered as soon as the queue grows, or with PULL_NOT_FOUND; with its connection it ends. Offsets
outside the queue are answered PULL_OFFSET_MOVED. Of a topic that was deleted nothing is read any
more, though its messages are still in the log.

With `slaveReadEnable` slaves answer as well, as far as they know that messages are confirmed. A
consumer that is so far behind that what it reads is in no page cache any more (by more than
`accessMessageInMemoryMaxRatio` per cent of `accessMessageInMemoryBytes`) is sent to a slave, so
that its reads do not push out what everybody else wants (spec 10.3). An offset outside of what a
slave has may be in its master's log: it is not moved. Behind the slave's end it is not found, and
before its beginning the slave is of no use: SERVICE_NOT_AVAILABLE sends the consumer back.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..config import Config
from ..net.connection import Connection
from ..net.wire import Message, Op, Pull, Pulled, Status
from ..store.consume_queue import Key, next_pull_offset, times_of_batch
from ..store.message_store import MessageStore
from ..world.timers import LONGEST_WAIT_S
from .catalog import Catalog

_MOST_BYTES, _MOST_MESSAGES = 1024 * 1024, 4096


def lags_far(lag_bytes: int, in_memory_bytes: int) -> bool:
    """Is what a consumer reads next likely to be on disk only?"""
    return lag_bytes > in_memory_bytes


@dataclass
class _Parked:
    """A pull that waits."""

    pull: Pull
    connection: Connection
    request: int
    timer: asyncio.TimerHandle


class Pulls:
    """Answers pulls from the store, now or when something comes."""

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
        """`slave_to_read`: the id of the slave for those who lag; 0: there is none."""
        self._reads_slave = config.slave_read_enable
        self._in_memory_bytes = config.in_memory_bytes * config.in_memory_max_ratio // 100
        self._is_master, self._slave_to_read = is_master, slave_to_read
        self._store, self._catalog = store, catalog
        self._next_offset, self._times_of = next_offset, times_of
        self._loop = asyncio.get_running_loop()
        self._parked: dict[Key, dict[int, _Parked]] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._parked.values()))

    def serve(self, pull: Pull, connection: Connection, request: int) -> None:
        pulled = self._read(pull)
        if pulled.status is Status.PULL_NOT_FOUND and pull.wait_ms:
            self._park(pull, connection, request)
        else:
            connection.reply(Op.PULL, request, pulled.pack())

    def wake(self, fresh: Mapping[Key, None]) -> None:
        """These queues have grown."""
        for key in fresh:
            for parked in self._parked.pop(key, {}).values():
                parked.timer.cancel()
                parked.connection.reply(Op.PULL, parked.request, self._read(parked.pull).pack())

    def abandon(self) -> None:
        """We are no longer whom to ask."""
        parked, self._parked = self._parked, {}
        for row in parked.values():
            for p in row.values():
                p.timer.cancel()
                p.connection.reply(Op.PULL, p.request, unavailable(p.pull).pack())

    def closed(self, connection: Connection) -> None:
        """Nobody waits there any more."""
        for key, row in list(self._parked.items()):
            for number in [n for n, parked in row.items() if parked.connection is connection]:
                row.pop(number).timer.cancel()
            if not row:
                del self._parked[key]

    def _read(self, pull: Pull) -> Pulled:
        if (unknown := self._unknown(pull)) is not None:
            return Pulled(unknown, pull.offset, -1, -1)
        key = (pull.topic.encode(), pull.queue)
        low, high = self._store.range(key)
        if pull.offset > high and not self._is_master():
            return Pulled(Status.PULL_NOT_FOUND, pull.offset, low, high)
        if pull.offset < low and not self._is_master():
            return unavailable(pull)
        if not low <= pull.offset <= high:
            nearest = min(max(pull.offset, low), high)
            return Pulled(Status.PULL_OFFSET_MOVED, nearest, low, high)
        count = min(pull.max_count, _MOST_MESSAGES)
        found = self._store.fetch(key, pull.offset, count, _MOST_BYTES)
        if not found:
            return Pulled(Status.PULL_NOT_FOUND, pull.offset, low, high)
        times = self._times_of([payload.stored_ms for payload in found])
        messages = tuple(
            Message(*payload[:-1], stored_ms=time)
            for payload, time in zip(found, times, strict=True)
        )
        suggested = self._suggested(key, pull.offset, count) if self._reads_slave else 0
        after = self._next_offset(found[-1].queue_offset, len(found), count, high)
        return Pulled(Status.SUCCESS, after, low, high, messages, suggested, pull.times)

    def _unknown(self, pull: Pull) -> Status | None:
        """Why there is nothing to read from; what a slave does not know, its master may."""
        queues = self._catalog.topics.get(pull.topic, 0)
        if pull.queue < queues:
            return None
        if not self._is_master():
            return Status.SERVICE_NOT_AVAILABLE
        return Status.MESSAGE_ILLEGAL if queues else Status.TOPIC_NOT_EXIST

    def _suggested(self, key: Key, offset: int, count: int) -> int:
        """Where to read on from here; a slave that is asked sends those back who have caught up."""
        first = self._store.queues()[key].visible(offset, count)[0]
        lags_bytes = self._store.log.max_offset - first
        return self._slave_to_read() if lags_far(lags_bytes, self._in_memory_bytes) else 0

    def _park(self, pull: Pull, connection: Connection, request: int) -> None:
        key = (pull.topic.encode(), pull.queue)
        self._next += 1
        wait_s = min(pull.wait_ms / 1000, LONGEST_WAIT_S)
        timer = self._loop.call_later(wait_s, self._expire, key, self._next)
        parked = _Parked(pull, connection, request, timer)
        self._parked.setdefault(key, {})[self._next] = parked

    def _expire(self, key: Key, number: int) -> None:
        row = self._parked.get(key, {})
        parked = row.pop(number, None)
        if parked is not None:
            if not row:
                del self._parked[key]
            pulled = self._read(parked.pull)
            parked.connection.reply(Op.PULL, parked.request, pulled.pack())


def unavailable(pull: Pull) -> Pulled:
    return Pulled(Status.SERVICE_NOT_AVAILABLE, pull.offset, -1, -1)
