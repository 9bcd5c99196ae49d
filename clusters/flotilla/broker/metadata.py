"""A slave's copy of the master's metadata, fetched from the master and kept on disk.

A slave asks when it has connected and then every `syncSlaveMetadataPeriod`, with the version that
it holds; the answer is nothing, the changes since, or everything. With `strictMetadata` the master
may hold the question until there is a change, and the next question tells that it is on disk here:
it is the acknowledgement for which the master waits (changes.py), so it is not sent while the disk
is full. A copy that is not newer than the own one, as of a master of an older epoch, is refused. A
master that hands over to a slave makes it ask at once (handover.py).
"""

from collections.abc import Awaitable, Callable, Mapping

from ..config import Config
from ..events import EventLog
from ..net.connection import CallTimeout, ConnectionLost, FrameConnection, Pool, Tasks, Unreachable
from ..net.wire import Json, Op, Status
from ..rules import Rules
from ..world.timers import WakeEvent
from .catalog import Catalog, MetadataChange, Version, commit


class MetadataSync:
    """Keeps the catalog on disk and, on a slave, up to date with the master's."""

    def __init__(
        self,
        config: Config,
        rules: Rules,
        catalog: Catalog,
        events: EventLog,
        master: Callable[[], tuple[str, int] | None],
    ) -> None:
        """`master`: returns the master's address and the own id, None on other brokers."""
        self._config, self._rules = config, rules
        self._catalog, self._events = catalog, events
        self._master = master
        self._pool = Pool(config.controller_rpc_timeout_s)
        self._tasks = Tasks()
        self._wake = WakeEvent()
        self._unheard = ""  # the master that did not answer, if it was recorded

    def start(self) -> None:
        self._tasks.start(self._keep())

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    def save_soon(self) -> None:
        if self._catalog.dirty:
            self._tasks.start(self._catalog.save())

    def sync_now(self) -> None:
        self._wake.set()

    def table(self) -> Mapping[int, Callable[[FrameConnection, Json], Awaitable[Json]]]:
        return {Op.METADATA_NEWS: self._news}

    async def _news(self, connection: FrameConnection, fields: Json) -> Json:
        self.sync_now()
        return {}

    async def _keep(self) -> None:
        while True:
            master = self._master()
            news = master is not None and await self._sync(*master)
            if not news:
                await self._wake.wait(self._config.sync_slave_metadata_s)

    async def _sync(self, address: str, me: int) -> bool:
        """Ask once; return whether to ask again at once."""
        if not await self._catalog.save():
            return False
        wait_s = self._config.sync_slave_metadata_s if self._config.strict_metadata else 0.0
        held = self._catalog.version
        fields = {
            "brokerId": me,
            "addr": self._config.address,
            "version": list(held),
            "waitMs": wait_s * 1000,
        }
        try:
            reply = await self._pool.ask(
                address, Op.METADATA_SYNC, fields, self._config.controller_rpc_timeout_s + wait_s
            )
        except (Unreachable, ConnectionLost, CallTimeout) as e:
            self._pool.drop(address)
            self._record_unheard(address, str(e))
            return False
        self._unheard = ""
        if reply["code"] != Status.SUCCESS or self._master() != (address, me):
            return False
        if "version" not in reply:
            self._take_older(reply, held)
            return False
        if not self._take(reply, held):
            return wait_s > 0 and Version.of(reply["version"]) == held
        return True

    def _record_unheard(self, address: str, why: str) -> None:
        """Record once that the master does not answer, until it answers again."""
        if self._unheard != address:
            self._unheard = address
            self._events.write("metadata-unheard", master=address, why=why)

    def _take_older(self, reply: Json, held: Version) -> None:
        """Take the answer of a master of the first edition: all offsets, without a version."""
        rows = reply["offsets"]
        self._catalog.apply((commit((g, t, q), offset) for g, t, q, offset in rows), held)

    def _take(self, reply: Json, held: Version) -> bool:
        """Take an answer; return whether the catalog has changed."""
        theirs = Version.of(reply["version"])
        if theirs == held:
            return False
        if not self._rules.may_adopt(held, theirs):
            self._events.write("metadata-refused", ours=list(held), theirs=list(theirs))
            return False
        if "changes" in reply:
            self._catalog.apply((MetadataChange(*change) for change in reply["changes"]), theirs)
        else:
            self._catalog.adopt(reply)
        return True
