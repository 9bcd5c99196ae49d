"""Work that blocks, in threads of its own.

The libraries that reach engines and machines block, for as long as these please. A thread for each
piece of work delays no other, as a pool would, and being a daemon it does not delay the end of the
program either. Whoever stops waiting leaves the work to itself.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def started(work: Callable[[], T]) -> "Future[T]":
    """Begin it; what it will give."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def carry_out() -> None:
        try:
            result = work()
        except BaseException as e:  # of whatever kind: it belongs to who waits
            future.set_exception(e)
        else:
            future.set_result(result)

    Thread(target=carry_out, name="aside", daemon=True).start()
    return future


async def aside(work: Callable[[], T]) -> T:
    """Do it, and let everybody else go on meanwhile."""
    return await asyncio.wrap_future(started(work))
