"""One connection to each peer, opened by this node, for its requests and their replies.

Raft does not need reliable delivery, so a link holds little: messages sent while it connects wait
in a short queue, and the rest is dropped. It must not keep a dead connection: after a partition TCP
may back off for many seconds longer than the partition lasted. So a link that has waited `stale_s`
for a reply closes its connection and opens another one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from ..net.connection import FrameConnection, Tasks, Unreachable, dial
from ..net.wire import Op, ProtocolError

MAX_QUEUED = 8
MAX_BACKLOG_BYTES = 4 * 1024 * 1024


class RaftLinks:
    """The links to all other members, as the configuration demands."""

    def __init__(
        self,
        stale_s: float,
        tasks: Tasks,
        on_answer: Callable[[str, bytes], None],
        on_protocol_error: Callable[[str, str], None],
    ) -> None:
        self._stale_s = stale_s
        self._tasks = tasks
        self._on_answer = on_answer
        self._on_protocol_error = on_protocol_error
        self._links: dict[str, RaftLink] = {}

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """Keep links to exactly these peers from now on."""
        for peer, link in list(self._links.items()):
            if addresses.get(peer) != link.address:
                self._links.pop(peer).close()
        for peer, address in addresses.items():
            if peer not in self._links:
                on_answer = partial(self._on_answer, peer)
                link = RaftLink(
                    address, self._stale_s, self._tasks, on_answer, self._on_protocol_error
                )
                self._links[peer] = link
                link.dial()

    def send(self, peer: str, body: bytes) -> None:
        """Send to a peer; drop the message if the peer is no member any more."""
        if link := self._links.get(peer):
            link.send(body)

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class RaftLink:
    """The link to one peer; the handler of its own connection.

    `on_protocol_error` is called with the peer's address and the reason of a protocol error.
    """

    def __init__(
        self,
        address: str,
        stale_s: float,
        tasks: Tasks,
        on_answer: Callable[[bytes], None],
        on_protocol_error: Callable[[str, str], None],
    ) -> None:
        self.address = address
        self._stale_s = stale_s
        self._tasks = tasks
        self._on_answer = on_answer
        self._on_protocol_error = on_protocol_error
        self._loop = asyncio.get_running_loop()
        self._connection: FrameConnection | None = None
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
            self._send_now(self._connection, body)

    def dial(self) -> None:
        if not (self._dialling or self._closed):
            self._dialling = True
            self._tasks.start(self._dial())

    def close(self) -> None:
        self._closed = True
        if self._connection:
            self._connection.abort()

    # the connection's handler

    def opened(self, connection: FrameConnection) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op != Op.RAFT:
            raise ProtocolError(f"an unexpected operation {op}")
        self._waiting_since = None
        self._on_answer(body)

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        self._on_protocol_error(connection.peer, why)

    def closed(self, connection: FrameConnection, why: str) -> None:
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
            self._send_now(connection, self._queue.popleft())

    def _send_now(self, connection: FrameConnection, body: bytes) -> None:
        if self._waiting_since is None:
            self._waiting_since = self._loop.time()
        connection.send_oneway(Op.RAFT, body)

    def _drop_if_stale(self) -> None:
        waited = self._waiting_since
        if self._connection and waited is not None and self._loop.time() - waited > self._stale_s:
            self._connection.abort()
            self._connection, self._waiting_since = None, None
