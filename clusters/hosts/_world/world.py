"""The simulated world: one heap of events, one clock, and the random streams of one seed.

Everything that happens is an event `(time, sequence, call, arguments)`. The world takes the
earliest one, sets its clock to the event's time and makes the call. Time is integer nanoseconds and
passes only between events. Events of one instant happen in the order in which they were planned, so
a run is a function of the seed. Random numbers come from named streams (a directed link, a disk, a
boot of a process), so that one more draw in one place changes no other.

Everything worth comparing is recorded; the digest of the record identifies the run.

A guard (`Livelock`) stops a world that plans ever more events while its clock hardly moves, and
names the most frequent calls. A process that uses something that is not simulated gets
`NotSimulated`, and since it may catch the exception, the world stops as well.
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
from typing import TYPE_CHECKING, Any

from clusters.hosts._world.console import route_stdio
from clusters.hosts._world.guards import EventAborted, guard_endless_events, guard_real_world

if TYPE_CHECKING:
    from clusters.hosts._world.loop import SimLoop

Call = Callable[..., object]
Event = tuple[int, int, Call, tuple[Any, ...]]

SECOND = 1_000_000_000
FOREVER = 1 << 63
MAX_EVENTS_PER_S = 300_000  # events per simulated second; correct code never plans so many
COLLECT_EVERY = 250_000  # events between garbage collections
PAUSE_EVERY = 512
SAMPLE = 1_000  # events counted by name when a world spins
CLOSE_TRIES = 100
COMPACT_ABOVE = 4_096  # cancelled timers that may stay in the heap

_MOVED = struct.Struct(">QIII")
_OURS = __name__.rpartition(".")[0] + "."
_LIBRARY = ("asyncio", "pathlib", "random", "secrets", "socket", "subprocess", "tempfile", "uuid")
_PASSED = (_OURS, "clusters.hosts.simulated.", *(f"{name}." for name in _LIBRARY))


class Livelock(RuntimeError):
    """Far too many events for the time that passed."""


class NotSimulated(RuntimeError):
    """A simulated process used something that only the real world has."""


class Transcript:
    """The record of a run as a digest, and as text if `keep` is set."""

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
        """Record that bytes arrived. It is the most frequent record, so it has a format of
        its own."""
        crc = zlib.crc32(data)
        self._hash.update(_MOVED.pack(now_ns, flow & 0xFFFFFFFF, len(data), crc))
        if self._keep:
            self.lines.append(f"{now_ns} flow {flow}: {len(data)} bytes, crc {crc:08x}")

    def digest(self) -> str:
        return self._hash.hexdigest()


class World:
    """Time, random streams and planned events."""

    def __init__(
        self,
        seed: int | str,
        *,
        max_events_per_s: int = MAX_EVENTS_PER_S,
        transcript: Transcript | None = None,
    ) -> None:
        self.seed = seed
        self.now_ns = 0
        self.events = 0  # so far
        self.max_events_per_s = max_events_per_s
        self.transcript = transcript or Transcript()
        self.pause: Callable[[], object] | None = (
            None  # called every `PAUSE_EVERY` events, outside of loops
        )
        self._loops: dict[SimLoop, None] = {}
        self._killed: list[tuple[SimLoop, Sequence[asyncio.Task[Any]]]] = []
        self._heap: list[Event] = []
        self._sequence = itertools.count().__next__
        self._cancelled = 0
        self._stopping = False
        self._entered: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    # random numbers and the record

    def random(self, name: str) -> random.Random:
        """Return the random stream of this name. Call this once and keep the stream."""
        return random.Random(f"{self.seed}/{name}")

    def record(self, what: str) -> None:
        """Record that something worth comparing happened now."""
        self.transcript.add(self.now_ns, what)

    def digest(self) -> str:
        """Return the digest of everything recorded."""
        self.transcript.add(self.now_ns, f"{self.events} events")
        return self.transcript.digest()

    # events

    def at(self, at_ns: int, call: Call, *args: Any) -> None:
        """Plan a call at an instant; one in the past is planned for now."""
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns, self._sequence(), self._outside, (call, args)))

    def at_in_loop(self, at_ns: int, call: Call, *args: Any) -> None:
        """Plan a call that only enters a loop: the same as `at`, but faster, since it does not
        leave a loop first."""
        heapq.heappush(self._heap, (at_ns, self._sequence(), call, args))

    def after(self, delay_ns: int, call: Call, *args: Any) -> None:
        self.at(self.now_ns + delay_ns, call, *args)

    def cancelled(self) -> None:
        """Count a planned event that will do nothing; when there are many, remove them."""
        self._cancelled += 1
        if self._cancelled > COMPACT_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [event for event in self._heap if not _idle(event)]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def replan(self, move: Callable[[Event], int | None]) -> None:
        """Move events to the instants that `move` returns, after the rate of a clock has
        changed."""
        moved = [(event, move(event)) for event in self._heap]
        self._heap[:] = [
            event if at_ns is None else (max(at_ns, self.now_ns), *event[1:])
            for event, at_ns in moved
        ]
        heapq.heapify(self._heap)

    # running

    def enter(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Set the running loop, if it is another one: setting it is slow."""
        if self._entered is not loop:
            self._entered = loop
            _set_running_loop(loop)

    def _outside(self, call: Call, args: tuple[Any, ...]) -> None:
        if self._entered is not None:
            self.enter(None)
        call(*args)

    def run(self, until_ns: int = FOREVER) -> None:
        """Carry out the events up to an instant, until `stop`, or until none is left."""
        self._stopping = False
        with (
            guard_endless_events(lambda: self.events, self._stuck),
            _collector_off(),
            _generators_adopted(),
            route_stdio(),
            guard_real_world(),
            suppress(EventAborted),
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

    def not_simulated(self, what: str) -> NotSimulated:
        """Return the exception for a caller that used something real, and stop the world."""
        why = NotSimulated(f"{what} is not simulated, but {_caller()} asks for it")
        self.fail(why)
        return why

    def add_loop(self, loop: "SimLoop") -> None:
        """Register a loop, which must not outlive the world."""
        self._loops[loop] = None

    def keep_killed(
        self, loop: "SimLoop", tasks: "Sequence[asyncio.Task[Any]]", *, empty: bool
    ) -> None:
        """Keep the open tasks of a killed process: if they were collected, Python would run their
        `finally` blocks."""
        self._loops.pop(loop, None)
        if tasks or not empty:
            self._killed.append((loop, tasks))

    def close(self) -> None:
        """Kill all loops and release what killed processes left, without running code of theirs
        that has an effect."""
        for loop in list(self._loops):
            loop.kill()
        self._heap.clear()
        if self._killed:
            graves, self._killed = self._killed, []
            with _ignore_unraisable():
                for _, tasks in graves:
                    for task in tasks:
                        _close_coroutine(task)
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
                second_ends, quota = now_ns + SECOND, self.events + self.max_events_per_s
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
            f"the world spins: over {self.max_events_per_s:,} events in a simulated second, at "
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
    """Return whether the event is a cancelled timer."""
    args = event[3]
    return bool(args) and getattr(args[0], "_cancelled", False)


def _label(event: Event) -> str:
    """Return the innermost name of an event's call."""
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
    """Return file and line of the nearest caller that is neither in this package nor in the
    standard library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not f"{module}.".startswith(_PASSED):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown code"


def _close_coroutine(task: "asyncio.Task[Any]") -> None:
    """Close a coroutine, which may refuse a few times; its loop is dead, so it has no effect."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    for _ in range(CLOSE_TRIES):
        try:
            coroutine.close()
            return
        except BaseException:  # noqa: S112 - a finally block may raise anything
            continue


@contextmanager
def _ignore_unraisable() -> Iterator[None]:
    """Ignore errors of finalizers inside the block."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _generators_adopted() -> Iterator[None]:
    """Have asynchronous generators that are left unfinished closed by the running loop, as asyncio
    does."""
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
    """Collect garbage only after counted events, because finalizers are part of the run."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
