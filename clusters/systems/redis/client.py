"""A client of Redis with Sentinel, on asyncio alone: RESP, and the rules for clients of Sentinel.

A queue is a Redis list. RPUSH answers with the new length of the list, so the client knows the
offset of an acknowledged message; LRANGE reads from an offset; a group's offset is a key of its
own. All commands go to the primary over one connection, which answers in the order of the commands.

The sentinels know the primary. A client asks one of them, connects, and verifies the role with
ROLE; it asks again when the connection ends, when an answer takes too long, or when the server
answers that it is a replica. A client that is still served is not informed of a new primary.

An error reply means that nothing was done only if its first word is in `REFUSED`; after any other
failure behind a written command, the command may have been executed. No command is sent twice.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from harness.contracts import PollResult, ReceivedMessage
from harness.operation import NONE, Completion, Type

MAIN = "main"  # the sentinels' name for the servers
ANSWER_WITHIN_S = 1.0
LOOK_EVERY_S = 0.1  # check for overdue answers
SEEK_AGAIN_S = 0.1
POLL_AGAIN_S = 0.02  # BLPOP would remove the element
REFUSED = frozenset(
    {"READONLY", "NOREPLICAS", "MISCONF", "LOADING", "MASTERDOWN", "OOM", "NOAUTH", "NOPERM"}
)
NO_PRIMARY = Completion(Type.FAIL, error="no primary is known")
CRLF = b"\r\n"
Word = bytes | str | int
Answered = Callable[[Any], object]


# ---------------------------------------------------------------------------------------- RESP


@dataclass(frozen=True)
class Refusal:
    """An error reply of a server."""

    text: str

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


@dataclass(frozen=True)
class Silence:
    """There was no answer, and none will come."""

    text: str


def encode(*words: Word) -> bytes:
    """Encode a command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    bulks = (b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), b"".join(bulks))


def decode(data: bytes, at: int = 0) -> tuple[Any, int] | None:
    """Return the reply that begins at an offset, and the offset behind it, or None if it is
    incomplete.

    Integers are int, simple strings str, bulk strings bytes, arrays lists, errors Refusal, nil is
    None. Raises ValueError if the data is not a reply.
    """
    end = data.find(CRLF, at)
    if end < 0:
        return None
    kind, rest, at = data[at : at + 1], data[at + 1 : end], end + len(CRLF)
    match kind:
        case b"+":
            return rest.decode(), at
        case b"-":
            return Refusal(rest.decode(errors="replace")), at
        case b":":
            return int(rest), at
        case b"$":
            return _bulk(data, at, int(rest))
        case b"*":
            return _array(data, at, int(rest))
    raise ValueError(f"no reply begins with {kind!r}")


def _bulk(data: bytes, at: int, size: int) -> tuple[Any, int] | None:
    if size < 0:
        return None, at
    end = at + size
    return (data[at:end], end + len(CRLF)) if len(data) >= end + len(CRLF) else None


def _array(data: bytes, at: int, count: int) -> tuple[Any, int] | None:
    if count < 0:
        return None, at
    items = []
    for _ in range(count):
        part = decode(data, at)
        if part is None:
            return None
        item, at = part
        items.append(item)
    return items, at


def outcome(reply: Any) -> Type:
    """Return the outcome of a command from its reply."""
    if isinstance(reply, Refusal):
        return Type.FAIL if reply.code in REFUSED else Type.INFO
    return Type.INFO if isinstance(reply, Silence) else Type.OK


# --------------------------------------------------------------------------------- a connection


class RedisConnection(asyncio.Protocol):
    """A connection to a server. If an answer takes too long, the connection and all open commands
    are given up."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = b""
        self._waiting: deque[tuple[float, Answered]] = deque()  # deadline, callback
        self._transport: asyncio.WriteTransport
        self._timer: asyncio.TimerHandle
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def send(self, answered: Answered, *words: Word) -> None:
        """Send a command. `answered` is called once, with the reply or Silence; at once if the link
        is closed."""
        if self.closed.done():
            answered(Silence("the connection has ended"))
            return
        self._waiting.append((self._loop.time() + ANSWER_WITHIN_S, answered))
        self._transport.write(encode(*words))

    async def request(self, *words: Word) -> Any:
        """Return the reply, which may be Refusal or Silence."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(reply: Any) -> None:
            if not answer.done():  # else the caller was cancelled
                answer.set_result(reply)

        self.send(answered, *words)
        return await answer

    async def call(self, *words: Word) -> Any:
        """Return the reply. Raises ConnectionError if there is none or if it is an error."""
        reply = await self.request(*words)
        if isinstance(reply, Refusal | Silence):
            raise ConnectionError(reply.text)
        return reply

    def close(self, why: str = "the client closed the connection") -> None:
        self._end(why)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._check_timeout)

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        for answer in self._answers():
            if self._waiting:
                self._waiting.popleft()[1](answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the server closed the connection"))

    def _answers(self) -> Iterator[Any]:
        at = 0
        try:
            while part := decode(self._inbox, at):
                answer, at = part
                yield answer
        except ValueError as e:
            self.close(f"the server does not speak RESP: {e}")
        self._inbox = self._inbox[at:]

    def _check_timeout(self) -> None:
        if self._waiting and self._waiting[0][0] < self._loop.time():
            self.close(f"no answer within {ANSWER_WITHIN_S:g} s")
        else:
            self._timer = self._loop.call_later(LOOK_EVERY_S, self._check_timeout)

    def _end(self, why: str) -> None:
        if self.closed.done():
            return
        self.closed.set_result(None)
        self._timer.cancel()
        while self._waiting:
            self._waiting.popleft()[1](Silence(why))


async def connect(address: str) -> RedisConnection:
    """Open a connection. Raises OSError if no server answers."""
    host, _, port = address.rpartition(":")
    _, link = await asyncio.get_running_loop().create_connection(RedisConnection, host, int(port))
    return link


@dataclass(frozen=True)
class Primary:
    """A connection to the server that a sentinel names as primary, and the epoch of its
    configuration."""

    link: RedisConnection
    address: str
    epoch: int


async def connect_primary(sentinel: str) -> Primary:
    """Connect to the primary that this sentinel names. Raises OSError if there is none."""
    link = await connect(sentinel)
    try:
        address, epoch = await _primary_address(link)
    finally:
        link.close()
    link = await connect(address)
    try:
        role, *_ = await link.call("ROLE")
        if role != b"master":
            raise ConnectionError(f"{address} is not a primary")
    except BaseException:
        link.close()
        raise
    return Primary(link, address, epoch)


async def _primary_address(sentinel: RedisConnection) -> tuple[str, int]:
    """Return the primary's address and its epoch. They belong together, since a failover changes
    both at one instant."""
    before = await _epoch(sentinel)
    reply = await sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MAIN)
    if not reply or before != await _epoch(sentinel):
        raise ConnectionError("the sentinel's view is changing")
    host, port = reply
    return f"{host.decode()}:{port.decode()}", before


async def _epoch(sentinel: RedisConnection) -> int:
    reply = await sentinel.call("SENTINEL", "MASTER", MAIN)
    return int(dict(zip(reply[::2], reply[1::2], strict=True))[b"config-epoch"])


# ---------------------------------------------------------------------------------- the client


class RedisClient:
    """`harness.contracts.MessageClient` on lists."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._sentinels: deque[str] = deque(settings["sentinels"])
        self._nodes: Mapping[str, int] = settings["nodes"]  # address -> index in names.json
        self._names: Mapping[str, str] = settings["names"]  # address -> node, for people
        self._primary: Primary | None = None
        self._seeking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        known = asyncio.Event()
        self._seeking = self._loop.create_task(self._keep_connected(known))
        await known.wait()

    async def close(self) -> None:
        if self._seeking:
            self._seeking.cancel()
        if self._primary:
            self._primary.link.close()

    async def _keep_connected(self, known: asyncio.Event) -> None:
        """Keep a connection to the primary until cancelled."""
        while True:
            self._sentinels.rotate(-1)
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    self._primary = await connect_primary(self._sentinels[0])
            except (OSError, ValueError, KeyError):  # not reachable, or not ready yet
                await asyncio.sleep(SEEK_AGAIN_S)
                continue
            known.set()
            await asyncio.wait([self._primary.link.closed])
            self._primary = None

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        primary = self._open_primary()
        if primary is None:  # later, so that a caller that retries at once does not spin
            self._loop.call_later(SEEK_AGAIN_S, done, NO_PRIMARY)
            return

        def answered(reply: Any) -> None:
            done(self._completion(reply, primary))

        primary.link.send(answered, "RPUSH", _key(topic, queue), body)

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        until_s = self._loop.time() + wait_s
        try:
            length, bodies = await self._read(topic, queue, offset, limit)
            while not bodies and self._loop.time() < until_s:
                await asyncio.sleep(POLL_AGAIN_S)
                length, bodies = await self._read(topic, queue, offset, limit)
        except ConnectionError as e:
            return PollResult(Completion(Type.FAIL, error=str(e)))
        messages = [ReceivedMessage(at, NONE, body) for at, body in enumerate(bodies, start=offset)]
        # after a failover the list may be shorter: read on from its end
        next_offset = offset + len(bodies) if bodies else min(offset, length)
        return PollResult(Completion(Type.OK), messages, next_offset, max(length, next_offset))

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, int(await self._link().call("LLEN", _key(topic, queue)))

    async def committed(self, group: str, topic: str, queue: int) -> int:
        reply = await self._link().call("GET", _group_key(group, topic, queue))
        return NONE if reply is None else int(reply)

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        primary = self._open_primary()
        if primary is None:
            return NO_PRIMARY
        reply = await primary.link.request("SET", _group_key(group, topic, queue), offset)
        return self._completion(reply, primary)

    def _completion(self, reply: Any, primary: Primary) -> Completion:
        kind, node = outcome(reply), self._nodes.get(primary.address, NONE)
        if kind is Type.OK:
            offset = reply - 1 if isinstance(reply, int) else NONE
            return Completion(kind, offset, primary.epoch, node)
        if isinstance(reply, Refusal) and reply.code == "READONLY":
            primary.link.close("the server is a replica by now")
        name = self._names.get(primary.address, primary.address)
        return Completion(kind, node=node, error=f"{name}: {reply.text}")

    async def _read(
        self, topic: str, queue: int, offset: int, limit: int
    ) -> tuple[int, list[bytes]]:
        link, key = self._link(), _key(topic, queue)
        length: int = await link.call("LLEN", key)
        bodies: list[bytes] = await link.call("LRANGE", key, offset, offset + limit - 1)
        return length, bodies

    def _link(self) -> RedisConnection:
        primary = self._open_primary()
        if primary is None:
            raise ConnectionError(NO_PRIMARY.error)
        return primary.link

    def _open_primary(self) -> Primary | None:
        primary = self._primary
        return None if primary is None or primary.link.closed.done() else primary


def _key(topic: str, queue: int) -> str:
    return f"{topic}-{queue}"


def _group_key(group: str, topic: str, queue: int) -> str:
    return f"{group}:{_key(topic, queue)}"
