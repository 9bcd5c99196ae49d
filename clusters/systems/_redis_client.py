"""A client of Redis with Sentinel, on asyncio alone: RESP, and the rules for clients of Sentinel.

A queue is a Redis list. RPUSH answers with the list's new length, so whoever is acknowledged knows
the offset; LRANGE reads on from one; a group's offset is a key of its own. All of it goes to the
primary, over one connection on which what is asked first is answered first.

Who is primary the sentinels say. A client asks one of them, connects, and makes sure by ROLE; it
asks again when the connection ends, when an answer takes too long, or when the server says that it
is a replica. Nobody tells a client that is still served that there is another primary by now.

A server's error says that nothing was done only if its first word is in `REFUSED`; whatever else
goes wrong after a command was written, it may have been done. Nothing is sent a second time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from harness.contracts import Batch, Received
from harness.operation import NONE, Completion, Type

MAIN = "main"  # what the sentinels call the servers that they watch
ANSWER_WITHIN_S = 1.0
LOOK_EVERY_S = 0.1  # whether somebody has waited for longer
SEEK_AGAIN_S = 0.1
POLL_AGAIN_S = 0.02  # a list has no way to wait for its next element without taking it away
REFUSED = frozenset(
    {"READONLY", "NOREPLICAS", "MISCONF", "LOADING", "MASTERDOWN", "OOM", "NOAUTH", "NOPERM"}
)
NOWHERE = Completion(Type.FAIL, error="no primary is known")
CRLF = b"\r\n"
Word = bytes | str | int
Answered = Callable[[Any], object]


# ---------------------------------------------------------------------------------------- RESP


@dataclass(frozen=True)
class Refusal:
    """An error that a server answered."""

    text: str

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


@dataclass(frozen=True)
class Silence:
    """There was no answer, and none will come."""

    text: str


def encoded(*words: Word) -> bytes:
    """A command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    bulks = (b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), b"".join(bulks))


def decoded(data: bytes, at: int = 0) -> tuple[Any, int] | None:
    """The answer that begins there, and where the next one does; None while part of it is missing.

    Whole numbers are int, texts str, bulks bytes, arrays lists, errors Refusal; nil is None.
    ValueError: that is no answer.
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
    raise ValueError(f"no answer begins with {kind!r}")


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
        part = decoded(data, at)
        if part is None:
            return None
        item, at = part
        items.append(item)
    return items, at


def outcome(told: Any) -> Type:
    """What became of what was asked."""
    if isinstance(told, Refusal):
        return Type.FAIL if told.code in REFUSED else Type.INFO
    return Type.INFO if isinstance(told, Silence) else Type.OK


# --------------------------------------------------------------------------------- a connection


class Link(asyncio.Protocol):
    """A connection to a server. One that does not answer in time is given up, with all that is
    still open on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = b""
        self._waiting: deque[tuple[float, Answered]] = deque()  # deadline, who waits
        self._transport: asyncio.WriteTransport
        self._timer: asyncio.TimerHandle
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def ask(self, answered: Answered, *words: Word) -> None:
        """`answered` is called once, with the answer or Silence; on a closed link at once."""
        if self.closed.done():
            answered(Silence("the connection has ended"))
            return
        self._waiting.append((self._loop.time() + ANSWER_WITHIN_S, answered))
        self._transport.write(encoded(*words))

    async def told(self, *words: Word) -> Any:
        """The answer, Refusal and Silence among them."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(told: Any) -> None:
            if not answer.done():  # whoever waited has gone
                answer.set_result(told)

        self.ask(answered, *words)
        return await answer

    async def call(self, *words: Word) -> Any:
        """The answer. ConnectionError: there is none, or it is an error."""
        told = await self.told(*words)
        if isinstance(told, Refusal | Silence):
            raise ConnectionError(told.text)
        return told

    def close(self, why: str = "the client hung up") -> None:
        self._end(why)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        for answer in self._answers():
            if self._waiting:
                self._waiting.popleft()[1](answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the server hung up"))

    def _answers(self) -> Iterator[Any]:
        at = 0
        try:
            while part := decoded(self._inbox, at):
                answer, at = part
                yield answer
        except ValueError as e:
            self.close(f"the server does not speak RESP: {e}")
        self._inbox = self._inbox[at:]

    def _look(self) -> None:
        if self._waiting and self._waiting[0][0] < self._loop.time():
            self.close(f"no answer within {ANSWER_WITHIN_S:g} s")
        else:
            self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def _end(self, why: str) -> None:
        if self.closed.done():
            return
        self.closed.set_result(None)
        self._timer.cancel()
        while self._waiting:
            self._waiting.popleft()[1](Silence(why))


async def connected(address: str) -> Link:
    """OSError when nobody is there."""
    host, _, port = address.rpartition(":")
    _, link = await asyncio.get_running_loop().create_connection(Link, host, int(port))
    return link


@dataclass(frozen=True)
class Primary:
    """A connection to whom a sentinel called primary, in which epoch of its configuration."""

    link: Link
    address: str
    epoch: int


async def primary_of(sentinel: str) -> Primary:
    """A connection to the primary that this sentinel names. OSError: there is none."""
    link = await connected(sentinel)
    try:
        address, epoch = await _named(link)
    finally:
        link.close()
    link = await connected(address)
    try:
        role, *_ = await link.call("ROLE")
        if role != b"master":
            raise ConnectionError(f"{address} is no primary")
    except BaseException:
        link.close()
        raise
    return Primary(link, address, epoch)


async def _named(sentinel: Link) -> tuple[str, int]:
    """The primary's address and its epoch. They belong together, since a failover changes both at
    one instant."""
    before = await _epoch(sentinel)
    told = await sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MAIN)
    if not told or before != await _epoch(sentinel):
        raise ConnectionError("the sentinel is changing its mind")
    host, port = told
    return f"{host.decode()}:{port.decode()}", before


async def _epoch(sentinel: Link) -> int:
    told = await sentinel.call("SENTINEL", "MASTER", MAIN)
    return int(dict(zip(told[::2], told[1::2], strict=True))[b"config-epoch"])


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
        self._seeking = self._loop.create_task(self._keep(known))
        await known.wait()

    async def close(self) -> None:
        if self._seeking:
            self._seeking.cancel()
        if self._primary:
            self._primary.link.close()

    async def _keep(self, known: asyncio.Event) -> None:
        """For ever: a connection to the primary, as soon as there is one."""
        while True:
            self._sentinels.rotate(-1)
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    self._primary = await primary_of(self._sentinels[0])
            except (OSError, ValueError, KeyError):  # nobody there, or not with an answer yet
                await asyncio.sleep(SEEK_AGAIN_S)
                continue
            known.set()
            await asyncio.wait([self._primary.link.closed])
            self._primary = None

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        primary = self._open_primary()
        if primary is None:  # not at once: whoever sends again without a pause must not spin
            self._loop.call_later(SEEK_AGAIN_S, done, NOWHERE)
            return

        def answered(told: Any) -> None:
            done(self._completion(told, primary))

        primary.link.ask(answered, "RPUSH", _key(topic, queue), body)

    async def poll(self, topic: str, queue: int, offset: int, limit: int, wait_s: float) -> Batch:
        until_s = self._loop.time() + wait_s
        try:
            length, bodies = await self._read(topic, queue, offset, limit)
            while not bodies and self._loop.time() < until_s:
                await asyncio.sleep(POLL_AGAIN_S)
                length, bodies = await self._read(topic, queue, offset, limit)
        except ConnectionError as e:
            return Batch(Completion(Type.FAIL, error=str(e)))
        messages = [Received(at, NONE, body) for at, body in enumerate(bodies, start=offset)]
        # a list that a failover made shorter is read on from its end
        next_offset = offset + len(bodies) if bodies else min(offset, length)
        return Batch(Completion(Type.OK), messages, next_offset, max(length, next_offset))

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, int(await self._link().call("LLEN", _key(topic, queue)))

    async def committed(self, group: str, topic: str, queue: int) -> int:
        told = await self._link().call("GET", _group_key(group, topic, queue))
        return NONE if told is None else int(told)

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        primary = self._open_primary()
        if primary is None:
            return NOWHERE
        told = await primary.link.told("SET", _group_key(group, topic, queue), offset)
        return self._completion(told, primary)

    def _completion(self, told: Any, primary: Primary) -> Completion:
        kind, node = outcome(told), self._nodes.get(primary.address, NONE)
        if kind is Type.OK:
            offset = told - 1 if isinstance(told, int) else NONE
            return Completion(kind, offset, primary.epoch, node)
        if isinstance(told, Refusal) and told.code == "READONLY":
            primary.link.close("the server is a replica by now")
        name = self._names.get(primary.address, primary.address)
        return Completion(kind, node=node, error=f"{name}: {told.text}")

    async def _read(
        self, topic: str, queue: int, offset: int, limit: int
    ) -> tuple[int, list[bytes]]:
        link, key = self._link(), _key(topic, queue)
        length: int = await link.call("LLEN", key)
        bodies: list[bytes] = await link.call("LRANGE", key, offset, offset + limit - 1)
        return length, bodies

    def _link(self) -> Link:
        primary = self._open_primary()
        if primary is None:
            raise ConnectionError(NOWHERE.error)
        return primary.link

    def _open_primary(self) -> Primary | None:
        primary = self._primary
        return None if primary is None or primary.link.closed.done() else primary


def _key(topic: str, queue: int) -> str:
    return f"{topic}-{queue}"


def _group_key(group: str, topic: str, queue: int) -> str:
    return f"{group}:{_key(topic, queue)}"
