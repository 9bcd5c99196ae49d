"""Pulls: what consumers may read now, and pulls that wait for the next message of a queue.

A pull behind the end of its queue waits as long as it asked to, and is answered as soon as the
queue grows, or with PULL_NOT_FOUND. Offsets outside the queue are answered PULL_OFFSET_MOVED.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from .net import Connection
from .store.consume_queue import Key
from .store.message_store import MessageStore
from .wire import Message, Op, Pull, Pulled, Status

_MOST_BYTES = 1024 * 1024


@dataclass
class _Parked:
    """A pull that waits."""

    pull: Pull
    connection: Connection
    request: int
    timer: asyncio.TimerHandle


class Pulls:
    """Answers pulls from the store, now or when something comes."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._parked: dict[Key, dict[int, _Parked]] = {}
        self._next = 0

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

    def _read(self, pull: Pull) -> Pulled:
        key = (pull.topic.encode(), pull.queue)
        low, high = self._store.range(key)
        if not low <= pull.offset <= high:
            nearest = min(max(pull.offset, low), high)
            return Pulled(Status.PULL_OFFSET_MOVED, nearest, low, high)
        found = self._store.fetch(key, pull.offset, pull.max_count, _MOST_BYTES)
        if not found:
            return Pulled(Status.PULL_NOT_FOUND, pull.offset, low, high)
        messages = tuple(Message(*payload) for payload in found)
        return Pulled(Status.SUCCESS, found[-1].queue_offset + 1, low, high, messages)

    def _park(self, pull: Pull, connection: Connection, request: int) -> None:
        key = (pull.topic.encode(), pull.queue)
        self._next += 1
        timer = self._loop.call_later(pull.wait_ms / 1000, self._expire, key, self._next)
        parked = _Parked(pull, connection, request, timer)
        self._parked.setdefault(key, {})[self._next] = parked

    def _expire(self, key: Key, number: int) -> None:
        parked = self._parked.get(key, {}).pop(number, None)
        if parked is not None:
            pulled = self._read(parked.pull)
            parked.connection.reply(Op.PULL, parked.request, pulled.pack())


def unavailable(pull: Pull) -> Pulled:
    return Pulled(Status.SERVICE_NOT_AVAILABLE, pull.offset, -1, -1)
