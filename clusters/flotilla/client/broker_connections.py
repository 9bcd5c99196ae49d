"""A client's connections to brokers: one for each address, made on demand.

A caller that cannot wait uses `ready`: the open connection, or None while it is being made;
`on_change` is called when that has ended. A connection without any data since a call that timed out
is closed: after a partition heals, TCP alone would stay silent for as long as the partition lasted.
"""

import asyncio
from collections.abc import Callable

from clusters.flotilla.net.connection import (
    CallTimeout,
    FrameConnection,
    RejectingHandler,
    Unreachable,
    dial,
)


class BrokerConnection:
    """A connection, and when an answer was last received on it."""

    def __init__(self, connection: FrameConnection) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()

    def call(self, op: int, body: bytes, timeout_s: float) -> "asyncio.Future[bytes]":
        return self.connection.call(op, body, timeout_s)

    def record_answer(self) -> None:
        self._received_at = self._loop.time()

    def abort_if_silent(self, timeout_s: float) -> None:
        """Close the connection if nothing was received during a call that timed out."""
        if self._loop.time() - self._received_at >= timeout_s:
            self.connection.abort()


class BrokerConnections:
    """Connections by address."""

    def __init__(self, connect_timeout_s: float, backoff_s: float) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._connect_timeout_s = connect_timeout_s
        self._backoff_s = backoff_s
        self._open: dict[str, BrokerConnection] = {}
        self._dialling: dict[str, asyncio.Task[BrokerConnection]] = {}
        self._failed_at: dict[str, float] = {}
        self._closed = False

    def ready(self, address: str) -> BrokerConnection | None:
        """Return the open connection, or None; then start to connect, after a back-off."""
        if self._closed:
            return None
        link = self._open.get(address)
        if link is not None and link.connection.is_open:
            return link
        now = asyncio.get_running_loop().time()
        if now - self._failed_at.get(address, -self._backoff_s) >= self._backoff_s:
            self._dial(address)
        return None

    async def get(self, address: str) -> BrokerConnection:
        """Return the open connection; connect if necessary. Raises Unreachable."""
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
        """Send one request; return the reply. Raises Unreachable, ConnectionLost, CallTimeout."""
        link = await self.get(address)
        try:
            reply = await link.call(op, body, timeout_s)
        except CallTimeout:
            link.abort_if_silent(timeout_s)
            raise
        link.record_answer()
        return reply

    def close(self) -> None:
        """Close all connections; tasks that wait for one get Unreachable."""
        self._closed = True
        for dialling in self._dialling.values():
            dialling.cancel()
        for link in self._open.values():
            link.connection.abort()

    def _dial(self, address: str) -> "asyncio.Task[BrokerConnection]":
        if address not in self._dialling:
            task = asyncio.get_running_loop().create_task(self._dialled(address))
            self._dialling[address] = task
            task.add_done_callback(_retrieve_exception)
        return self._dialling[address]

    async def _dialled(self, address: str) -> BrokerConnection:
        loop = asyncio.get_running_loop()
        try:
            link = BrokerConnection(
                await dial(address, RejectingHandler(), self._connect_timeout_s)
            )
            self._open[address] = link
            return link
        except Unreachable:
            self._failed_at[address] = loop.time()
            raise
        finally:
            del self._dialling[address]
            for listener in self.on_change:
                loop.call_soon(listener)


def _retrieve_exception(task: "asyncio.Task[BrokerConnection]") -> None:
    """Retrieve the exception of a dial for which no task waits, so that asyncio is quiet."""
    if not task.cancelled():
        task.exception()
