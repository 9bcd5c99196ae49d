"""Tells whether the process behind a closed connection is gone, or merely closed it.

A killed process is best noticed by its connections closing, at once instead of after a heartbeat
timeout. But a living one also closes connections, for instance after a call of its own ran into a
time limit, and must not lose its mastership for it. So the door bell is rung: a process that is
gone refuses the connection within a millisecond, a living one answers PING. The connection that
answered is kept and watched in place of the closed one.

Whatever else keeps the bell from ringing says nothing of the other side: a peer that is too slow, a
way that is cut, no file descriptor left here. Heartbeats will tell.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .connection import CallTimeout, Connection, ConnectionLost, Tasks, Unreachable, dial
from .wire import Op, Senseless, to_json


class Doorbell:
    """Rings at most `timeout_s` for each of the two questions: connect, and answer."""

    def __init__(self, tasks: Tasks, timeout_s: float) -> None:
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._kept: dict[str, tuple[Connection, _Watch]] = {}

    def ring(self, address: str, cares: Callable[[], bool], gone: Callable[[], None]) -> None:
        """Call `gone` if nobody is there, now or later, for as long as `cares` is true."""
        self._tasks.start(self._ring(address, cares, gone))

    async def _ring(
        self, address: str, cares: Callable[[], bool], gone: Callable[[], None]
    ) -> None:
        def ring_again() -> None:
            if cares():
                self.ring(address, cares, gone)

        watch = _Watch()
        try:
            connection = await dial(address, watch, self._timeout_s)
            await connection.call(Op.PING, to_json({}), self._timeout_s)
        except (Unreachable, CallTimeout, ConnectionLost) as e:
            if is_end(e) and cares():
                gone()
            return
        if connection.is_open:
            watch.on_closed = ring_again
            self._keep(address, connection, watch)
        else:
            ring_again()  # it answered and closed before we were told of the answer

    def _keep(self, address: str, connection: Connection, watch: "_Watch") -> None:
        """One for each address: the newest watches best."""
        if address in self._kept:
            older, its_watch = self._kept[address]
            its_watch.on_closed = None
            older.close()
        self._kept[address] = connection, watch


def is_end(failure: Exception) -> bool:
    """Does a failed ring mean that the process is gone? A refusal does, and a connection that ends
    before the answer."""
    refused = isinstance(failure.__cause__, ConnectionError)
    return refused or isinstance(failure, ConnectionLost)


@dataclass
class _Watch:
    """The handler of the connection that answered."""

    on_closed: Callable[[], None] | None = None

    def opened(self, connection: Connection) -> None: ...

    def frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        raise Senseless(f"an unexpected request {op}")

    def senseless(self, connection: Connection, why: str) -> None:
        """It is told as closed."""

    def closed(self, connection: Connection, why: str) -> None:
        if self.on_closed:
            self.on_closed()
