"""A broker's entries at the nameservers, renewed when its role changes and from time to time.

Its heartbeats to the controllers go the same way.

Each nameserver has its own task and its own connection, so one that is out of reach delays no
other. The connection stays open: a nameserver takes its end for the broker's.
"""

import asyncio
from collections.abc import Callable

from .net import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from .pace import Bell
from .wire import Json, Op


class Registrar:
    """Keeps `fields()` registered everywhere; nothing is sent while it gives None."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        period_s: float,
        timeout_s: float,
        fields: Callable[[], Json | None],
    ) -> None:
        self._pool = Pool(timeout_s)
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._fields = fields
        self._tasks = Tasks()
        self._bells = {address: Bell() for address in addresses}

    def start(self) -> None:
        for address in self._bells:
            self._tasks.start(self._keep(address))

    def renew(self) -> None:
        """Something changed: tell every nameserver now."""
        for bell in self._bells.values():
            bell.ring()

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    async def _keep(self, address: str) -> None:
        while True:
            told = await self._register(address)
            await self._bells[address].wait(self._period_s if told else self._period_s / 10)

    async def _register(self, address: str) -> bool:
        fields = self._fields()
        if fields is None:
            return True
        try:
            await self._pool.ask(address, Op.REGISTER_BROKER, fields, self._timeout_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            self._pool.drop(address)
            return False
        return True


class Heartbeats:
    """Heartbeats to every controller, none waiting for another (apache/rocketmq#5929)."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        period_s: float,
        timeout_s: float,
        patience_s: float,
        fields: Callable[[], Json | None],
    ) -> None:
        self._pool = Pool(timeout_s)
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._fields = fields
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._bells = {address: Bell() for address in addresses}

    def start(self) -> None:
        for address in self._bells:
            self._tasks.start(self._keep(address))

    def beat_now(self) -> None:
        for bell in self._bells.values():
            bell.ring()

    async def beat(self, address: str | None) -> None:
        """One heartbeat, waited for: to this controller, or to all when it is not known."""
        wanted = [address] if address in self._bells else list(self._bells)
        await asyncio.gather(*(self._beat(a) for a in wanted if a))

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    async def _keep(self, address: str) -> None:
        answered_at = self._loop.time()
        while True:
            if await self._beat(address):
                answered_at = self._loop.time()
            elif self._loop.time() - answered_at > self._patience_s:
                self._pool.drop(address)
                answered_at = self._loop.time()
            await self._bells[address].wait(self._period_s)

    async def _beat(self, address: str) -> bool:
        fields = self._fields()
        if fields is None:
            return True
        try:
            await self._pool.ask(address, Op.BROKER_HEARTBEAT, fields, self._timeout_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            return False
        return True
