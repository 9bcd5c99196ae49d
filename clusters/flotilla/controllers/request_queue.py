"""One request at a time between its decision and the effect of its events (spec 4.2).

A decision looks at the state in memory; its events change that state only when Raft has committed
them. If the next decision were made in between, it would be made on a state that is about to be
another one. So requests wait in line, and the line stands still while events are under way, even
when the client has given up: its answer is then "unknown", but the line moves only once Raft tells
the fate of the events, or this controller no longer leads.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..net.connection import refusal
from ..net.wire import Json, Status
from ..raft.node import Indeterminate, NotLeader, TooLarge
from .controller_requests import Decision
from .controller_state import encode

Decide = Callable[[], Decision]


@dataclass(eq=False)
class _QueuedRequest:
    decide: Decide
    answer: "asyncio.Future[Json]"
    timer: asyncio.TimerHandle | None = None
    under_way: bool = False


class RequestQueue:
    """`leads`: may a decision be made now; `propose`: Raft; `not_leader`: the answer if not."""

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
        self._line: deque[_QueuedRequest] = deque()
        self._open = False
        self._busy = False

    def open(self) -> None:
        """This controller leads and everything that was committed is applied."""
        self._open, self._busy = True, False
        self._next()

    def shut(self) -> None:
        """Leadership is over. Nobody in line was tried."""
        self._open = False
        line, self._line = self._line, deque()
        for request in line:
            self._answer(request, self._not_leader())

    def submit(self, decide: Decide) -> "asyncio.Future[Json]":
        request = _QueuedRequest(decide, self._loop.create_future())
        request.timer = self._loop.call_later(self._timeout_s, self._give_up, request)
        self._line.append(request)
        self._next()
        return request.answer

    def _next(self) -> None:
        while self._line and self._open and not self._busy:
            request = self._line.popleft()
            if not self._leads():
                self._answer(request, self._not_leader())
                continue
            decision = request.decide()
            if decision.events:
                self._carry_out(request, decision)
            else:
                self._answer(request, decision.reply)

    def _carry_out(self, request: _QueuedRequest, decision: Decision) -> None:
        self._busy = request.under_way = True

        def done(outcome: "asyncio.Future[None]") -> None:
            self._answer(request, self._reply(decision, outcome))
            if not isinstance(outcome.exception(), Indeterminate | NotLeader):
                self._busy = False
                self._next()

        self._propose(encode(decision.events)).add_done_callback(done)

    def _reply(self, decision: Decision, outcome: "asyncio.Future[None]") -> Json:
        match outcome.exception():
            case None:
                return decision.reply
            case NotLeader():
                return self._not_leader()
            case Indeterminate():
                return refusal(Status.SYSTEM_ERROR, "leadership was lost: the outcome is unknown")
            case TooLarge() as e:
                return refusal(Status.INVALID_REQUEST, str(e))
            case failure:
                raise failure

    def _give_up(self, request: _QueuedRequest) -> None:
        if request.under_way:
            unknown = refusal(Status.SYSTEM_ERROR, "no majority in time: the outcome is unknown")
            self._answer(request, unknown)
        elif not request.answer.done():
            self._line.remove(request)
            self._answer(request, refusal(Status.SYSTEM_BUSY, "not tried: others wait before it"))

    def _answer(self, request: _QueuedRequest, reply: Json) -> None:
        if request.timer:
            request.timer.cancel()
        if not request.answer.done():
            request.answer.set_result(reply)
