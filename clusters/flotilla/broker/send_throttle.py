"""The broker's gate for sends: a constant rate, dear classes first, and no long waits (spec 10.5).

Without a `sendRateLimit` every send is served in the turn of the event loop that brought it, and
the gate is open. With one, sends beyond the rate wait here, before anything is appended, so a
refusal is definite: SYSTEM_BUSY, as the original's broker answers from its send queue, with its
words. `brokerFastFailureEnable = false` makes the queue patient: who waits, waits until it is full.
"""

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple

from ..capacity.fast_fail_queue import FastFailQueue
from ..capacity.leaky_bucket import LeakyBucket
from ..capacity.qos import class_of
from ..config import Config
from ..net.connection import Connection
from ..net.wire import Op, Send, Sent, Status

SCAN_S = 0.01
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
TIMEOUT = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"


class _Waiting(NamedTuple):
    connection: Connection
    request: int
    send: Send


class Gate:
    """`serve`: takes a send; `service_s`: how long one would take that is appended now."""

    def __init__(
        self,
        config: Config,
        serve: Callable[[Connection, int, Send], None],
        service_s: Callable[[], float],
    ) -> None:
        self._classes, self._serve, self._service_s = config.topic_qos, serve, service_s
        self._loop = asyncio.get_running_loop()
        self._queue: FastFailQueue[_Waiting] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Let sends through at this configuration's rate; who waits takes his turn anew."""
        before, self._queue = self._queue, None
        self.close()
        self._timer = None
        if rate := config.send_rate_limit:
            patience_s = config.wait_in_send_queue_s if config.fast_failure else math.inf
            self._bucket = LeakyBucket(rate)
            self._queue = FastFailQueue(config.send_queue_capacity, rate, patience_s)
        while before is not None and (waiting := before.pop()) is not None:
            self.pass_(*waiting)

    def pass_(self, connection: Connection, request: int, send: Send) -> None:
        """Serve a send, now or in its turn, or refuse it."""
        if self._queue is None:
            self._serve(connection, request, send)
            return
        now, one = self._loop.time(), _Waiting(connection, request, send)
        qos = class_of(send.topic, self._classes)
        self._refuse(self._queue.offer(one, qos, self._service_s(), now), OVERLOAD)
        if self._timer is None:
            self._drain()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _drain(self) -> None:
        """Let go who may; look again when the next one may, or when somebody may be overdue."""
        assert self._queue is not None, "an open gate has nobody waiting"
        now = self._loop.time()
        self._timer = None
        self._refuse(self._queue.overdue(now), TIMEOUT)
        while len(self._queue) and not self._bucket.wait_s(now):
            waiting = self._queue.pop()
            assert waiting is not None, "the queue is not empty"
            self._bucket.drop(now)
            self._serve(*waiting)
        if len(self._queue):
            wait_s = min(self._bucket.wait_s(now), SCAN_S)
            self._timer = self._loop.call_later(wait_s, self._drain)

    def _refuse(self, refused: list[_Waiting], why: str) -> None:
        answer = Sent(Status.SYSTEM_BUSY, remark=why).pack()
        for one in refused:
            one.connection.reply(Op.SEND, one.request, answer)
