"""A client's session with a ZooKeeper ensemble or with coordinators.

A session outlives its connections. The client pings each third of the timeout that the server
granted, leaves a server that was silent for two thirds of it, and tries the next one. Only a server
ends a session, and the client learns it when it connects again (state EXPIRED): **disconnected is
not expired**. After EXPIRED a new session has to be begun by the owner.

A request has one of three outcomes: an answer; ZkError, which had no effect; or ConnectionLoss,
after which a change may or may not have been made. A request that waits for a connection is sent on
the next one; nothing is sent twice.

A watch fires once. When the session is connected again, all watches that were left fire with
ZkEvent.NONE, since anything may have changed meanwhile: read again *and* watch again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..net.connection import Tasks, split
from ..net.wire import ProtocolError
from ..world.ports import RandomSource
from ..world.timers import WakeEvent
from .frames import JuteConnection
from .jute import (
    EVENT_XID,
    PASSWORD_BYTES,
    PING_XID,
    Answer,
    CloseSession,
    ConnectReply,
    ConnectRequest,
    CreateNode,
    DeleteNode,
    MultiChange,
    NodeChange,
    PartAnswer,
    PartError,
    ReadNode,
    Request,
    SetNode,
    SyncPath,
    WatchEvent,
    ZkCode,
    ZkError,
    ZkEvent,
    ZkOp,
    ZnodeStat,
    pack_connect,
    pack_ping,
    pack_request,
    unpack_answer,
    unpack_connected,
    unpack_event,
    unpack_head,
)

Watcher = Callable[[WatchEvent], None]
PAUSES = 0.002, 0.05  # between two attempts to connect, from and to, as parts of the timeout


class SessionState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    EXPIRED = "expired"
    CLOSED = "closed"


class ConnectionLoss(Exception):
    """The connection ended before the answer: a change may or may not have been made."""


class SessionEnded(Exception):
    """The session expired or was closed before the request was sent: it had no effect."""


class MultiFailed(ZkError):
    """A multi had no effect; `code` is the error of its first part that failed."""


class _WatchKey(NamedTuple):
    of_children: bool
    path: str


@dataclass
class _OpenRequest:
    request: Request
    watcher: Watcher | None
    done: "asyncio.Future[Answer]"


class ZkSession:
    """One session. `on_state` is called with each change of the state."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        randomness: RandomSource,
        on_state: Callable[[SessionState], None] = lambda state: None,
    ) -> None:
        self.state = SessionState.CONNECTING
        self.id = 0
        self.timeout_s = timeout_s  # the granted one, once connected
        self._servers, self._wanted_s = deque(servers), timeout_s
        self._randomness, self._on_state = randomness, on_state
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._password = bytes(PASSWORD_BYTES)
        self._last_zxid = 0
        self._connection: JuteConnection | None = None
        self._granted: asyncio.Future[ConnectReply] | None = None
        self._lost = WakeEvent()
        self._xid = 0
        self._heard_at = self._sent_at = 0.0
        self._waiting: deque[_OpenRequest] = deque()  # for a connection
        self._sent: deque[tuple[int, _OpenRequest]] = deque()  # servers answer in this order
        self._watches: dict[_WatchKey, dict[Watcher, None]] = {}  # each watcher once

    def start(self) -> None:
        self._tasks.start(self._run())

    async def close(self) -> None:
        """End the session in an orderly way; ephemeral nodes are removed at once, if a server is
        connected."""
        if self.state is SessionState.CONNECTED:
            try:
                async with asyncio.timeout(self.timeout_s / 3):
                    await self.call(CloseSession())
            except (ConnectionLoss, SessionEnded, ZkError, TimeoutError):
                pass
        self.abandon()

    def abandon(self) -> None:
        """Stop without a word, as a process that is killed: the server waits for the timeout."""
        self._tasks.cancel()
        self._end(SessionState.CLOSED)
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the session connects again."""
        if self._connection:
            self._connection.abort()

    @property
    def ended(self) -> bool:
        """Whether the session has expired or was closed."""
        return self.state in (SessionState.EXPIRED, SessionState.CLOSED)

    # requests

    async def create(self, path: str, data: bytes = b"", flags: int = 0) -> str:
        """Create a node. Return its path, which is longer than `path` if it is sequential."""
        answer = await self.call(CreateNode(path, data, flags))
        assert isinstance(answer, str)
        return answer

    async def delete(self, path: str, version: int = -1) -> None:
        await self.call(DeleteNode(path, version))

    async def set(self, path: str, data: bytes, version: int = -1) -> ZnodeStat:
        answer = await self.call(SetNode(path, data, version))
        assert isinstance(answer, ZnodeStat)
        return answer

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, ZnodeStat]:
        """Return data and stat. Raises ZkError NO_NODE, which sets no watch."""
        answer = await self.call(ReadNode(ZkOp.GET, path, watcher is not None), watcher)
        assert isinstance(answer, tuple)
        return answer

    async def exists(self, path: str, watcher: Watcher | None = None) -> ZnodeStat | None:
        """Return a node's stat, None if there is none; the watch is set in both cases."""
        try:
            answer = await self.call(ReadNode(ZkOp.EXISTS, path, watcher is not None), watcher)
        except ZkError as e:
            if e.code != ZkCode.NO_NODE:
                raise
            return None
        assert isinstance(answer, ZnodeStat)
        return answer

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        answer = await self.call(ReadNode(ZkOp.CHILDREN, path, watcher is not None), watcher)
        assert isinstance(answer, list)
        return sorted(str(name) for name in answer)

    async def sync(self, path: str) -> None:
        """Make this session's server apply what was committed before, so that the next read is not
        stale."""
        await self.call(SyncPath(path))

    async def multi(self, *parts: NodeChange) -> list[PartAnswer]:
        """Make all changes or none. Raises MultiFailed if none was made."""
        answers = await self.call(MultiChange(parts))
        assert isinstance(answers, list)
        results = [each for each in answers if not isinstance(each, bytes)]
        for each in results:
            if isinstance(each, PartError) and each.code:
                raise MultiFailed(each.code)
        return results

    async def call(self, request: Request, watcher: Watcher | None = None) -> Answer:
        """Send a request, once there is a connection. Raises ZkError, ConnectionLoss,
        SessionEnded."""
        if self.ended:
            raise SessionEnded(self.state.value)
        opened = _OpenRequest(request, watcher, self._loop.create_future())
        if self.state is SessionState.CONNECTED:
            self._send(opened)
        else:
            self._waiting.append(opened)
        return await opened.done

    def _send(self, opened: _OpenRequest) -> None:
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._sent.append((self._xid, opened))
        self._write(pack_request(self._xid, opened.request))

    def _write(self, message: bytes) -> None:
        if self._connection:
            self._sent_at = self._loop.time()
            self._connection.send(message)

    # frames.JuteHandler

    def opened(self, connection: JuteConnection) -> None:
        """`_connect` sends the first message."""

    def received(self, connection: JuteConnection, frame: bytes) -> None:
        if connection is not self._connection:
            return
        self._heard_at = self._loop.time()
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(unpack_connected(frame))
            return
        head, body = unpack_head(frame)
        if head.zxid > 0:
            self._last_zxid = max(self._last_zxid, head.zxid)
        if head.xid == EVENT_XID:
            self._fire(unpack_event(body))
        elif head.xid != PING_XID:
            self._answer(head.xid, head.error, body)

    def closed(self, connection: JuteConnection, why: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._lost.set()

    def _answer(self, xid: int, error: int, body: bytes) -> None:
        if not self._sent or self._sent[0][0] != xid:
            raise ProtocolError(f"an answer to request {xid}, which is not the oldest")
        _, opened = self._sent.popleft()
        if opened.watcher and (not error or _watches_absence(opened.request, error)):
            self._watch(opened.request, opened.watcher)
        if opened.done.done():
            return  # its caller was cancelled
        if error:
            opened.done.set_exception(ZkError(error))
        else:
            opened.done.set_result(unpack_answer(opened.request, body))

    # watches

    def _watch(self, request: Request, watcher: Watcher) -> None:
        assert isinstance(request, ReadNode)
        key = _WatchKey(request.op is ZkOp.CHILDREN, request.path)
        self._watches.setdefault(key, {})[watcher] = None

    def _fire(self, event: WatchEvent) -> None:
        fired: list[Watcher] = []
        if event.kind is not ZkEvent.CHILDREN:
            fired += self._watches.pop(_WatchKey(False, event.path), {})
        if event.kind in (ZkEvent.CHILDREN, ZkEvent.DELETED):
            fired += self._watches.pop(_WatchKey(True, event.path), {})
        for watcher in fired:
            watcher(event)

    def _fire_all(self) -> None:
        watches, self._watches = self._watches, {}
        for key, watchers in watches.items():
            for watcher in watchers:
                watcher(WatchEvent(ZkEvent.NONE, key.path))

    # the connection

    async def _run(self) -> None:
        """Keep the session connected until it has expired."""
        pause_s = 0.0
        while self.state is SessionState.CONNECTING:
            reply = await self._connect(self._servers[0])
            if reply is None:
                self._servers.rotate(-1)
                shortest_s, longest_s = (part * self._wanted_s for part in PAUSES)
                pause_s = min(max(2 * pause_s, shortest_s), longest_s)
                await asyncio.sleep(self._randomness.uniform(pause_s / 2, pause_s))
            elif reply.timeout_ms <= 0:
                self._end(SessionState.EXPIRED)
                self.disconnect()
            else:
                pause_s = 0.0
                self._begin(reply)
                await self._keep()
                self._lose()
                self._servers.rotate(-1)

    async def _connect(self, server: str) -> ConnectReply | None:
        """Return the server's answer; None if there is none."""
        self._lost = WakeEvent()
        self._granted = self._loop.create_future()
        limit_s = self.timeout_s / 2  # a session that begins is committed by the servers
        try:
            async with asyncio.timeout(limit_s):
                host, port = split(server)
                _, connection = await self._loop.create_connection(
                    lambda: JuteConnection(self), host, port
                )
                self._connection = connection
                wanted_ms = round(self._wanted_s * 1000)
                connection.send(
                    pack_connect(
                        ConnectRequest(self._last_zxid, wanted_ms, self.id, self._password)
                    )
                )
                lost = asyncio.ensure_future(self._lost.wait(limit_s))
                both = (self._granted, lost)
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    lost.cancel()
        except OSError:  # TimeoutError is one, too
            pass
        if self._granted.done() and self._connection:
            return self._granted.result()
        self._granted.cancel()
        self.disconnect()
        self._connection = None
        return None

    def _begin(self, reply: ConnectReply) -> None:
        """The server accepted the session."""
        again = self.id != 0
        self.id, self._password = reply.session, reply.password
        self.timeout_s = reply.timeout_ms / 1000
        self._heard_at = self._loop.time()
        self._become(SessionState.CONNECTED)
        waiting, self._waiting = self._waiting, deque()
        for opened in waiting:
            self._send(opened)
        if again:
            self._fire_all()

    async def _keep(self) -> None:
        """Ping the server until the connection ends or the server is silent for too long."""
        while self._connection:
            now = self._loop.time()
            ping_at = self._sent_at + self.timeout_s / 3
            silent_at = self._heard_at + self.timeout_s * 2 / 3
            if now >= silent_at:
                self.disconnect()
                return
            if now >= ping_at:
                self._write(pack_ping())
                continue
            if await self._lost.wait(max(min(ping_at, silent_at) - now, 0.001)):
                return

    def _lose(self) -> None:
        """The connection is gone. What was sent is uncertain."""
        self._connection = None
        if self.state is not SessionState.CONNECTED:
            return
        sent, self._sent = self._sent, deque()
        self._become(SessionState.CONNECTING)
        for _, opened in sent:
            _fail(opened, ConnectionLoss("the connection to the coordinator was lost"))

    def _end(self, state: SessionState) -> None:
        if self.ended:
            return
        sent, self._sent = self._sent, deque()
        waiting, self._waiting = self._waiting, deque()
        self._watches.clear()
        self._become(state)
        for _, opened in sent:
            _fail(opened, ConnectionLoss(f"the session is {state.value}"))
        for opened in waiting:
            _fail(opened, SessionEnded(state.value))

    def _become(self, state: SessionState) -> None:
        self.state = state
        self._on_state(state)


def _watches_absence(request: Request, error: int) -> bool:
    exists = isinstance(request, ReadNode) and request.op is ZkOp.EXISTS
    return exists and error == ZkCode.NO_NODE


def _fail(opened: _OpenRequest, why: Exception) -> None:
    if not opened.done.done():
        opened.done.set_exception(why)
        opened.done.exception()  # its caller may be gone


async def serve_sessions(
    servers: Sequence[str],
    timeout_s: float,
    randomness: RandomSource,
    on_state: Callable[[SessionState], None],
    serve: Callable[[ZkSession], Awaitable[None]],
) -> None:
    """Begin one session after the other and serve each until it ends; never return."""
    while True:
        session = ZkSession(servers, timeout_s, randomness, on_state)
        session.start()
        with suppress(SessionEnded):
            await serve(session)
