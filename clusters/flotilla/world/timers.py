"""Time without sleeping: a bell that can be rung early, a signal to all, a call that repeats.

Everything here runs on the event loop's own timers, so it follows a virtual clock as well.
"""

import asyncio
from collections.abc import Callable

LONGEST_WAIT_S = 30.0  # that a peer may ask for, until there is something to tell it


class Bell:
    """A wait that ends when somebody rings, or after a time. A ring with nobody waiting is kept."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bool] | None = None
        self._rung = False

    def ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)
        else:
            self._rung = True

    async def wait(self, timeout_s: float) -> bool:
        """True: it rang. False: the time is over."""
        if self._rung:
            self._rung = False
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


class Signal:
    """A wait of many that ends when the next one is given; an earlier one is nobody's."""

    def __init__(self) -> None:
        self._given = asyncio.Event()

    def give(self) -> None:
        self._given.set()
        self._given.clear()

    async def wait(self) -> None:
        await self._given.wait()


class Every:
    """Calls a function again and again until it is stopped.

    `late_s` is how much later than planned the present call comes: a process that was stopped and
    continued can tell, and need not blame its peers for its own silence.
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
        """By how much the last call was too late, or the next one is by now."""
        return max(self.late_s, self._loop.time() - self._planned)

    def _plan(self) -> asyncio.TimerHandle:
        self._planned = self._loop.time() + self.period_s
        return self._loop.call_later(self.period_s, self._run)

    def _run(self) -> None:
        self.late_s = self._loop.time() - self._planned
        self._timer = self._plan()
        self._call()
