"""A TCP connection of which bytes are cut into messages, either side: what all protocols share.

A ProtocolError while its bytes are parsed ends the connection: bad input must not stop the node.
Any other exception is a bug of this node, or the disk, and goes to the event loop's exception
handler; asyncio would only close the connection.
"""

import asyncio
from typing import cast

from .wire import ProtocolError


class ParsedStream(asyncio.Protocol):
    """One connection. Subclasses parse `_inbox`. `refused`: why this side ends it, if it does."""

    def __init__(self) -> None:
        self.peer = ""
        self.refused: str | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._opened()

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        try:
            self._parse()
        except ProtocolError as e:
            self.refused = str(e)
            self.abort()
            self._violated(self.refused)
        except Exception as e:
            context = {"message": f"a message from {self.peer} was not served", "exception": e}
            self._loop.call_exception_handler(context)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed(self.refused or (str(exc) if exc else "closed by the peer"))

    def close(self) -> None:
        """Close after queued data is written."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; drop queued data."""
        if self._transport:
            self._transport.abort()

    # what differs

    def _opened(self) -> None:
        raise NotImplementedError

    def _parse(self) -> None:
        """Take all whole messages from `_inbox`. Raises ProtocolError."""
        raise NotImplementedError

    def _violated(self, why: str) -> None:
        """The peer violated the protocol."""

    def _closed(self, why: str) -> None:
        raise NotImplementedError
