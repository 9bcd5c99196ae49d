"""Guards: no simulated process reaches the real world, and no event is endless.

*The real world.* A loop refuses what it cannot simulate. The rest of the real world is a few dozen
functions of the standard library: clocks, random numbers, files, sockets, threads, child processes.
While a world runs, guards replace them. A guard lets every caller through except simulated
processes; those get `NotSimulated`, and the world stops, so that no `except` can hide it. Callers
that are let through inside a simulated process:

- the driver of the trial, whose loop is marked `real`;
- imports, which only read files;
- the modules in `ALLOWED_MODULES`, which write the real journal of a run for simulated clients, or
  read the lines that a traceback quotes.

A guard replaces a name in its module, so `from time import time` at the head of a file escapes it,
and so do methods of C types (`datetime.now`). tests/test_forbidden.py reads the source for these.

*Endless events.* Code that never returns, such as an endless loop, is followed by no event, so
nothing that counts events can notice it, and no virtual time passes. But it uses processor time:
after STUCK_S of it within one event, an exception is raised in that code, and the world ends.
"""

import asyncio
import builtins
import io
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STUCK_S = 30.0  # of processor time in one event; twice as much at most
ALLOWED_MODULES = frozenset({"harness.history.journal", "harness.history.rundir", "linecache"})
GUARDED: tuple[tuple[Any, str], ...] = (
    *((time, f"{clock}{unit}") for unit in ("", "_ns") for clock in (
        "time", "monotonic", "perf_counter", "process_time", "thread_time")),
    (time, "sleep"),
    *((random, name) for name in (
        "random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle",
        "getrandbits", "randbytes", "gauss", "expovariate", "seed", "_urandom")),
    *((os, name) for name in (
        "urandom", "getrandom", "open", "listdir", "scandir", "mkdir", "remove", "unlink", "rmdir",
        "rename", "replace", "fsync", "fdatasync", "truncate", "fork", "kill", "system", "getpid")),
    (builtins, "open"),
    (io, "open"),
    (socket.socket, "__init__"),
    (socket, "getaddrinfo"),
    (socket, "gethostname"),
    (threading.Thread, "start"),
    (subprocess.Popen, "__init__"),
    (signal, "signal"),
)  # fmt: skip


class EventAborted(BaseException):
    """Leaves an event that does not end. No `except Exception` catches it."""


@contextmanager
def guard_real_world() -> Iterator[None]:
    """Keep simulated processes from the real world inside the block. Blocks may nest."""
    before = [(owner, name, vars(owner)[name]) for owner, name in GUARDED]
    for owner, name, real in before:
        setattr(owner, name, _guard(f"{_full_name(owner)}.{name}", real))
    try:
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


def _guard(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def guard(*args: Any, **kwargs: Any) -> Any:
        loop = asyncio._get_running_loop()
        world: Any = getattr(loop, "world", None)
        real_loop = world is None or getattr(loop, "real", False)
        if not real_loop and not _is_allowed(sys._getframe(1)):
            raise world.not_simulated(what)
        return real(*args, **kwargs)

    return guard


def _is_allowed(frame: FrameType | None) -> bool:
    """Return whether an import or an allowed module is among the callers."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in ALLOWED_MODULES or name.startswith("importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False


def _full_name(owner: Any) -> str:
    name = str(owner.__name__)
    return f"{owner.__module__}.{name}" if isinstance(owner, type) else name


@contextmanager
def guard_endless_events(
    events: Callable[[], int], stuck: Callable[[str], object]
) -> Iterator[None]:
    """Abort an event that does not end, if this is the main thread.

    events: returns the number of events so far
    stuck: called with the file and line of the code; it must let no other event follow
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -1

    def check(_number: int, frame: FrameType | None) -> None:
        nonlocal last
        if events() != last:
            last = events()
            return
        stuck(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "code of the system")
        raise EventAborted

    before = signal.signal(signal.SIGVTALRM, check)
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S, STUCK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
