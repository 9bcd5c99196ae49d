"""The messages of ZooKeeper's client protocol, and their packing (jute). Pure.

    connect    protocol i32 0, last zxid i64, timeout ms i32, session i64, password buffer,
               read-only byte
    reply      protocol i32 0, granted timeout ms i32 (0: the session has expired), session i64,
               password buffer, read-only byte
    request    xid i32, type i32, body
    reply      xid i32, zxid i64, error i32, body (none after an error)
    event      as a reply with xid -1; body: type i32, state i32, path

All numbers are big-endian. A buffer or text is a length (i32, -1: null) and so many bytes. A ping
has xid -2. A multi that failed has error 0 in its header and an error for each of its parts: 0
before the part that failed, its error, and -2 (RUNTIME_INCONSISTENCY) after it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ..net.wire import ProtocolError

MAX_FRAME = 1 << 20  # ZooKeeper's jute.maxbuffer
EVENT_XID, PING_XID = -1, -2
PASSWORD_BYTES = 16
ANY_VERSION = -1
_I32, _I64, _HEAD = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">iqi")
_REQUEST, _PART = struct.Struct(">ii"), struct.Struct(">i?i")
_STAT = struct.Struct(">qqqqiiiqiiq")
_ANYONE = b"".join(  # an access list with one entry: everyone may do everything
    (struct.pack(">iii", 1, 31, 5), b"world", struct.pack(">i", 6), b"anyone")
)


class ZkOp(IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET = 4
    SET = 5
    CHILDREN = 8
    SYNC = 9
    PING = 11
    CHECK = 13
    MULTI = 14
    CREATE_SESSION = -10  # in a server's log only
    CLOSE_SESSION = -11
    ERROR = -1


class ZkCode(IntEnum):
    OK = 0
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    SESSION_MOVED = -118


class ZkEvent(IntEnum):
    NONE = -1  # the session was connected again: anything may have changed
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


EPHEMERAL, SEQUENTIAL = 1, 2  # flags of a create


class ZkError(Exception):
    """The server refused the request: it certainly had no effect."""

    def __init__(self, code: int) -> None:
        name = next((known.name for known in ZkCode if known == code), "an error")
        super().__init__(f"{name} ({code})")
        self.code = code


@dataclass(frozen=True, slots=True)
class ZnodeStat:
    """What a server knows of a node. Times are ms since 1970; zxids number all changes."""

    created_zxid: int
    modified_zxid: int
    created_ms: int
    modified_ms: int
    version: int
    children_version: int
    acl_version: int
    owner: int  # the session of an ephemeral node, else 0
    data_length: int
    child_count: int
    children_zxid: int


@dataclass(frozen=True, slots=True)
class CreateNode:
    path: str
    data: bytes = b""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class DeleteNode:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class SetNode:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckNode:
    path: str
    version: int


NodeChange = CreateNode | DeleteNode | SetNode | CheckNode


@dataclass(frozen=True, slots=True)
class MultiChange:
    """All changes, or none."""

    parts: tuple[NodeChange, ...]


@dataclass(frozen=True, slots=True)
class ReadNode:
    """`op`: EXISTS, GET or CHILDREN."""

    op: ZkOp
    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class SyncPath:
    path: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    pass


Request = NodeChange | MultiChange | ReadNode | SyncPath | CloseSession


@dataclass(frozen=True, slots=True)
class PartError:
    """A part of a multi that had no effect."""

    code: int


# what the server answers: a path (create, sync), a stat (set, exists), data and stat (get), names
# (children), an answer for each part (multi), or nothing
PartAnswer = str | ZnodeStat | PartError | None
Answer = PartAnswer | tuple[bytes, ZnodeStat] | list[str] | list[PartAnswer]


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    last_zxid: int
    timeout_ms: int
    session: int
    password: bytes


@dataclass(frozen=True, slots=True)
class ConnectReply:
    """`timeout_ms`: the granted one; 0: the session has expired."""

    timeout_ms: int
    session: int
    password: bytes


@dataclass(frozen=True, slots=True)
class ReplyHead:
    xid: int
    zxid: int
    error: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: ZkEvent
    path: str


class JuteReader:
    """Reads a message from its first byte to its last. Raises ProtocolError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def i32(self) -> int:
        return int(self._take(_I32)[0])

    def i64(self) -> int:
        return int(self._take(_I64)[0])

    def flag(self) -> bool:
        return self._bytes(1) != b"\0"

    def buffer(self) -> bytes:
        size = self.i32()
        return self._bytes(size) if size >= 0 else b""

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as e:
            raise ProtocolError(f"a text that is not UTF-8: {e}") from e

    def stat(self) -> ZnodeStat:
        return ZnodeStat(*self._take(_STAT))

    def part(self) -> tuple[int, bool, int]:
        """Return the head of a multi's part: type, whether the multi ends, error."""
        op, done, error = self._take(_PART)
        return op, bool(done), error

    @property
    def rest(self) -> bytes:
        return self._data[self._at :]

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._bytes(form.size))

    def _bytes(self, size: int) -> bytes:
        at, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ProtocolError(f"{size} bytes are missing from byte {at} of {len(self._data)} on")
        return self._data[at : self._at]


def pack_buffer(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def pack_text(text: str) -> bytes:
    return pack_buffer(text.encode())


# connecting


def pack_connect(request: ConnectRequest) -> bytes:
    head = struct.pack(">iqiq", 0, request.last_zxid, request.timeout_ms, request.session)
    return head + pack_buffer(request.password) + b"\0"


def unpack_connect(frame: bytes) -> ConnectRequest:
    read = JuteReader(frame)
    read.i32()
    return ConnectRequest(read.i64(), read.i32(), read.i64(), read.buffer())


def pack_connected(reply: ConnectReply) -> bytes:
    head = struct.pack(">iiq", 0, reply.timeout_ms, reply.session)
    return head + pack_buffer(reply.password) + b"\0"


def unpack_connected(frame: bytes) -> ConnectReply:
    read = JuteReader(frame)
    read.i32()
    return ConnectReply(read.i32(), read.i64(), read.buffer())


# requests


def pack_request(xid: int, request: Request) -> bytes:
    op, body = op_and_body(request)
    return _REQUEST.pack(xid, op) + body


def pack_ping() -> bytes:
    return _REQUEST.pack(PING_XID, ZkOp.PING)


def unpack_request(frame: bytes) -> tuple[int, int, bytes]:
    """Return xid, type and body."""
    read = JuteReader(frame)
    return read.i32(), read.i32(), read.rest


def op_and_body(request: Request) -> tuple[int, bytes]:
    match request:
        case CreateNode(path, data, flags):
            fields = pack_text(path) + pack_buffer(data) + _ANYONE + _I32.pack(flags)
            return ZkOp.CREATE, fields
        case DeleteNode(path, version):
            return ZkOp.DELETE, pack_text(path) + _I32.pack(version)
        case SetNode(path, data, version):
            return ZkOp.SET, pack_text(path) + pack_buffer(data) + _I32.pack(version)
        case CheckNode(path, version):
            return ZkOp.CHECK, pack_text(path) + _I32.pack(version)
        case ReadNode(op, path, watch):
            return op, pack_text(path) + bytes([watch])
        case SyncPath(path):
            return ZkOp.SYNC, pack_text(path)
        case CloseSession():
            return ZkOp.CLOSE_SESSION, b""
        case MultiChange(parts):
            packed = (op_and_body(part) for part in parts)
            each = (_PART.pack(op, False, -1) + body for op, body in packed)
            return ZkOp.MULTI, b"".join(each) + _PART.pack(-1, True, -1)


def request_of(op: int, body: bytes) -> Request | None:
    """Parse a request's body; None if this type is not served. Raises ProtocolError."""
    read = JuteReader(body)
    if op in (ZkOp.EXISTS, ZkOp.GET, ZkOp.CHILDREN):
        return ReadNode(ZkOp(op), read.text(), read.flag())
    if op == ZkOp.SYNC:
        return SyncPath(read.text())
    if op == ZkOp.CLOSE_SESSION:
        return CloseSession()
    if op != ZkOp.MULTI:
        return _change(op, read)
    parts: list[NodeChange] = []
    while True:
        kind, done, _ = read.part()
        if done:
            return MultiChange(tuple(parts))
        part = _change(kind, read)
        if part is None:
            return None
        parts.append(part)


def _change(op: int, read: JuteReader) -> NodeChange | None:
    if op == ZkOp.CREATE:
        path, data = read.text(), read.buffer()
        for _ in range(read.i32()):  # the access list, which is not enforced
            read.i32(), read.text(), read.text()
        return CreateNode(path, data, read.i32())
    if op == ZkOp.DELETE:
        return DeleteNode(read.text(), read.i32())
    if op == ZkOp.SET:
        return SetNode(read.text(), read.buffer(), read.i32())
    if op == ZkOp.CHECK:
        return CheckNode(read.text(), read.i32())
    return None


# replies


def pack_reply(head: ReplyHead, request: Request | None, answer: Answer) -> bytes:
    body = b"" if head.error or request is None else _pack_answer(request, answer)
    return _HEAD.pack(head.xid, head.zxid, head.error) + body


def unpack_head(frame: bytes) -> tuple[ReplyHead, bytes]:
    """Return a reply's head and body."""
    read = JuteReader(frame)
    return ReplyHead(read.i32(), read.i64(), read.i32()), read.rest


def pack_event(event: WatchEvent, zxid: int) -> bytes:
    connected = 3
    body = struct.pack(">ii", event.kind, connected) + pack_text(event.path)
    return _HEAD.pack(EVENT_XID, zxid, 0) + body


def unpack_event(body: bytes) -> WatchEvent:
    read = JuteReader(body)
    kind, _state = read.i32(), read.i32()
    return WatchEvent(_event_kind(kind), read.text())


def _event_kind(number: int) -> ZkEvent:
    try:
        return ZkEvent(number)
    except ValueError as e:
        raise ProtocolError(f"an event of type {number}") from e


def _pack_answer(request: Request, answer: Answer) -> bytes:
    match answer:
        case None:
            return b""
        case str():
            return pack_text(answer)
        case ZnodeStat():
            return pack_stat(answer)
        case (bytes() as data, ZnodeStat() as stat):
            return pack_buffer(data) + pack_stat(stat)
        case list() if isinstance(request, MultiChange):
            parts: Sequence[object] = answer
            pairs = zip(request.parts, parts, strict=True)
            each = (_pack_part(part, result) for part, result in pairs)
            return b"".join(each) + _PART.pack(-1, True, -1)
        case list():
            return _I32.pack(len(answer)) + b"".join(pack_text(str(name)) for name in answer)
    raise AssertionError(f"no answer: {answer!r}")


def _pack_part(part: NodeChange, result: object) -> bytes:
    if isinstance(result, PartError):
        return _PART.pack(ZkOp.ERROR, False, result.code) + _I32.pack(result.code)
    op, _ = op_and_body(part)
    assert result is None or isinstance(result, str | ZnodeStat)
    return _PART.pack(op, False, 0) + _pack_answer(part, result)


def pack_stat(stat: ZnodeStat) -> bytes:
    return _STAT.pack(
        *(stat.created_zxid, stat.modified_zxid, stat.created_ms, stat.modified_ms),
        *(stat.version, stat.children_version, stat.acl_version, stat.owner),
        *(stat.data_length, stat.child_count, stat.children_zxid),
    )


def unpack_answer(request: Request, body: bytes) -> Answer:
    """Parse the body of a reply to this request. Raises ProtocolError."""
    read = JuteReader(body)
    match request:
        case CreateNode() | SyncPath():
            return read.text()
        case SetNode() | ReadNode(op=ZkOp.EXISTS):
            return read.stat()
        case ReadNode(op=ZkOp.GET):
            return read.buffer(), read.stat()
        case ReadNode():
            return [read.text() for _ in range(read.i32())]
        case MultiChange():
            return _parts(read)
    return None


def _parts(read: JuteReader) -> list[PartAnswer]:
    results: list[PartAnswer] = []
    while True:
        op, done, _ = read.part()
        if done:
            return results
        if op == ZkOp.ERROR:
            results.append(PartError(read.i32()))
        elif op == ZkOp.CREATE:
            results.append(read.text())
        elif op == ZkOp.SET:
            results.append(read.stat())
        else:
            results.append(None)
