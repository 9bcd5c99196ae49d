"""Time limits of a trial's steps.

A *required* step must succeed, or there is no trial (the cluster must come up). An *optional* one
may fall short, which is recorded and left to the checkers (a final phase that could not read
everything). An early end, requested by Ctrl-C, shortens the steps instead of skipping them: faults
are healed, open operations complete, and the rest is read as far as a few seconds allow.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.contracts import Recorder
from harness.errors import BedFailed, NodeGone
from harness.history.notes import GAVE_UP
from harness.run.monitors import NodeLosses


class StoppedEarly(Exception):
    """An early end was requested before there was anything to record."""


class Deadlines:
    """The limits of the steps in progress. `stop` requests an early end."""

    def __init__(
        self, stop: asyncio.Event, record: Recorder, losses: NodeLosses, logs: Path
    ) -> None:
        self._stop, self._record, self._losses, self._logs = stop, record, losses, logs
        self._limits: dict[asyncio.Timeout, float] = {}  # to the limit after an early end

    @asynccontextmanager
    async def required(self, what: str, *, within_s: float) -> AsyncIterator[None]:
        """Limit a step without which there is no trial."""
        try:
            async with self._limited(within_s, 0.0):
                yield
        except TimeoutError:
            if lost := self._losses.sentences():
                raise BedFailed(f"{what} failed: {lost[0]}") from None
            if self._stop.is_set():
                raise StoppedEarly from None
            raise BedFailed(
                f"{what} took longer than {within_s:g} s; the logs are in {self._logs}"
            ) from None

    @asynccontextmanager
    async def optional(
        self, what: str, *, within_s: float, hurried_s: float
    ) -> AsyncIterator[None]:
        """Limit a step that may fall short, which is then noted. `hurried_s`: its limit after an
        early end was requested."""
        try:
            async with self._limited(within_s, hurried_s):
                yield
        except TimeoutError:
            limit_s = hurried_s if self._stop.is_set() else within_s
            self._record.note(f"{GAVE_UP} {what} after {limit_s:g} s")
        except NodeGone as e:
            self._record.note(f"{GAVE_UP} {what}: {e}")

    @asynccontextmanager
    async def _limited(self, within_s: float, hurried_s: float) -> AsyncIterator[None]:
        limit_s = min(within_s, hurried_s) if self._stop.is_set() else within_s
        async with asyncio.timeout(limit_s) as limit:
            self._limits[limit] = hurried_s
            try:
                yield
            finally:
                del self._limits[limit]

    def shorten(self) -> None:
        """Shorten the steps in progress, after an early end was requested."""
        now = asyncio.get_running_loop().time()
        for limit, hurried_s in self._limits.items():
            if not limit.expired():
                limit.reschedule(min(now + hurried_s, limit.when() or now + hurried_s))

    def end_early(self) -> None:
        """Request an early end, unless no step has a limit: a cluster that is kept for inspection
        stays."""
        if self._limits:
            self._stop.set()
