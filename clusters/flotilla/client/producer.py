"""The producer: many sends in flight on one connection, each with one budget for all its tries.

A send is tried at once when the queue's master is known and connected. Otherwise it waits, and so
does a retry during its back-off; waiting costs nothing of the tries, only of the budget
(`sendMsgTimeout`). A try that left towards a broker and found nothing, or a refusal that RocketMQ
retries, is tried again `retryTimesWhenSendFailed` times; the first answer that proves something
ends the send. Every failed try asks for a fresh route, because a route that is wrong is only found
out by using it.

Sends are objects with callbacks, not tasks: thousands pass through one event loop in a second.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass

from clusters.flotilla.net import CallTimeout, ConnectionLost
from clusters.flotilla.wire import Op, Send, Sent

from .links import Link, Links
from .outcomes import RETRIED, Outcome, of_error, of_status, overall
from .routes import Place, Routes
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a send. `address`: the broker that gave the last answer, if any did."""

    outcome: Outcome
    queue_offset: int = -1
    epoch: int = -1
    address: str = ""
    attempts: int = 1
    error: str = ""


Done = Callable[[Result], None]


class _Sending:
    """One send under way."""

    __slots__ = ("attempts", "body", "deadline", "done", "error", "key", "not_before", "outcome",
                 "packed", "place", "queue", "topic")  # fmt: skip

    def __init__(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Done, deadline: float
    ) -> None:
        self.topic, self.queue, self.key, self.body = topic, queue, key, body
        self.done, self.deadline = done, deadline
        self.attempts = 0
        self.outcome = Outcome.REFUSED  # of the attempts so far: none has happened
        self.error = "no master was known in time"
        self.not_before = 0.0
        self.place: Place | None = None
        self.packed = b""

    def at(self, place: Place) -> bytes:
        """The request's body for a master; the queue's number is the master's own."""
        if not self.packed or self.place is None or self.place.queue != place.queue:
            self.packed = Send(self.topic, place.queue, self.key, self.body).pack()
        self.place = place
        return self.packed


class Producer:
    """Sends messages."""

    def __init__(self, settings: Settings, routes: Routes, links: Links) -> None:
        self._settings = settings
        self._routes = routes
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Sending, None] = {}
        self._waiting: list[_Sending] = []
        self._timer: asyncio.TimerHandle | None = None
        routes.on_change.append(self._look_again)
        links.on_change.append(self._look_again)

    def send(self, topic: str, queue: int, key: bytes, body: bytes, done: Done) -> None:
        """Send one message; `done` is called exactly once, never before this returns."""
        deadline = self._loop.time() + self._settings.send_timeout_s
        sending = _Sending(topic, queue, key, body, done, deadline)
        self._open[sending] = None
        self._try(sending)

    def close(self) -> None:
        """Give up what is open: a send that left may still happen."""
        if self._timer:
            self._timer.cancel()
        for sending in list(self._open):
            left = Outcome.UNKNOWN if sending.attempts else Outcome.REFUSED
            self._end(sending, left, error="the client was closed")

    def _try(self, sending: _Sending) -> None:
        """Towards the queue's master, or into the waiting line."""
        place = self._routes.place(sending.topic, sending.queue)
        link = self._links.ready(place.address) if place else None
        if place is None or link is None:
            self._routes.refresh()
            self._wait(sending)
            return
        sending.attempts += 1
        remaining_s = sending.deadline - self._loop.time()
        reply = link.call(Op.SEND, sending.at(place), remaining_s)
        reply.add_done_callback(lambda reply: self._replied(sending, place, link, reply))

    def _replied(
        self, sending: _Sending, place: Place, link: Link, reply: "asyncio.Future[bytes]"
    ) -> None:
        error = reply.exception()
        if sending not in self._open:
            return
        if error is None:
            link.heard()
            try:
                self._answered(sending, place, Sent.unpack(reply.result()))
            except (ValueError, struct.error) as e:
                link.connection.abort()
                self._end(sending, Outcome.UNKNOWN, error=f"{place.address}: malformed answer: {e}")
            return
        if isinstance(error, CallTimeout):
            link.silent(self._settings.send_timeout_s / 2)
        self._failed(sending, of_error(error), str(error), isinstance(error, ConnectionLost))

    def _answered(self, sending: _Sending, place: Place, sent: Sent) -> None:
        outcome = of_status(sent.status)
        if outcome is Outcome.HAPPENED:
            result = Result(outcome, sent.queue_offset, sent.epoch, place.address, sending.attempts)
            self._finish(sending, result)
            return
        error = f"{place.address}: {sent.status.name} {sent.remark}".rstrip()
        self._failed(sending, outcome, error, sent.status in RETRIED)

    def _failed(self, sending: _Sending, outcome: Outcome, error: str, retried: bool) -> None:
        """An attempt ended without success: try again or end."""
        self._routes.refresh()
        sending.outcome, sending.error = overall(sending.outcome, outcome), error
        if not retried or sending.attempts > self._settings.retries:
            self._end(sending, sending.outcome, error)
            return
        backoff_s = self._settings.retry_backoff_s * 2 ** (sending.attempts - 1)
        sending.not_before = self._loop.time() + backoff_s
        self._wait(sending)

    def _end(self, sending: _Sending, outcome: Outcome, error: str) -> None:
        address = sending.place.address if sending.place else ""
        self._finish(
            sending,
            Result(outcome, address=address, attempts=max(sending.attempts, 1), error=error),
        )

    def _finish(self, sending: _Sending, result: Result) -> None:
        del self._open[sending]
        sending.done(result)

    # the waiting line: for a master, for a connection, for a back-off to pass

    def _wait(self, sending: _Sending) -> None:
        self._waiting.append(sending)
        if self._timer is None:
            self._timer = self._loop.call_later(self._settings.retry_backoff_s / 2, self._look)

    def _look_again(self) -> None:
        """A route or a connection has changed."""
        if self._waiting:
            self._look()

    def _look(self) -> None:
        """Try whatever has waited long enough; end what has waited too long."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        now = self._loop.time()
        for sending in waiting:
            if now >= sending.deadline:
                self._end(sending, sending.outcome, sending.error)
            elif now < sending.not_before:
                self._wait(sending)
            else:
                self._try(sending)
