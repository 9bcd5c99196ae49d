"""Sends that wait for copies or for the disk, in log order, and their answers.

A send is answered SUCCESS once enough replicas hold it and, under SYNC_FLUSH, it is on disk. One
that waits too long gets FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT: it is in the log and may
survive. When the master steps down, waiting sends get SLAVE_NOT_AVAILABLE, which means the same.
The rule `quorum.outcome_of` decides; every answer is the rule's. See docs/flotilla-design.md,
Quorum and acknowledgement.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..net.wire import Op, SendReply, Status
from ..replication.quorum import LogPosition, SendTimeouts
from ..store.message_store import AppendResult

OutcomeOf = Callable[[LogPosition, int, int, float, SendTimeouts, bool], Status | None]
MAX_WAITING_SENDS = 10_000  # RocketMQ's send queue


class Replier(Protocol):
    """Takes the answer to a request: a connection, or what makes another answer of it."""

    def reply(self, op: int, request: int, body: bytes) -> None: ...


class WaitingSend(NamedTuple):
    """A send in the log, and the request to answer."""

    appended: AppendResult
    epoch: int
    at: float
    connection: Replier
    request: int


class WaitingSends:
    """The waiting sends in log order: a send cannot complete before the ones in front of it."""

    def __init__(self, patience: SendTimeouts, outcome_of: OutcomeOf) -> None:
        self._patience = patience
        self._outcome_of = outcome_of
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[WaitingSend] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._replicated = self._durable = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, appended: AppendResult, epoch: int, connection: Replier, request: int) -> None:
        now = self._loop.time()
        self._waiting.append(WaitingSend(appended, epoch, now, connection, request))
        if self._timer is None:
            self._plan(now)

    def complete(self, replicated: int, durable: int) -> None:
        """Answer sends that are replicated and durable up to these offsets."""
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
        """Answer the first sends whose outcome is decided. Without `now` no send is late."""
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
        """Plan the next check for when the first send could be overdue."""
        shortest_s = min(self._patience)
        left_s = shortest_s - (now - self._waiting[0].at)
        self._timer = self._loop.call_later(max(left_s, shortest_s / 50), self._expire)


def _answer(w: WaitingSend, status: Status, remark: str = "") -> None:
    sent = SendReply(status, w.appended.queue_offset, w.appended.start, w.epoch, remark)
    w.connection.reply(Op.SEND, w.request, sent.pack())
