"""What slaves copy besides the log: group offsets, pulled from the master (spec 10.4).

A slave asks when it has connected and then from time to time, and merges, never backwards.
"""

import asyncio
from collections.abc import Callable

from .config import Config
from .net import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from .pace import Every
from .store.offsets import GroupOffsets
from .wire import Op, Status


class MetadataSync:
    """Keeps our group offsets on disk and, while we follow, up with the master's."""

    def __init__(
        self, config: Config, offsets: GroupOffsets, master: Callable[[], str | None]
    ) -> None:
        self._config = config
        self._offsets = offsets
        self._master = master
        self._pool = Pool(config.controller_rpc_timeout_s)
        self._tasks = Tasks()
        self._running: asyncio.Task[None] | None = None
        self._timer: Every | None = None

    def start(self) -> None:
        self._timer = Every(self._config.sync_slave_metadata_s, self.sync_now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._tasks.cancel()
        self._pool.close()

    def save_soon(self) -> None:
        if self._offsets.dirty:
            self._tasks.start(self._offsets.save())

    def sync_now(self) -> None:
        address = self._master()
        if address and (self._running is None or self._running.done()):
            self._running = self._tasks.start(self._sync(address))

    async def _sync(self, address: str) -> None:
        try:
            reply = await self._pool.ask(
                address, Op.METADATA_SYNC, {}, self._config.controller_rpc_timeout_s
            )
        except (Unreachable, ConnectionLost, CallTimeout):
            self._pool.drop(address)
            return
        if reply["code"] == Status.SUCCESS and address == self._master():
            self._offsets.merge(tuple(row) for row in reply["offsets"])
