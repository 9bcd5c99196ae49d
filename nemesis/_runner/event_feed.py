"""What nodes told while the plan is carried out, for faults that wait for an event.

Only hosts that can tell of `events` are listened to. There an event is heard when it is written,
and who waited for it goes on before anything else happens in the world.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from harness.contracts import Bed
from harness.contracts.cluster_view import Telling, Told
from nemesis._runner.conditions import Event
from nemesis._runner.waiting import NS


class Heard(NamedTuple):
    """A line of some node's event log, and when it was heard."""

    at_ns: int
    told: Told


class Hearing:
    """All events from now on, if anybody waits for one."""

    def __init__(self, bed: Bed, wanted: bool) -> None:
        self._bed = bed
        self._heard: list[Heard] = []
        self._fresh: asyncio.Future[None] | None = None
        if wanted and isinstance(bed.hosts, Telling):
            bed.hosts.hear(self._take)

    @property
    def count(self) -> int:
        """How many were heard so far."""
        return len(self._heard)

    async def first(
        self, event: Event, since: int, until_ns: float, by: Callable[[str], bool]
    ) -> Heard | None:
        """The first such line of a node that `by` accepts, after so many others; None: none was
        heard in time."""
        while True:
            for heard in self._heard[since:]:
                if event.fits(heard.told) and by(heard.told.node):
                    return heard if heard.at_ns <= until_ns else None
            since = len(self._heard)
            if not await self._more(until_ns):
                return None

    async def _more(self, until_ns: float) -> bool:
        """Whether another line was heard before that time."""
        left_s = (until_ns - self._bed.now_ns()) / NS
        if left_s <= 0:
            return False
        if self._fresh is None:
            self._fresh = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(left_s):
                await asyncio.shield(self._fresh)
        except TimeoutError:
            return False
        return True

    def _take(self, told: Told) -> None:
        self._heard.append(Heard(self._bed.now_ns(), told))
        if self._fresh is not None:
            fresh, self._fresh = self._fresh, None
            fresh.set_result(None)
