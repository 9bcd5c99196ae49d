"""Frames over TCP: requests, replies and one-way messages on asyncio Protocols.

A `FrameConnection` parses frames and joins everything written in one turn of the event loop into
one write. `call` sends a request and returns a future for its reply. A lost connection fails every
open call with ConnectionLost, a late reply fails it with CallTimeout; in both cases the request may
or may not have been carried out. `Pool` keeps one connection per address and connects on demand.

A `Handler` receives (connection, op, request id, body) and replies, now or later, with
`connection.reply`. `JsonHandler` makes one from a table {op: async function from fields to fields}.

No input of a peer stops the node: decoding raises ProtocolError, and the peer is refused. Any other
exception of a handler is a bug of this node. It goes to the event loop's exception handler, which
ends the process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from ..world.ports import enable_keepalive
from .schemas import schema_error
from .stream import ParsedStream
from .wire import (
    HEADER,
    MAX_FRAME,
    REPLY,
    Json,
    ProtocolError,
    Status,
    decode,
    frame,
    from_json,
    to_json,
)


class ConnectionLost(Exception):
    """The connection ended before the reply: the outcome is unknown, unless it never left."""


class CallTimeout(Exception):
    """No reply in time: the outcome of the request is unknown."""


class Unreachable(Exception):
    """The connection could not be made: the request was certainly not carried out."""


class Handler(Protocol):
    def opened(self, connection: "FrameConnection") -> None: ...

    def frame(self, connection: "FrameConnection", op: int, request: int, body: bytes) -> None:
        """Take a request. ProtocolError drops the peer; any other exception stops the node."""
        ...

    def protocol_error(self, connection: "FrameConnection", why: str) -> None:
        """The peer violated the protocol, for the first time on this connection."""
        ...

    def closed(self, connection: "FrameConnection", why: str) -> None: ...


class FrameConnection(ParsedStream):
    """One TCP connection, either side."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler
        self._reported = False
        self._outbox: list[bytes] = []
        self._calls: dict[int, tuple[asyncio.Future[bytes], asyncio.TimerHandle]] = {}
        self._next = 1

    def _opened(self) -> None:
        self._handler.opened(self)

    def _violated(self, why: str) -> None:
        self.report_protocol_error(why)

    def _closed(self, why: str) -> None:
        calls, self._calls = self._calls, {}
        for future, timer in calls.values():
            timer.cancel()
            if not future.done():
                future.set_exception(ConnectionLost(f"{self.peer}: {why}"))
        self._handler.closed(self, why)

    # sending

    def call(self, op: int, body: bytes, timeout_s: float) -> "asyncio.Future[bytes]":
        """Send a request; return a future of the reply's body, CallTimeout or ConnectionLost."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(ConnectionLost(f"{self.peer}: not open"))
            return future
        request = self._next
        self._next = request % 0xFFFFFFFF + 1
        timer = self._loop.call_later(timeout_s, self._expire, request)
        self._calls[request] = (future, timer)
        self.write(frame(op, request, body))
        return future

    def send_oneway(self, op: int, body: bytes) -> None:
        """Send a one-way message."""
        self.write(frame(op, 0, body))

    def reply(self, op: int, request: int, body: bytes) -> None:
        if request:
            self.write(frame(op | REPLY, request, body))

    def write(self, data: bytes) -> None:
        if not self.is_open:
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)

    @property
    def backlog(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        waiting = sum(map(len, self._outbox))
        return waiting + (self._transport.get_write_buffer_size() if self._transport else 0)

    def close(self) -> None:
        """Close after queued data is written."""
        self._flush()
        super().close()

    def report_protocol_error(self, why: str) -> None:
        """Report a violation of the protocol, once for each connection."""
        if not self._reported:
            self._reported = True
            self._handler.protocol_error(self, why)

    # parsing

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and self.is_open and self._transport:
            self._transport.write(b"".join(outbox))

    def _parse(self) -> None:
        inbox, at = self._inbox, 0
        while len(inbox) - at >= HEADER.size:
            length, op, request = HEADER.unpack_from(inbox, at)
            if not 5 <= length <= MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes")
            end = at + 4 + length
            if end > len(inbox):
                break
            self._deliver(op, request, bytes(inbox[at + HEADER.size : end]))
            at = end
        if at:
            del inbox[:at]

    def _deliver(self, op: int, request: int, body: bytes) -> None:
        if op & REPLY:
            call = self._calls.pop(request, None)
            if call:
                future, timer = call
                timer.cancel()
                if not future.done():
                    future.set_result(body)
        else:
            self._handler.frame(self, op, request, body)

    def _expire(self, request: int) -> None:
        call = self._calls.pop(request, None)
        if call and not call[0].done():
            call[0].set_exception(CallTimeout(f"{self.peer}: no reply in time"))


class RejectingHandler:
    """The handler of a connection on which only this side sends requests."""

    def opened(self, connection: FrameConnection) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        raise ProtocolError(f"an unexpected request {op}")

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        """The calls on the connection fail with ConnectionLost."""

    def closed(self, connection: FrameConnection, why: str) -> None: ...


class JsonHandler:
    """Serves JSON requests from a table; other frames go to `other`."""

    def __init__(
        self,
        table: Mapping[int, Callable[[FrameConnection, Json], Awaitable[Json]]],
        other: Callable[[FrameConnection, int, int, bytes], None] | None = None,
        on_closed: Callable[[FrameConnection, str], None] | None = None,
        on_protocol_error: Callable[[str, str], None] | None = None,
    ) -> None:
        self._table = table
        self._other = other
        self._on_closed = on_closed
        self._on_protocol_error = on_protocol_error
        self._tasks = Tasks()
        self.connections: dict[FrameConnection, None] = {}

    def opened(self, connection: FrameConnection) -> None:
        self.connections[connection] = None

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        serve = self._table.get(op)
        if serve is None:
            if self._other is None:
                raise ProtocolError(f"an unknown operation {op}")
            self._other(connection, op, request, body)
            return
        fields = decode(from_json, body)
        if why := schema_error(op, fields):
            self._refuse(connection, op, request, why)
        else:
            self._tasks.start(self._serve(connection, op, request, serve(connection, fields)))

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        if self._on_protocol_error:
            self._on_protocol_error(connection.peer, why)

    def closed(self, connection: FrameConnection, why: str) -> None:
        self.connections.pop(connection, None)
        if self._on_closed:
            self._on_closed(connection, why)

    async def _serve(
        self, connection: FrameConnection, op: int, request: int, work: Awaitable[Json]
    ) -> None:
        try:
            fields = await work
        except ProtocolError as e:
            self._refuse(connection, op, request, str(e))
        else:
            connection.reply(op, request, to_json({"code": Status.SUCCESS, **fields}))

    def _refuse(self, connection: FrameConnection, op: int, request: int, why: str) -> None:
        connection.reply(op, request, to_json(refusal(Status.INVALID_REQUEST, why)))
        connection.report_protocol_error(f"operation {op}: {why}")


class Tasks:
    """Background tasks; a failure goes to the event loop's exception handler."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        for task in list(self._running):
            task.cancel()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception():
            loop = asyncio.get_running_loop()
            message = "a background task failed"
            loop.call_exception_handler(
                {"message": message, "exception": task.exception(), "task": task}
            )


class Pool:
    """Connections to other nodes, one for each address, made on demand."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._timeout_s = connect_timeout_s
        self._open: dict[str, FrameConnection] = {}
        self._dialling: dict[str, asyncio.Future[FrameConnection]] = {}

    async def get(self, address: str) -> FrameConnection:
        """Return an open connection. Raises Unreachable if it cannot be made in time."""
        connection = self._open.get(address)
        if connection is not None and connection.is_open:
            return connection
        if address not in self._dialling:
            dialling = asyncio.ensure_future(dial(address, RejectingHandler(), self._timeout_s))
            self._dialling[address] = dialling
            dialling.add_done_callback(partial(self._dialled, address))
        return await asyncio.shield(self._dialling[address])

    def _dialled(self, address: str, dialling: "asyncio.Future[FrameConnection]") -> None:
        """Keep the connection even if the task that asked for it was cancelled."""
        del self._dialling[address]
        if not dialling.cancelled() and not dialling.exception():
            self._open[address] = dialling.result()

    async def ask(self, address: str, op: int, fields: Json, timeout_s: float) -> Json:
        """Send a JSON request; return the reply.

        Raises Unreachable, ConnectionLost, CallTimeout.
        """
        connection = await self.get(address)
        return from_json(await connection.call(op, to_json(fields), timeout_s))

    def drop(self, address: str) -> None:
        connection = self._open.pop(address, None)
        if connection:
            connection.abort()

    def close(self) -> None:
        """Close all connections; cancel tasks that wait for one."""
        for dialling in self._dialling.values():
            dialling.cancel()
        for address in list(self._open):
            self.drop(address)


async def dial(address: str, handler: Handler, timeout_s: float) -> FrameConnection:
    """Return a new connection to "ip:port". Raises Unreachable, also for an invalid address."""
    loop = asyncio.get_running_loop()
    try:
        host, port = split(address)
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: FrameConnection(handler), host, port
            )
    except (OSError, ValueError, OverflowError) as e:  # the latter two: an invalid address
        raise Unreachable(f"{address}: {e or 'no answer in time'}") from e
    return connection


async def serve(host: str, port: int, handler: Handler) -> asyncio.Server:
    """Listen; all connections share the handler."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: FrameConnection(handler), host, port, reuse_address=True
    )
    enable_keepalive(server)
    return server


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def refusal(code: Status, remark: str) -> Json:
    return {"code": code, "remark": remark}
