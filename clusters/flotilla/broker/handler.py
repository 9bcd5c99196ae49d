"""What every request handler of a broker is given.

A handler serves one group of operations (request_handlers.py, handover.py): a class that is made
with a `HandlerContext` and whose `table()` maps operations to functions. The broker merges the
tables. While a handover is under way, changes of metadata wait: a change that the successor does
not hold would be lost with this term as master.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..config import Config
from ..events import EventLog
from ..net.connection import FrameConnection, refusal
from ..net.wire import Json, Status
from ..replication.replica import Replica
from ..rules import Rules
from ..world.ports import Ports
from .acting import ActingChanges
from .catalog import MetadataChange
from .changes import MetadataChanges

_REMARKS = {
    Status.IN_SYNC_REPLICAS_NOT_ENOUGH: "too few replicas are in sync for a change of metadata",
    Status.FLUSH_SLAVE_TIMEOUT: "the slaves do not hold the change yet; it may still happen",
    Status.FLUSH_DISK_TIMEOUT: "the disk is full; the change is made, but a restart may forget it",
    Status.SLAVE_NOT_AVAILABLE: "the master stepped down before the slaves held the change",
    Status.SERVICE_NOT_AVAILABLE: "the master stepped down before the change began, or is absent",
}
HandlerTable = dict[int, Callable[[FrameConnection, Json], Awaitable[Json]]]


@dataclass(frozen=True)
class HandlerContext:
    """The parts of a broker that handlers use.

    `changes`: the metadata changes of the present term as master, None on other brokers. `acting`:
    the changes that it makes for an absent master, None on other brokers.
    `may_change`: cleared while a handover is under way.
    """

    config: Config
    ports: Ports
    rules: Rules
    replica: Replica
    events: EventLog
    is_master: Callable[[], bool]
    changes: Callable[[], MetadataChanges | None]
    acting: Callable[[], ActingChanges | None] = lambda: None
    may_change: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_change.set()

    def serves(self) -> bool:
        """Return whether the broker serves consumers, as a master or for an absent one."""
        return self.is_master() or self.acting() is not None

    async def make(self, *changes: MetadataChange) -> Json:
        """Change the metadata and return the answer for the client."""
        while not self.may_change.is_set():
            await self.may_change.wait()
        current = self.changes() or self.acting()
        if current is None:
            return not_master()
        if not self.replica.catalog.has_room(changes):
            return refusal(Status.SYSTEM_ERROR, "no room: slaves could not be given more metadata")
        status = await current.make(*changes)
        return {} if status is Status.SUCCESS else refusal(status, _REMARKS.get(status, ""))


def not_master() -> Json:
    return refusal(Status.SERVICE_NOT_AVAILABLE, "not the master")
