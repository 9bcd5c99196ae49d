"""The asyncio event loop of one simulated process.

The world enters the loop with one call at a time: a timer that is due, bytes that arrived, a disk
that has finished. The call and all callbacks that it makes ready run before the world goes on; a
process computes in no time. A killed process has a loop that is never entered again, so that no
`finally` and no `except` of it runs; the world keeps its open tasks (Python would close a collected
coroutine, and closing runs `finally`). A paused one has a list of missed calls: on resuming, either
due timers run first or what arrived does, at random, as with real loops. Drift and rate belong to
the host's clock, which the loop reads.

asyncio's own tasks, futures, locks, queues, timeouts and streams run on it unchanged. Other methods
of a loop (threads, readers of file descriptors, child processes, real sockets) are refused with
`NotSimulated`, in every version of Python.
"""

import asyncio
import contextvars
import math
import signal
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from clusters.hosts._world.clock import HostClock
from clusters.hosts._world.console import StdinPipe
from clusters.hosts._world.network import Stack
from clusters.hosts._world.transport import Server, dial, listen, read_pipe
from clusters.hosts._world.world import Call, Event, Livelock, World

if TYPE_CHECKING:
    from clusters.hosts._world.process import SimProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]
Factory = Callable[[], asyncio.BaseProtocol]
MAX_CALLBACKS = 100_000  # callbacks at one instant; correct code never needs so many
PURGE_ABOVE = 256
IGNORED_OPTIONS = frozenset(  # options without an effect here
    {"family", "proto", "flags", "interleave", "happy_eyeballs_delay", "all_errors"}
    | {"reuse_address", "reuse_port", "start_serving", "keep_alive"}
)


class SimHandle(asyncio.Handle):
    """asyncio's handle, made and cancelled without asking if asyncio is in debug mode."""

    __slots__ = ()
    _repr = _source_traceback = None  # only debug mode sets them

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: Context | None,
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimTimer(asyncio.TimerHandle):
    """asyncio's timer handle, the same way."""

    __slots__ = ()
    _repr = _source_traceback = None

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: Context | None,
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled, self._when = False, when

    def cancel(self) -> None:
        if not self._cancelled:
            self._loop.world.cancelled()
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]


class SimLoop(asyncio.AbstractEventLoop):
    """One process's loop."""

    def __init__(self, world: World, clock: HostClock, stack: Stack, owner: "SimProcess") -> None:
        self.name = owner.name
        self.world = world
        self.owner = owner
        self.stack = stack
        self.dead = False
        self.paused = False
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._resuming = False
        self._inside = False
        self._woken = False
        self._missed: list[tuple[Call, tuple[Any, ...]]] = []
        self._late: list[asyncio.TimerHandle] = []
        self._tasks: dict[int, weakref.ref[asyncio.Task[Any]]] = {}
        self._task_number = 0
        self._purge_at = PURGE_ABOVE
        self._context = contextvars.Context()
        self._luck: Callable[[], float] | None = None
        self._handler: ExceptionHandler | None = None
        self._signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        world.add_loop(self)

    # calls of the world

    def enter(self, call: Call, *args: Any) -> None:
        """Run a call and all callbacks that it makes ready. Only the world may call this."""
        if self.dead:
            return
        if self.paused:
            self._missed.append((call, args))
            return
        self.world.enter(self)
        self._inside = True
        try:
            try:
                self._context.run(call, *args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as e:
                self._failed(call, e)
            if self._ready:
                self._drain()
        except SystemExit as e:
            self.owner.end(self._exit_code(e))
        finally:
            self._inside = False

    def post(self, call: Call, *args: Any) -> None:
        """Enter with this call as soon as the world is free; for code outside this process."""
        self.world.at_in_loop(self.world.now_ns, self.enter, call, *args)

    def pause(self) -> None:
        self.paused, self._resuming = True, False

    def resume(self) -> None:
        """Continue with everything that was missed, as soon as the world is free."""
        if self.paused and not self._resuming:
            self._resuming = True
            self.world.after(0, self._go_on)

    def kill(self) -> None:
        """Never enter again, and have the world keep the open tasks."""
        if not self.dead:
            self.dead = True
            self.world.keep_killed(self, list(self.tasks()), empty=not self._ready)

    def signalled(self, number: int) -> bool:
        """Run the handler of a signal; return False if there is none."""
        if number not in self._signals:
            return False
        callback, args = self._signals[number]
        self.post(callback, *args)
        return True

    def tasks(self) -> Iterator["asyncio.Task[Any]"]:
        """Yield the unfinished tasks, the oldest first."""
        for reference in list(self._tasks.values()):
            task = reference()
            if task is not None and not task.done():
                yield task

    # the interface of asyncio

    def time(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args, self, context)
        self._ready.append(handle)
        if not self._inside and not self._woken and not self.dead:
            self._woken = True
            self.post(self._awake)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = SimTimer(when, callback, args, self, context)
        if not self.dead:
            at_ns, now_ns = self._clock.instant_ns(_not_before(when)), self.world.now_ns
            self.world.at_in_loop(at_ns if at_ns > now_ns else now_ns, self._fire, handle)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # the base class knows fewer keywords in 3.11
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **more: Any,
    ) -> "asyncio.Task[T]":
        """Return a task; unnamed tasks are numbered by process, not by interpreter."""
        self._task_number += 1
        label = f"{self.name}-{self._task_number}" if name is None else str(name)
        task = asyncio.Task(coro, loop=self, name=label, context=context, **more)
        self._tasks[self._task_number] = weakref.ref(task)
        if len(self._tasks) > self._purge_at:
            self._purge()
        return task

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Factory, host: str | None = None, port: int = 0, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        self._usable()
        self._refuse_options("create_connection", options)
        return await dial(self, protocol_factory, host or "", port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Factory,
        host: str | None = None,
        port: int = 0,
        *,
        backlog: int = 100,
        **options: Any,
    ) -> Server:
        self._usable()
        self._refuse_options("create_server", options)
        return listen(self, protocol_factory, host or "0.0.0.0", port, backlog)

    async def connect_read_pipe(self, protocol_factory: Factory, pipe: Any) -> Any:
        if not isinstance(pipe, StdinPipe):
            raise self.world.not_simulated("connect_read_pipe() of a real pipe")
        return read_pipe(self, protocol_factory, pipe)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        if sig in (signal.SIGKILL, signal.SIGSTOP):
            raise RuntimeError(f"sig {sig} cannot be caught")
        self._signals[int(sig)] = callback, args

    get_debug = staticmethod(bool)  # False; asked for every future, and this is the fastest way

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead:
            return
        if self._handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._handler(self, context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as e:
            self.default_exception_handler(
                {"message": "Unhandled error in exception handler", "exception": e}
            )

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        place = "".join(traceback.format_exception(exception)) if exception else ""
        self.owner.print_error(f"{context.get('message')}\n{place}")

    # internals

    def _usable(self) -> None:
        """Raise SystemExit if the process has ended itself and unwinds its stack."""
        if self.dead:
            raise SystemExit

    def _refuse_options(self, verb: str, options: dict[str, Any]) -> None:
        """Refuse options that make a connection more than plain TCP."""
        for name, value in options.items():
            if value and name not in IGNORED_OPTIONS:
                raise self.world.not_simulated(f"{verb}({name}=...)")

    def _exit_code(self, error: SystemExit) -> int:
        """Return the exit code that `sys.exit` means by its argument."""
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        self.owner.print_error(str(error.code))
        return 1

    def _drain(self) -> None:
        ready = self._ready
        turns = 0
        while ready and not self.dead:
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as e:
                    self._failed(handle._callback, e)  # type: ignore[attr-defined]
            turns += 1
            if turns > MAX_CALLBACKS:
                self._spins(handle)

    def _awake(self) -> None:
        self._woken = False

    def _fire(self, handle: asyncio.TimerHandle) -> None:
        """Enter with a timer that is due, unless it was cancelled."""
        if handle._cancelled or self.dead:
            return
        if self.paused:
            self._late.append(handle)
            return
        self._ready.append(handle)
        self.world.enter(self)
        self._inside = True
        try:
            self._drain()
        except SystemExit as e:
            self.owner.end(self._exit_code(e))
        finally:
            self._inside = False

    def _go_on(self) -> None:
        if self._resuming:
            self.paused = self._resuming = False
            self.enter(self._catch_up)

    def _catch_up(self) -> None:
        """Run timers or I/O first: with a real loop it depends on where it was stopped in
        its wait."""
        if self._luck is None:
            self._luck = self.world.random(f"waking of {self.owner.identity}").random
        late, self._late = self._late, []
        if self._luck() < 0.5:
            self._hear_missed()
            self._ready.extend(late)
        else:
            self._ready.extend(late)
            self.call_soon(self._hear_missed)

    def _hear_missed(self) -> None:
        missed, self._missed = self._missed, []
        for call, args in missed:
            self._ready.append(SimHandle(call, args, self, self._context))

    def _purge(self) -> None:
        alive = {number: ref for number, ref in self._tasks.items() if _unfinished(ref())}
        self._tasks = alive
        self._purge_at = max(PURGE_ABOVE, 2 * len(alive))

    def _failed(self, call: Call, error: BaseException) -> None:
        name = getattr(call, "__qualname__", repr(call))
        self.call_exception_handler(
            {"message": f"Exception in callback {name}()", "exception": error}
        )

    def _spins(self, handle: asyncio.Handle) -> None:
        self.dead = True
        name = getattr(handle._callback, "__qualname__", handle._callback)  # type: ignore[attr-defined]
        self.world.fail(
            Livelock(
                f"{self.name} spins: {MAX_CALLBACKS:,} callbacks at one instant, the last is {name}"
            )
        )


def fires_on(clock: HostClock, event: Event) -> int | None:
    """Return the new instant of a timer of this clock after a change of the clock, or None for
    other events."""
    owner = getattr(event[2], "__self__", None)
    if isinstance(owner, SimLoop) and owner._clock is clock and event[2] == owner._fire:
        return clock.instant_ns(_not_before(event[3][0].when()))
    return None


def _not_before(when: float) -> int:
    """Return the first nanosecond that a clock shows as `when` or later."""
    ns = math.ceil(when * 1e9)
    return ns if ns / 1e9 >= when else ns + 1


def _unfinished(task: "asyncio.Task[Any] | None") -> bool:
    return task is not None and not task.done()


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: SimLoop, *args: Any, **kwargs: Any) -> Any:
        raise self.world.not_simulated(f"{name}()")

    return refuse


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(SimLoop):
        setattr(SimLoop, _name, _refused(_name))
