"""What every desk of a broker is given.

A *desk* serves the requests of one matter (queues, locks, topics ...): a class in a module of its
own, made with a `Desk`, whose `table()` says which operations it serves. The broker lays the tables
side by side. What only a master may do is refused by `not_master`. While a handover is under way,
changes of the metadata wait, for what the successor has not heard of would be lost with the reign.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..config import Config
from ..events import EventLog
from ..net.connection import Connection, refusal
from ..net.wire import Json, Status
from ..replication.replica import Replica
from ..rules import Rules
from ..world.ports import Ports
from .catalog import Change
from .changes import Changes

_WHY = {
    Status.IN_SYNC_REPLICAS_NOT_ENOUGH: "too few replicas are in step for a change of metadata",
    Status.FLUSH_SLAVE_TIMEOUT: "the slaves do not hold the change yet; it may still happen",
    Status.FLUSH_DISK_TIMEOUT: "the disk is full; the change is made, but a restart may forget it",
    Status.SLAVE_NOT_AVAILABLE: "the reign ended before the slaves held the change",
    Status.SERVICE_NOT_AVAILABLE: "the reign ended before the change began",
}
Table = dict[int, Callable[[Connection, Json], Awaitable[Json]]]


@dataclass(frozen=True)
class Desk:
    """The broker, as far as a desk may know it."""

    config: Config
    ports: Ports
    rules: Rules
    replica: Replica
    events: EventLog
    is_master: Callable[[], bool]
    changes: Callable[[], Changes | None]  # of the reign's metadata, while there is one
    may_change: asyncio.Event = field(default_factory=asyncio.Event)  # set: no handover

    def __post_init__(self) -> None:
        self.may_change.set()

    async def make(self, *changes: Change) -> Json:
        """Change the metadata; the answer."""
        while not self.may_change.is_set():
            await self.may_change.wait()
        reign = self.changes()
        if reign is None:
            return not_master()
        if not self.replica.catalog.has_room(changes):
            return refusal(Status.SYSTEM_ERROR, "no room: slaves could not be given more metadata")
        status = await reign.make(*changes)
        return {} if status is Status.SUCCESS else refusal(status, _WHY.get(status, ""))


def not_master() -> Json:
    return refusal(Status.SERVICE_NOT_AVAILABLE, "not the master")
