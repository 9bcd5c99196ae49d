"""The producer: many sends in flight on one connection, each with one budget for all its tries.

A send is tried at once when the queue's master is known and connected. Otherwise it waits, and so
does a retry during its back-off; waiting costs nothing of the tries, only of the budget
(`sendMsgTimeout`). A try that left towards a broker and found nothing, or a refusal that RocketMQ
retries, is tried again `retryTimesWhenSendFailed` times; the first answer that proves something
ends the send. Every failed try asks for a fresh route, because a route that is wrong is only found
out by using it.

A caller may name the queue, and all tries go to that queue. Or the producer chooses, for each try
again (faults.py), among all queues of the topic or a range of them: a retry goes to another broker
set if there is one, at once, and a broker whose circuit breaker is open gets no send while another
can be had. `Selections` counts how often that happens.

Three ways to send: `send` calls back, `send_and_wait` is awaited, each with its own number of
retries, and `send_oneway` hears no answer and knows nothing.

Sends are objects with callbacks, not tasks: thousands pass through one event loop in a second.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusters.flotilla.capacity.breaker import Breaker
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost
from clusters.flotilla.net.wire import Op, Send, Sent

from .detector import Detector
from .faults import Faults, choose
from .links import Link, Links
from .outcomes import NOT_STORED, RETRIED, Outcome, of_error, of_status
from .outcomes import overall as sound_overall
from .place import Place
from .routes import Routes
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a send. `address`: the broker that gave the last answer, if any did; `queue`:
    the number of the queue that it was stored in, if that is certain."""

    outcome: Outcome
    queue_offset: int = -1
    epoch: int = -1
    address: str = ""
    attempts: int = 1
    error: str = ""
    queue: int = -1


Queues = int | range | None
Overall = Callable[[Outcome, Outcome], Outcome]
Done = Callable[[Result], None]
_CLOSED = "the client was closed"


@dataclass
class Selections:
    """How often the producer chose a queue other than the next one in turn."""

    detours: int = 0  # tries that went to another broker set than the one before
    avoided: int = 0  # tries that passed over the next queue because of its broker


class _Sending:
    """One send under way."""

    __slots__ = ("attempts", "body", "deadline", "done", "error", "key", "not_before", "outcome",
                 "packed", "place", "queue", "retries", "topic")  # fmt: skip

    def __init__(
        self,
        message: tuple[str, Queues, bytes, bytes],
        done: Done,
        deadline: float,
        retries: int,
    ) -> None:
        self.topic, self.queue, self.key, self.body = message
        self.done, self.deadline, self.retries = done, deadline, retries
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

    def __init__(
        self, settings: Settings, routes: Routes, links: Links, overall: Overall = sound_overall
    ) -> None:
        self._settings = settings
        self._overall = overall
        self._routes = routes
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Sending, None] = {}
        self._waiting: list[_Sending] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self.selections = Selections()
        self._closed = False
        self._breakers: dict[str, Breaker] = {}
        self._faults = Faults(settings.avoidance) if settings.avoidance else None
        self._detector: Detector | None = None
        if self._faults is not None and settings.detects:
            self._detector = Detector(settings, self._faults, links)
        routes.on_change.append(self._look_again)
        links.on_change.append(self._look_again)

    def send(self, topic: str, queue: Queues, key: bytes, body: bytes, done: Done) -> None:
        """Send one message; `done` is called exactly once, never before this returns.

        `queue`: a range lets the producer choose among these numbers, None among all.
        """
        self._begin((topic, queue, key, body), done, self._settings.retries_async)

    async def send_and_wait(
        self, topic: str, body: bytes, key: bytes = b"", queue: int | None = None
    ) -> Result:
        """Send one message and wait for what becomes of it."""
        ended: asyncio.Future[Result] = self._loop.create_future()

        def done(result: Result) -> None:
            if not ended.done():
                ended.set_result(result)

        self._begin((topic, queue, key, body), done, self._settings.retries)
        return await ended

    def send_oneway(
        self, topic: str, body: bytes, key: bytes = b"", queue: int | None = None
    ) -> bool:
        """Send one message without an answer. False: nobody was connected, it did not leave."""
        if self._closed:
            return False
        place = self._place(topic, queue, "")
        link = self._links.ready(place.address) if place else None
        if place is None or link is None:
            self._routes.refresh()
            return False
        link.connection.tell(Op.SEND, Send(topic, place.queue, key, body).pack())
        return True

    def breaker_openings(self) -> int:
        """Return how often a broker's circuit breaker has opened."""
        return sum(breaker.openings for breaker in self._breakers.values())

    def close(self) -> None:
        """Give up what is open: a send that left may still happen. Nothing leaves from now on."""
        self._closed = True
        self._waiting.clear()
        if self._detector is not None:
            self._detector.close()
        if self._timer:
            self._timer.cancel()
        for sending in list(self._open):
            left = Outcome.UNKNOWN if sending.attempts else Outcome.REFUSED
            self._end(sending, left, error=_CLOSED)

    def _begin(self, message: tuple[str, Queues, bytes, bytes], done: Done, retries: int) -> None:
        if self._closed:
            self._loop.call_soon(done, Result(Outcome.REFUSED, error=_CLOSED))
            return
        deadline = self._loop.time() + self._settings.send_timeout_s
        sending = _Sending(message, done, deadline, retries)
        self._open[sending] = None
        self._try(sending)

    def _place(self, topic: str, queue: Queues, last: str) -> Place | None:
        """Where the next try goes."""
        if isinstance(queue, int):
            return self._routes.place(topic, queue)
        now, places = self._loop.time(), self._places(topic, queue)
        usable = {a: self._usable(a, now) for a in {p.address: None for p in places}}
        self._turn += 1
        place = choose(places, self._turn, last, self._faults, usable.__getitem__, now)
        if place is not None and usable[place.address]:
            due = places[self._turn % len(places)]
            self.selections.avoided += due.broker_name not in (last, place.broker_name)
        return place

    def _places(self, topic: str, queues: range | None) -> Sequence[Place]:
        """The queues to choose from that have a master now."""
        places = self._routes.places(topic)
        return places if queues is None else [p for p in places if p.number in queues]

    def _usable(self, address: str, now: float) -> bool:
        """Connected, and not known to be silent."""
        return self._links.ready(address) is not None and self._breaker(address).allows(now)

    def _breaker(self, address: str) -> Breaker:
        if address not in self._breakers:
            self._breakers[address] = Breaker(self._settings.fuse)
        return self._breakers[address]

    def _try(self, sending: _Sending) -> None:
        """Towards the queue's master, or into the waiting line."""
        last = sending.place.broker_name if sending.place else ""
        place = self._place(sending.topic, sending.queue, last)
        link = self._links.ready(place.address) if place else None
        if place is None or link is None:
            self._routes.refresh()
            self._wait(sending)
            return
        sending.attempts += 1
        self.selections.detours += bool(last) and place.broker_name != last
        now = self._loop.time()
        self._breaker(place.address).called(now)
        reply = link.call(Op.SEND, sending.at(place), sending.deadline - now)
        reply.add_done_callback(lambda reply: self._replied(sending, place, link, reply, now))

    def _replied(
        self,
        sending: _Sending,
        place: Place,
        link: Link,
        reply: "asyncio.Future[bytes]",
        called_at: float,
    ) -> None:
        error = reply.exception()
        self._learn(place.address, error is None, called_at)
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
            answer = (sent.queue_offset, sent.epoch, place.address)
            result = Result(outcome, *answer, sending.attempts, queue=place.number)
            self._finish(sending, result)
            return
        error = f"{place.address}: {sent.status.name} {sent.remark}".rstrip()
        elsewhere = self._settings.retry_not_stored and sent.status in NOT_STORED
        if sent.status in RETRIED and self._faults is not None:
            self._faults.failed(place.address, self._loop.time())
        self._failed(sending, outcome, error, elsewhere or sent.status in RETRIED)

    def _learn(self, address: str, answered: bool, called_at: float) -> None:
        """What a try tells about its broker."""
        now, breaker = self._loop.time(), self._breaker(address)
        if answered:
            breaker.answered(now)
        else:
            breaker.failed(now)
        if self._faults is None:
            return
        if answered:
            self._faults.answered(address, now - called_at, now)
        else:
            self._faults.failed(address, now, reachable=self._detector is None)

    def _failed(self, sending: _Sending, outcome: Outcome, error: str, retried: bool) -> None:
        """An attempt ended without success: try again or end."""
        self._routes.refresh()
        sending.outcome, sending.error = self._overall(sending.outcome, outcome), error
        if not retried or sending.attempts > sending.retries:
            self._end(sending, sending.outcome, error)
            return
        if self._goes_elsewhere(sending):
            self._try(sending)
            return
        backoff_s = self._settings.retry_backoff_s * 2 ** (sending.attempts - 1)
        sending.not_before = self._loop.time() + backoff_s
        self._wait(sending)

    def _goes_elsewhere(self, sending: _Sending) -> bool:
        """Another broker set can take it now, so there is nothing to wait for."""
        if isinstance(sending.queue, int) or sending.place is None:
            return False
        now, last = self._loop.time(), sending.place.broker_name
        places = self._places(sending.topic, sending.queue)
        others = {p.address for p in places if p.broker_name != last}
        return any(self._usable(address, now) for address in sorted(others))

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
