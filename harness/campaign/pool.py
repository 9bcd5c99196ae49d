"""A pool of worker processes in which the death of one loses one item only.

Simulated worlds are bound by the CPU, so each core has a process. With a pool that breaks when one
process dies (out of memory, killed), a campaign would be lost for one seed. Here a death loses the
current item, and is reported. A worker is replaced after a number of items, or when it has grown,
which bounds the memory of leaks; an item that takes too much CPU time or memory ends its worker.
Workers and their scratch folder end with the process that started them, even if that is killed.
"""

import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Generic, TypeVar

from harness.errors import SeatrialError
from harness.history.journal import skip_pandas
from harness.history.rundir import RunDir
from harness.history.runs import is_running, locked
from harness.run.interrupts import STOP_SIGNALS, stop_signals_blocked

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_ITEMS = 200  # of a worker, until it is replaced
GROWN_BYTES = 1 << 30  # ... or until it has this size
MAX_BYTES = 3 << 30  # memory limit of a worker
MAX_CPU_S = 300.0  # of an item
TICK_S = 0.25
MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 28  # for each worker
SCRATCH = "seatrial-worlds-"
LEFT_S = 60.0  # the age from which a folder that is not locked was left behind

Work = Callable[[Item, Path], Result]  # processes an item; the folder is for its files


@dataclass(frozen=True)
class PoolResult(Generic[Item, Result]):
    """An item with its result, or (`lost`) why there is none."""

    item: Item
    result: Result | None = None
    lost: str = ""
    cpu_s: float = 0.0
    peak_bytes: int = 0  # of the worker, so far


Steps = Generator[PoolResult[Item, Result] | None, None, None]


def run_in_pool(
    work: Work[Item, Result],
    items: Iterable[Item | None],
    jobs: int,
    max_cpu_s: float = MAX_CPU_S,
) -> Steps[Item, Result]:
    """Yield each item when it is done, and None several times a second, for display and stopping.

    While the next item depends on others that are in progress, `items` yields None. Closing the
    generator ends all workers. `work` and items must be picklable.
    """
    scratch = _scratch(jobs)
    workers = [_Worker(work, scratch, max_cpu_s) for _ in range(jobs)]
    with locked(RunDir(scratch)):
        try:
            yield from _distribute(workers, iter(items))
        finally:
            for worker in workers:
                worker.end()
            shutil.rmtree(scratch, ignore_errors=True)


def _distribute(
    workers: "list[_Worker[Item, Result]]", items: Iterator[Item | None]
) -> Steps[Item, Result]:
    busy: dict[Connection, _Worker[Item, Result]] = {}
    idle = list(workers)
    while True:
        while idle and (item := next(items, None)) is not None:
            worker = idle.pop()
            busy[worker.give(item)] = worker
        if not busy:
            return
        for line in wait(list(busy), TICK_S):
            assert isinstance(line, Connection)
            worker = busy.pop(line)
            yield worker.take()
            idle.append(worker)
        yield None


class _Worker(Generic[Item, Result]):
    """A process that is started with its first item."""

    def __init__(self, work: Work[Item, Result], scratch: Path, max_cpu_s: float) -> None:
        self._what = (work, scratch, max_cpu_s)
        self._done = 0
        self._line: Connection | None = None

    def give(self, item: Item) -> Connection:
        """Start with an item, and return the connection to wait for."""
        line = self._line or self._started()
        self._item = item
        with suppress(OSError):  # the worker has died, which shows at once
            line.send(item)
        return line

    def take(self) -> PoolResult[Item, Result]:
        """Return what became of the item."""
        assert self._line
        try:
            done: PoolResult[Item, Result] = self._line.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.end()
            return PoolResult(self._item, lost=f"its process {_ending(code)}")
        self._done += 1
        if self._done >= MAX_ITEMS or done.peak_bytes > GROWN_BYTES:
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
        with stop_signals_blocked():
            self._process.start()
        line.close()
        life.close()
        self._done = 0
        return self._line


def _ending(code: int | None) -> str:
    if code == -signal.SIGPROF:
        return "took too much CPU time"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended by itself (exit code {code})"


# -------------------------------------------------------------------------------- in the worker


def _serve(
    work: Work[Item, Result],
    scratch: Path,
    max_cpu_s: float,
    line: Connection,
    life: Connection,
) -> None:
    """Process items until the connection is closed."""
    for number in STOP_SIGNALS:  # sent to the whole group of processes
        signal.signal(number, signal.SIG_IGN)  # the parent reacts, and ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    skip_pandas()
    threading.Thread(target=_end_with, args=(life, scratch), daemon=True).start()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = MAX_BYTES if hard == resource.RLIM_INFINITY else min(MAX_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    before_s = 0.0
    with suppress(EOFError, OSError):
        while True:
            item = line.recv()
            signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
            result, lost = _attempt(work, item, scratch)
            signal.setitimer(signal.ITIMER_PROF, 0)
            use = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = use.ru_utime + use.ru_stime
            line.send(PoolResult(item, result, lost, cpu_s - before_s, _peak_bytes()))
            before_s = cpu_s


def _peak_bytes() -> int:
    """Return the peak size of this process. `ru_maxrss` starts with the size of the parent, which
    forked this process."""
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
    """Exit when the parent is gone: then this connection is closed. Nothing is sent over it."""
    with suppress(EOFError, OSError):
        life.recv()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


# -------------------------------------------------------------------------------- scratch folder


def _scratch(jobs: int) -> Path:
    """Create a folder in memory if there is room, else among temporary files."""
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    roomy = roomy and shutil.disk_usage(MEMORY).free > jobs * ROOM_BYTES
    parent = MEMORY if roomy else Path(tempfile.gettempdir())
    for left in parent.glob(f"{SCRATCH}*"):
        # if its owner was killed, with all its workers; one that is new may not be locked yet
        if not is_running(left) and _age_s(left) > LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))


def _age_s(folder: Path) -> float:
    """Return how long ago a folder, or its list of files, changed; 0.0 if it is gone."""
    try:
        return time.time() - folder.lstat().st_mtime
    except OSError:
        return 0.0
