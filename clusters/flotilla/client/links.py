"""A client's connections to brokers: one for each address, dialled when somebody wants it.

A caller that can not wait takes `ready`: the open connection, or None while one is being dialled;
`on_change` tells when that has ended. A connection on which nothing was heard since a call that
timed out is given up: after a partition heals, TCP alone would keep it silent for as long as the
partition lasted.
"""

import asyncio
from collections.abc import Callable

from clusters.flotilla.net.connection import CallTimeout, Connection, Silent, Unreachable, dial


class Link:
    """A connection and when something was last heard on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()

    def call(self, op: int, body: bytes, timeout_s: float) -> "asyncio.Future[bytes]":
        return self.connection.call(op, body, timeout_s)

    def heard(self) -> None:
        self._heard_at = self._loop.time()

    def silent(self, timeout_s: float) -> None:
        """A call of this timeout has expired: give the connection up if it is dead."""
        if self._loop.time() - self._heard_at >= timeout_s:
            self.connection.abort()


class Links:
    """Links by address."""

    def __init__(self, connect_timeout_s: float, backoff_s: float) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._connect_timeout_s = connect_timeout_s
        self._backoff_s = backoff_s
        self._links: dict[str, Link] = {}
        self._dialling: dict[str, asyncio.Task[Link]] = {}
        self._failed_at: dict[str, float] = {}
        self._closed = False

    def ready(self, address: str) -> Link | None:
        """The open link, or None: one is dialled, unless the last try failed just now."""
        if self._closed:
            return None
        link = self._links.get(address)
        if link is not None and link.connection.is_open:
            return link
        now = asyncio.get_running_loop().time()
        if now - self._failed_at.get(address, -self._backoff_s) >= self._backoff_s:
            self._dial(address)
        return None

    async def get(self, address: str) -> Link:
        """The open link, dialled if need be. Unreachable when it can not be made."""
        link = self.ready(address)
        if link is not None:
            return link
        if not self._closed:
            dialling = self._dial(address)
            await asyncio.wait([dialling])
            if not dialling.cancelled():
                return dialling.result()
        raise Unreachable(f"{address}: the client was closed")

    async def call(self, address: str, op: int, body: bytes, timeout_s: float) -> bytes:
        """One request. Unreachable, ConnectionLost, CallTimeout."""
        link = await self.get(address)
        try:
            reply = await link.call(op, body, timeout_s)
        except CallTimeout:
            link.silent(timeout_s)
            raise
        link.heard()
        return reply

    def close(self) -> None:
        """Whoever waits for a dial hears that there is no connection."""
        self._closed = True
        for dialling in self._dialling.values():
            dialling.cancel()
        for link in self._links.values():
            link.connection.abort()

    def _dial(self, address: str) -> "asyncio.Task[Link]":
        if address not in self._dialling:
            task = asyncio.get_running_loop().create_task(self._dialled(address))
            self._dialling[address] = task
            task.add_done_callback(_retrieved)
        return self._dialling[address]

    async def _dialled(self, address: str) -> Link:
        loop = asyncio.get_running_loop()
        try:
            link = Link(await dial(address, Silent(), self._connect_timeout_s))
            self._links[address] = link
            return link
        except Unreachable:
            self._failed_at[address] = loop.time()
            raise
        finally:
            del self._dialling[address]
            for tell in self.on_change:
                loop.call_soon(tell)


def _retrieved(task: "asyncio.Task[Link]") -> None:
    """Nobody may be waiting for a dial; its failure is no news then."""
    if not task.cancelled():
        task.exception()
