"""The driver's side of the agent protocol: `harness.contracts.Agent` over two byte streams.

It turns calls into requests and answers into results, whatever carries the lines (pipes to a
process in a namespace, a docker exec, an ssh channel). Every call has a deadline of its own,
because an agent that is stopped or cut off does not report it; when the stream ends, every open
call fails at once with the same message.

Where a stream may break and be replaced (`reconnecting_agent`), `last` and `unanswered` are what
both sides exchange to continue.
"""

import asyncio
import base64
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from harness.contracts import CommandResult, LinkRule, ProcessState, TimedDatagram
from harness.errors import BedFailed, NodeGone

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 << 20  # the agent's own limit
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
SECRET = secrets.token_hex(16)  # of this process's runs, for probes between their nodes
PATIENCE_S = 20.0  # an answer usually takes a millisecond


Result = TypeVar("Result")


class NoAnswer(BedFailed, ConnectionError):
    """The node's own process did not answer `ask`: a fact about the node, which its driver uses."""


@dataclass(frozen=True)
class _PendingRequest:
    """A request that was written, and the future of its answer."""

    line: bytes
    answer: "asyncio.Future[dict[str, Any]]"


class ExistingState(NamedTuple):
    """A process that the agent did not start. `threads`: the states of all threads of it and of its
    descendants, a letter each. pid 0: there is none."""

    pid: int
    started: int
    threads: str


class PipeAgent:
    """An agent at the end of a stream: `feed` takes its bytes, `write` sends ours."""

    def __init__(
        self, node: str, write: Callable[[bytes], Any], patience_s: float = PATIENCE_S
    ) -> None:
        self.node = node
        self.gone = ""  # why the agent will not answer any more
        self.last = 0  # number of the agent's last message, if it numbers them
        self._write = write
        self._patience_s = patience_s
        self._pending: dict[int, _PendingRequest] = {}
        self._listeners: dict[str, Callable[[str], None]] = {}
        self._last_id = 0
        self._rest = b""
        self._heard = False  # whether this stream has carried a line of an agent

    # ------------------------------------------------------------------------------- the verbs

    async def hello(self) -> Mapping[str, Any]:
        """Return the agent's identity, once it is up."""
        identity: Mapping[str, Any] = await self._call("hello", dict, secret=SECRET)
        return identity

    async def monotonic_ns(self) -> int:
        """Return the reading of the node's monotonic clock."""
        return await self._call("clock", lambda found: int(found["mono_ns"]))

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0
    ) -> CommandResult:
        return await self._call(
            "run",
            lambda done: CommandResult(int(done["code"]), str(done["out"]), str(done["err"])),
            within_s=timeout_s + self._patience_s,
            argv=list(argv),
            stdin=_encode(stdin),
            timeout_s=timeout_s,
        )

    async def put(self, path: str, data: bytes) -> None:
        for start in range(0, max(len(data), 1), CHUNK_BYTES):
            piece = _encode(data[start : start + CHUNK_BYTES])
            await self._call("put", dict, path=path, data=piece, append=start > 0)

    async def get(self, path: str) -> bytes:
        pieces: list[bytes] = []
        while not pieces or len(pieces[-1]) == CHUNK_BYTES:
            offset = len(pieces) * CHUNK_BYTES
            where: dict[str, Any] = {"path": path, "offset": offset, "size": CHUNK_BYTES}
            pieces.append(await self._call("get", lambda got: _decode(got["data"]), **where))
        return b"".join(pieces)

    async def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        log: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        if on_line:
            self._listeners[name] = on_line
        return await self._call(
            "start",
            lambda started: int(started["pid"]),
            name=name,
            argv=list(argv),
            env=dict(env or {}),
            cwd=cwd,
            log=log,
            lines=on_line is not None,
        )

    async def tell(self, name: str, line: str) -> None:
        await self._call("tell", dict, name=name, line=line)

    async def signal(self, name: str, number: int) -> None:
        await self._call("signal", dict, name=name, number=int(number))

    async def state(self, name: str) -> ProcessState:
        return await self._call("state", lambda found: ProcessState(**found), name=name)

    async def exited(self, name: str) -> int:
        return await self._call(
            "exited", lambda found: int(found["code"]), within_s=math.inf, name=name
        )

    async def look(self, pid: int, started: int, name: str) -> ExistingState:
        """Return the state of a process that the agent did not start: the one with this pid and
        start time (0: any), else the one that is called `name`."""
        return await self._call(
            "look",
            lambda found: ExistingState(
                int(found["pid"]), int(found["started"]), str(found["threads"])
            ),
            pid=pid,
            started=started,
            name=name,
        )

    async def hit(self, pid: int, started: int, number: int) -> None:
        """Signal such a process and its descendants; do nothing if it has ended."""
        await self._call("hit", dict, pid=pid, started=started, number=int(number))

    async def at_leave(self, argv: Sequence[str]) -> None:
        """Set the command that the agent runs when it leaves because its driver is gone; empty:
        none."""
        await self._call("at_leave", dict, argv=list(argv))

    async def links(self, rules: Sequence[LinkRule]) -> None:
        await self._call("links", dict, rules=[rule._asdict() for rule in rules])

    async def dropped(self) -> Mapping[str, int]:
        return await self._call(
            "dropped", lambda found: {str(k): int(n) for k, n in found["packets"].items()}
        )

    async def probe(self, target: str, token: str, count: int) -> None:
        await self._call("probe", dict, target=target, token=token, count=count)

    async def probed(self, token: str) -> int:
        return await self._call("probed", lambda found: int(found["count"]), token=token)

    async def send_timed(self, target: str, token: str, count: int, size_bytes: int) -> None:
        where: dict[str, Any] = {"target": target, "token": token}
        await self._call("fly", dict, count=count, size_bytes=size_bytes, **where)

    async def timed_arrivals(self, token: str) -> Sequence[TimedDatagram]:
        return await self._call(
            "flown",
            lambda found: [TimedDatagram(*map(int, each)) for each in found["flights"]],
            token=token,
        )

    async def lacks(self, ability: str) -> str:
        why = await self._call("lacks", lambda found: str(found["why"]), ability=ability)
        return f"{self.node}: {why}" if why else ""

    async def ask(
        self, port: int, frame: bytes, timeout_s: float, *, to_end: bool = False
    ) -> bytes:
        return await self._call(
            "ask",
            lambda found: _decode(found["frame"]),
            within_s=timeout_s + self._patience_s,
            port=port,
            frame=_encode(frame),
            timeout_s=timeout_s,
            to_end=to_end,
        )

    # ------------------------------------------------------------------------------ the stream

    def feed(self, data: bytes) -> None:
        """Take bytes from the agent, in portions of any size. A node may be hostile or broken: if
        it sends what no agent sends, it counts as gone."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self.lost(f"it sent more than {MAX_LINE_BYTES >> 20} MB in one line")
        for line in lines:
            if line.startswith(b"{"):
                try:
                    self._take(json.loads(line))
                    self._heard = True
                except (*MALFORMED, RecursionError):
                    if self._heard:  # before that a login shell may print something
                        self.lost("it sent a line that no agent sends")

    def renew(self) -> None:
        """Begin a new stream; a partial line of the old one is dropped."""
        self._rest, self._heard = b"", False

    def unanswered(self) -> list[bytes]:
        """Return the lines of all open calls, in the order of their ids."""
        return [request.line for request in self._pending.values()]

    def lost(self, why: str = "its agent ended") -> None:
        """The stream ended: fail all open calls and all later ones."""
        self.gone = self.gone or f"{self.node} is gone: {why}"
        for request in self._pending.values():
            if not request.answer.done():
                request.answer.set_exception(NodeGone(self.gone))

    def _take(self, message: dict[str, Any]) -> None:
        if self.gone:
            return
        self.last = int(message.get("n", self.last))
        if "line" in message:
            listener = self._listeners.get(message["line"])
            if listener:
                asyncio.get_running_loop().call_soon(listener, str(message["text"]))
        elif "gone" in message:
            self.lost(str(message["gone"]))
        elif request := self._pending.get(message.get("id", 0)):
            self._answer(request.answer, message)

    def _answer(self, answer: "asyncio.Future[dict[str, Any]]", message: dict[str, Any]) -> None:
        if answer.done():
            return
        if "error" in message:
            kind = NoAnswer if message["kind"] == "no-answer" else BedFailed
            answer.set_exception(kind(f"{self.node}: {message['error']}"))
        else:
            answer.set_result(dict(message["is"]))

    async def _call(
        self,
        verb: str,
        read: Callable[[dict[str, Any]], Result],
        *,
        within_s: float | None = None,
        **fields: Any,
    ) -> Result:
        """Send a request and return what `read` makes of its answer.

        Raises BedFailed if there is no answer in time, or if `read` cannot use it.
        """
        if self.gone:
            raise NodeGone(self.gone)
        limit_s = self._patience_s if within_s is None else within_s
        self._last_id = number = self._last_id + 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "do": verb, **fields}).encode() + b"\n"
        self._pending[number] = _PendingRequest(line, answer)
        try:
            self._write(line)
            async with asyncio.timeout(limit_s):
                reply = await answer
        except TimeoutError:
            raise BedFailed(
                f"the agent of {self.node} did not answer {verb!r} within {limit_s:g} s"
            ) from None
        finally:
            del self._pending[number]
        try:
            return read(reply)
        except MALFORMED:
            raise BedFailed(f"{self.node} gave an invalid answer to {verb!r}") from None


class PipeConnection(asyncio.Protocol):
    """The two pipes to an agent."""

    def __init__(self, node: str, from_agent: int, to_agent: int) -> None:
        self._out, self._back = os.fdopen(to_agent, "wb", 0), os.fdopen(from_agent, "rb", 0)
        self._closed = asyncio.Event()
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self.agent = PipeAgent(node, self._write)

    async def open(self) -> None:
        """Wait until the agent answers."""
        loop = asyncio.get_running_loop()
        self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._out)
        self._reader, _ = await loop.connect_read_pipe(lambda: self, self._back)
        await self.agent.hello()

    async def hang_up(self, within_s: float) -> bool:
        """Close our end; return whether the agent closed its own, having ended all that it
        started."""
        (self._writer or self._out).close()
        if self._reader:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._closed.wait()
        (self._reader or self._back).close()
        return self._closed.is_set()

    def data_received(self, data: bytes) -> None:
        self.agent.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self.agent.lost()

    def _write(self, data: bytes) -> None:
        if self._writer:
            self._writer.write(data)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text)
