"""One connection to each peer, dialled from here, for this node's requests and their answers.

Raft needs no delivery, so a link holds little: what is said while it dials waits in a short queue,
and the rest is dropped. What it must not do is hold on to a dead connection: after a partition a
TCP connection may back off for many seconds longer than the partition lasted. So a link that has
waited `stale_s` for an answer is cut and dialled anew.

`RaftLinks` are those to all other members; they come and go as the configuration says.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from ..net.connection import Connection, Tasks, Unreachable, dial
from ..net.wire import Op, Senseless

MAX_QUEUED = 8
MAX_BACKLOG_BYTES = 4 * 1024 * 1024


class RaftLinks:
    """To each other member."""

    def __init__(
        self,
        stale_s: float,
        tasks: Tasks,
        on_answer: Callable[[str, bytes], None],
        on_senseless: Callable[[str, str], None],
    ) -> None:
        self._stale_s = stale_s
        self._tasks = tasks
        self._on_answer = on_answer
        self._on_senseless = on_senseless
        self._links: dict[str, RaftLink] = {}

    def reach(self, addresses: Mapping[str, str]) -> None:
        """Those at these addresses, and nobody else, from now on."""
        for peer, link in list(self._links.items()):
            if addresses.get(peer) != link.address:
                self._links.pop(peer).close()
        for peer, address in addresses.items():
            if peer not in self._links:
                on_answer = partial(self._on_answer, peer)
                link = RaftLink(address, self._stale_s, self._tasks, on_answer, self._on_senseless)
                self._links[peer] = link
                link.dial()

    def send(self, peer: str, body: bytes) -> None:
        """To a member, or to one that was: then it is dropped."""
        if link := self._links.get(peer):
            link.send(body)

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class RaftLink:
    """To one peer. It is the handler of its own connection. `on_senseless`: from where, and why."""

    def __init__(
        self,
        address: str,
        stale_s: float,
        tasks: Tasks,
        on_answer: Callable[[bytes], None],
        on_senseless: Callable[[str, str], None],
    ) -> None:
        self.address = address
        self._stale_s = stale_s
        self._tasks = tasks
        self._on_answer = on_answer
        self._on_senseless = on_senseless
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._dialling = False
        self._closed = False
        self._waiting_since: float | None = None
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)

    def send(self, body: bytes) -> None:
        self._drop_if_stale()
        if self._connection is None:
            self._queue.append(body)
            self.dial()
        elif self._connection.backlog < MAX_BACKLOG_BYTES:
            self._tell(self._connection, body)

    def dial(self) -> None:
        if not (self._dialling or self._closed):
            self._dialling = True
            self._tasks.start(self._dial())

    def close(self) -> None:
        self._closed = True
        if self._connection:
            self._connection.abort()

    # the connection's handler

    def opened(self, connection: Connection) -> None: ...

    def frame(self, connection: Connection, op: int, request: int, body: bytes) -> None:
        if op != Op.RAFT:
            raise Senseless(f"an unexpected operation {op}")
        self._waiting_since = None
        self._on_answer(body)

    def senseless(self, connection: Connection, why: str) -> None:
        self._on_senseless(connection.peer, why)

    def closed(self, connection: Connection, why: str) -> None:
        if connection is self._connection:
            self._connection = None

    # inside

    async def _dial(self) -> None:
        try:
            connection = await dial(self.address, self, self._stale_s)
        except Unreachable:
            self._queue.clear()
            return
        finally:
            self._dialling = False
        if self._closed or not connection.is_open:
            connection.abort()
            return
        self._connection, self._waiting_since = connection, None
        while self._queue:
            self._tell(connection, self._queue.popleft())

    def _tell(self, connection: Connection, body: bytes) -> None:
        if self._waiting_since is None:
            self._waiting_since = self._loop.time()
        connection.tell(Op.RAFT, body)

    def _drop_if_stale(self) -> None:
        waited = self._waiting_since
        if self._connection and waited is not None and self._loop.time() - waited > self._stale_s:
            self._connection.abort()
            self._connection, self._waiting_since = None, None
