"""Probes the brokers that a producer has met, so that one that was avoided is taken up again.

A round every few seconds asks each broker whose turn has come for a PING. Where all are bad, one
that could not be reached is passed over until a probe reaches it. RocketMQ's `startDetectorEnable`.
"""

import asyncio

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Tasks, Unreachable
from clusters.flotilla.net.wire import Op, to_json
from clusters.flotilla.world.timers import Every

from .faults import Faults
from .links import Links
from .settings import Settings


class Detector:
    def __init__(self, settings: Settings, faults: Faults, links: Links) -> None:
        self._settings, self._faults, self._links = settings, faults, links
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._round = Every(settings.detect_round_s, self._probe_all)

    def close(self) -> None:
        self._round.stop()
        self._tasks.cancel()

    def _probe_all(self) -> None:
        for address in self._faults.due(self._loop.time()):
            self._tasks.start(self._probe(address))

    async def _probe(self, address: str) -> None:
        again_at = self._loop.time() + self._settings.detect_interval_s
        try:
            async with asyncio.timeout(self._settings.detect_timeout_s):
                timeout_s = self._settings.detect_timeout_s
                await self._links.call(address, Op.PING, to_json({}), timeout_s)
            reached = True
        except (Unreachable, ConnectionLost, CallTimeout, TimeoutError):
            reached = False
        self._faults.probed(address, reached, again_at)
