"""Waiting with timers: an event with a timeout, a notification for many, a periodic timer.

All of them use the event loop's timers, so they follow a virtual clock as well.
"""

import asyncio
from collections.abc import Callable

MAX_WAIT_S = 30.0  # limit of the time for which a peer may ask a node to hold a request


class WakeEvent:
    """Ends one task's wait. A `set` while no task waits ends the next wait at once."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bool] | None = None
        self._is_set = False

    def set(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)
        else:
            self._is_set = True

    async def wait(self, timeout_s: float) -> bool:
        """Return True if the event was set, False after the timeout."""
        if self._is_set:
            self._is_set = False
            return True
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._expire, self._waiter)
        try:
            return await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    @staticmethod
    def _expire(waiter: asyncio.Future[bool]) -> None:
        if not waiter.done():
            waiter.set_result(False)


class Notifier:
    """Ends the waits of all tasks that wait at that moment."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        self._event.set()
        self._event.clear()

    async def wait(self) -> None:
        await self._event.wait()


class PeriodicTimer:
    """Calls a function every `period_s` until it is stopped.

    `late_s`: the delay of the present call. It tells a process that it was paused itself, so that
    it does not take its own silence for its peers'.
    """

    def __init__(self, period_s: float, call: Callable[[], None]) -> None:
        self.period_s = period_s
        self.late_s = 0.0
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timer = self._plan()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def behind_s(self) -> float:
        """Return the delay of the last call or, if longer, of the next one so far."""
        return max(self.late_s, self._loop.time() - self._planned)

    def _plan(self) -> asyncio.TimerHandle:
        self._planned = self._loop.time() + self.period_s
        return self._loop.call_later(self.period_s, self._run)

    def _run(self) -> None:
        self.late_s = self._loop.time() - self._planned
        self._timer = self._plan()
        self._call()
