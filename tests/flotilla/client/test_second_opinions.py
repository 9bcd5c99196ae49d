"""A nameserver that is cut off from some brokers alone: the client asks the others as well.

Nameservers that answer from a script, on real sockets in the test's own process.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from loopback import until
from played_node import PlayedNode

from clusters.flotilla.client import ClientSettings, RouteCache
from clusters.flotilla.net.connection import FrameConnection
from clusters.flotilla.net.wire import Json, Op

OLD, NEW = "10.0.0.1:1", "10.0.0.2:1"
TIMES = {
    "requestTimeoutMillis": 20_000,
    "connectTimeoutMillis": 20_000,
    "retryBackoffMillis": 1,
    "pollNameServerInterval": 60_000,
}


class Told(PlayedNode):
    """A nameserver: what it tells of set-1."""

    def __init__(self, master: str | None, version: int, hangs: bool = False) -> None:
        super().__init__({Op.ROUTE: self._route})
        self.master, self.version, self.hangs = master, version, hangs
        self.asked = 0

    @asynccontextmanager
    async def up(self) -> AsyncIterator[str]:
        await self.listen()
        try:
            yield self.address
        finally:
            self.leave()

    async def _route(self, connection: FrameConnection, fields: Json) -> Json:
        self.asked += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        addrs = {"2": "10.0.0.3:1"} | ({"0": self.master} if self.master else {})
        return {
            "topics": {"orders": [{"brokerName": "set-1", "queues": 1}]},
            "brokers": {"set-1": {"addrs": addrs, "stateVersion": self.version}},
        }


def play(first: Told, second: Told, scene: Callable[[RouteCache], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), first.up() as one, second.up() as other:
            routes = RouteCache(ClientSettings.of({"namesrvAddr": [one, other], **TIMES}))
            routes.start()
            try:
                await scene(routes)
            finally:
                routes.close()

    asyncio.run(main())


def test_a_master_that_only_another_nameserver_hears_is_found() -> None:
    async def scene(routes: RouteCache) -> None:
        await until(lambda: routes.masters() == {"set-1": NEW})

    play(Told(None, 1), Told(NEW, 1), scene)


def test_an_old_master_is_doubted_when_sends_to_it_fail() -> None:
    """Then the nameserver that answered is outdated: it is not asked first any more."""
    behind, ahead = Told(OLD, 1), Told(NEW, 2)

    async def scene(routes: RouteCache) -> None:
        await until(lambda: routes.masters() == {"set-1": OLD})
        assert ahead.asked == 0
        routes.refresh()
        await until(lambda: routes.masters() == {"set-1": NEW})
        ahead.master, ahead.version = OLD, 3
        routes.refresh()
        await until(lambda: routes.masters() == {"set-1": OLD})

    play(behind, ahead, scene)


def test_a_nameserver_that_hangs_holds_nobody_up() -> None:
    """What the others know is not waited for: the one that answers is asked on, and it alone."""
    headless, hung = Told(None, 1), Told(None, 1, hangs=True)

    async def scene(routes: RouteCache) -> None:
        def asked_often() -> bool:
            routes.refresh()
            return headless.asked >= 10

        await until(asked_often)
        assert hung.asked == 1
        headless.master, headless.version = NEW, 2
        routes.refresh()
        await until(lambda: routes.masters() == {"set-1": NEW})

    play(headless, hung, scene)


def test_whoever_tells_of_every_master_is_asked_alone() -> None:
    async def scene(routes: RouteCache) -> None:
        await until(lambda: bool(routes.masters()))

    second = Told(NEW, 1)
    play(Told(NEW, 1), second, scene)
    assert second.asked == 0
