"""Plain calls of a client to a system, by what they offer, as a driver's author writes them.

A client has the methods that its system can serve, and by them the workloads that it is fit for. A
call returns its answer or raises. `Refused`: it certainly did nothing and never will (*fail*). Any
other exception leaves the outcome unknown: *info* for a call that changes something, *fail* for one
that only reads. No call is sent twice by itself.

Each client serves one logical process; calls of one client never overlap, except `append`, of which
several are open at once, and `entries`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from os.path import basename, dirname
from sysconfig import get_path
from traceback import walk_tb
from typing import Any, NamedTuple, Protocol

from harness.operation import NONE, Completion, Type
from harness.text.parsing import is_number

STANDARD, THIS_FOLDER = get_path("stdlib"), dirname(__file__)


class Refused(Exception):
    """The call certainly did nothing, and never will."""


class Lease(NamedTuple):
    """A lock that was taken: `held_s` seconds from the call on, unless it is released before;
    `token` is its fencing token, larger for each later holder, if the system has one."""

    held_s: float
    token: int = NONE


class Stored(NamedTuple):
    """An entry that was appended: its offset, and the term and the name of the node that
    acknowledged it, if the client knows them."""

    offset: int
    term: int = NONE
    node: str = ""


class LogEntries(NamedTuple):
    """Entries of a log, each with its offset, in order, and the offset behind the log's last entry.
    `resume`: where to read on if there are none, since the log has become shorter, or does not have
    these."""

    entries: Sequence[tuple[int, bytes]]
    end: int
    resume: int = NONE


class Versioned(NamedTuple):
    """A value of a key that is watched. The first value that a key ever has is its version 1, and
    each later one has the next number."""

    version: int
    value: int


class Changes(NamedTuple):
    """Changes of a key, in the order in which they arrived. `newest`: the system promises only that
    the newest value is learned, so values before it may be left out. `early`: an event may arrive
    before reads show its value."""

    events: Sequence[Versioned] = ()
    newest: bool = False
    early: bool = False

    @property
    def promise(self) -> int:
        """Return what the history has of it: 1 if `newest`, and 2 more if `early`."""
        return self.newest + 2 * self.early


class Delivery(NamedTuple):
    """A message of a log that a consumer group was given: its offset, its body, and what
    `acknowledge` takes: the system's name for this delivery."""

    offset: int
    body: bytes
    handle: str


class MicroOperation(NamedTuple):
    """A part of a transaction. `f`: `read` (a register or list), `write` (a register), `append` (to
    a list). `value`: what is written or appended; of a read, in the answer, an int, None, or the
    elements of the list."""

    f: str
    key: str
    value: int | Sequence[int] | None = None


class RegisterCalls(Protocol):
    """Registers that hold an integer."""

    async def read(self, key: str) -> int | None: ...

    async def write(self, key: str, value: int) -> None: ...

    async def cas(self, key: str, old: int | None, new: int) -> bool:
        """Change the value if it is `old` (None: if there is none); return whether it was."""
        ...


class LockCalls(Protocol):
    """Locks with one holder at a time."""

    async def acquire(self, key: str, owner: str) -> Lease:
        """Take the lock. Raises Refused if another owner has it."""
        ...

    async def release(self, key: str, owner: str) -> None:
        """Give it back. Raises Refused if this owner does not have it."""
        ...


class LogCalls(Protocol):
    """Logs: entries with offsets."""

    async def append(self, key: str, body: bytes) -> int | Stored:
        """Append an entry; return its offset, or more."""
        ...

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        """Return up to `limit` entries from an offset on."""
        ...

    async def end(self, key: str) -> int:
        """Return the offset behind the last entry."""
        ...


class DelayCalls(LogCalls, Protocol):
    """Logs to which entries can be appended later."""

    async def append_later(self, key: str, body: bytes, delay_ms: int) -> None:
        """Accept an entry that readers are to get `delay_ms` after this call, and not before."""
        ...


class HalfCalls(LogCalls, Protocol):
    """Logs to which entries are appended in two steps."""

    async def prepare(self, key: str, body: bytes, group: str) -> int:
        """Accept an entry that readers get if it is committed; return its id. `group`: of the
        clients that may be asked for its decision."""
        ...

    async def decide(self, key: str, half: int, commit: bool) -> None:
        """Commit the entry with this id, or roll it back. Raises Refused if it cannot be decided
        any more."""
        ...

    async def questions(self, key: str, group: str) -> Sequence[tuple[int, bytes]]:
        """Return ids and bodies of entries for whose decision the system asks this group, as soon
        as there is one; none if it asked for none for half a second or so."""
        ...


class SetCalls(Protocol):
    """Sets of integers."""

    async def add(self, key: str, member: int) -> None: ...

    async def members(self, key: str) -> Collection[int]: ...


class TransactionCalls(Protocol):
    """Transactions over registers and lists."""

    async def transact(self, operations: Sequence[MicroOperation]) -> Sequence[MicroOperation]:
        """Carry out all operations, or none; return them with what the reads returned. Raises
        Refused if it was aborted."""
        ...


class QueueCalls(Protocol):
    """Queues of integers, whose elements are taken once."""

    async def enqueue(self, key: str, value: int) -> None: ...

    async def dequeue(self, key: str) -> int | None:
        """Take an element; None: the queue is empty. It counts as taken when this returns."""
        ...


class CounterCalls(Protocol):
    """Counters."""

    async def increment(self, key: str, by: int) -> None: ...

    async def count(self, key: str) -> int: ...


class WatchCalls(Protocol):
    """Keys whose changes clients follow."""

    async def change(self, key: str, value: int) -> int:
        """Give the key another value; return its version."""
        ...

    async def current(self, key: str) -> Versioned | None:
        """Return the key's value, None if it has none."""
        ...

    async def watch(self, key: str, after: int) -> Changes:
        """Return changes that come after a version, as soon as there is one; none if none came for
        about a second. `after`: 0, or the version of the last event, or of a read, of this client.
        After an exception the next call is made with the same `after`."""
        ...


class GroupCalls(Protocol):
    """Consumer groups that the system keeps: each message of a log is given to one of the clients
    that fetch for the group, and after a while to another one, until it is acknowledged."""

    async def fetch(self, key: str, group: str, limit: int) -> Sequence[Delivery]:
        """Return messages for the group, as soon as there is one; none if none came for a while,
        half a second or so."""
        ...

    async def acknowledge(self, key: str, group: str, handles: Sequence[str]) -> None:
        """Acknowledge messages. Once this returns, the group is given none of them again."""
        ...


CALLS = frozenset(
    name
    for kind in (
        *(RegisterCalls, LockCalls, LogCalls, DelayCalls, HalfCalls, SetCalls, TransactionCalls),
        *(QueueCalls, CounterCalls, WatchCalls, GroupCalls),
    )
    for name in vars(kind)
    if not name.startswith("_")
)


def lacking_calls(have: Collection[str], needed: Sequence[Collection[str]]) -> list[str]:
    """Return the calls that are missing for one of the sets needed: of the one that lacks fewest.
    Empty if a set is complete, or none is needed."""
    return min((sorted(set(some).difference(have)) for some in needed), key=len, default=[])


def missing_calls(client: object, needed: Collection[str]) -> list[str]:
    """Return the calls that a client (or its class) lacks, of those needed."""
    return sorted(name for name in needed if not callable(getattr(client, name, None)))


class PlainClient(Protocol):
    """A client process's client whose logical processes have plain calls."""

    def calls(self, number: int) -> Any:
        """Return the client of one logical process."""
        ...


async def call_outcome(asked: Awaitable[Any], *, read: bool = False) -> tuple[Completion, Any]:
    """Return how a plain call ended, and its answer, None if there is none. A read changes nothing,
    so at worst it fails."""
    try:
        return Completion(Type.OK), await asked
    except Refused as e:
        return Completion(Type.FAIL, error=str(e) or "refused"), None
    except Exception as e:
        error = f"{type(e).__name__}: {e}{_place(e)}"
        return Completion(Type.FAIL if read else Type.INFO, error=error), None


def _place(error: Exception) -> str:
    """Return the line of the client's code that raised, empty for errors of the network."""
    if isinstance(error, OSError | TimeoutError | EOFError):
        return ""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [
        (file, line)
        for file, line in lines
        if "site-packages" in file or not file.startswith((STANDARD, THIS_FOLDER))
    ]
    return f" ({basename(own[-1][0])}:{own[-1][1]})" if own else ""


class CheckedCalls:
    """A client of plain calls whose answers are of the kinds that their callers rely on; any other
    answer is a TypeError that names the call and the kind."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return partial(_checked, name, found) if name in ANSWERS and callable(found) else found


async def _checked(name: str, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    answer = await call(*arguments)
    check_answer(name, answer)
    return answer


def check_answer(name: str, answer: Any) -> None:
    """Raise TypeError if an answer is not of the kind that the callers of the call rely on."""
    words, is_right = ANSWERS.get(name, ("", lambda answer: True))
    if not is_right(answer):
        kind = type(answer).__name__
        got = answer if answer is None else f"{kind} {str(answer)[:40]!r}"
        raise TypeError(f"{name} must return {words}, not {got}")


def _is_number(answer: Any) -> bool:
    return is_number(answer) and isinstance(answer, int)


def _is_number_or_none(answer: Any) -> bool:
    return answer is None or _is_number(answer)


def _are_numbers(answer: Any) -> bool:
    return isinstance(answer, Collection) and all(map(_is_number, answer))


def _are_deliveries(answer: Any) -> bool:
    return isinstance(answer, Sequence) and all(isinstance(each, Delivery) for each in answer)


def _are_questions(answer: Any) -> bool:
    return isinstance(answer, Sequence) and all(
        isinstance(each, tuple) and len(each) == 2 and _is_number(each[0]) for each in answer
    )


ANSWERS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "read": ("a whole number of 64 bits or None", _is_number_or_none),
    "cas": ("True or False", lambda answer: isinstance(answer, bool)),
    "acquire": ("a Lease", lambda answer: isinstance(answer, Lease)),
    "append": (
        "an offset, as a whole number, or Stored",
        lambda answer: _is_number(answer) or isinstance(answer, Stored),
    ),
    "entries": ("LogEntries", lambda answer: isinstance(answer, LogEntries)),
    "end": ("a whole number", _is_number),
    "members": ("a list or set of whole numbers", _are_numbers),
    "dequeue": ("a whole number of 64 bits or None", _is_number_or_none),
    "count": ("a whole number", _is_number),
    "change": ("a version, as a whole number", _is_number),
    "current": (
        "Versioned or None",
        lambda answer: answer is None or isinstance(answer, Versioned),
    ),
    "fetch": ("a list of Delivery", _are_deliveries),
    "prepare": ("an id, as a whole number", _is_number),
    "questions": ("a list of pairs (id, body)", _are_questions),
    "watch": ("Changes", lambda answer: isinstance(answer, Changes)),
}
