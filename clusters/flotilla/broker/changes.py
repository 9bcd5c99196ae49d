"""A master's changes to the metadata, in its reign's order (spec 10.4, the article's section
"Does metadata changes depend on logs?").

**As the original** (`strictMetadata = false`): a change holds as soon as the master has made it,
topics and groups once they are on its disk. Slaves fetch what is new every
`syncSlaveMetadataPeriod`, so a failover takes back what was changed since.

**Strict** (`strictMetadata = true`): two phases, as in ZAB. A batch of changes is *offered*: each
slave that asks for news gets it, has it on its disk before it asks again, and says with that
question what it holds. Once every member that may be elected holds it, and there are as many of
them as `minInSyncReplicas` wants, the master makes the change itself and answers. One batch is
under way at a time; what comes meanwhile is the next. A change that nobody waits for any more may
still happen: its answer is FLUSH_SLAVE_TIMEOUT, which proves nothing.

What a slave is told at once fits into a frame, however much came while it took nothing, so a batch
has an end, and who is far behind asks again.

Whoever is elected next was a member, so it holds what was answered. Two windows are closed. A slave
may enter the SyncStateSet only when it holds all that was answered before (`holds`). And a new
master may hold a change that was never answered, nor is held by all: it answers nothing, not even
a question, before every member holds what it holds (`settled`).
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
from ..world.timers import Bell, Signal
from .catalog import Catalog, Change, Version, change_is_held

MOST_REMEMBERED = 256  # batches; a slave that is further behind is given everything
MOST_BYTES = MAX_FRAME // 8  # of one batch, and of those that are told together, if more than one


class Batch(NamedTuple):
    """Changes that lead from one version to the next."""

    base: Version
    version: Version
    changes: tuple[Change, ...]
    size_bytes: int


class Changes:
    """One reign's."""

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
        self._history: deque[Batch] = deque(maxlen=MOST_REMEMBERED)
        self._waiting: list[tuple[tuple[Change, ...], asyncio.Future[Status]]] = []
        self._under_way: list[asyncio.Future[Status]] = []
        self._news = Signal()
        self._bell = Bell()
        self._over = False
        self.settled = not self.strict
        if self.strict:
            self._tasks.start(self._rounds())

    async def make(self, *changes: Change) -> Status:
        """Carry out changes together; what the client may be answered."""
        if self._over:
            return Status.SERVICE_NOT_AVAILABLE
        if not self.strict:
            return await self._make_here(changes)
        if self._members() is None:
            return Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        done: asyncio.Future[Status] = self._loop.create_future()
        self._waiting.append((changes, done))
        self._bell.ring()
        await asyncio.wait({done}, timeout=self._config.slave_timeout_s)
        return done.result() if done.done() else Status.FLUSH_SLAVE_TIMEOUT

    async def news_for(self, slave: int, address: str, held: Version, wait_s: float) -> Json | None:
        """What a slave that holds this version lacks, waiting for it; None: the reign is over."""
        self.addresses[slave] = address
        if held <= self._offered:  # nobody can hold more
            self._held[slave] = held
        self._bell.ring()
        self._on_held(slave)
        if held == self._offered and wait_s > 0 and not self._over:
            await self._wait_for_news(wait_s)
        return None if self._over else self._since(held)

    def holds(self, slave: int) -> bool:
        """May this slave enter the SyncStateSet, as far as metadata goes?"""
        return not self.strict or self._held.get(slave, Version()) >= self._catalog.version

    def has_all(self, slave: int) -> bool:
        """Does this slave hold whatever was offered, and does nothing wait for its turn?

        One that never asked in this way, as those of the first edition, is not waited for.
        """
        held = self._held.get(slave, Version()) >= self._offered
        return not self._waiting and (held or slave not in self.addresses)

    def end(self) -> None:
        """What was offered may survive, what was not certainly does not."""
        self._over = True
        self._tasks.cancel()
        for done in self._under_way:
            _settle(done, Status.SLAVE_NOT_AVAILABLE)
        for _, done in self._waiting:
            _settle(done, Status.SERVICE_NOT_AVAILABLE)
        self._news.give()

    # as the original

    async def _make_here(self, changes: tuple[Change, ...]) -> Status:
        self._offer(changes)
        self._catalog.apply(changes, self._offered)
        if any(change.what in ("topic", "group") for change in changes):
            kept = await self._catalog.save()
            self.on_topics()
            return Status.SUCCESS if kept else Status.FLUSH_DISK_TIMEOUT
        return Status.SUCCESS

    # strict

    async def _rounds(self) -> None:
        await self._held_by_all()
        self.settled = True
        while True:
            while not self._waiting:
                await self._bell.wait(self._config.sync_slave_metadata_s)
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
        """On the disk here too; a full one is waited for, and who asked is not answered SUCCESS."""
        while not await self._catalog.save():
            await self._bell.wait(self._config.sync_slave_metadata_s)

    async def _held_by_all(self) -> None:
        while not self._is_held():
            await self._bell.wait(self._config.sync_slave_metadata_s)

    def _is_held(self) -> bool:
        members = self._members()
        if members is None or len(members) + 1 < self._config.min_in_sync_replicas:
            return False
        return self._held_enough(self._offered, [self._held.get(i, Version()) for i in members])

    # news

    def _offer(self, changes: tuple[Change, ...]) -> None:
        base, self._offered = self._offered, self._offered.next()
        self._history.append(Batch(base, self._offered, changes, _size_bytes(changes)))
        self._news.give()

    def _since(self, held: Version) -> Json:
        """Up to the newest version, or as far as a frame takes it: the slave asks again."""
        if held == self._offered:
            return {"version": list(held)}
        batches = list(self._history)
        start = next((n for n, batch in enumerate(batches) if batch.base == held), None)
        if start is None:
            return self._catalog.copy()
        count = _that_fit(batch.size_bytes for batch in batches[start:])
        told = batches[start : start + count]
        changes = [list(change) for batch in told for change in batch.changes]
        return {"base": list(held), "version": list(told[-1].version), "changes": changes}

    async def _wait_for_news(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._news.wait()


def _size_bytes(changes: tuple[Change, ...]) -> int:
    return len(to_json({"": changes}))


def _that_fit(sizes_bytes: Iterable[int]) -> int:
    """How many of the first ones fit together; at least one."""
    fitting = takewhile(lambda end: end <= MOST_BYTES, accumulate(sizes_bytes))
    return max(1, sum(1 for _ in fitting))


def _settle(done: "asyncio.Future[Status]", status: Status) -> None:
    if not done.done():
        done.set_result(status)
