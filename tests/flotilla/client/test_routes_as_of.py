"""Answers of nameservers without the topics that a client has: they mean what whole ones mean.

Real nameservers on real sockets, in the test's own process; brokers are registered by hand.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from loopback import eventually, free_port

from clusters.flotilla import config
from clusters.flotilla.client import ClientSettings
from clusters.flotilla.client.route_cache import RouteCache, RouteSnapshot
from clusters.flotilla.nameserver.nameserver import Nameserver
from clusters.flotilla.nameserver.route_table import Registration, RouteTable, displaces, is_deaf
from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, JsonHandler, Pool
from clusters.flotilla.net.wire import Json, Op, from_json
from clusters.flotilla.rules import RULES
from clusters.flotilla.world import ports

HOST = "127.0.0.1"
TIMES = {"retryBackoffMillis": 1, "pollNameServerInterval": 60_000}
NODE = """
role = "nameserver"
nodeName = "n"
listenHost = "127.0.0.1"
listenPort = 1
storePath = "none"
"""
BEATS = count(1)


class Port:
    """Where a nameserver is started, and started again; hears what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.address = f"{HOST}:{free_port(HOST)}"
        self.clients: dict[FrameConnection, None] = {}  # who asked for routes
        self.refuses = False
        self.pool = Pool(5)
        self._nameserver: Nameserver

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        self._nameserver = Nameserver(config.loads(NODE), ports.real(1), RULES)
        server = await net.serve(*net.split(self.address), self)
        try:
            yield
        finally:
            self.pool.close()
            self.pool = Pool(5)
            server.close()
            self._nameserver.close()

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        self._nameserver.handler.protocol_error(connection, why)

    def opened(self, connection: FrameConnection) -> None:
        self._nameserver.handler.opened(connection)
        if self.refuses:
            connection.abort()

    def closed(self, connection: FrameConnection, why: str) -> None:
        self._nameserver.handler.closed(connection, why)

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op == Op.ROUTE:
            self.asked.append(from_json(body))
            self.clients[connection] = None
        self._nameserver.handler.frame(connection, op, request, body)

    async def register(self, topics: Mapping[str, int], name: str = "set-1") -> None:
        fields = {
            "cluster": "c",
            "brokerName": name,
            "brokerId": 0,
            "addr": f"{name}:1",
            "haAddr": f"{name}:2",
            "stateVersion": 1,
            "timeoutMs": 60_000,
            "topics": dict(topics),
            "life": 1,
            "beat": next(BEATS),
        }
        reply = await self.pool.ask(self.address, Op.REGISTER_BROKER, fields, 5)
        assert reply["masterAddr"] == f"{name}:1"

    async def route(self, **fields: Any) -> Json:
        return await self.pool.ask(self.address, Op.ROUTE, {"topic": None, **fields}, 5)


@asynccontextmanager
async def client(*nameservers: str) -> AsyncIterator[RouteCache]:
    routes = RouteCache(ClientSettings.of({**TIMES, "namesrvAddr": nameservers}))
    routes.start()
    try:
        yield routes
    finally:
        routes.close()


async def seen(routes: RouteCache, expected: Mapping[str, int]) -> None:
    """The client comes to have so many queues of these topics."""

    async def look() -> bool:
        routes.refresh()
        return {topic: len(routes.places(topic)) for topic in expected} == expected

    await eventually(look)


@asynccontextmanager
async def elsewhere(port: Port) -> AsyncIterator[None]:
    """It closes connections and accepts none, and keeps its table."""
    port.refuses = True
    for connection in port.clients:
        connection.abort()
    yield
    port.refuses = False


async def asked_again(port: Port, routes: RouteCache) -> None:
    """Twice: the first answer is surely taken then."""
    until = len(port.asked) + 3

    async def look() -> bool:
        routes.refresh()
        return len(port.asked) >= until

    await eventually(look)


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(scenario())

    run.__doc__ = scenario.__doc__
    return run


@play
async def test_topics_are_left_out_for_who_has_them() -> None:
    """All other clients get the topics: those of the first edition, and those with other ones."""
    port = Port()
    async with port.up():
        await port.register({"orders": 4})
        whole = await port.route()
        assert whole["topics"] == {"orders": [{"brokerName": "set-1", "queues": 4}]}
        shorter = await port.route(topicsAsOf=whole["topicsAsOf"])
        assert shorter == {key: whole[key] for key in whole if key not in ("topics", "parts")}
        assert (await port.route(topicsAsOf="1.1"))["topics"] == whole["topics"]
        assert (await port.route(topic="orders", topicsAsOf=whole["topicsAsOf"]))["topics"]
        await port.register({"orders": 5})
        assert (await port.route(topicsAsOf=whole["topicsAsOf"]))["topics"]


@play
async def test_changes_of_topics_at_runtime_are_seen() -> None:
    """One is made, one gets more queues, one gets fewer, a set comes; in between nothing changes.
    A topic that no broker serves any more has no queues."""
    port = Port()
    async with port.up(), client(port.address) as routes:
        await port.register({"orders": 4})
        await seen(routes, {"orders": 4})
        for topics in ({"orders": 4, "bills": 2}, {"orders": 6, "bills": 1}):
            await asked_again(port, routes)
            assert port.asked[-1]["topicsAsOf"]
            await port.register(topics)
            await seen(routes, topics)
        await port.register({"orders": 3}, "set-2")
        await seen(routes, {"orders": 9, "bills": 1})
        await port.register({"orders": 6}, "set-1")
        await port.register({"orders": 3, "bills": 5}, "set-2")
        await seen(routes, {"orders": 9, "bills": 5})


@play
async def test_a_nameserver_that_starts_again_counts_anew_and_leaves_nobody_behind() -> None:
    """Its count is the one that the client has, and its topics are others."""
    port = Port()
    async with client(port.address) as routes:
        async with port.up():
            await port.register({"orders": 4})
            await seen(routes, {"orders": 4})
            await asked_again(port, routes)
            as_of = port.asked[-1]["topicsAsOf"]
        async with port.up():
            await port.register({"orders": 8})
            assert (await port.route())["topicsAsOf"].split(".")[1] == as_of.split(".")[1]
            await seen(routes, {"orders": 8})


@play
async def test_two_nameservers_have_versions_of_their_own() -> None:
    """One lags: a client that goes from one to the other has what that one says, in full."""
    one, two = Port(), Port()
    async with two.up(), client(one.address, two.address) as routes:
        await two.register({"orders": 4})
        await seen(routes, {"orders": 4})
        await asked_again(two, routes)
        assert two.asked[-1]["topicsAsOf"]
        async with one.up():
            await one.register({"orders": 8})
            async with elsewhere(two):
                await seen(routes, {"orders": 8})
            await asked_again(one, routes)
            assert one.asked[-1]["topicsAsOf"] != two.asked[-1]["topicsAsOf"]
        await seen(routes, {"orders": 4})


@play
async def test_a_nameserver_of_an_older_edition_is_asked_in_full() -> None:
    """It says no version, and gets none."""
    asked: list[Json] = []
    topics = {"orders": 4}

    async def route(connection: FrameConnection, fields: Json) -> Json:
        asked.append(fields)
        rows = {t: [{"brokerName": "set-1", "queues": n}] for t, n in topics.items()}
        return {"topics": rows, "brokers": {"set-1": {"addrs": {"0": "a:1"}, "stateVersion": 1}}}

    address = f"{HOST}:{free_port(HOST)}"
    server = await net.serve(*net.split(address), JsonHandler({Op.ROUTE: route}))
    async with client(address) as routes:
        await seen(routes, {"orders": 4})
        topics["orders"] = 6
        await seen(routes, {"orders": 6})
    server.close()
    assert all(fields == {"topic": None, "part": 0} for fields in asked)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),  # which nameserver
        st.sampled_from(["set-1", "set-2"]),
        st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=2) | st.none(),
        st.booleans(),  # the client asks
    ),
    max_size=30,
)


@given(STEPS)
@example(
    [
        (0, "set-1", {"a": 1}, True),
        (0, "set-1", None, False),
        (0, "set-2", {"a": 1}, True),
        (0, "set-1", {}, True),
    ]
)  # a set is back without its topic
def test_what_was_left_out_is_what_was_told(steps: list[Any]) -> None:
    """Whatever registers and goes at two nameservers, and whichever is asked: the client has the
    table that whole answers would have given."""
    tables = [RouteTable(displaces, is_deaf, 120), RouteTable(displaces, is_deaf, 120)]
    told: list[tuple[int, Json]] = [(-1, {}), (-1, {})]
    whole = shortened = RouteSnapshot()
    for at, name, topics, asks in steps:
        if topics is None:
            tables[at].unregister(name, 0, name)
        else:
            new = Registration("c", name, 0, name, "h", 1, 10, topics, 1, next(BEATS))
            tables[at].register(new, "via", 0)
        if asks:
            reply, version = tables[at].route(None), tables[at].topics_version
            whole = replace(whole, raw_topics={}).updated(deepcopy(reply))
            if told[at][0] != version:
                told[at] = version, deepcopy(reply["topics"])
            shortened = shortened.updated(reply | {"topics": told[at][1]})
            assert shortened == whole
