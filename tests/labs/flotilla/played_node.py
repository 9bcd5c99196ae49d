"""A node of Flotilla that a test plays: real sockets, and answers from a table."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from loopback import free_port

from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, JsonHandler
from clusters.flotilla.net.wire import Json


class PlayedNode:
    """It may leave, and listen again at the same address."""

    def __init__(
        self, table: Mapping[int, Callable[[FrameConnection, Json], Awaitable[Json]]]
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._handler = JsonHandler(table)
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await net.serve(*net.split(self.address), self._handler)

    def leave(self) -> None:
        """Close all connections and stop listening."""
        assert self._server
        self._server.close()
        for connection in list(self._handler.connections):
            connection.abort()
