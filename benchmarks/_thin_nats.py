"""A NATS client that can publish to JetStream and nothing else, as thin as one can be in asyncio.

It tells what a stream's servers can do when nats-py is not in the way. Sends of one turn of the
event loop are written together, an acknowledgement is only looked at for an error, and there are no
timeouts, no headers and no reconnections.
"""

import asyncio
from collections.abc import Awaitable, Callable

GREETING = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB thin.* 1\r\n'


class Thin(asyncio.Protocol):
    """One connection; `send` gives a future of the acknowledgement."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self._outbox: list[bytes] = []
        self._open: dict[bytes, asyncio.Future[None]] = {}
        self._next = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(GREETING)

    def close(self) -> None:
        self._transport.close()

    def sender(self, subject: str, body: bytes) -> Callable[[], Awaitable[None]]:
        """Sends this body to this subject."""
        head, tail = f"PUB {subject} thin.".encode(), b" %d\r\n%b\r\n" % (len(body), body)

        def send() -> "asyncio.Future[None]":
            self._next += 1
            number = b"%d" % self._next
            answer = self._open[number] = self._loop.create_future()
            self._write(head + number + tail)
            return answer

        return send

    def data_received(self, data: bytes) -> None:
        inbox, at = self._inbox, 0
        inbox += data
        while (end := inbox.find(b"\r\n", at)) >= 0:
            line = bytes(inbox[at:end])
            if line.startswith(b"MSG "):
                _, inbox_of, _, size = line.split()
                last = end + 2 + int(size)
                if last + 2 > len(inbox):
                    break
                self._answered(inbox_of[5:], bytes(inbox[end + 2 : last]))
                end = last
            elif line == b"PING":
                self._write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self.connection_lost(ConnectionError(line.decode()))
            at = end + 2
        del inbox[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(exc or ConnectionError("closed by the server"))
        self._open.clear()

    def _answered(self, number: bytes, acknowledgement: bytes) -> None:
        answer = self._open.pop(number)
        if b'"error"' in acknowledgement:
            answer.set_exception(ConnectionError(acknowledgement.decode()))
        else:
            answer.set_result(None)

    def _write(self, data: bytes) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        self._transport.write(b"".join(outbox))
