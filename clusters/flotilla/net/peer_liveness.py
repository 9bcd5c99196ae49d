"""Finds out whether the process behind a closed connection has ended.

A killed process is noticed soonest by its connections closing, not by a heartbeat timeout. But a
living process also closes connections, for instance after one of its calls timed out, and must not
lose its mastership for that. So the peer is probed: if its process has ended, the connection is
refused within a millisecond; a living process answers PING. The connection that answered is kept
and watched in place of the closed one.

Any other failure of the probe says nothing about the peer: it may be slow, the network may be cut,
or this node may lack file descriptors. Heartbeat timeouts decide then.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .connection import CallTimeout, ConnectionLost, FrameConnection, Tasks, Unreachable, dial
from .wire import Op, ProtocolError, to_json


class PeerLiveness:
    """Probes peers. `timeout_s`: time limit of the connect, and of the answer to PING."""

    def __init__(self, tasks: Tasks, timeout_s: float) -> None:
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._kept: dict[str, tuple[FrameConnection, _PeerHandler]] = {}

    def watch(self, address: str, cares: Callable[[], bool], gone: Callable[[], None]) -> None:
        """Call `gone` when the process has ended, now or later, as long as `cares()` is true."""
        self._tasks.start(self._probe(address, cares, gone))

    async def _probe(
        self, address: str, cares: Callable[[], bool], gone: Callable[[], None]
    ) -> None:
        def watch_again() -> None:
            if cares():
                self.watch(address, cares, gone)

        handler = _PeerHandler()
        try:
            connection = await dial(address, handler, self._timeout_s)
            await connection.call(Op.PING, to_json({}), self._timeout_s)
        except (Unreachable, CallTimeout, ConnectionLost) as e:
            if is_end(e) and cares():
                gone()
            return
        if connection.is_open:
            handler.on_closed = watch_again
            self._keep(address, connection, handler)
        else:
            watch_again()  # it closed before the answer was delivered

    def _keep(self, address: str, connection: FrameConnection, handler: "_PeerHandler") -> None:
        """Keep the newest connection of each address."""
        if address in self._kept:
            older, its_handler = self._kept[address]
            its_handler.on_closed = None
            older.close()
        self._kept[address] = connection, handler


def is_end(failure: Exception) -> bool:
    """Return whether a failed probe means that the process has ended.

    A refused connection means that, and so does one that ends before the answer.
    """
    refused = isinstance(failure.__cause__, ConnectionError)
    return refused or isinstance(failure, ConnectionLost)


@dataclass
class _PeerHandler:
    """The handler of the connection that answered."""

    on_closed: Callable[[], None] | None = None

    def opened(self, connection: FrameConnection) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        raise ProtocolError(f"an unexpected request {op}")

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        """The connection is reported as closed, too."""

    def closed(self, connection: FrameConnection, why: str) -> None:
        if self.on_closed:
            self.on_closed()
