"""A broker's copy of the log together with its epochs: both are cut together, durably.

The epoch table is in memory and follows the log; its file is replaced whenever it changes. A slave
does not wait for that, because the log's records carry their epochs. A new master does, unless its
disk is full; then the file is replaced when there is room again. It only lacks an epoch without
records, and a full disk must not stop one elected member after the other.
"""

from ..broker.catalog import Catalog
from ..config import Config
from ..events import EventLog
from ..net.connection import Tasks
from ..rules import Rules
from ..store.message_store import MessageStore
from ..world.ports import Ports, is_out_of_space
from .divergence import Action, CutPlan, LogShape
from .epochs import EpochFile, EpochTable


class Replica:
    """Store, epochs and metadata of one broker."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        store: MessageStore,
        epochs: EpochTable,
        events: EventLog,
    ) -> None:
        self.store = store
        self.epochs = epochs
        self.catalog = Catalog(config.store, ports.files, config.topics, rules.commit_moves)
        self._rules = rules
        self._events = events
        self._file = EpochFile(config.store, ports.files)
        self._tasks = Tasks()
        self._saving = False
        self._changed = False

    def shape(self) -> LogShape:
        log = self.store.log
        return LogShape(log.min_offset, log.max_offset, self.epochs)

    # as a slave

    def new_epoch(self, epoch: int, start: int) -> None:
        """Record an epoch of the master, from `start` on. Raises ValueError if it cannot begin
        there."""
        self._set_epochs(self._rules.append_epoch(self.epochs, epoch, start))
        self._events.write("epoch", epoch=epoch, start=start)
        self.save_soon()

    async def cut(self, plan: CutPlan) -> None:
        """Cut or reset as planned, and write an event about what was removed.

        Raises ValueError if the cut is inside a record.
        """
        before, confirm = self.store.log.max_offset, self.store.confirm_offset
        had_records = before > self.store.log.min_offset
        if plan.action is not Action.CONTINUE:
            self._events.write("cutting", point=plan.point, before=before, case=plan.reason)
        if plan.action is Action.RESET:
            await self.store.reset(plan.point)
        elif plan.action is Action.TRUNCATE:
            if not self.store.is_boundary(plan.point):
                raise ValueError(f"the logs diverge at {plan.point}, inside a record")
            await self.store.truncate(plan.point)
        self._set_epochs(self._epochs_left(plan.point))
        await self.save()
        if plan.action is not Action.CONTINUE and had_records:
            self._events.write(
                "truncate",
                point=plan.point,
                before=before,
                case=plan.reason,
                action=plan.action.value,
                confirm=confirm,
                belowConfirm=plan.point < confirm,
            )

    def _epochs_left(self, point: int) -> EpochTable:
        """Return the epochs of a log cut at `point`.

        An empty log has none: one that is left over could be later than its new master's first
        epoch, which would then always be refused.
        """
        if self.shape().is_empty:
            return EpochTable()
        return self._rules.cut_epochs(self.epochs, point)

    # as a master

    async def begin_reign(self, epoch: int, end: int) -> None:
        """Keep the log, which ends here, make it durable as configured, and begin the epoch at its
        end."""
        store = self.store
        keep = self._rules.kept_at_promotion(store.confirm_offset, end)
        if keep < store.log.max_offset:
            await self.cut(CutPlan(Action.TRUNCATE, keep, None))
        indexed = self._rules.indexed_at_promotion(store.confirm_offset, store.log.max_offset)
        if indexed < store.log.max_offset:
            store.index.truncate(indexed)
        await store.flush()
        self.record_epoch(epoch)
        await self.save_if_room()
        await self._clamp_offsets()

    def record_epoch(self, epoch: int) -> None:
        start = self.store.log.max_offset
        self._set_epochs(self._rules.append_epoch(self.epochs, epoch, start))
        self._events.write("epoch", epoch=epoch, start=self.epochs.last_start)
        self.save_soon()

    async def delete_before(self, offset: int) -> None:
        """Delete segments before this one (retention), and their epochs."""
        before = self.store.log.min_offset
        if not await self.store.delete_before(offset):
            return
        self._set_epochs(self.epochs.truncate_prefix(offset))
        await self.save_if_room()
        self._events.write("deleted", before=before, min=offset)

    async def _clamp_offsets(self) -> None:
        """Lower group offsets beyond the end of their queue, on disk at once if there is room.

        By the next start the queues may have grown, and nothing would show that a group has not
        seen the messages there (apache/rocketmq#4771).
        """
        lowered = self.catalog.clamp(self._end_of)
        if lowered:
            self._events.write("offsets-lowered", rows=lowered)
            await self.catalog.save()

    def _end_of(self, topic: str, queue: int) -> int:
        entry = self.store.index.queues.get((topic.encode(), queue))
        return entry.end if entry else 0

    # as either

    def _set_epochs(self, table: EpochTable) -> None:
        self._changed = self._changed or table != self.epochs
        self.epochs = table

    async def save(self) -> None:
        """Replace the epoch file if the table changed. Raises OSError if it is not on disk."""
        while self._changed:
            self._changed = False
            try:
                await self._file.save(self.epochs)
            except OSError:
                self._changed = True
                raise

    def save_soon(self) -> None:
        if self._changed and not self._saving:
            self._saving = True
            self._tasks.start(self._save())

    async def _save(self) -> None:
        try:
            await self.save_if_room()
        finally:
            self._saving = False

    async def save_if_room(self) -> None:
        try:
            await self.save()
        except OSError as e:
            if not is_out_of_space(e):
                raise

    async def close(self) -> None:
        self._tasks.cancel()
        await self.catalog.save()
        await self.store.leave()
