"""Frames of ZooKeeper's protocol over a TCP connection, either side: a length (i32), a message.

A length above jute.maxbuffer, or a message that the handler refuses with ProtocolError, ends the
connection: the peer is broken or speaks another protocol.
"""

import asyncio
from typing import Protocol, cast

from ..net.wire import ProtocolError
from .jute import MAX_FRAME

LENGTH_BYTES = 4


class JuteHandler(Protocol):
    """What a side does with its connections."""

    def opened(self, connection: "JuteConnection") -> None: ...

    def received(self, connection: "JuteConnection", frame: bytes) -> None:
        """Take a message. ProtocolError closes the connection."""
        ...

    def closed(self, connection: "JuteConnection", why: str) -> None: ...


class JuteConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, handler: JuteHandler) -> None:
        self.peer = ""
        self.refused = ""
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        try:
            self._parse()
        except ProtocolError as e:
            self.refused = str(e)
            self.abort()
        except Exception as e:  # a bug; asyncio would only close the connection
            context = {"message": f"a message from {self.peer} was not served", "exception": e}
            self._loop.call_exception_handler(context)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._handler.closed(self, self.refused or (str(exc) if exc else "closed by the peer"))

    def send(self, message: bytes) -> None:
        if self.is_open and self._transport:
            self._transport.write(len(message).to_bytes(LENGTH_BYTES) + message)

    def close(self) -> None:
        """Close after queued data is written."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; drop queued data."""
        if self._transport:
            self._transport.abort()

    def _parse(self) -> None:
        while len(self._inbox) >= LENGTH_BYTES and self.is_open:
            length = int.from_bytes(self._inbox[:LENGTH_BYTES], signed=True)
            if not 0 <= length <= MAX_FRAME:
                raise ProtocolError(f"a message of {length} bytes")
            end = LENGTH_BYTES + length
            if end > len(self._inbox):
                return
            message = bytes(self._inbox[LENGTH_BYTES:end])
            del self._inbox[:end]
            self._handler.received(self, message)
