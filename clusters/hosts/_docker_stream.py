"""The input and output of a program that was started by `docker exec`, as a stream of bytes.

The engine answers the request with "101 Switching Protocols" and from then on the connection is the
program's: what we write is its standard input, and its output arrives in frames, each with eight
bytes before it that say which of the two outputs it is and how long it is. What carries the
connection (a unix socket, TCP, TLS, an ssh channel) differs a little in how it is half closed.
"""

import socket
import ssl
import struct
from contextlib import suppress
from typing import Any

STDOUT = 1
HEADER = struct.Struct(">BxxxL")
LAST_WORDS_BYTES = 4096
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}  # seconds, seconds, times


class ExecStream:
    """A `clusters.hosts._carrier.Stream`. `found`: what the SDK's `exec_start(socket=True)` gave.

    `errors`: the last the program wrote to its standard error.
    """

    def __init__(self, found: Any) -> None:
        self._kept = found  # it holds the response, whose end would close the connection
        self._channel = getattr(found, "_sock", found)
        self._channel.settimeout(None)
        self._frame, self._left = 0, 0
        self.errors = b""
        _notice_silence(self._channel)

    def recv(self, size: int) -> bytes:
        while data := self._portion(size):
            if self._frame == STDOUT:
                return data
            self.errors = (self.errors + data)[-LAST_WORDS_BYTES:]
        return b""

    def sendall(self, data: bytes) -> None:
        self._channel.sendall(data)

    def shutdown(self) -> None:
        if hasattr(self._channel, "shutdown_write"):  # an ssh channel
            self._channel.shutdown_write()
        elif isinstance(self._channel, ssl.SSLSocket):  # which can not be closed by half
            self.close()
        else:
            self._channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes up who waits in recv
        self._channel.close()
        self._kept.close()

    def _portion(self, size: int) -> bytes:
        """Some bytes of the frame that is arriving; nothing at the end."""
        while not self._left:
            header = self._exactly(HEADER.size)
            if not header:
                return b""
            self._frame, self._left = HEADER.unpack(header)
        data: bytes = self._channel.recv(min(size, self._left))
        self._left -= len(data)
        return data

    def _exactly(self, size: int) -> bytes:
        pieces = b""
        while len(pieces) < size:
            piece = self._channel.recv(size - len(pieces))
            if not piece:
                return b""
            pieces += piece
        return pieces


def _notice_silence(channel: Any) -> None:
    """An engine that is lost without a word counts as lost after a quarter of a minute."""
    if isinstance(channel, socket.socket) and channel.family != socket.AF_UNIX:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
