"""The coordinator: a node that speaks ZooKeeper's protocol over a tree that Raft replicates.

It takes the place of a ZooKeeper ensemble where Java cannot run. Coordinators listen on two ports:
`listenPort` for each other and for DESCRIBE, `clientPort` for sessions. Sessions see what they see
of ZooKeeper, with one difference: only the leader serves. The others close each connection, and a
client tries the next server. So reads are never stale, and `sync` has nothing to do.

The leader counts the ticks since each session was last heard. A session that was silent for its
timeout is ended by an entry of the log, which removes its ephemeral nodes. A new leader gives each
session a whole timeout. When a coordinator stops leading it closes all connections; requests that
were under way have an unknown outcome. A session may connect again, with its password, at any
coordinator that leads; its former connection is closed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import FrameConnection, JsonHandler, Tasks
from ..net.wire import Json, Op, ProtocolError
from ..raft.core import RaftTiming
from ..raft.effects import RaftState, Role
from ..raft.membership import Configuration
from ..raft.messages import LogEntry
from ..raft.node import Hooks, Indeterminate, NotLeader, RaftConfig, RaftNode, TooLarge
from ..rules import Rules
from ..world.ports import Ports, enable_keepalive
from ..world.timers import PeriodicTimer
from .frames import JuteConnection
from .jute import (
    PING_XID,
    Answer,
    CloseSession,
    ConnectReply,
    ReadNode,
    ReplyHead,
    Request,
    SyncPath,
    WatchEvent,
    ZkCode,
    ZkError,
    ZkEvent,
    ZkOp,
    pack_connected,
    pack_event,
    pack_reply,
    request_of,
    unpack_connect,
    unpack_request,
)
from .tree import TreeEntry, TreeResult, ZnodeTree, new_password, session_entry

MIN_TICKS, MAX_TICKS = 2, 20  # of a session's timeout, as in ZooKeeper


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    coordinator = Coordinator(config, ports, rules)
    peers = await net.serve(config.host, config.port, coordinator.handler)
    sessions = await asyncio.get_running_loop().create_server(
        lambda: JuteConnection(coordinator), config.host, config.client_port, reuse_address=True
    )
    enable_keepalive(sessions)
    try:
        await coordinator.start()
        ready(config.address)
        await asyncio.get_running_loop().create_future()
    finally:
        peers.close()
        sessions.close()
        await coordinator.close()


class SessionLink:
    """A client's connection: its session, and its requests, which are served in their order."""

    def __init__(self, connection: JuteConnection) -> None:
        self.connection = connection
        self.session = 0
        self.greeted = False
        self.waiting: deque[tuple[int, int, bytes]] = deque()
        self.busy = False


class WatchTable:
    """The watches of this coordinator's connections. Each fires once."""

    def __init__(self) -> None:
        self._of_data: dict[str, dict[SessionLink, None]] = {}
        self._of_children: dict[str, dict[SessionLink, None]] = {}

    def add(self, request: ReadNode, link: SessionLink) -> None:
        table = self._of_children if request.op is ZkOp.CHILDREN else self._of_data
        table.setdefault(request.path, {})[link] = None

    def fired(self, event: WatchEvent) -> dict[SessionLink, None]:
        """Remove the watches that an event fires, and return their connections."""
        links: dict[SessionLink, None] = {}
        if event.kind is not ZkEvent.CHILDREN:
            links |= self._of_data.pop(event.path, {})
        if event.kind in (ZkEvent.CHILDREN, ZkEvent.DELETED):
            links |= self._of_children.pop(event.path, {})
        return links

    def forget(self, link: SessionLink) -> None:
        for table in (self._of_data, self._of_children):
            for path in [p for p, links in table.items() if link in links]:
                del table[path][link]
                if not table[path]:
                    del table[path]


class Coordinator:
    """One coordinator; implements `frames.JuteHandler` for its clients."""

    def __init__(self, config: Config, ports: Ports, rules: Rules) -> None:
        self._config, self._ports, self._rules = config, ports, rules
        self._loop = asyncio.get_running_loop()
        self._events = EventLog(config.event_log, config.node, ports)
        self._tasks = Tasks()
        self._tree = ZnodeTree()
        self._raft: RaftNode | None = None
        self._role = Role(RaftState.FOLLOWER, 0, None)
        self._serving = False  # leads, and has applied all that was committed before
        self._links: dict[JuteConnection, SessionLink] = {}
        self._watches = WatchTable()
        self._heard: dict[int, float] = {}  # session -> when it was last heard by this leader
        self._ending: set[int] = set()  # sessions whose end is proposed
        self._tick: PeriodicTimer | None = None
        self.handler = JsonHandler(
            {Op.DESCRIBE: self._describe, Op.PING: self._ping},
            other=self._raft_frame,
            on_closed=self._peer_closed,
            on_protocol_error=self._events.protocol_error,
        )

    async def start(self) -> None:
        config = self._config
        member = RaftConfig(
            config.node,
            config.coordinator_peers,
            RaftTiming(config.raft_heartbeat_s, config.raft_election_timeout_s),
            config.store,
            config.raft_snapshot_entries,
        )
        hooks = Hooks(
            self._apply,
            lambda: self._tree.pack(),
            self._restore,
            self._on_role,
            self._on_leading,
            self._on_members,
            self._events.protocol_error,
        )
        self._raft, _ = await RaftNode.start_recorded(
            member, hooks, self._ports, self._rules, self._events
        )
        self._tick = PeriodicTimer(config.zk_tick_s, self._end_silent_sessions)

    async def close(self) -> None:
        if self._tick:
            self._tick.stop()
        self._stop_serving()
        self._tasks.cancel()
        for connection in list(self.handler.connections):
            connection.abort()
        if self._raft:
            await self._raft.close()

    # Raft

    def _leads(self) -> bool:
        return self._serving and self._raft is not None and self._raft.leads

    def _raft_frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if op != Op.RAFT:
            raise ProtocolError(f"an unknown operation {op}")
        if self._raft:
            self._raft.receive(connection, body)

    def _peer_closed(self, connection: FrameConnection, why: str) -> None:
        if self._raft:
            self._raft.forget(connection)

    def _on_role(self, role: Role) -> None:
        self._role = role
        self._stop_serving()
        self._events.write("raft", term=role.term, state=role.state.value, leader=role.leader)

    def _on_leading(self, term: int) -> None:
        self._serving, self._ending = True, set()
        self._heard = dict.fromkeys(self._tree.sessions, self._loop.time())

    def _on_members(self, members: Configuration) -> None:
        """The members never change."""

    def _stop_serving(self) -> None:
        self._serving = False
        for connection in list(self._links):
            connection.abort()

    def _restore(self, data: bytes) -> None:
        self._tree = ZnodeTree.unpack(data)

    def _apply(self, index: int, entry: LogEntry) -> TreeResult:
        change = TreeEntry.unpack(entry.data)
        result = self._tree.apply(change)
        if change.op == ZkOp.CREATE_SESSION and isinstance(result.answer, str):
            self._heard[int(result.answer)] = self._loop.time()
        elif change.op == ZkOp.CLOSE_SESSION:
            self._heard.pop(change.session, None)
            self._ending.discard(change.session)
            if self._role.state is RaftState.LEADER:
                self._events.write("session-ended", session=f"{change.session:x}")
        for event in result.events:
            message = pack_event(event, self._tree.zxid)
            for link in self._watches.fired(event):
                link.connection.send(message)
        return result

    async def _propose(self, entry: TreeEntry) -> TreeResult | None:
        """Return the result once the entry is committed; None if it may never be."""
        if self._raft is None:
            return None
        try:
            result = await self._raft.propose(entry.pack())
        except (NotLeader, Indeterminate):
            return None
        except TooLarge:
            return TreeResult(code=ZkCode.BAD_ARGUMENTS)
        assert isinstance(result, TreeResult)
        return result

    # sessions

    def _end_silent_sessions(self) -> None:
        """End the sessions that were silent for their timeout (timer). After a pause of this
        process their messages are read first."""
        if not self._leads() or (self._tick and self._tick.late_s > self._tick.period_s):
            return
        now = self._loop.time()
        for session, record in self._tree.sessions.items():
            silent_s = now - self._heard.get(session, now)
            if silent_s > record.timeout_ms / 1000 and session not in self._ending:
                self._ending.add(session)
                entry = TreeEntry(session, ZkOp.CLOSE_SESSION, self._ports.clock.wall_ms())
                self._tasks.start(self._end_session(entry))

    async def _end_session(self, entry: TreeEntry) -> None:
        await self._propose(entry)
        for connection, link in list(self._links.items()):
            if link.session == entry.session:
                connection.close()

    async def _greet(self, link: SessionLink, frame: bytes) -> None:
        """Begin a session, or attach this connection to one."""
        request = unpack_connect(frame)
        if request.last_zxid > self._tree.zxid:  # it has seen more than this coordinator has
            link.connection.abort()
            return
        if not request.session:
            await self._begin_session(link, request.timeout_ms)
            return
        record = self._tree.sessions.get(request.session)
        if record is None or record.password != request.password:
            link.connection.send(pack_connected(ConnectReply(0, 0, bytes(16))))
            link.connection.close()
            return
        for connection, other in list(self._links.items()):
            if other.session == request.session:
                connection.abort()
        self._attach(link, request.session, record.timeout_ms, record.password)

    async def _begin_session(self, link: SessionLink, wanted_ms: int) -> None:
        tick_ms = round(self._config.zk_tick_s * 1000)
        timeout_ms = min(max(wanted_ms, MIN_TICKS * tick_ms), MAX_TICKS * tick_ms)
        password = new_password(self._ports.randomness.getrandbits)
        entry = session_entry(timeout_ms, password, self._ports.clock.wall_ms())
        result = await self._propose(entry)
        if result is None:
            link.connection.abort()
            return
        self._attach(link, int(str(result.answer)), timeout_ms, password)

    def _attach(self, link: SessionLink, session: int, timeout_ms: int, password: bytes) -> None:
        link.session, link.greeted = session, True
        self._heard[session] = self._loop.time()
        link.connection.send(pack_connected(ConnectReply(timeout_ms, session, password)))

    # frames.JuteHandler

    def opened(self, connection: JuteConnection) -> None:
        if self._leads():
            self._links[connection] = SessionLink(connection)
        else:
            connection.abort()

    def closed(self, connection: JuteConnection, why: str) -> None:
        link = self._links.pop(connection, None)
        if link:
            link.waiting.clear()
            self._watches.forget(link)
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)

    def received(self, connection: JuteConnection, frame: bytes) -> None:
        link = self._links.get(connection)
        if link is None or not self._leads():
            connection.abort()
            return
        if not link.greeted:
            if link.busy:
                raise ProtocolError("a request before the session has begun")
            link.busy = True
            unpack_connect(frame)
            self._tasks.start(self._served(link, self._greet(link, frame)))
            return
        self._heard[link.session] = self._loop.time()
        xid, op, body = unpack_request(frame)
        if op == ZkOp.PING:
            connection.send(pack_reply(ReplyHead(PING_XID, self._tree.zxid, 0), None, None))
            return
        request_of(op, body)  # malformed ones end the connection here
        link.waiting.append((xid, op, body))
        if not link.busy:
            link.busy = True
            self._tasks.start(self._served(link, self._serve(link)))

    async def _served(self, link: SessionLink, work: Any) -> None:
        await work
        link.busy = False

    async def _serve(self, link: SessionLink) -> None:
        """Serve a connection's requests, one after the other."""
        while link.waiting:
            xid, op, body = link.waiting.popleft()
            request = request_of(op, body)
            result = await self._result(link, request, op, body)
            if result is None:
                link.connection.abort()
                return
            head = ReplyHead(xid, self._tree.zxid, result.code)
            link.connection.send(pack_reply(head, request, result.answer))
            if isinstance(request, CloseSession):
                link.connection.close()

    async def _result(
        self, link: SessionLink, request: Request | None, op: int, body: bytes
    ) -> TreeResult | None:
        """Return the result of a request; None if its outcome is unknown."""
        if not self._leads():
            return None
        if request is None:
            return TreeResult(code=ZkCode.UNIMPLEMENTED)
        if isinstance(request, SyncPath):
            return TreeResult(request.path)
        if isinstance(request, ReadNode):
            if link.session not in self._tree.sessions:
                return TreeResult(code=ZkCode.SESSION_EXPIRED)
            return self._read(link, request)
        entry = TreeEntry(link.session, op, self._ports.clock.wall_ms(), body)
        return await self._propose(entry)

    def _read(self, link: SessionLink, request: ReadNode) -> TreeResult:
        reads: dict[ZkOp, Callable[[str], Answer]] = {
            ZkOp.EXISTS: self._tree.exists,
            ZkOp.GET: self._tree.get,
            ZkOp.CHILDREN: self._tree.children,
        }
        try:
            answer = reads[request.op](request.path)
        except ZkError as e:
            if request.watch and request.op is ZkOp.EXISTS and e.code == ZkCode.NO_NODE:
                self._watches.add(request, link)
            return TreeResult(code=e.code)
        if request.watch:
            self._watches.add(request, link)
        return TreeResult(answer)

    # describing

    async def _describe(self, connection: FrameConnection, fields: Json) -> Json:
        return {
            "node": self._config.node,
            "role": "coordinator",
            "state": "leader" if self._leads() else "follower",
            "term": self._role.term,
            "leader": self._role.leader,
            "zxid": self._tree.zxid,
            "sessions": len(self._tree.sessions),
        }

    async def _ping(self, connection: FrameConnection, fields: Json) -> Json:
        return {}
