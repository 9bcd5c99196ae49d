"""Producer and consumer against brokers that answer from a script, over real sockets.

A script is a list of answers, one for each SEND that arrives: a Status; `HUSH` says nothing; `DROP`
hangs up. After its end everything succeeds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from loopback import until
from played_node import PlayedNode

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.client.outcomes import overall
from clusters.flotilla.client.producer import Overall, Selections
from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, Unreachable
from clusters.flotilla.net.wire import (
    Json,
    Message,
    Op,
    PullReply,
    PullRequest,
    SendReply,
    SendRequest,
    Status,
    from_json,
    to_json,
)
from clusters.flotilla_mutants import MUTANTS

HUSH, DROP = "hush", "drop"
TIMES = {
    "sendMsgTimeout": 10_000,
    "requestTimeoutMillis": 8_000,
    "connectTimeoutMillis": 8_000,
    "retryBackoffMillis": 10,
    "pollNameServerInterval": 60_000,
}
# For the tests that wait until a time is over. The others have time enough on a busy machine.
SHORT = {"sendMsgTimeout": 3000, "requestTimeoutMillis": 2500, "connectTimeoutMillis": 2500}


@dataclass
class Broker:
    """Answers SEND and PULL; remembers what it was asked."""

    script: list[Any] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    server: asyncio.AbstractServer | None = None
    address: str = ""
    connections: list[FrameConnection] = field(default_factory=list)

    def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

    def opened(self, connection: FrameConnection) -> None:
        self.connections.append(connection)

    def closed(self, connection: FrameConnection, why: str) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op == Op.PULL:
            message = Message(7, 1, 0, b"", b"hello")
            pulled = PullReply(
                Status.SUCCESS, PullRequest.unpack(body).offset + 1, 0, 8, (message,)
            )
            connection.reply(op, request, pulled.pack())
        elif op == Op.OFFSET_COMMIT:
            code = Status.SERVICE_NOT_AVAILABLE if from_json(body)["offset"] < 0 else 0
            connection.reply(op, request, to_json({"code": code}))
        else:
            self._send(connection, request, body)

    def _send(self, connection: FrameConnection, request: int, body: bytes) -> None:
        self.bodies.append(SendRequest.unpack(body).body)
        answer = self.script.pop(0) if self.script else Status.SUCCESS
        if answer == DROP:
            connection.abort()
        elif answer != HUSH:
            offset = len(self.bodies) - 1
            connection.reply(Op.SEND, request, SendReply(answer, offset, -1, 5, "why").pack())

    async def start(self) -> None:
        self.server = await net.serve("127.0.0.1", 0, self)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        assert self.server
        self.server.close()
        for connection in self.connections:
            connection.abort()


class World:
    """A nameserver whose route a test may change, two brokers, and a client."""

    def __init__(self) -> None:
        self.first, self.second = Broker(), Broker()
        self.master: str | None = None
        self.version = 1
        self.asked = 0
        self.askers: set[str] = set()  # a new connection is a new one
        self.two_sets = False  # the second broker is the master of a set of its own
        self.on_asked: Callable[[], None] | None = None
        self.client: ClusterClient
        self.nameserver = PlayedNode({Op.ROUTE: self.route})

    async def route(self, connection: FrameConnection, fields: Json) -> Json:
        self.asked += 1
        self.askers.add(connection.peer)
        if self.on_asked:
            self.on_asked()
        addrs = {"0": self.master} if self.master else {}
        sets = {"set-1": {"addrs": addrs, "stateVersion": self.version}}
        if self.two_sets:
            sets["set-2"] = {"addrs": {"0": self.second.address}, "stateVersion": 1}
        queues = [{"brokerName": name, "queues": 2} for name in sets]
        return {"topics": {"orders": queues}, "brokers": sets}

    @asynccontextmanager
    async def another_client(self, **times: int) -> AsyncIterator[None]:
        """In place of the first one, to be closed at the end."""
        first, self.client = self.client, self.new_client(**times)
        self.client.start()
        try:
            yield
        finally:
            self.client.close()
            self.client = first

    def new_client(self, overall: Overall = overall, **times: int) -> ClusterClient:
        servers = ["127.0.0.1:9", self.nameserver.address]  # the first port is closed
        return ClusterClient(ClientSettings.of({"namesrvAddr": servers, **TIMES, **times}), overall)

    def elect(self, broker: Broker) -> None:
        self.master, self.version = broker.address, self.version + 1

    def send(
        self, body: bytes = b"body", queue: int | range | None = 1
    ) -> "asyncio.Future[SendResult]":
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self.client.producer.send("orders", queue, b"key", body, result.set_result)
        return result

    async def warm(self) -> None:
        """Both masters are connected, so that the producer has a choice."""
        self.two_sets = True
        self.client.routes.refresh()
        await until(lambda: self.client.routes.place("orders", 3) is not None)
        for queue in (0, 2):
            assert (await self.send(b"warm", queue)).outcome is CallOutcome.HAPPENED


@asynccontextmanager
async def world(*script: Any, elected: bool = True, **times: int) -> AsyncIterator[World]:
    it = World()
    it.first.script = list(script)
    await it.first.start()
    await it.second.start()
    await it.nameserver.listen()
    if elected:
        it.elect(it.first)
    it.client = it.new_client(**times)
    it.client.start()
    try:
        yield it
    finally:
        it.client.close()
        it.first.stop()
        it.second.stop()
        it.nameserver.leave()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(within())


def sent_once(*script: Any, **times: int) -> tuple[SendResult, World]:
    """One send to a broker with this script; its result."""
    kept: list[tuple[SendResult, World]] = []

    async def test() -> None:
        async with world(*script, **times) as it:
            kept.append((await it.send(), it))

    run(test)
    return kept[0]


def test_an_acknowledged_send_says_where_it_is() -> None:
    result, it = sent_once()
    address = it.first.address
    assert result == SendResult(CallOutcome.HAPPENED, 0, 5, address, attempts=1, queue=1)
    assert it.first.bodies == [b"body"]


@pytest.mark.parametrize(
    ("script", "outcome", "attempts"),
    [
        ([Status.FLUSH_SLAVE_TIMEOUT], CallOutcome.UNKNOWN, 1),
        ([Status.MESSAGE_ILLEGAL], CallOutcome.REFUSED, 1),
        ([Status.SERVICE_NOT_AVAILABLE] * 3, CallOutcome.REFUSED, 3),
        ([Status.IN_SYNC_REPLICAS_NOT_ENOUGH] * 2, CallOutcome.HAPPENED, 3),
        ([DROP], CallOutcome.HAPPENED, 2),
        (
            [DROP, Status.SERVICE_NOT_AVAILABLE, Status.SERVICE_NOT_AVAILABLE],
            CallOutcome.UNKNOWN,
            3,
        ),
        ([Status.SERVICE_NOT_AVAILABLE, DROP, DROP], CallOutcome.UNKNOWN, 3),
        ([HUSH], CallOutcome.UNKNOWN, 1),
    ],
)
def test_the_outcome_covers_every_attempt(
    script: list[Any], outcome: CallOutcome, attempts: int
) -> None:
    """DESIGN 3: refused only when every attempt was; a try that vanished leaves it open."""
    result, _ = sent_once(*script, **(SHORT if HUSH in script else {}))
    assert (result.outcome, result.attempts) == (outcome, attempts)
    assert bool(result.error) == (outcome is not CallOutcome.HAPPENED)


def test_tries_are_bounded() -> None:
    """retryTimesWhenSendFailed is 2: three tries leave the client, and no more."""
    _, it = sent_once(*[Status.SYSTEM_BUSY] * 9)
    assert len(it.first.bodies) == 3


def test_a_send_without_a_master_fails_definitely_within_its_budget() -> None:
    """It never left, so it certainly did not happen."""

    async def test() -> None:
        async with world(elected=False, **SHORT) as it:
            result = await it.send()
            assert result.outcome is CallOutcome.REFUSED
            assert it.asked > 1, "it asks for a route again while it waits"

    run(test)


def test_a_send_waits_for_the_next_master() -> None:
    """A killed master: the route has no master, then the elected one; no send is lost."""

    async def test() -> None:
        async with world() as it:
            assert (await it.send(b"1")).address == it.first.address
            it.first.stop()
            it.master = None
            waiting = it.send(b"2")
            asked = it.asked
            await until(lambda: it.asked >= asked + 2)  # it looks for a route by itself
            it.elect(it.second)
            result = await waiting
            assert (result.outcome, result.address) == (CallOutcome.HAPPENED, it.second.address)

    run(test)


def test_a_deposed_master_is_left_at_once() -> None:
    """SERVICE_NOT_AVAILABLE makes the client ask the nameserver, long before its next poll."""

    async def test() -> None:
        async with world(Status.SUCCESS, *[Status.SERVICE_NOT_AVAILABLE] * 2) as it:
            await it.send(b"1")
            it.elect(it.second)
            result = await it.send(b"2")
            assert (result.outcome, result.address) == (CallOutcome.HAPPENED, it.second.address)

    run(test)


def test_a_silent_connection_is_given_up() -> None:
    """After a call that timed out without any data since, the next one connects again."""

    async def test() -> None:
        async with world(HUSH, **SHORT) as it:
            assert (await it.send(b"1")).outcome is CallOutcome.UNKNOWN
            later = CallOutcome.REFUSED
            while later is CallOutcome.REFUSED:  # a busy machine connects late
                later = (await it.send(b"2")).outcome
            assert later is CallOutcome.HAPPENED
            assert len(it.first.connections) == 2

    run(test)


def test_every_send_ends_exactly_once_when_the_client_closes() -> None:
    """What has left may happen yet; what has not, will not."""

    async def test() -> None:
        async with world(*[HUSH] * 3) as it:
            left = [it.send() for _ in range(3)]
            await until(lambda: len(it.first.bodies) == 3)
            it.client.close()
            assert [(await one).outcome for one in left] == [CallOutcome.UNKNOWN] * 3
        async with world(elected=False) as it:
            waiting = it.send()
            it.client.close()
            assert (await waiting).outcome is CallOutcome.REFUSED

    run(test)


def test_nothing_is_sent_after_the_client_was_closed() -> None:
    """A send that waits for a dial is told as refused, so it must not leave when the dial ends."""

    async def test() -> None:
        async with world() as it:
            await until(lambda: it.client.routes.place("orders", 1) is not None)
            waiting = it.send(b"waits for a dial")
            it.client.close()
            late = it.send(b"late")
            assert not late.done(), "never before the call returns"
            assert [(await one).outcome for one in (waiting, late)] == [CallOutcome.REFUSED] * 2
            assert not it.client.producer.send_oneway("orders", b"late", queue=1)
            async with it.another_client(sendMsgTimeout=20_000):
                for _ in range(10):
                    assert (await it.send(b"another's")).outcome is CallOutcome.HAPPENED
            assert set(it.first.bodies) == {b"another's"}

    run(test)


def test_a_read_that_waits_for_a_dial_hears_that_the_client_was_closed() -> None:
    async def test() -> None:
        async with world() as it:
            await until(lambda: it.client.routes.place("orders", 1) is not None)
            reading = asyncio.ensure_future(it.client.consumer.range("orders", 1))
            await asyncio.sleep(0)  # it begins to dial
            it.client.close()
            with pytest.raises(Unreachable, match="the client was closed"):
                await reading
            with pytest.raises(Unreachable, match="the client was closed"):
                await it.client.consumer.range("orders", 1)

    run(test)


def test_a_client_that_is_closed_while_it_asks_for_routes_asks_nobody_any_more() -> None:
    """Another client's questions tell that time passes."""

    times = {"pollNameServerInterval": 1, "requestTimeoutMillis": 20_000}

    async def test() -> None:
        async with world(**times) as it:
            it.on_asked = it.client.close
            await until(lambda: it.asked > 0)
            it.on_asked = None
            async with it.another_client(**times):
                asked = it.asked
                await until(lambda: it.asked > asked + 30)
            assert len(it.askers) == 2

    run(test)


def test_sends_are_pipelined() -> None:
    """A slow answer delays no other: a later request is answered first."""

    async def test() -> None:
        async with world(HUSH) as it:
            slow, quick = it.send(b"slow"), it.send(b"quick")
            assert (await quick).outcome is CallOutcome.HAPPENED
            assert not slow.done()

    run(test)


def test_a_producer_that_selects_says_which_queue_it_was() -> None:
    """Its number among all of the topic's queues, within the range that was given."""

    async def test() -> None:
        async with world() as it:
            await it.warm()
            found = [(await it.send(queue=range(3))).queue for _ in range(6)]
            assert sorted(found) == [0, 0, 1, 1, 2, 2]
            assert {(await it.send(queue=None)).queue for _ in range(4)} == {0, 1, 2, 3}
            assert it.client.producer.selections == Selections()

    run(test)


@pytest.mark.parametrize(
    ("first", "second", "outcome", "queues"),
    [
        (Status.IN_SYNC_REPLICAS_NOT_ENOUGH, Status.SUCCESS, CallOutcome.HAPPENED, {2, 3}),
        (DROP, Status.SUCCESS, CallOutcome.HAPPENED, {2, 3}),
        (Status.FLUSH_SLAVE_TIMEOUT, Status.SUCCESS, CallOutcome.HAPPENED, {2, 3}),
        (Status.FLUSH_SLAVE_TIMEOUT, Status.MESSAGE_ILLEGAL, CallOutcome.UNKNOWN, {-1}),
        (DROP, Status.MESSAGE_ILLEGAL, CallOutcome.UNKNOWN, {-1}),
        (Status.SYSTEM_BUSY, Status.MESSAGE_ILLEGAL, CallOutcome.REFUSED, {-1}),
    ],
)
def test_the_outcome_covers_a_detour(
    first: Any, second: Status, outcome: CallOutcome, queues: set[int]
) -> None:
    """A retry goes to the other broker set at once; what the first attempt left open stays open."""

    async def test() -> None:
        async with world(retryAnotherBrokerWhenNotStoreOK=True) as it:
            await it.warm()
            it.first.script, it.second.script = [first], [second]
            result = await it.send(queue=range(4))
            assert len(it.first.bodies) == 2, "the first attempt"
            assert (result.outcome, result.attempts) == (outcome, 2)
            assert result.queue in queues
            assert it.client.producer.selections.detours == 1

    run(test)


def test_a_client_that_believes_its_last_attempt_is_the_mutant() -> None:
    """last-attempt-counts reports as refused what the first attempt may have stored."""

    async def test() -> None:
        async with world(retryAnotherBrokerWhenNotStoreOK=True) as it:
            it.client.close()
            flaw = MUTANTS["last-attempt-counts"].overall
            it.client = it.new_client(retryAnotherBrokerWhenNotStoreOK=True, overall=flaw)
            it.client.start()
            it.first.script = [Status.FLUSH_SLAVE_TIMEOUT, Status.MESSAGE_ILLEGAL]
            result = await it.send()
            assert (result.outcome, result.attempts) == (CallOutcome.REFUSED, 2)

    run(test)


def test_the_route_outlives_the_nameservers() -> None:
    """Nameservers are needed to find the master, not to go on."""

    async def test() -> None:
        async with world() as it:
            await it.send()
            it.nameserver.leave()
            it.client.routes.refresh()
            assert (await it.send()).outcome is CallOutcome.HAPPENED

    run(test)


def test_a_pull_gives_messages_and_where_to_go_on() -> None:
    async def test() -> None:
        async with world() as it:
            pulled = await it.client.consumer.pull("orders", 1, 7, 10, 0.1)
            assert [m.body for m in pulled.messages] == [b"hello"]
            assert pulled.next_offset == 8

    run(test)


def test_a_refused_commit_says_so() -> None:
    async def test() -> None:
        async with world() as it:
            await it.client.consumer.commit("g", "orders", 0, 3)
            with pytest.raises(CallRefused, match="SERVICE_NOT_AVAILABLE"):
                await it.client.consumer.commit("g", "orders", 0, -1)

    run(test)


def test_a_read_without_a_master_raises_in_time() -> None:
    async def test() -> None:
        async with world(elected=False, **SHORT) as it:
            with pytest.raises(Unreachable, match="orders-1"):
                await it.client.consumer.range("orders", 1)

    run(test)
