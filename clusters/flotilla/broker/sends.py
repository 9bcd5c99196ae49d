"""Sends that wait for copies or for the disk, in the order of the log, and what becomes of each.

A send is answered SUCCESS once enough replicas hold it and, under SYNC_FLUSH, the disk too. One
that waits too long gets FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT: it is in the log and may yet
survive. When the reign ends, those that still wait get SLAVE_NOT_AVAILABLE, which says the same.
Which of these it is, is a rule's decision (`quorum.outcome_of`); all answers are given by it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..net.connection import Connection
from ..net.wire import Op, Sent, Status
from ..replication.quorum import LogPosition, SendTimeouts
from ..store.message_store import Appended

OutcomeOf = Callable[[LogPosition, int, int, float, SendTimeouts, bool], Status | None]
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

    def __init__(self, patience: SendTimeouts, outcome_of: OutcomeOf) -> None:
        self._patience = patience
        self._outcome_of = outcome_of
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._replicated = self._durable = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def oldest_s(self) -> float:
        """For how long the first in line has waited; who comes now will not be told before it."""
        return self._loop.time() - self._waiting[0].at if self._waiting else 0.0

    def add(self, appended: Appended, epoch: int, connection: Connection, request: int) -> None:
        now = self._loop.time()
        self._waiting.append(Waiting(appended, epoch, now, connection, request))
        if self._timer is None:
            self._plan(now)

    def complete(self, replicated: int, durable: int) -> None:
        """Answer what has enough copies and is durable enough, each up to the given offset."""
        self._replicated, self._durable = replicated, durable
        self._settle()

    def abandon(self, why: str) -> None:
        self._settle(over=True, why=why)

    def _expire(self) -> None:
        now = self._loop.time()
        self._timer = None
        self._settle(now)
        if self._waiting:
            self._plan(now)

    def _settle(self, now: float | None = None, over: bool = False, why: str = "") -> None:
        """Answer those in front whose outcome is certain; without a time nobody is late."""
        waiting = self._waiting
        while waiting:
            w = waiting[0]
            waited_s = 0.0 if now is None else now - w.at
            sent = LogPosition(w.appended.end, w.epoch)
            status = self._outcome_of(
                sent, self._replicated, self._durable, waited_s, self._patience, over
            )
            if status is None:
                return
            _answer(waiting.popleft(), status, why)

    def _plan(self, now: float) -> None:
        """Look again when the first one could be overdue, and not more often than need be."""
        shortest_s = min(self._patience)
        left_s = shortest_s - (now - self._waiting[0].at)
        self._timer = self._loop.call_later(max(left_s, shortest_s / 50), self._expire)


def _answer(w: Waiting, status: Status, remark: str = "") -> None:
    sent = Sent(status, w.appended.queue_offset, w.appended.start, w.epoch, remark)
    w.connection.reply(Op.SEND, w.request, sent.pack())
