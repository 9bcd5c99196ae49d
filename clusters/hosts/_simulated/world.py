"""The simulated world: one heap of events, one clock, and the luck of one seed.

Whatever happens is an event `(time, sequence, call, arguments)`. The world takes the earliest,
moves its clock there and makes the call; time is integer nanoseconds and passes only between
events. Events of one instant happen in the order in which they were planned, so a run is a function
of the seed. Luck is drawn from streams with a name each (a directed link, a disk, a boot of a
process), so that one more draw here does not change the luck there.

What is worth comparing is recorded, and the digest of the record is the run's finger print.

A world that spins, planning ever more events while its clock stands almost still, is stopped by a
guard (`Livelock`) that names the busiest calls. A process that reaches for something that is not
simulated gets `NotSimulated`, and since it may swallow the exception, the world stops as well.
"""

import asyncio
import gc
import hashlib
import heapq
import itertools
import random
import struct
import sys
import zlib
from asyncio.events import _set_running_loop
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

from .border import guarded
from .console import routed
from .stuck import Out, guarded_against_loops

Call = Callable[..., object]
Event = tuple[int, int, Call, tuple[Any, ...]]

SECOND = 1_000_000_000
FOREVER = 1 << 63
BUSIEST = 300_000  # events within one simulated second that nothing sound ever plans
COLLECT_EVERY = 250_000  # events between two garbage collections
PAUSE_EVERY = 512
SAMPLE = 1_000  # events looked at to say what spins
CLOSE_TRIES = 100
COMPACT_ABOVE = 4_096  # cancelled timers that are left to lie in the heap

_MOVED = struct.Struct(">QIII")
_OURS = __name__.rpartition(".")[0] + "."
_LIBRARY = ("asyncio", "pathlib", "random", "secrets", "socket", "subprocess", "tempfile", "uuid")
_PASSED = (_OURS, *(f"{name}." for name in _LIBRARY))


class Livelock(RuntimeError):
    """The world spins: far too many events for the time that passed."""


class NotSimulated(RuntimeError):
    """A simulated process reached for something that only the real world has."""


class Mortal(Protocol):
    """A loop, as far as its end goes."""

    def kill(self) -> None: ...


class Transcript:
    """What happened, as a digest; as text too, if somebody wants to read it."""

    def __init__(self, keep: bool = False) -> None:
        self.lines: list[str] = []
        self._keep = keep
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, now_ns: int, what: str) -> None:
        line = f"{now_ns} {what}"
        self._hash.update(line.encode())
        if self._keep:
            self.lines.append(line)

    def moved(self, now_ns: int, flow: int, data: bytes) -> None:
        """Bytes arrived: the busiest line of all, so it has a shape of its own."""
        crc = zlib.crc32(data)
        self._hash.update(_MOVED.pack(now_ns, flow & 0xFFFFFFFF, len(data), crc))
        if self._keep:
            self.lines.append(f"{now_ns} flow {flow}: {len(data)} bytes, crc {crc:08x}")

    def digest(self) -> str:
        return self._hash.hexdigest()


class World:
    """Time, luck and the events to come."""

    def __init__(
        self, seed: int | str, *, busiest: int = BUSIEST, transcript: Transcript | None = None
    ) -> None:
        self.seed = seed
        self.now_ns = 0
        self.events = 0  # that have happened
        self.busiest = busiest
        self.transcript = transcript or Transcript()
        self.pause: Callable[[], object] | None = None  # called outside, every `PAUSE_EVERY` events
        self._living: dict[Mortal, None] = {}
        self._graves: list[tuple[Mortal, Sequence[asyncio.Task[Any]]]] = []
        self._heap: list[Event] = []
        self._sequence = itertools.count().__next__
        self._cancelled = 0
        self._stopping = False
        self._entered: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    # luck and record

    def random(self, name: str) -> random.Random:
        """A stream of its own for everything that has a name. Ask once and keep it."""
        return random.Random(f"{self.seed}/{name}")

    def record(self, what: str) -> None:
        """Something worth comparing happened now."""
        self.transcript.add(self.now_ns, what)

    def digest(self) -> str:
        """The same for two runs if, and practically only if, the same happened in both."""
        self.transcript.add(self.now_ns, f"{self.events} events")
        return self.transcript.digest()

    # events

    def at(self, at_ns: int, call: Call, *args: Any) -> None:
        """Plan a call for an instant; one in the past happens now."""
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns, self._sequence(), self._outside, (call, args)))

    def carry(self, at_ns: int, call: Call, *args: Any) -> None:
        """The same, faster, for calls that only enter a loop: nobody's loop is left before them."""
        heapq.heappush(self._heap, (at_ns, self._sequence(), call, args))

    def after(self, delay_ns: int, call: Call, *args: Any) -> None:
        self.at(self.now_ns + delay_ns, call, *args)

    def cancelled(self) -> None:
        """A planned event will do nothing; when they are many, they are swept out."""
        self._cancelled += 1
        if self._cancelled > COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [event for event in self._heap if not _idle(event)]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def replan(self, move: Callable[[Event], int | None]) -> None:
        """Give events another instant, where `move` says one: a clock began to run faster."""
        moved = [(event, move(event)) for event in self._heap]
        self._heap[:] = [
            event if at_ns is None else (max(at_ns, self.now_ns), *event[1:])
            for event, at_ns in moved
        ]
        heapq.heapify(self._heap)

    # running

    def enter(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Whose loop runs from now on. It stays so until the next: setting it is dear."""
        if self._entered is not loop:
            self._entered = loop
            _set_running_loop(loop)

    def _outside(self, call: Call, args: tuple[Any, ...]) -> None:
        if self._entered is not None:
            self.enter(None)
        call(*args)

    def run(self, until_ns: int = FOREVER) -> None:
        """Let happen what is planned up to an instant, until `stop`, or until nothing is left."""
        self._stopping = False
        with (
            guarded_against_loops(lambda: self.events, self._stuck),
            _collector_off(),
            _generators_adopted(),
            routed(),
            guarded(),
            suppress(Out),
        ):
            try:
                self._run(until_ns)
            finally:
                self.enter(None)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._stopping and until_ns != FOREVER:
            self.now_ns = max(self.now_ns, until_ns)

    def stop(self) -> None:
        """End `run` after the present event; it can be called again."""
        self._stopping = True

    def fail(self, why: BaseException) -> None:
        """End `run` with this exception after the present event."""
        self._failure = self._failure or why
        self._stopping = True

    def trespass(self, what: str) -> NotSimulated:
        """The exception for who asked for something real; the world will not go on either."""
        why = NotSimulated(f"{what} is not simulated, but {_caller()} asks for it")
        self.fail(why)
        return why

    def born(self, loop: "Mortal") -> None:
        """A loop that must not outlive the world."""
        self._living[loop] = None

    def bury(self, loop: Mortal, tasks: "Sequence[asyncio.Task[Any]]", *, empty: bool) -> None:
        """Keep what a killed process had open: Python would close it, and run its `finally`."""
        self._living.pop(loop, None)
        if tasks or not empty:
            self._graves.append((loop, tasks))

    def close(self) -> None:
        """The end: what killed processes left is released, when nobody is left to hear it."""
        for loop in list(self._living):
            loop.kill()
        self._heap.clear()
        if self._graves:
            graves, self._graves = self._graves, []
            with _unheard():
                for _, tasks in graves:
                    for task in tasks:
                        _let_go(task)
                graves.clear()
                gc.collect()

    def _run(self, until_ns: int) -> None:
        heap, pop = self._heap, heapq.heappop
        second_ends, quota, collect_at = 0, 0, self.events + COLLECT_EVERY
        while heap and not self._stopping:
            if heap[0][0] > until_ns:
                return
            now_ns, _, call, args = pop(heap)
            self.now_ns = now_ns
            self.events += 1
            call(*args)
            if not self.events % PAUSE_EVERY and self.pause is not None:
                self.enter(None)
                self.pause()
            if now_ns >= second_ends:
                second_ends, quota = now_ns + SECOND, self.events + self.busiest
                if self.events > collect_at:
                    self.enter(None)
                    gc.collect()
                    collect_at = self.events + COLLECT_EVERY
            elif self.events > quota:
                raise Livelock(self._spinning())

    def _stuck(self, where: str) -> None:
        at_s = self.now_ns / SECOND
        why = f"the world spins: one event at {at_s:.6f} s never ends, and is at {where}"
        self.fail(Livelock(why))

    def _spinning(self) -> str:
        calls = Counter(_label(event) for event in self._sample())
        busiest = ", ".join(f"{name} ({count})" for name, count in calls.most_common(3))
        return (
            f"the world spins: more than {self.busiest:,} events within one simulated second at "
            f"{self.now_ns / SECOND:.6f} s; of {SAMPLE:,} more, most are {busiest or 'none'}"
        )

    def _sample(self) -> Iterator[Event]:
        for _ in range(SAMPLE):
            if not self._heap:
                return
            event = heapq.heappop(self._heap)
            self.now_ns = event[0]
            event[2](*event[3])
            yield event


def _idle(event: Event) -> bool:
    """A timer that was cancelled."""
    args = event[3]
    return bool(args) and getattr(args[0], "_cancelled", False)


def _label(event: Event) -> str:
    """The innermost name that says whose call this is."""
    call, args = event[2], event[3]
    if len(args) == 2 and isinstance(args[1], tuple):
        call, args = args
    owner = getattr(call, "__self__", None)
    while args and callable(inner := getattr(args[0], "_callback", args[0])):
        owner, call, args = getattr(inner, "__self__", owner), inner, ()
    place = getattr(owner, "name", None)
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return f"{name} of {place}" if isinstance(place, str) else str(name)


def _caller() -> str:
    """File and line of the nearest code that is neither ours nor the standard library's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not f"{module}.".startswith(_PASSED):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "nobody we know"


def _let_go(task: "asyncio.Task[Any]") -> None:
    """Close a coroutine that may refuse a few times; its loop is dead, so nothing comes of it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    for _ in range(CLOSE_TRIES):
        try:
            coroutine.close()
            return
        except BaseException:  # noqa: S112 - whatever a finally block makes of a dead world
            continue


@contextmanager
def _unheard() -> Iterator[None]:
    """What Python would complain of is nobody's business."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _generators_adopted() -> Iterator[None]:
    """An asynchronous generator left half way is closed by the loop that runs, as asyncio does."""
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=_adopt)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)


def _adopt(generator: Any) -> None:
    loop = asyncio._get_running_loop()
    if loop is not None and not loop.is_closed():
        loop.create_task(generator.aclose())


@contextmanager
def _collector_off() -> Iterator[None]:
    """Collections happen at counted events: what a finalizer does is part of the run."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
