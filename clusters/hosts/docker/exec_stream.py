"""Standard input and output of a `docker exec` as a stream of bytes.

The engine answers the request with "101 Switching Protocols"; from then on the connection is the
program's. What we write is its standard input, and its output arrives in frames with a header of
eight bytes: which of the two outputs it is, and its length. The kinds of connection (a unix socket,
TCP, TLS, an ssh channel) differ in how they are half closed, and a TLS connection must not be used
by two threads at the same time.
"""

import select
import socket
import ssl
import struct
from contextlib import suppress
from threading import Lock
from typing import Any

STDOUT = 1
HEADER = struct.Struct(">BxxxL")
MAX_ERROR_BYTES = 4096
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}  # seconds, seconds, times


class ExecStream:
    """A `clusters.hosts._agent.stream_agent.Stream`.

    found: the result of the SDK's `exec_start(socket=True)` errors: the end of what the program
    wrote to its standard error
    """

    def __init__(self, connection: Any) -> None:
        self._kept = connection  # keeps the response alive, which owns the connection
        self._channel = getattr(connection, "_sock", connection)
        self._channel.settimeout(None)
        if isinstance(self._channel, ssl.SSLSocket):
            self._channel = _LockedTls(self._channel)
        self._frame, self._left = 0, 0
        self.errors = b""
        _set_keepalive(connection)

    def recv(self, size: int) -> bytes:
        while data := self._read_frame(size):
            if self._frame == STDOUT:
                return data
            self.errors = (self.errors + data)[-MAX_ERROR_BYTES:]
        return b""

    def sendall(self, data: bytes) -> None:
        self._channel.sendall(data)

    def shutdown(self) -> None:
        if hasattr(self._channel, "shutdown_write"):  # an ssh channel
            self._channel.shutdown_write()
        elif isinstance(self._channel, _LockedTls):  # TLS cannot be half closed
            self.close()
        else:
            self._channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in recv
        self._channel.close()
        self._kept.close()

    def _read_frame(self, size: int) -> bytes:
        """Return some bytes of the current frame, or b"" at the end."""
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


class _LockedTls:
    """A TLS connection for two threads. OpenSSL serves one at a time, so no call may block inside
    it."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        tls.setblocking(False)
        self._tls, self._turn = tls, Lock()

    def recv(self, size: int) -> bytes:
        while True:
            try:
                with self._turn:
                    return self._tls.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
                self._wait(e)
            except ValueError:  # closed
                return b""

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                with self._turn:
                    view = view[self._tls.send(view) :]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
                self._wait(e)

    def shutdown(self, how: int) -> None:
        with self._turn:
            self._tls.shutdown(how)

    def close(self) -> None:
        with self._turn:
            self._tls.close()

    def _wait(self, e: ssl.SSLError) -> None:
        poll = select.poll()
        with suppress(ValueError):  # closed; the next attempt fails
            reads = isinstance(e, ssl.SSLWantReadError)
            poll.register(self._tls, select.POLLIN if reads else select.POLLOUT)
            poll.poll()


def _set_keepalive(connection: Any) -> None:
    """Make a connection to a silent engine break after a quarter of a minute."""
    channel = getattr(connection, "_sock", connection)
    if isinstance(channel, socket.socket) and channel.family != socket.AF_UNIX:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
