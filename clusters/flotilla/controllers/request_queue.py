"""The queue of requests to a dledger controller: one decision at a time.

A decision reads the state in memory, and its events change that state only when Raft has committed
them. A decision made in between would be made on outdated state. So requests wait in a queue, which
stands still while events are in progress. It does so even if the client's time is over: the client
is answered "unknown", but the queue moves only when Raft knows what became of the events, or when
this controller no longer leads.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..net.connection import refusal
from ..net.wire import Json, Status
from ..raft.node import Indeterminate, NotLeader
from .consensus import majority_timeout, reply_of
from .controller_requests import Decision
from .controller_state import encode

Decide = Callable[[], Decision]


@dataclass(eq=False)
class _QueuedRequest:
    decide: Decide
    answer: "asyncio.Future[Json]"
    timer: asyncio.TimerHandle | None = None
    in_progress: bool = False


class RequestQueue:
    """`leads`: whether a decision may be made now; `propose`: Raft's."""

    def __init__(
        self,
        leads: Callable[[], bool],
        propose: Callable[[bytes], "asyncio.Future[None]"],
        not_leader: Callable[[], Json],
        timeout_s: float,
    ) -> None:
        self._leads = leads
        self._propose = propose
        self._not_leader = not_leader
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._requests: deque[_QueuedRequest] = deque()
        self._open = False
        self._busy = False

    def open(self) -> None:
        """Start: this controller leads and has applied everything that was committed before."""
        self._open, self._busy = True, False
        self._next()

    def shut(self) -> None:
        """Stop: leadership is over. The requests in the queue were not tried."""
        self._open = False
        requests, self._requests = self._requests, deque()
        for request in requests:
            self._answer(request, self._not_leader())

    def submit(self, decide: Decide) -> "asyncio.Future[Json]":
        request = _QueuedRequest(decide, self._loop.create_future())
        request.timer = self._loop.call_later(self._timeout_s, self._give_up, request)
        self._requests.append(request)
        self._next()
        return request.answer

    def _next(self) -> None:
        while self._requests and self._open and not self._busy:
            request = self._requests.popleft()
            if not self._leads():
                self._answer(request, self._not_leader())
                continue
            decision = request.decide()
            if decision.events:
                self._carry_out(request, decision)
            else:
                self._answer(request, decision.reply)

    def _carry_out(self, request: _QueuedRequest, decision: Decision) -> None:
        self._busy = request.in_progress = True

        def done(outcome: "asyncio.Future[None]") -> None:
            refused = reply_of(outcome, self._not_leader) if outcome.exception() else None
            self._answer(request, refused or decision.reply)
            if not isinstance(outcome.exception(), Indeterminate | NotLeader):
                self._busy = False
                self._next()

        self._propose(encode(decision.events)).add_done_callback(done)

    def _give_up(self, request: _QueuedRequest) -> None:
        if request.in_progress:
            self._answer(request, majority_timeout())
        elif not request.answer.done():
            self._requests.remove(request)
            remark = "not tried: other requests wait before it"
            self._answer(request, refusal(Status.SYSTEM_BUSY, remark))

    def _answer(self, request: _QueuedRequest, reply: Json) -> None:
        if request.timer:
            request.timer.cancel()
        if not request.answer.done():
            request.answer.set_result(reply)
