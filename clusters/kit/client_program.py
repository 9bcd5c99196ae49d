"""A client in any language: a program that speaks JSON lines on its standard input and output.

It stands in for the driver's own client, so that a system's own client library is tested. The
protocol is in docs/clients.md. One process of it serves all logical processes of a client node. It
is never started again within a client process, and no call is ever written to it twice. What breaks
the protocol ends the run, since nothing that such a program answers could be relied on.
"""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import count
from tempfile import TemporaryFile
from typing import Any

from harness.contracts.calls import (
    CALLS,
    Changes,
    Delivery,
    Lease,
    LogEntries,
    MicroOperation,
    Refused,
    Stored,
    Versioned,
    check_answer,
    lacking_calls,
)
from harness.errors import BadRequest, BedFailed
from harness.operation import NONE
from harness.text.parsing import is_number, parse_json

VERSION = 1  # of the protocol
SET_UP = "set_up"
HELLO_WITHIN_S, CALL_WITHIN_S, END_WITHIN_S = 20.0, 10.0, 2.0
MAX_LINE_BYTES = 16 << 20
MAX_REASON = 300  # letters of a reason that are kept
HELLO = f'{{"seatrial": {VERSION}, "calls": ["read", ...]}}'
OUTCOMES = ("ok", "fail", "info")


class UnknownOutcome(ConnectionError):
    """The program answered that it does not know what became of the call."""


@cache
def offered_calls(argv: tuple[str, ...]) -> list[str]:
    """Start a program on this machine; return the calls that its hello names. Raises BadRequest if
    it cannot be started, or greets wrongly."""
    try:
        return asyncio.run(_offered_calls(argv))
    except BedFailed as e:
        raise BadRequest(str(e)) from e


async def _offered_calls(argv: Sequence[str]) -> list[str]:
    with TemporaryFile() as errors:
        process = await _start(argv, stderr=errors, start_new_session=True)
        try:
            return await _hello(process, argv[0])
        except BedFailed as e:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_REASON))
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise BedFailed(f"{e}{last and f'; its standard error ends: {last}'}") from None
        finally:
            await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a program that leads a session, and all that it has started."""
    await _end(process)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _start(argv: Sequence[str], **how: Any) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how |= {"stdin": pipe, "stdout": pipe, "limit": MAX_LINE_BYTES, "cwd": "/", "env": own}
    try:
        return await asyncio.create_subprocess_exec(*argv, **how)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise BedFailed(
            f"the client program {argv[0]} cannot be started: {why}; name an executable file by "
            "its path, with a slash, or a program on the PATH of the client nodes"
        ) from e


async def _end(process: asyncio.subprocess.Process) -> None:
    """End its input; kill it if it does not end by itself then."""
    if process.stdin:
        process.stdin.close()
    for _ in range(2):
        with suppress(TimeoutError):
            async with asyncio.timeout(END_WITHIN_S):
                await process.wait()
        # this kills it if it runs, and closes pipes that its children may hold
        process._transport.close()  # type: ignore[attr-defined]


async def _hello(process: asyncio.subprocess.Process, name: str) -> list[str]:
    """Return the calls that a program's first line names. Raises BedFailed."""
    try:
        async with asyncio.timeout(HELLO_WITHIN_S):
            line = await _line(process, name)
            if line is None:
                code = await process.wait()
    except TimeoutError:
        raise BedFailed(
            f"the client program {name} printed no hello within {HELLO_WITHIN_S:g} s; its first "
            f"line must be {HELLO}, before it reads anything"
        ) from None
    if line is None:
        raise BedFailed(
            f"the client program {name} exited with code {code} before its hello; its first line "
            f"must be {HELLO}"
        )
    version, calls = line.get("seatrial"), line.get("calls")
    if version != VERSION:
        raise BedFailed(
            f"the client program {name} speaks version {version!r:.40} of the protocol, and this "
            f"Seatrial speaks {VERSION}; its first line must be {HELLO}"
        )
    known = {*CALLS, SET_UP}
    if not isinstance(calls, list) or (wrong := [c for c in calls if not _is_one_of(c, known)]):
        what = repr(wrong[0]) if isinstance(calls, list) else "no list of calls"
        raise BedFailed(
            f"the client program {name} names {what:.60} in its hello; the calls are: "
            f"{', '.join(sorted(known))}"
        )
    return calls


def _is_one_of(call: Any, known: Collection[str]) -> bool:
    return isinstance(call, str) and call in known


async def _line(process: asyncio.subprocess.Process, name: str) -> dict[str, Any] | None:
    """Return the next line of a program, None at the end. Raises BedFailed if it is no object."""
    assert process.stdout
    try:
        text = await process.stdout.readline()
    except ValueError:
        most = f"{MAX_LINE_BYTES >> 20} MiB"
        raise BedFailed(f"the client program {name} printed a line of over {most}") from None
    if not text:
        return None
    with suppress(ValueError):
        if isinstance(found := parse_json(text.decode()), dict):
            return found
    raise BedFailed(
        f"the client program {name} printed {text.decode(errors='replace').strip()!r:.100}, which "
        "is not a JSON object; print everything but the protocol on standard error"
    )


class ClientProgram:
    """A running program. `calls(settings, number)` makes the client of plain calls of each logical
    process, as `ServiceClient` wants it. `needed`: as `WorkloadPlugin.calls`."""

    def __init__(self, argv: Sequence[str], needed: Sequence[Collection[str]]) -> None:
        self._argv, self._needed, self.name = argv, needed, argv[0]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ids = count(1)
        self._open: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._expired: set[int] = set()  # calls that took too long, and may be answered yet
        self._over = "it was not started"  # why it serves no calls; empty: it does

    def calls(self, settings: Mapping[str, Any], number: int) -> "ProgramCalls":
        return ProgramCalls(self, settings, number)

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Start it, and let it create what the workload needs. Raises BedFailed."""
        self._process = await _start(self._argv)
        try:
            offered = await _hello(self._process, self.name)
        except BedFailed as e:
            raise BedFailed(f"{e}; its standard error is in clients.log of its node") from None
        if lacking := lacking_calls(offered, self._needed):
            raise BedFailed(
                f"the client program {self.name} lacks {', '.join(lacking)}, which the workload "
                "needs"
            )
        self._write({"seatrial": VERSION, **settings})
        self._over = ""
        self._reading = asyncio.ensure_future(self._read())
        if SET_UP in offered:
            try:
                await self.request(0, SET_UP, settings["topics"])
            except Exception as e:
                raise BedFailed(f"the client program {self.name} could not set up: {e}") from e

    async def close(self) -> None:
        self._over = "the run is over"
        if process := self._process:
            await _end(process)
        if self._reading:
            self._reading.cancel()

    async def request(self, number: int, call: str, *arguments: Any) -> Any:
        """Make a call, once. Raises Refused if it is certain that nothing was done, else another
        exception."""
        if self._over:
            raise Refused(f"the client program does not run: {self._over}")
        at = next(self._ids)
        answered = self._open[at] = asyncio.get_running_loop().create_future()
        self._write({"id": at, "process": number, "call": call, "args": arguments})
        try:
            async with asyncio.timeout(CALL_WITHIN_S):
                answer = await answered
        except TimeoutError:
            self._expired.add(at)
            if self._process and self._process.returncode is not None:  # a child has its output
                self.fail(self._ended())
            raise TimeoutError(f"no answer within {CALL_WITHIN_S:g} s") from None
        finally:
            self._open.pop(at, None)
        if "fail" in answer:
            raise Refused(str(answer["fail"])[:MAX_REASON])
        if "info" in answer:
            raise UnknownOutcome(str(answer["info"])[:MAX_REASON])
        return answer["ok"]

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process
        assert self._process.stdin
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def _read(self) -> None:
        """Hand answers to those who wait for them, until the program ends."""
        assert self._process
        try:
            while (answer := await _line(self._process, self.name)) is not None:
                self._take(answer)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN_S):
                    await self._process.wait()
            self.fail(self._ended())
        except BedFailed as e:
            self.fail(str(e))

    def _ended(self) -> str:
        """Return how the program ended, as a sentence."""
        code = self._process and self._process.returncode
        how = "closed its standard output" if code is None else f"exited with code {code}"
        return (
            f"the client program {self.name} {how} during the run, which says nothing of the "
            "system; what it printed on standard error is in clients.log of its node"
        )

    def _take(self, answer: Mapping[str, Any]) -> None:
        at, outcomes = answer.get("id"), [word for word in OUTCOMES if word in answer]
        if len(outcomes) != 1:
            self.fail(
                f"the client program {self.name} answered {json.dumps(answer)!r:.100}; an answer "
                'has an "id" and one of "ok", "fail" and "info"'
            )
        elif isinstance(at, int) and (waiting := self._open.pop(at, None)):
            if not waiting.done():
                waiting.set_result(answer)
        elif isinstance(at, int) and at in self._expired:
            self._expired.discard(at)
        else:
            self.fail(
                f"the client program {self.name} answered the id {at!r:.40}, which is not open; "
                "answer each call once, with its own id"
            )

    def fail(self, why: str) -> None:
        """End the run for this reason. The outcomes of open calls are unknown."""
        if self._over:
            return
        self._over = why
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the client program is gone"))
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": why, "exception": BedFailed(why)})


class ProgramCalls:
    """The plain calls of one logical process, which the program carries out."""

    def __init__(self, program: ClientProgram, settings: Mapping[str, Any], number: int) -> None:
        self._program, self._settings, self._number = program, settings, number

    async def set_up(self, topics: object) -> None:
        await self._program.start(self._settings)

    async def close(self) -> None:
        await self._program.close()

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)
        return partial(self._call, name)

    async def _call(self, name: str, *arguments: Any) -> Any:
        found = await self._program.request(self._number, name, *map(_sent, arguments))
        try:
            answer = DECODE.get(name, _as_it_is)(found)
            check_answer(name, answer)
            if name == "transact":
                _check_transaction(answer, *arguments)
        except (TypeError, ValueError, KeyError, AttributeError) as e:
            what = f"{type(e).__name__}: {e}" if isinstance(e, KeyError) else str(e)
            self._program.fail(
                f"the client program {self._program.name} answered {name} with "
                f"{json.dumps(found):.80}: {what}"
            )
            raise UnknownOutcome("an answer of the wrong kind") from e
        return answer


def _sent(value: Any) -> Any:
    """Return an argument of a call as JSON."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _as_it_is(found: Any) -> Any:
    return found


def _done(found: Any) -> None:
    if found is not None and found is not True:
        raise TypeError('it must be true or null; what did not succeed is "fail" or "info"')


def _lease(found: Any) -> Lease:
    return Lease(_seconds(found["held_s"]), _number(found.get("token", NONE)))


def _stored(found: Any) -> int | Stored:
    if not isinstance(found, dict):
        return found  # type: ignore[no-any-return]  # it is checked
    term, node = _number(found.get("term", NONE)), str(found.get("node", ""))
    return Stored(_number(found["offset"]), term, node)


def _entries(found: Any) -> LogEntries:
    pairs = [(_number(at), base64.b64decode(body, validate=True)) for at, body in found["entries"]]
    return LogEntries(pairs, _number(found["end"]), _number(found.get("resume", NONE)))


def _versioned(found: Any) -> Versioned | None:
    if found is None:
        return None
    version, value = map(_number, found)
    return Versioned(version, value)


def _changes(found: Any) -> Changes:
    events = [Versioned(_number(version), _number(value)) for version, value in found["events"]]
    return Changes(events, bool(found.get("newest", False)), bool(found.get("early", False)))


def _deliveries(found: Any) -> list[Delivery]:
    return [
        Delivery(_number(at), base64.b64decode(body, validate=True), str(handle))
        for at, body, handle in found
    ]


def _questions(found: Any) -> list[tuple[int, bytes]]:
    return [(_number(at), base64.b64decode(body, validate=True)) for at, body in found]


def _transaction(found: Any) -> list[MicroOperation]:
    return [MicroOperation(*each) for each in found]


def _check_transaction(answer: Sequence[MicroOperation], asked: Sequence[MicroOperation]) -> None:
    if [(f, key) for f, key, _ in answer] != [(f, key) for f, key, _ in asked]:
        raise ValueError("it must be the list of micro-operations that was sent")
    for (f, _, value), (_, _, wanted) in zip(answer, asked, strict=True):
        if f != "read" and value != wanted:
            raise ValueError(f"it must write what was sent, {wanted}")
        for each in value if isinstance(value, list) else [0 if value is None else value]:
            _number(each)


def _number(value: Any) -> Any:
    if not is_number(value) or isinstance(value, float):
        raise TypeError(f"it must be a whole number of 64 bits, not {value!r:.40}")
    return value


def _seconds(value: Any) -> Any:
    if not is_number(value):
        raise TypeError(f"it must be a number of seconds, not {value!r:.40}")
    return value


DECODE: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("write", "release", "add", "enqueue", "increment", "acknowledge"), _done),
    **dict.fromkeys(("append_later", "decide"), _done),
    "questions": _questions,
    "acquire": _lease,
    "append": _stored,
    "entries": _entries,
    "current": _versioned,
    "fetch": _deliveries,
    "watch": _changes,
    "transact": _transaction,
}
