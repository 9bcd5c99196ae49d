"""Blocking work in threads of its own.

The libraries for engines and machines block, for as long as the other side takes. A thread for each
piece of work delays no other work, as a pool would, and as a daemon it does not delay the end of
the program. A caller that stops waiting leaves the work running.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def start_thread(work: Callable[[], T]) -> "Future[T]":
    """Start the work in a thread; return the future of its result."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def carry_out() -> None:
        try:
            result = work()
        except BaseException as e:  # any kind; the caller decides
            future.set_exception(e)
        else:
            future.set_result(result)

    Thread(target=carry_out, name="aside", daemon=True).start()
    return future


async def in_thread(work: Callable[[], T]) -> T:
    """Run the work in a thread and return its result."""
    return await asyncio.wrap_future(start_thread(work))
