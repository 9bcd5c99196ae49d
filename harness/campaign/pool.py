"""Processes that carry out a function, item by item, and can be lost one by one.

Simulated worlds are bound by the processor, so each core has a process; a pool that breaks as a
whole when one of them dies (out of memory, killed) would lose a campaign for one seed. Here such a
death loses the item at hand, and says so. A worker is replaced after so many items, or when it has
grown, so that memory stays bounded whatever leaks; an item that takes too much processor time or
memory ends its worker. Workers end with the process that started them, even if that is killed, and
their scratch folder with them.
"""

import os
import resource
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Generic, TypeVar

from harness.errors import SeatrialError
from harness.history.rundir import RunDir
from harness.history.runs import held, is_running

Item = TypeVar("Item")
Result = TypeVar("Result")

EACH = 200  # items, until a worker is replaced
GROWN_BYTES = 1 << 30  # ... or until it has been as large as this
MOST_BYTES = 3 << 30  # what an item may make of it, before it is out of memory
MOST_CPU_S = 300.0  # what an item may take
TICK_S = 0.25
MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 28  # for each worker
SCRATCH = "seatrial-worlds-"
TO_ALL = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)  # sent to a whole group of processes

Work = Callable[[Item, Path], Result]  # what to do with an item; the folder is for its files


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """An item that was carried out, or (`lost` says why) was not."""

    item: Item
    result: Result | None = None
    lost: str = ""
    cpu_s: float = 0.0
    peak_bytes: int = 0  # of the worker, so far


Steps = Generator[Done[Item, Result] | None, None, None]


def carried_out(
    work: Work[Item, Result], items: Iterable[Item], jobs: int, most_cpu_s: float = MOST_CPU_S
) -> Steps[Item, Result]:
    """Each item as it is done, and None every now and then, for whoever wants to draw or to stop.

    Closing this ends all workers. `work` and items must be importable by name elsewhere.
    """
    scratch = _scratch(jobs)
    crew = [_Worker(work, scratch, most_cpu_s) for _ in range(jobs)]
    with held(RunDir(scratch)):
        try:
            yield from _passed_out(crew, iter(items))
        finally:
            for worker in crew:
                worker.end()
            shutil.rmtree(scratch, ignore_errors=True)


def _passed_out(crew: "list[_Worker[Item, Result]]", items: Iterator[Item]) -> Steps[Item, Result]:
    busy: dict[Connection, _Worker[Item, Result]] = {}
    idle = list(crew)
    while True:
        while idle and (item := next(items, None)) is not None:
            worker = idle.pop()
            busy[worker.give(item)] = worker
        if not busy:
            return
        for line in wait(list(busy), TICK_S):
            assert isinstance(line, Connection)
            worker = busy.pop(line)
            yield worker.taken()
            idle.append(worker)
        yield None


class _Worker(Generic[Item, Result]):
    """A process, which is started when there is something to do."""

    def __init__(self, work: Work[Item, Result], scratch: Path, most_cpu_s: float) -> None:
        self._what = (work, scratch, most_cpu_s)
        self._done = 0
        self._line: Connection | None = None

    def give(self, item: Item) -> Connection:
        """Begin with an item; what to wait for."""
        line = self._line or self._started()
        self._item = item
        with suppress(OSError):  # it has died meanwhile, which shows at once
            line.send(item)
        return line

    def taken(self) -> Done[Item, Result]:
        """What became of the item."""
        assert self._line
        try:
            done: Done[Item, Result] = self._line.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.end()
            return Done(self._item, lost=f"its process {_ending(code)}")
        self._done += 1
        if self._done >= EACH or done.peak_bytes > GROWN_BYTES:
            self.end()
        return done

    def end(self) -> None:
        if self._line is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._line.close()
            self._life.close()
            self._line = None

    def _started(self) -> Connection:
        context = get_context("spawn")
        self._line, line = context.Pipe()
        life, self._life = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(*self._what, line, life), daemon=True)
        with _unsignalled():
            self._process.start()
        line.close()
        life.close()
        self._done = 0
        return self._line


@contextmanager
def _unsignalled() -> Iterator[None]:
    """What begins meanwhile is born deaf to these, until it says itself that it ignores them."""
    resource_tracker.ensure_running()  # else it begins now, and lets them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ending(code: int | None) -> str:
    if code == -signal.SIGPROF:
        return "took too much CPU"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended by itself (exit code {code})"


# -------------------------------------------------------------------------------- in the worker


def _serve(
    work: Work[Item, Result],
    scratch: Path,
    most_cpu_s: float,
    line: Connection,
    life: Connection,
) -> None:
    """Carry out what comes, until nobody asks any more."""
    for number in TO_ALL:
        signal.signal(number, signal.SIG_IGN)  # whoever started us reacts, and ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_ALL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(life, scratch), daemon=True).start()
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    ours = MOST_BYTES if most == resource.RLIM_INFINITY else min(MOST_BYTES, most)
    resource.setrlimit(resource.RLIMIT_DATA, (ours, most))
    before_s = 0.0
    with suppress(EOFError, OSError):
        while True:
            item = line.recv()
            signal.setitimer(signal.ITIMER_PROF, most_cpu_s)
            result, lost = _attempt(work, item, scratch)
            signal.setitimer(signal.ITIMER_PROF, 0)
            use = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = use.ru_utime + use.ru_stime
            line.send(Done(item, result, lost, cpu_s - before_s, _peak_bytes()))
            before_s = cpu_s


def _peak_bytes() -> int:
    """How large this process has been. `ru_maxrss` will not do: it begins with the size of whoever
    started the process, which was the process's own until it became another program."""
    status = Path("/proc/self/status").read_text()
    return next(
        1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")
    )


def _attempt(work: Work[Item, Result], item: Item, scratch: Path) -> tuple[Result | None, str]:
    try:
        return work(item, scratch), ""
    except SeatrialError as e:
        return None, str(e)
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def _end_with(life: Connection, scratch: Path) -> None:
    """Nobody writes to this line; it ends when whoever started us is gone."""
    with suppress(EOFError, OSError):
        life.recv()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


# -------------------------------------------------------------------------------- scratch folder


def _scratch(jobs: int) -> Path:
    """A folder in memory if there is room, else where temporary files go."""
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    roomy = roomy and shutil.disk_usage(MEMORY).free > jobs * ROOM_BYTES
    parent = MEMORY if roomy else Path(tempfile.gettempdir())
    for left in parent.glob(f"{SCRATCH}*"):
        if not is_running(left):  # whoever made it was killed, with all its workers
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
