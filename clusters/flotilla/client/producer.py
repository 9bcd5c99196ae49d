"""The producer: many sends in flight on one connection, each with one time limit for all its tries.

A send is tried at once if the queue's master is known and connected. Otherwise it waits, as does a
retry during its back-off; waiting uses up the time limit (`sendMsgTimeout`), not the tries. A try
that cannot connect, or a refusal that RocketMQ retries, is repeated `retryTimesWhenSendFailed`
times; the first answer that proves an outcome ends the send. Every failed try asks for a fresh
route, because only its use shows that a route is wrong.

A caller may name the queue; then all tries go to it. Or the producer chooses, for each try again
(faults.py), among all queues of the topic or a range of them: a retry goes to another broker set at
once if there is one, and a broker whose circuit breaker is open gets no send while another is
usable. `Selections` counts how often that happens.

There are three ways to send: `send` takes a callback, `send_and_wait` is awaited, each with its own
number of retries, and `send_oneway` gets no answer.

Sends are objects with callbacks, not tasks: an event loop handles thousands of them in a second.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Tasks, Unreachable
from clusters.flotilla.net.wire import Op, SendReply, SendRequest, to_json
from clusters.flotilla.special.envelope import (
    ACK_TOPIC,
    DELAY_TOPIC,
    HALF_TOPIC,
    HIDE_TOPIC,
    OP_TOPIC,
    DelayRequest,
    HalfDecision,
    HalfRequest,
)
from clusters.flotilla.special.pop_records import HandleRequest, PopHandle
from clusters.flotilla.world.timers import PeriodicTimer

from .breaker import Breaker
from .broker_connections import BrokerConnection, BrokerConnections
from .faults import Faults, choose
from .outcomes import NOT_STORED, RETRIED, CallOutcome, outcome_of_error, outcome_of_status
from .outcomes import overall as sound_overall
from .route_cache import QueueLocation, RouteCache
from .settings import ClientSettings


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send. `address`: the broker of the last answer, if any; `queue`: the number
    of the queue in which the message is stored, if that is certain."""

    outcome: CallOutcome
    queue_offset: int = -1
    epoch: int = -1
    address: str = ""
    attempts: int = 1
    error: str = ""
    queue: int = -1


Queues = int | range | None
Pack = Callable[[str, int, bytes, bytes], bytes]
Overall = Callable[[CallOutcome, CallOutcome], CallOutcome]
Done = Callable[[SendResult], None]
_CLOSED = "the client was closed"


@dataclass
class Selections:
    """How often the producer chose a queue other than the next one in turn."""

    detours: int = 0  # tries that went to another broker set than the one before
    avoided: int = 0  # tries that passed over the next queue because of its broker


class _PendingSend:
    """One send that is not finished."""

    __slots__ = ("attempts", "body", "deadline", "done", "error", "key", "not_before", "outcome",
                 "pack", "packed", "place", "queue", "retries", "topic")  # fmt: skip

    def __init__(
        self,
        message: tuple[str, Queues, bytes, bytes],
        done: Done,
        deadline: float,
        retries: int,
        pack: Pack,
    ) -> None:
        self.pack = pack
        self.topic, self.queue, self.key, self.body = message
        self.done, self.deadline, self.retries = done, deadline, retries
        self.attempts = 0
        self.outcome = CallOutcome.REFUSED  # of the attempts so far
        self.error = "no master was known in time"
        self.not_before = 0.0
        self.place: QueueLocation | None = None
        self.packed = b""

    def at(self, place: QueueLocation) -> bytes:
        """Return the request's body for a master, with its own number of the queue."""
        if not self.packed or self.place is None or self.place.queue != place.queue:
            self.packed = self.pack(self.topic, place.queue, self.key, self.body)
        self.place = place
        return self.packed


class Detector:
    """Probes the brokers that the producer has met, so that an avoided one is used again.

    Each round sends a PING to every broker that is due. Where all brokers are bad, one that could
    not be reached is skipped until a probe reaches it (RocketMQ's `startDetectorEnable`).
    """

    def __init__(
        self, settings: ClientSettings, faults: Faults, connections: BrokerConnections
    ) -> None:
        self._settings, self._faults, self._connections = settings, faults, connections
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._round = PeriodicTimer(settings.detect_round_s, self._probe_all)

    def close(self) -> None:
        self._round.stop()
        self._tasks.cancel()

    def _probe_all(self) -> None:
        for address in self._faults.due(self._loop.time()):
            self._tasks.start(self._probe(address))

    async def _probe(self, address: str) -> None:
        again_at = self._loop.time() + self._settings.detect_interval_s
        try:
            async with asyncio.timeout(self._settings.detect_timeout_s):
                timeout_s = self._settings.detect_timeout_s
                await self._connections.call(address, Op.PING, to_json({}), timeout_s)
            reached = True
        except (Unreachable, ConnectionLost, CallTimeout, TimeoutError):
            reached = False
        self._faults.record_probe(address, reached, again_at)


def _pack(topic: str, queue: int, key: bytes, body: bytes) -> bytes:
    return SendRequest(topic, queue, key, body).pack()


class FlotillaProducer:
    """Sends messages."""

    def __init__(
        self,
        settings: ClientSettings,
        routes: RouteCache,
        connections: BrokerConnections,
        overall: Overall = sound_overall,
    ) -> None:
        self._settings = settings
        self._overall = overall
        self._routes = routes
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._open: dict[_PendingSend, None] = {}
        self._waiting: list[_PendingSend] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self.selections = Selections()
        self._closed = False
        self._breakers: dict[str, Breaker] = {}
        self._faults = Faults(settings.avoidance) if settings.avoidance else None
        self._detector: Detector | None = None
        if self._faults is not None and settings.detects:
            self._detector = Detector(settings, self._faults, connections)
        routes.on_change.append(self._retry_waiting)
        connections.on_change.append(self._retry_waiting)

    def send(self, topic: str, queue: Queues, key: bytes, body: bytes, done: Done) -> None:
        """Send one message; call `done` exactly once, never before this returns.

        `queue`: a range lets the producer choose among these numbers, None among all.
        """
        self._begin((topic, queue, key, body), done, self._settings.retries_async)

    def send_delayed(
        self, topic: str, queue: Queues, key: bytes, body: bytes, delay_ms: int, done: Done
    ) -> None:
        """Send one message that consumers get after `delay_ms`, as `send` sends one that they get
        at once. The result's offset is not that of the final message, which has none yet.

        A broker that does not know delayed messages refuses it with TOPIC_NOT_EXIST.
        """

        def pack(topic: str, queue: int, key: bytes, body: bytes) -> bytes:
            wanted = DelayRequest(topic, delay_ms, body)
            return SendRequest(DELAY_TOPIC, queue, key, wanted.pack()).pack()

        self._begin((topic, queue, key, body), done, self._settings.retries_async, pack)

    def prepare(
        self, topic: str, queue: Queues, key: bytes, body: bytes, group: str, done: Done
    ) -> None:
        """Send one message that consumers get only if it is committed. The result's offset is the
        id with which it is decided, at the same queue. `group`: whose producers answer if the
        broker asks for the decision (`Consumer.questions`)."""

        def pack(topic: str, queue: int, key: bytes, body: bytes) -> bytes:
            wanted = HalfRequest(topic, group, body)
            return SendRequest(HALF_TOPIC, queue, key, wanted.pack()).pack()

        self._begin((topic, queue, key, body), done, self._settings.retries_async, pack)

    def decide(
        self, topic: str, queue: int, half: int, key: bytes, commit: bool, done: Done
    ) -> None:
        """Commit or roll back a message that was prepared for this queue. `half`: its id; `key`:
        the message's. It is refused if the message is decided already, or discarded."""

        def pack(topic: str, queue: int, key: bytes, body: bytes) -> bytes:
            return SendRequest(OP_TOPIC, 0, key, HalfDecision(half, commit).pack()).pack()

        self._begin((topic, queue, key, b""), done, self._settings.retries_async, pack)

    def acknowledge(
        self, topic: str, queue: int, group: str, handle: PopHandle, done: Done
    ) -> None:
        """Acknowledge a message that `Consumer.pop` gave to a group. It is refused if the message
        is acknowledged already, or its time is over."""
        self._settle(ACK_TOPIC, topic, queue, group, HandleRequest(handle), done)

    def hide(
        self,
        topic: str,
        queue: int,
        group: str,
        handle: PopHandle,
        invisible_ms: int,
        done: Done,
    ) -> None:
        """Let a message that a group was given be invisible for so long from now on. The result's
        offset and epoch are those of its new handle, whose number is 0."""
        asked = HandleRequest(handle, invisible_ms)
        self._settle(HIDE_TOPIC, topic, queue, group, asked, done)

    def _settle(
        self, what: str, topic: str, queue: int, group: str, asked: HandleRequest, done: Done
    ) -> None:
        def pack(topic: str, queue: int, key: bytes, body: bytes) -> bytes:
            return SendRequest(what, 0, key, asked.pack()).pack()

        self._begin((topic, queue, group.encode(), b""), done, self._settings.retries_async, pack)

    async def send_and_wait(
        self, topic: str, body: bytes, key: bytes = b"", queue: int | None = None
    ) -> SendResult:
        """Send one message and wait for the result."""
        ended: asyncio.Future[SendResult] = self._loop.create_future()

        def done(result: SendResult) -> None:
            if not ended.done():
                ended.set_result(result)

        self._begin((topic, queue, key, body), done, self._settings.retries)
        return await ended

    def send_oneway(
        self, topic: str, body: bytes, key: bytes = b"", queue: int | None = None
    ) -> bool:
        """Send one message without an answer. Return False if it could not be sent."""
        if self._closed:
            return False
        place = self._place(topic, queue, "")
        connection = self._connections.ready(place.address) if place else None
        if place is None or connection is None:
            self._routes.refresh()
            return False
        connection.connection.send_oneway(
            Op.SEND, SendRequest(topic, place.queue, key, body).pack()
        )
        return True

    def breaker_openings(self) -> int:
        """Return how often a broker's circuit breaker has opened."""
        return sum(breaker.openings for breaker in self._breakers.values())

    def close(self) -> None:
        """End all open sends with the outcome so far; send nothing from now on."""
        self._closed = True
        self._waiting.clear()
        if self._detector is not None:
            self._detector.close()
        if self._timer:
            self._timer.cancel()
        for sending in list(self._open):
            left = CallOutcome.UNKNOWN if sending.attempts else CallOutcome.REFUSED
            self._end(sending, left, error=_CLOSED)

    def _begin(
        self,
        message: tuple[str, Queues, bytes, bytes],
        done: Done,
        retries: int,
        pack: Pack = _pack,
    ) -> None:
        if self._closed:
            self._loop.call_soon(done, SendResult(CallOutcome.REFUSED, error=_CLOSED))
            return
        deadline = self._loop.time() + self._settings.send_timeout_s
        sending = _PendingSend(message, done, deadline, retries, pack)
        self._open[sending] = None
        self._try(sending)

    def _place(self, topic: str, queue: Queues, last: str) -> QueueLocation | None:
        """Return the queue of the next try, None if no master is known."""
        if isinstance(queue, int):
            place = self._routes.place(topic, queue)
            return None if place is None or place.read_only else place
        now, places = self._loop.time(), self._places(topic, queue)
        usable = {a: self._usable(a, now) for a in {p.address: None for p in places}}
        self._turn += 1
        place = choose(places, self._turn, last, self._faults, usable.__getitem__, now)
        if place is not None and usable[place.address]:
            due = places[self._turn % len(places)]
            self.selections.avoided += due.broker_name not in (last, place.broker_name)
        return place

    def _places(self, topic: str, queues: range | None) -> Sequence[QueueLocation]:
        """Return the queues to choose from that have a master."""
        places = [place for place in self._routes.places(topic) if not place.read_only]
        return places if queues is None else [p for p in places if p.number in queues]

    def _usable(self, address: str, now: float) -> bool:
        """Return whether a broker is connected and its circuit breaker allows calls."""
        return self._connections.ready(address) is not None and self._breaker(address).allows(now)

    def _breaker(self, address: str) -> Breaker:
        if address not in self._breakers:
            self._breakers[address] = Breaker(self._settings.breaker)
        return self._breakers[address]

    def _try(self, sending: _PendingSend) -> None:
        """Send to the queue's master, or wait."""
        last = sending.place.broker_name if sending.place else ""
        place = self._place(sending.topic, sending.queue, last)
        connection = self._connections.ready(place.address) if place else None
        if place is None or connection is None:
            self._routes.refresh()
            self._wait(sending)
            return
        sending.attempts += 1
        self.selections.detours += bool(last) and place.broker_name != last
        now = self._loop.time()
        self._breaker(place.address).record_call(now)
        reply = connection.call(Op.SEND, sending.at(place), sending.deadline - now)
        reply.add_done_callback(lambda reply: self._replied(sending, place, connection, reply, now))

    def _replied(
        self,
        sending: _PendingSend,
        place: QueueLocation,
        connection: BrokerConnection,
        reply: "asyncio.Future[bytes]",
        called_at: float,
    ) -> None:
        error = reply.exception()
        self._record(place.address, error is None, called_at)
        if sending not in self._open:
            return
        if error is None:
            connection.record_answer()
            try:
                self._answered(sending, place, SendReply.unpack(reply.result()))
            except (ValueError, struct.error) as e:
                connection.connection.abort()
                self._end(
                    sending, CallOutcome.UNKNOWN, error=f"{place.address}: malformed answer: {e}"
                )
            return
        if isinstance(error, CallTimeout):
            connection.abort_if_silent(self._settings.send_timeout_s / 2)
        self._failed(
            sending, outcome_of_error(error), str(error), isinstance(error, ConnectionLost)
        )

    def _answered(self, sending: _PendingSend, place: QueueLocation, sent: SendReply) -> None:
        outcome = outcome_of_status(sent.status)
        if outcome is CallOutcome.HAPPENED:
            answer = (sent.queue_offset, sent.epoch, place.address)
            result = SendResult(outcome, *answer, sending.attempts, queue=place.number)
            self._finish(sending, result)
            return
        error = f"{place.address}: {sent.status.name} {sent.remark}".rstrip()
        elsewhere = self._settings.retry_not_stored and sent.status in NOT_STORED
        if sent.status in RETRIED and self._faults is not None:
            self._faults.record_failure(place.address, self._loop.time())
        self._failed(sending, outcome, error, elsewhere or sent.status in RETRIED)

    def _record(self, address: str, answered: bool, called_at: float) -> None:
        """Record what a try shows about its broker."""
        now, breaker = self._loop.time(), self._breaker(address)
        if answered:
            breaker.record_answer(now)
        else:
            breaker.record_failure(now)
        if self._faults is None:
            return
        if answered:
            self._faults.record_latency(address, now - called_at, now)
        else:
            self._faults.record_failure(address, now, reachable=self._detector is None)

    def _failed(
        self, sending: _PendingSend, outcome: CallOutcome, error: str, retried: bool
    ) -> None:
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

    def _goes_elsewhere(self, sending: _PendingSend) -> bool:
        """Return whether another broker set can take the send now, without a back-off."""
        if isinstance(sending.queue, int) or sending.place is None:
            return False
        now, last = self._loop.time(), sending.place.broker_name
        places = self._places(sending.topic, sending.queue)
        others = {p.address for p in places if p.broker_name != last}
        return any(self._usable(address, now) for address in sorted(others))

    def _end(self, sending: _PendingSend, outcome: CallOutcome, error: str) -> None:
        address = sending.place.address if sending.place else ""
        self._finish(
            sending,
            SendResult(outcome, address=address, attempts=max(sending.attempts, 1), error=error),
        )

    def _finish(self, sending: _PendingSend, result: SendResult) -> None:
        del self._open[sending]
        sending.done(result)

    # sends that wait for a master, a connection, or the end of a back-off

    def _wait(self, sending: _PendingSend) -> None:
        self._waiting.append(sending)
        if self._timer is None:
            self._timer = self._loop.call_later(
                self._settings.retry_backoff_s / 2, self._try_waiting
            )

    def _retry_waiting(self) -> None:
        """Try waiting sends again: a route or a connection has changed."""
        if self._waiting:
            self._try_waiting()

    def _try_waiting(self) -> None:
        """Try sends that have waited long enough; end those beyond their time limit."""
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
