"""asyncio's transports and servers on simulated sockets.

They follow `asyncio.selector_events` closely wherever a protocol can tell the difference: which
callbacks are called, in which order, with which errno; when writing pauses and resumes; what
`close`, `abort` and `write_eof` mean. `tests/simulated/world/test_network_parity.py` compares both.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusters.hosts._world.console import StdinPipe
from clusters.hosts._world.network import Listener
from clusters.hosts._world.tcp import Address, Socket

if TYPE_CHECKING:
    from clusters.hosts._world.loop import SimLoop

Factory = Callable[[], asyncio.BaseProtocol]
READ_BYTES = 256 * 1024
HIGH_WATER, LOW_WATER = 64 * 1024, 16 * 1024


class SimTransport(asyncio.Transport):
    """A connection, as a protocol sees it."""

    def __init__(
        self, loop: "SimLoop", socket: Socket, protocol: Any, server: "Server | None" = None
    ) -> None:
        super().__init__({"peername": socket.remote, "sockname": socket.local})
        if isinstance(protocol, asyncio.BufferedProtocol):
            raise loop.world.not_simulated("a BufferedProtocol")
        self._loop, self._socket, self._protocol = loop, socket, protocol
        self._server = server
        self._buffer = bytearray()
        self._high, self._low = HIGH_WATER, LOW_WATER
        self._lost = False  # connection_lost was called or is scheduled
        self._closing = False
        self._ended = False  # write_eof was called
        self._ending_sent = False
        self._paused = False  # pause_reading was called
        self._polled = False  # the loop watches for bytes
        self._holding = False  # pause_writing was called
        if server is not None:
            server._attach()
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._begin)

    # reading

    def is_reading(self) -> bool:
        return not (self._closing or self._paused)

    def pause_reading(self) -> None:
        if self.is_reading():
            self._paused, self._polled = True, False

    def resume_reading(self) -> None:
        if self._closing or not self._paused:
            return
        self._paused = False
        self._begin()

    def _begin(self) -> None:
        if self.is_reading():
            self._polled = True
            self._socket.on_ready = self._ready
            self._socket.on_room = self._write_ready
            if self._socket.readable:
                self._loop.call_soon(self._ready)

    def _ready(self) -> None:
        """Bytes, the end, or an error arrived."""
        socket = self._socket
        socket.notified = False
        if self._lost:
            return
        if not self._polled:
            if socket.error and self._buffer:
                self._write_ready()
            return
        try:
            data = socket.receive(READ_BYTES)
        except OSError as e:
            self._fatal(e, "Fatal read error on socket transport")
            return
        if data is None:
            return
        if not data:
            self._read_end()
            return
        try:
            self._protocol.data_received(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as e:
            self._fatal(e, "Fatal error: protocol.data_received() call failed.")
        if self._polled and socket.readable:
            self._loop.call_soon(self._ready)

    def _read_end(self) -> None:
        try:
            keep_open = self._protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as e:
            self._fatal(e, "Fatal error: protocol.eof_received() call failed.")
            return
        if keep_open:
            self._polled = False
        else:
            self.close()

    # writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            kind = type(data).__name__
            raise TypeError(f"data argument must be a bytes-like object, not {kind!r}")
        if self._ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._lost:
            return
        if not self._buffer:
            data = bytes(data)
            try:
                taken = self._socket.send(data)
            except OSError as e:
                self._fatal(e, "Fatal write error on socket transport")
                return
            if taken == len(data):
                return
            data = data[taken:]
            self._socket.wants_room = True
        self._buffer += data
        self._maybe_hold()

    def write_eof(self) -> None:
        if self._closing or self._ended:
            return
        self._ended = True
        if not self._buffer:
            self._send_end()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._maybe_hold()

    def _write_ready(self) -> None:
        """There is room in the window, or an error."""
        if self._lost or not self._buffer:
            return
        try:
            taken = self._socket.send(bytes(self._buffer[: self._socket.room]))
        except OSError as e:
            self._buffer.clear()
            self._fatal(e, "Fatal write error on socket transport")
            return
        del self._buffer[:taken]
        if self._buffer:
            self._socket.wants_room = True
        self._maybe_resume()
        if not self._buffer:
            if self._closing:
                self._call_lost(None)
            elif self._ended:
                self._send_end()

    def _send_end(self) -> None:
        self._ending_sent = True
        self._socket.end()

    def _maybe_hold(self) -> None:
        if len(self._buffer) > self._high and not self._holding:
            self._holding = True
            self._tell("pause_writing")

    def _maybe_resume(self) -> None:
        if self._holding and len(self._buffer) <= self._low:
            self._holding = False
            self._tell("resume_writing")

    def _tell(self, verb: str) -> None:
        try:
            getattr(self._protocol, verb)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as e:
            self._loop.call_exception_handler(
                {"message": f"protocol.{verb}() failed", "exception": e, "transport": self}
            )

    # the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing, self._polled = True, False
        if not self._buffer:
            self._lost = True
            self._loop.call_soon(self._call_lost, None)

    def abort(self) -> None:
        self._force_close(None)

    def _fatal(self, error: BaseException, message: str) -> None:
        if not isinstance(error, OSError):
            self._loop.call_exception_handler(
                {"message": message, "exception": error, "transport": self}
            )
        self._force_close(error)

    def _force_close(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._buffer.clear()
        self._closing, self._polled, self._lost = True, False, True
        self._loop.call_soon(self._call_lost, error)

    def _call_lost(self, error: BaseException | None) -> None:
        self._lost = True
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close(self._ending_sent)
            server, self._server = self._server, None
            if server is not None:
                server._detach()

    # the rest

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            raise self._loop.world.not_simulated("the socket of a connection")
        return super().get_extra_info(name, default)


class BoundSocket:
    """A socket in `Server.sockets`."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address

    def setsockopt(self, _level: int, _option: int, _value: int) -> None:
        """Ignore it: keepalive probes start after minutes, and no fault lasts that long here."""


class Server(asyncio.AbstractServer):
    """A listening port."""

    def __init__(self, loop: "SimLoop", factory: Factory, listener: Listener) -> None:
        self._loop, self._factory = loop, factory
        self._listener: Listener | None = listener
        self._active = 0
        self._waiters: list[asyncio.Future[None]] = []
        listener.ready = self._accept

    @property
    def sockets(self) -> tuple[BoundSocket, ...]:
        return () if self._listener is None else (BoundSocket(self._listener.address),)

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        self._maybe_wake()

    async def wait_closed(self) -> None:
        """Wait until it is closed and no connection is left, as since Python 3.12."""
        if self._listener is not None or self._active:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None and listener.waiting:
            socket = listener.waiting.popleft()
            if not socket.gone:
                socket.loop = self._loop
                SimTransport(self._loop, socket, self._factory(), self)

    def _attach(self) -> None:
        self._active += 1

    def _detach(self) -> None:
        self._active -= 1
        self._maybe_wake()

    def _maybe_wake(self) -> None:
        if self._listener is None and not self._active:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def listen(loop: "SimLoop", factory: Factory, host: str, port: int, backlog: int) -> Server:
    try:
        listener = loop.stack.listen(loop, host, port, backlog)
    except OSError as e:
        why = (e.strerror or "").lower()
        text = f"error while attempting to bind on address {(host, port)!r}: {why}"
        raise OSError(e.errno, text) from None
    return Server(loop, factory, listener)  # type: ignore[abstract]


async def dial(
    loop: "SimLoop", factory: Factory, host: str, port: int
) -> tuple[SimTransport, asyncio.BaseProtocol]:
    answered: asyncio.Future[int] = loop.create_future()
    socket = loop.stack.connect(loop, host, port, lambda error: _set(answered, error))
    try:
        error = await answered
    except BaseException:
        socket.close()
        raise
    if error:
        raise OSError(error, f"Connect call failed {(host, port)!r}")
    protocol = factory()
    transport = SimTransport(loop, socket, protocol)
    ready: asyncio.Future[int] = loop.create_future()
    loop.call_soon(_set, ready, 0)
    try:
        await ready
    except BaseException:
        transport.close()
        raise
    return transport, protocol


class PipeTransport(asyncio.ReadTransport):
    """The reading end of a process's standard input."""

    def __init__(self, loop: "SimLoop", protocol: Any, pipe: StdinPipe) -> None:
        super().__init__({"pipe": pipe})
        self._loop, self._protocol, self._pipe = loop, protocol, pipe
        self._closing = False
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._begin)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _begin(self) -> None:
        self._pipe.reader = lambda: self._loop.post(self._read)
        self._read()

    def _read(self) -> None:
        if self._closing:
            return
        if self._pipe.waiting:
            data = bytes(self._pipe.waiting)
            self._pipe.waiting.clear()
            self._protocol.data_received(data)
        if self._pipe.ended and not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.eof_received)
            self._loop.call_soon(self._protocol.connection_lost, None)


def read_pipe(loop: "SimLoop", factory: Factory, pipe: StdinPipe) -> Any:
    protocol = factory()
    return PipeTransport(loop, protocol, pipe), protocol


def _set(future: "asyncio.Future[int]", error: int) -> None:
    if not future.done():
        future.set_result(error)
