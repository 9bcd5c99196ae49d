"""Sends that wait for copies or for the disk, in the order of the log, and what becomes of each.

A send is answered SUCCESS once enough replicas hold it and, under SYNC_FLUSH, the disk too. One
that waits too long gets FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT: it is in the log and may yet
survive. When the reign ends, those that still wait get SLAVE_NOT_AVAILABLE, which says the same.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from .net import Connection
from .store.message_store import Appended
from .wire import Op, Sent, Status

MOST_WAITING = 10_000  # RocketMQ's send queue


class Waiting(NamedTuple):
    """A send in the log, and whom to tell."""

    appended: Appended
    epoch: int
    at: float
    connection: Connection
    request: int


class WaitingSends:
    """A queue: what is further back in the log can not be done before what is in front."""

    def __init__(self, slave_timeout_s: float, flush_timeout_s: float) -> None:
        self._slave_timeout_s = slave_timeout_s
        self._flush_timeout_s = flush_timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._replicated = self._durable = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, appended: Appended, epoch: int, connection: Connection, request: int) -> None:
        now = self._loop.time()
        self._waiting.append(Waiting(appended, epoch, now, connection, request))
        if self._timer is None:
            self._plan(now)

    def complete(self, replicated: int, durable: int) -> None:
        """Answer what has enough copies and is durable enough, each up to the given offset."""
        self._replicated, self._durable = replicated, durable
        done = min(replicated, durable)
        waiting = self._waiting
        while waiting and waiting[0].appended.end <= done:
            _answer(waiting.popleft(), Status.SUCCESS)

    def abandon(self, why: str) -> None:
        while self._waiting:
            _answer(self._waiting.popleft(), Status.SLAVE_NOT_AVAILABLE, why)

    def _expire(self) -> None:
        now = self._loop.time()
        self._timer = None
        while self._waiting:
            status = self._overdue(self._waiting[0], now)
            if status is None:
                self._plan(now)
                return
            _answer(self._waiting.popleft(), status)

    def _overdue(self, w: Waiting, now: float) -> Status | None:
        age_s = now - w.at
        if w.appended.end > self._replicated:
            return Status.FLUSH_SLAVE_TIMEOUT if age_s >= self._slave_timeout_s else None
        return Status.FLUSH_DISK_TIMEOUT if age_s >= self._flush_timeout_s else None

    def _plan(self, now: float) -> None:
        """Look again when the first one could be overdue, and not more often than need be."""
        shortest_s = min(self._slave_timeout_s, self._flush_timeout_s)
        left_s = shortest_s - (now - self._waiting[0].at)
        self._timer = self._loop.call_later(max(left_s, shortest_s / 50), self._expire)


def _answer(w: Waiting, status: Status, remark: str = "") -> None:
    sent = Sent(status, w.appended.queue_offset, w.appended.start, w.epoch, remark)
    w.connection.reply(Op.SEND, w.request, sent.pack())
