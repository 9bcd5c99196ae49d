"""A master's changes of the metadata, in order, for one term as master.

**As in RocketMQ** (`strictMetadata = false`): a change is in force as soon as the master has made
it; topics and groups once they are on its disk. Slaves fetch changes every
`syncSlaveMetadataPeriod`, so a failover undoes the latest ones.

**Strict** (`strictMetadata = true`): two phases, as in ZAB (Junqueira, Reed, Serafini, DSN 2011). A
batch of changes is *offered*: a slave that asks for updates gets it, writes it to disk, and its
next question says what it holds. When every member that may be elected holds the batch, and there
are at least `minInSyncReplicas` of them, the master applies it and answers. One batch is under way
at a time; changes that arrive meanwhile are the next batch. A change whose client stopped waiting
may still happen: its answer, FLUSH_SLAVE_TIMEOUT, leaves the outcome open.

One answer to a slave fits into a frame, however far the slave is behind: batches have a size limit,
and a slave that is far behind asks again.

The next elected broker was a member, so it holds every answered change. Two gaps are closed. A
slave may enter the SyncStateSet only if it holds every answered change (`holds`). And a new master
may hold a change that was never answered and that not all members hold: it answers nothing, not
even a read, before every member holds what it holds (`settled`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, takewhile
from typing import NamedTuple

from ..config import Config
from ..net.connection import Tasks
from ..net.wire import MAX_FRAME, Json, Status, to_json
from ..world.timers import Notifier, WakeEvent
from .catalog import Catalog, MetadataChange, Version, change_is_held

MAX_BATCHES = 256  # that are kept; a slave that is further behind gets the whole catalog
MAX_BATCH_BYTES = MAX_FRAME // 8  # of one batch, and of several batches in one answer


class ChangeBatch(NamedTuple):
    """Changes that lead from one version to the next."""

    base: Version
    version: Version
    changes: tuple[MetadataChange, ...]
    size_bytes: int


class MetadataChanges:
    """The changes of one term as master."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        epoch: int,
        members: Callable[[], tuple[int, ...] | None],
        on_held: Callable[[int], None],
        is_held: Callable[[Version, Sequence[Version]], bool] = change_is_held,
    ) -> None:
        """`members`: the slaves that may be elected; None while too few are in step. `is_held`: the
        rule that decides when a change has enough copies."""
        self.strict = config.strict_metadata
        self.on_topics: Callable[[], None] = lambda: None
        self._config, self._catalog = config, catalog
        self._members, self._on_held, self._held_enough = members, on_held, is_held
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        catalog.apply((), Version(epoch))
        self._offered = catalog.version
        self.addresses: dict[int, str] = {}  # of the slaves that asked
        self._held: dict[int, Version] = {}
        self._history: deque[ChangeBatch] = deque(maxlen=MAX_BATCHES)
        self._waiting: list[tuple[tuple[MetadataChange, ...], asyncio.Future[Status]]] = []
        self._under_way: list[asyncio.Future[Status]] = []
        self._news = Notifier()
        self._wake = WakeEvent()
        self._over = False
        self.settled = not self.strict
        if self.strict:
            self._tasks.start(self._rounds())

    async def make(self, *changes: MetadataChange) -> Status:
        """Carry out changes together; return the status of the answer to the client."""
        if self._over:
            return Status.SERVICE_NOT_AVAILABLE
        if not self.strict:
            return await self._make_here(changes)
        if self._members() is None:
            return Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        done: asyncio.Future[Status] = self._loop.create_future()
        self._waiting.append((changes, done))
        self._wake.set()
        await asyncio.wait({done}, timeout=self._config.slave_timeout_s)
        return done.result() if done.done() else Status.FLUSH_SLAVE_TIMEOUT

    async def news_for(self, slave: int, address: str, held: Version, wait_s: float) -> Json | None:
        """Return the changes that a slave of version `held` lacks, after waiting up to `wait_s` for
        one; None if the term is over."""
        self.addresses[slave] = address
        if held <= self._offered:  # a greater version is invalid
            self._held[slave] = held
        self._wake.set()
        self._on_held(slave)
        if held == self._offered and wait_s > 0 and not self._over:
            await self._wait_for_news(wait_s)
        return None if self._over else self._since(held)

    def holds(self, slave: int) -> bool:
        """Return whether a slave's metadata allows it to enter the SyncStateSet."""
        return not self.strict or self._held.get(slave, Version()) >= self._catalog.version

    def has_all(self, slave: int) -> bool:
        """Return whether a slave holds everything that was offered and no change is waiting.

        A slave that never asked for changes, as those of the first edition, counts as up to date.
        """
        held = self._held.get(slave, Version()) >= self._offered
        return not self._waiting and (held or slave not in self.addresses)

    def end(self) -> None:
        """End the term. Offered changes may survive; waiting ones certainly do not."""
        self._over = True
        self._tasks.cancel()
        for done in self._under_way:
            _settle(done, Status.SLAVE_NOT_AVAILABLE)
        for _, done in self._waiting:
            _settle(done, Status.SERVICE_NOT_AVAILABLE)
        self._news.notify_all()

    # strictMetadata = false

    async def _make_here(self, changes: tuple[MetadataChange, ...]) -> Status:
        self._offer(changes)
        self._catalog.apply(changes, self._offered)
        if any(change.what in ("topic", "group") for change in changes):
            kept = await self._catalog.save()
            self.on_topics()
            return Status.SUCCESS if kept else Status.FLUSH_DISK_TIMEOUT
        return Status.SUCCESS

    # strictMetadata = true

    async def _rounds(self) -> None:
        await self._held_by_all()
        self.settled = True
        while True:
            while not self._waiting:
                await self._wake.wait(self._config.sync_slave_metadata_s)
            count = _that_fit(_size_bytes(wanted) for wanted, _ in self._waiting)
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            changes = tuple(change for wanted, _ in batch for change in wanted)
            self._under_way = [done for _, done in batch]
            self._offer(changes)
            await self._held_by_all()
            self._catalog.apply(changes, self._offered)
            await self._keep()
            for done in self._under_way:
                _settle(done, Status.SUCCESS)
            if any(change.what == "topic" for change in changes):
                self.on_topics()

    async def _keep(self) -> None:
        """Save the catalog; while the disk is full, wait and do not answer SUCCESS."""
        while not await self._catalog.save():
            await self._wake.wait(self._config.sync_slave_metadata_s)

    async def _held_by_all(self) -> None:
        while not self._is_held():
            await self._wake.wait(self._config.sync_slave_metadata_s)

    def _is_held(self) -> bool:
        members = self._members()
        if members is None or len(members) + 1 < self._config.min_in_sync_replicas:
            return False
        return self._held_enough(self._offered, [self._held.get(i, Version()) for i in members])

    # updates for slaves

    def _offer(self, changes: tuple[MetadataChange, ...]) -> None:
        base, self._offered = self._offered, self._offered.next()
        self._history.append(ChangeBatch(base, self._offered, changes, _size_bytes(changes)))
        self._news.notify_all()

    def _since(self, held: Version) -> Json:
        """Return the changes since `held`, as many as fit into a frame; the slave asks again."""
        if held == self._offered:
            return {"version": list(held)}
        batches = list(self._history)
        start = next((n for n, batch in enumerate(batches) if batch.base == held), None)
        if start is None:
            return self._catalog.copy()
        count = _that_fit(batch.size_bytes for batch in batches[start:])
        fitting = batches[start : start + count]
        changes = [list(change) for batch in fitting for change in batch.changes]
        return {"base": list(held), "version": list(fitting[-1].version), "changes": changes}

    async def _wait_for_news(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._news.wait()


def _size_bytes(changes: tuple[MetadataChange, ...]) -> int:
    return len(to_json({"": changes}))


def _that_fit(sizes_bytes: Iterable[int]) -> int:
    """Return how many of the first sizes fit into one answer, at least one."""
    fitting = takewhile(lambda end: end <= MAX_BATCH_BYTES, accumulate(sizes_bytes))
    return max(1, sum(1 for _ in fitting))


def _settle(done: "asyncio.Future[Status]", status: Status) -> None:
    if not done.done():
        done.set_result(status)
