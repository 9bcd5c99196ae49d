"""A broker's copy of the log together with its epochs: what is cut, cut in both, durably.

The epoch table lives in memory and follows the log; its file is replaced whenever it changes. A
slave need not wait for that, because the log's records carry their epochs; a new master does.
"""

from .config import Config
from .divergence import Action, LogShape, Plan
from .epochs import EpochFile, EpochTable
from .events import EventLog
from .net import Tasks
from .ports import Ports
from .rules import Rules
from .store.message_store import MessageStore
from .store.offsets import GroupOffsets


class Replica:
    """Store, epochs and group offsets of one broker."""

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
        self.offsets = GroupOffsets(config.store, ports.files)
        self._rules = rules
        self._events = events
        self._file = EpochFile(config.store, ports.files)
        self._tasks = Tasks()
        self._saving = False
        self._changed = False

    def shape(self) -> LogShape:
        log = self.store.log
        return LogShape(log.min_offset, log.max_offset, self.epochs)

    # a slave's

    def new_epoch(self, epoch: int, start: int) -> None:
        """The master's records of `epoch` begin here. ValueError: they can not."""
        self._take(self._rules.append_epoch(self.epochs, epoch, start))
        self._events.write("epoch", epoch=epoch, start=start)
        self._save_soon()

    async def cut(self, plan: Plan) -> None:
        """Cut or reset as planned; everything that went is told."""
        before, confirm = self.store.log.max_offset, self.store.confirm_offset
        had_records = before > self.store.log.min_offset
        if plan.action is Action.RESET:
            await self.store.reset(plan.point)
        elif plan.action is Action.TRUNCATE:
            if not self.store.is_boundary(plan.point):
                raise ValueError(f"the logs part at {plan.point}, inside a record")
            await self.store.truncate(plan.point)
        self._take(self.epochs.truncate_suffix(plan.point))
        await self.save()
        if plan.action is not Action.CONTINUE and had_records:
            self._events.write(
                "truncate",
                point=plan.point,
                before=before,
                case=plan.case,
                action=plan.action.value,
                confirm=confirm,
                belowConfirm=plan.point < confirm,
            )
        self.clamp_offsets()

    # a master's

    async def begin_reign(self, epoch: int) -> None:
        """Everything in the log is kept and made durable as configured; the epoch begins behind."""
        store = self.store
        keep = self._rules.kept_at_promotion(store.confirm_offset, store.log.max_offset)
        if keep < store.log.max_offset:
            await self.cut(Plan(Action.TRUNCATE, keep, "promotion"))
        await store.flush()
        self.record_epoch(epoch)
        await self.save()
        self.clamp_offsets()

    def record_epoch(self, epoch: int) -> None:
        start = self.store.log.max_offset
        self._take(self._rules.append_epoch(self.epochs, epoch, start))
        self._events.write("epoch", epoch=epoch, start=self.epochs.last_start)
        self._save_soon()

    # both

    def clamp_offsets(self) -> None:
        lowered = self.offsets.clamp(self._end_of)
        if lowered:
            self._events.write("offsets-lowered", rows=lowered)

    def _end_of(self, topic: str, queue: int) -> int:
        found = self.store.index.queues.get((topic.encode(), queue))
        return found.end if found else 0

    def _take(self, table: EpochTable) -> None:
        self._changed = self._changed or table != self.epochs
        self.epochs = table

    async def save(self) -> None:
        while self._changed:
            self._changed = False
            await self._file.save(self.epochs)

    def _save_soon(self) -> None:
        if not self._saving:
            self._saving = True
            self._tasks.start(self._save())

    async def _save(self) -> None:
        try:
            await self.save()
        finally:
            self._saving = False

    async def close(self) -> None:
        self._tasks.cancel()
        await self.offsets.save()
        await self.store.flush()
        self.store.close()
