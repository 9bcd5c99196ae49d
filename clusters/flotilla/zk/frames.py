"""Frames of ZooKeeper's protocol over a TCP connection, either side: a length (i32), a message.

A length above jute.maxbuffer, or a message that the handler refuses with ProtocolError, ends the
connection: the peer is broken or speaks another protocol.
"""

from typing import Protocol

from ..net.stream import ParsedStream
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


class JuteConnection(ParsedStream):
    """One connection."""

    def __init__(self, handler: JuteHandler) -> None:
        super().__init__()
        self._handler = handler

    def _opened(self) -> None:
        self._handler.opened(self)

    def _closed(self, why: str) -> None:
        self._handler.closed(self, why)

    def send(self, message: bytes) -> None:
        if self.is_open and self._transport:
            self._transport.write(len(message).to_bytes(LENGTH_BYTES) + message)

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
