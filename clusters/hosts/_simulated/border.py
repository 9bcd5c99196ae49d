"""The border of the simulated world: who reaches across it from inside is told so, and named.

What a loop can be asked for, the loop refuses. The rest of the real world is a few dozen functions
of the standard library: clocks, dice, files, sockets, threads, child processes. While a world runs
they are replaced by guards that let everybody through but simulated processes; those get
`NotSimulated`, and the world stops, so that no `except` can hide it.

The driver of a trial, whose loop says that it is `real`, is let through as well. Two more are, from
within any process: imports, which read files and do nothing else, and
the modules in `MAY`, which write a run's real journal on behalf of simulated clients, or read the
lines that a traceback quotes.

A guard replaces a name in its module, so `from time import time` at the head of a file escapes it,
and so do methods of C types (`datetime.now`). Against these, tests/test_forbidden.py reads the
source.
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

MAY = frozenset({"harness.history.journal", "harness.history.rundir", "linecache"})
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


@contextmanager
def guarded() -> Iterator[None]:
    """Inside the block, simulated processes can not reach the real world. Blocks may nest."""
    before = [(owner, name, vars(owner)[name]) for owner, name in GUARDED]
    for owner, name, real in before:
        setattr(owner, name, _guard(f"{_title(owner)}.{name}", real))
    try:
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


def _guard(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def guard(*args: Any, **kwargs: Any) -> Any:
        loop = asyncio._get_running_loop()
        world = getattr(loop, "world", None)
        if world is not None and not getattr(loop, "real", False) and not _may(sys._getframe(1)):
            raise world.trespass(what)
        return real(*args, **kwargs)

    return guard


def _may(frame: FrameType | None) -> bool:
    """Whether an import or a module that may is among the callers."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in MAY or name.startswith("importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False


def _title(owner: Any) -> str:
    name = str(owner.__name__)
    return f"{owner.__module__}.{name}" if isinstance(owner, type) else name
