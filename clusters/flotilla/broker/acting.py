"""What a slave does for a master that is absent (RIP-32, `enableSlaveActingMaster`).

The slave with the lowest id of those that a nameserver knows serves consumers until the master
returns: pulls, queue ranges, group offsets, groups, locks and queries by key. It appends nothing:
sends are refused, and so are changes of topics and resets of offsets. Special messages that are due
are sent to other sets (special/escape.py).

Commits are made in the slave's own catalog, on its disk before they are answered, and are listed
apart there (`Catalog.acted`). A master that starts takes them back from every slave that the
nameservers know before it serves (`pre-online`, RocketMQ's BrokerPreOnlineService), so no group's
offset goes back because its master was away, as long as the slave that served is there when the
master returns. RocketMQ compares the versions of whole tables instead, and a slave that counted on
may carry an older table to the master.

With `strictMetadata` no answer about metadata may go back, and one copy is not enough for a change.
So the slave makes none, and answers such questions only if it certainly has every change that the
master answered: if that needed all replicas of the set (`minInSyncReplicas`).

A slave that was only cut off from the master, by its nameservers, acts beside it. The two may then
give the same messages to two consumers; when the cut ends, what the slave committed is forgotten.
"""

from collections.abc import Collection, Sequence

from ..config import Config
from ..net.wire import Json, Status
from ..special.progress import ESCAPED
from .catalog import Catalog, MetadataChange, Version, commit

MASTER = 0  # the id of a master at the nameservers
CHANGES = {"commit", "group"}  # that an acting master makes


class ActingChanges:
    """The changes that an acting master makes; the counterpart of `changes.MetadataChanges`.

    `knows_all`: whether it may answer questions about metadata.
    """

    def __init__(self, config: Config, catalog: Catalog, durable: bool = True) -> None:
        self._durable = durable
        self._catalog, self._strict = catalog, config.strict_metadata
        self.knows_all = not self._strict or config.min_in_sync_replicas >= config.total_replicas
        self._over = False

    async def make(self, *changes: MetadataChange) -> Status:
        """Make changes on this broker's disk; return the status of the answer to the client."""
        if self._over or any(change.what not in CHANGES for change in changes):
            return Status.SERVICE_NOT_AVAILABLE
        if self._strict:
            return Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        self._catalog.act(changes)
        kept = not self._durable or await self._catalog.save()
        return Status.SUCCESS if kept else Status.FLUSH_DISK_TIMEOUT

    def end(self) -> None:
        self._over = True


def acts(known: Collection[int], me: int) -> bool:
    """Return whether this slave serves for its master.

    `known`: the ids of the set's brokers that nameservers know; 0 is the master's.
    """
    return MASTER not in known and me == min(known, default=None)


def take_back(catalog: Catalog, replies: Sequence[Json]) -> None:
    """Take what slaves hold at a master's start: their newest catalog if the master has lost its
    own, the commits that they made for the master, and which special messages they escaped."""
    newest = max(replies, key=_version, default=None)
    if newest is not None and _version(newest) > catalog.version:
        catalog.adopt(newest)
    rows = [row for reply in replies for row in reply["acted"]]
    made = [commit((group, topic, queue), offset) for group, topic, queue, offset in rows]
    for scan, topic, begin, end in (row for reply in replies for row in reply.get("progress", ())):
        if scan == ESCAPED:
            known = catalog.progress.get((scan, topic, begin), 0)
            made.append(MetadataChange("progress", [scan, topic, begin], max(end, known)))
    catalog.apply(made, catalog.version)


def _version(reply: Json) -> Version:
    return Version.of(reply["version"])
