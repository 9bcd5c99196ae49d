"""The process that Spark forks its Python workers from, with everything heavy imported already.

Spark's own daemon imports nothing, so that each worker spends its first half second on numpy and
Arrow. Workers forked from this one start at once. `SEATRIAL_PRELOAD` names further modules, the
checkers' kernels among them; a module that fails to import fails again, with its message, in the
worker that needs it.

Spark ends its daemon by closing the pipe to it, which the daemon sees once everything is imported.
That takes seconds on a slow machine; a SIGIO from the pipe ends it at any time before.
"""

import fcntl
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from pyspark.daemon import manager

ALWAYS = ("numpy", "pandas", "pyarrow.parquet", "pyspark.worker", "harness.history")


def preload() -> None:
    for name in (*ALWAYS, *os.environ.get("SEATRIAL_PRELOAD", "").split()):
        with suppress(ImportError):
            import_module(name)


@contextmanager
def ended_with(pipe: int) -> Iterator[None]:
    """Inside, this process dies by SIGIO when the other side of the pipe is closed or written to;
    SystemExit when it is closed already."""
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):
        raise SystemExit(1)
    try:
        yield
    finally:
        fcntl.fcntl(pipe, fcntl.F_SETFL, flags)


if __name__ == "__main__":
    with ended_with(0):
        preload()
    manager()
