"""A plain asyncio echo of 1 KB: `python benchmarks/_echo.py HOST PORT` serves, `Echoed` asks.

Nothing is parsed, kept or copied to anybody, so this is what Python itself can do at most.
"""

import asyncio
import os
import sys
from collections import deque

BODY = os.urandom(1024)


class Echoing(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Echoed(asyncio.Protocol):
    """The client of an echo. Sends of one turn of the event loop are written together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._open: deque[asyncio.Future[None]] = deque()
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self) -> "asyncio.Future[None]":
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(BODY)
        answer: asyncio.Future[None] = self._loop.create_future()
        self._open.append(answer)
        return answer

    def data_received(self, data: bytes) -> None:
        self._got += len(data)
        while self._got >= len(BODY):
            self._got -= len(BODY)
            self._open.popleft().set_result(None)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        self._transport.write(b"".join(outbox))


async def serve(host: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echoing, host, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
