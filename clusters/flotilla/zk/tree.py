"""The tree of nodes and the sessions of a coordinator, as a state machine. Pure.

A log entry is a client's request with its session, or the begin or end of a session; all times in
it are the leader's. `apply` changes the state and returns the answer and the events for watchers.
The same entries give the same state on every coordinator.

As in ZooKeeper: a change needs the parent, a sequential name ends in ten digits that count the
children that the parent ever had, an ephemeral node has no children and ends with its session, a
version counts the changes of the data, and a multi changes all or nothing.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..net.wire import Json, from_json, to_json
from .jute import (
    ANY_VERSION,
    EPHEMERAL,
    PASSWORD_BYTES,
    SEQUENTIAL,
    Answer,
    CheckNode,
    CreateNode,
    DeleteNode,
    JuteReader,
    MultiChange,
    NodeChange,
    PartAnswer,
    PartError,
    SetNode,
    WatchEvent,
    ZkCode,
    ZkError,
    ZkEvent,
    ZkOp,
    ZnodeStat,
    pack_buffer,
    request_of,
)

_ENTRY = struct.Struct(">qiq")
FIRST_SESSION = 1 << 56


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of the log: a request of a session at a time of the leader's clock."""

    session: int
    op: int
    wall_ms: int
    body: bytes = b""

    def pack(self) -> bytes:
        return _ENTRY.pack(self.session, self.op, self.wall_ms) + self.body

    @classmethod
    def unpack(cls, data: bytes) -> "TreeEntry":
        session, op, wall_ms = _ENTRY.unpack_from(data)
        return cls(session, op, wall_ms, data[_ENTRY.size :])


def session_entry(timeout_ms: int, password: bytes, wall_ms: int) -> TreeEntry:
    """Return the entry that begins a session."""
    body = timeout_ms.to_bytes(4) + pack_buffer(password)
    return TreeEntry(0, ZkOp.CREATE_SESSION, wall_ms, body)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    timeout_ms: int
    password: bytes


@dataclass(slots=True)
class Znode:
    data: bytes = b""
    created_zxid: int = 0
    modified_zxid: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    version: int = 0
    created_children: int = 0
    owner: int = 0
    children_zxid: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> ZnodeStat:
        return ZnodeStat(
            *(self.created_zxid, self.modified_zxid, self.created_ms, self.modified_ms),
            *(self.version, 2 * self.created_children - len(self.children), 0, self.owner),
            *(len(self.data), len(self.children), self.children_zxid),
        )

    def fields(self) -> Json:
        names = (name for name in self.__slots__ if name not in ("data", "children"))
        return {name: getattr(self, name) for name in names} | {"data": self.data.hex()}


@dataclass(frozen=True, slots=True)
class TreeResult:
    """`code` other than OK: nothing has changed."""

    answer: Answer = None
    code: int = ZkCode.OK
    events: tuple[WatchEvent, ...] = ()


class ZnodeTree:
    """`zxid`: the number of the last change. `sessions`: those that have not ended."""

    def __init__(self) -> None:
        self.zxid = 0
        self.sessions: dict[int, SessionRecord] = {}
        self._nodes: dict[str, Znode] = {"/": Znode()}
        self._undo: list[Callable[[], object]] = []
        self._events: list[WatchEvent] = []

    # reading

    def exists(self, path: str) -> ZnodeStat:
        """Return the stat of a node. Raises ZkError NO_NODE."""
        return self._node(path).stat()

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        node = self._node(path)
        return node.data, node.stat()

    def children(self, path: str) -> list[str]:
        return sorted(self._node(path).children)

    def _node(self, path: str) -> Znode:
        node = self._nodes.get(path)
        if node is None:
            raise ZkError(ZkCode.NO_NODE)
        return node

    # changing

    def apply(self, entry: TreeEntry) -> TreeResult:
        """Apply one entry of the log."""
        self._undo, self._events = [], []
        self.zxid += 1
        if entry.op == ZkOp.CREATE_SESSION:
            return TreeResult(str(self._begin_session(entry)))
        if entry.session not in self.sessions:
            return TreeResult(code=ZkCode.SESSION_EXPIRED)
        if entry.op == ZkOp.CLOSE_SESSION:
            self._end_session(entry.session)
            return TreeResult(events=tuple(self._events))
        request = request_of(entry.op, entry.body)
        try:
            if isinstance(request, MultiChange):
                answer: Answer = self._multi(request, entry)
            else:
                assert isinstance(request, NodeChange)
                answer = self._change(request, entry)
        except ZkError as e:
            self._roll_back()
            return TreeResult(code=e.code)
        return TreeResult(answer, events=tuple(dict.fromkeys(self._events)))

    def _begin_session(self, entry: TreeEntry) -> int:
        read = JuteReader(entry.body)
        session = FIRST_SESSION + self.zxid
        self.sessions[session] = SessionRecord(read.i32(), read.buffer())
        return session

    def _end_session(self, session: int) -> None:
        del self.sessions[session]
        for path in sorted(p for p, node in self._nodes.items() if node.owner == session):
            self._delete(path)

    def _multi(self, request: MultiChange, entry: TreeEntry) -> list[PartAnswer]:
        answers: list[PartAnswer] = []
        for place, part in enumerate(request.parts):
            try:
                answers.append(self._change(part, entry))
            except ZkError as e:
                self._roll_back()
                after = len(request.parts) - place - 1
                unchanged = PartError(ZkCode.RUNTIME_INCONSISTENCY)
                before = [PartError(ZkCode.OK)] * place
                return [*before, PartError(e.code), *[unchanged] * after]
        return answers

    def _roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._events = []

    def _change(self, request: NodeChange, entry: TreeEntry) -> PartAnswer:
        match request:
            case CreateNode():
                return self._create(request, entry)
            case DeleteNode(path, version):
                self._checked(path, version)
                if self._node(path).children:
                    raise ZkError(ZkCode.NOT_EMPTY)
                self._delete(path)
            case SetNode(path, data, version):
                node = self._checked(path, version)
                self._restore_later(node)
                node.data, node.version = data, node.version + 1
                node.modified_zxid, node.modified_ms = self.zxid, entry.wall_ms
                self._events.append(WatchEvent(ZkEvent.CHANGED, path))
                return node.stat()
            case CheckNode(path, version):
                self._checked(path, version)
        return None

    def _checked(self, path: str, version: int) -> Znode:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise ZkError(ZkCode.BAD_VERSION)
        return node

    def _create(self, request: CreateNode, entry: TreeEntry) -> str:
        sequential = bool(request.flags & SEQUENTIAL)
        if request.flags & ~(EPHEMERAL | SEQUENTIAL):
            raise ZkError(ZkCode.UNIMPLEMENTED)
        if not is_path(request.path + ("0" if sequential else "")):
            raise ZkError(ZkCode.BAD_ARGUMENTS)
        above = parent_of(request.path)
        parent = self._node(above)
        if parent.owner:
            raise ZkError(ZkCode.NO_CHILDREN_FOR_EPHEMERALS)
        path = request.path + (f"{parent.created_children:010d}" if sequential else "")
        if path in self._nodes:
            raise ZkError(ZkCode.NODE_EXISTS)
        self._restore_later(parent)
        self._undo.append(lambda: self._nodes.pop(path))
        owner = entry.session if request.flags & EPHEMERAL else 0
        times = (self.zxid, self.zxid, entry.wall_ms, entry.wall_ms)
        self._nodes[path] = Znode(request.data, *times, owner=owner, children_zxid=self.zxid)
        parent.children.add(path.rpartition("/")[2])
        parent.created_children, parent.children_zxid = parent.created_children + 1, self.zxid
        self._events += (WatchEvent(ZkEvent.CREATED, path), WatchEvent(ZkEvent.CHILDREN, above))
        return path

    def _delete(self, path: str) -> None:
        if path == "/":
            raise ZkError(ZkCode.BAD_ARGUMENTS)
        above = parent_of(path)
        parent, node = self._node(above), self._nodes.pop(path)
        self._undo.append(lambda: self._nodes.setdefault(path, node))
        self._restore_later(parent)
        parent.children.discard(path.rpartition("/")[2])
        parent.children_zxid = self.zxid
        self._events += (WatchEvent(ZkEvent.DELETED, path), WatchEvent(ZkEvent.CHILDREN, above))

    def _restore_later(self, node: Znode) -> None:
        """Remember a node as it is, in case that a later part of a multi fails."""
        before = {name: getattr(node, name) for name in Znode.__slots__}
        before["children"] = set(node.children)

        def restore() -> None:
            for name, value in before.items():
                setattr(node, name, value)

        self._undo.append(restore)

    # snapshots

    def pack(self) -> bytes:
        sessions = {
            str(session): [record.timeout_ms, record.password.hex()]
            for session, record in self.sessions.items()
        }
        nodes = {path: node.fields() for path, node in self._nodes.items()}
        return to_json({"zxid": self.zxid, "sessions": sessions, "nodes": nodes})

    @classmethod
    def unpack(cls, data: bytes) -> "ZnodeTree":
        """Return the tree of a snapshot. Raises ValueError, KeyError, TypeError."""
        fields, tree = from_json(data), cls()
        tree.zxid = int(fields["zxid"])
        for session, (timeout_ms, password) in fields["sessions"].items():
            tree.sessions[int(session)] = SessionRecord(timeout_ms, bytes.fromhex(password))
        tree._nodes = {path: _znode(node) for path, node in fields["nodes"].items()}
        for path in tree._nodes:
            if path != "/":
                tree._nodes[parent_of(path)].children.add(path.rpartition("/")[2])
        return tree


def _znode(fields: Mapping[str, object]) -> Znode:
    data = bytes.fromhex(str(fields["data"]))
    return Znode(**{**fields, "data": data})  # type: ignore[arg-type]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_path(path: str) -> bool:
    """Return whether ZooKeeper would take this as the path of a node other than the root."""
    names = path.split("/")[1:]
    return path.startswith("/") and all(n not in ("", ".", "..") for n in names)


def new_password(getrandbits: Callable[[int], int]) -> bytes:
    return getrandbits(8 * PASSWORD_BYTES).to_bytes(PASSWORD_BYTES)
