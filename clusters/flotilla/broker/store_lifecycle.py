"""A broker's store: how it is opened, kept from filling its disk, and closed.

`store.recovery` finds the end of the log and `store.retention` decides what may be deleted; here
they meet the configuration, the event log and timers.
"""

import asyncio
from collections.abc import Callable

from ..config import Config
from ..events import EventLog
from ..net.connection import Tasks
from ..replication.replica import Replica
from ..rules import Rules
from ..store import recovery
from ..store.commit_log import StoreError
from ..store.flushing import Flushing
from ..store.retention import DiskPressure, RetentionPolicy, delete_up_to, hours_of
from ..world.ports import Ports, Space
from ..world.timers import PeriodicTimer

_MS_OF_HOUR = 3_600_000


def store_options(config: Config) -> recovery.StoreOptions:
    flushing = Flushing(
        config.sync_flush,
        config.flush_least_pages,
        config.flush_thorough_s,
        config.commit_interval_s if config.transient_store_pool else 0.0,
    )
    return recovery.StoreOptions(
        config.store, config.segment_size, config.max_message_size, flushing
    )


async def open_replica(config: Config, ports: Ports, rules: Rules, events: EventLog) -> Replica:
    """Recover the store. A store that cannot be opened stops the process with the reason."""
    try:
        recovered = await recovery.recover(store_options(config), ports, rules)
        _record_recovery(recovered, events)
        return Replica(config, ports, rules, recovered.store, recovered.epochs, events)
    except (StoreError, ValueError) as e:
        why = f"{config.store} cannot be opened: {e}"
        events.write("fatal", why=why)
        ports.exit.fatal(why)


def _record_recovery(recovered: recovery.StoreRecovery, events: EventLog) -> None:
    store = recovered.store
    events.write(
        "recover",
        min=store.log.min_offset,
        max=store.log.max_offset,
        confirm=store.confirm_offset,
        records=recovered.records,
        scanned=recovered.scanned,
        clean=recovered.clean,
        notes=list(recovered.notes),
        epochs=[list(e) for e in recovered.epochs.entries],
    )


def mark_clean_stop(config: Config, ports: Ports) -> None:
    recovery.close(store_options(config), ports)


class Retention:
    """Deletes old segments and refuses new messages when the disk is nearly full.

    `needed`: the offset from which on the log has to stay.
    """

    def __init__(
        self,
        config: Config,
        ports: Ports,
        replica: Replica,
        needed: Callable[[], int],
        events: EventLog,
    ) -> None:
        self._folder = config.store
        self._ports, self._replica, self._needed, self._events = ports, replica, needed, events
        self._tasks = Tasks()
        self._pressure = DiskPressure.NONE
        self._deleting = False
        self._deletion: asyncio.Task[None] | None = None
        self.apply_config(config)
        self._period_s = config.clean_resource_s
        self._timer: PeriodicTimer | None = None

    def apply_config(self, config: Config) -> None:
        """Use this configuration's limits from the next check on."""
        self._policy = RetentionPolicy(
            config.segment_size,
            config.file_reserved_h * _MS_OF_HOUR,
            hours_of(config.delete_when),
            config.disk_max_used_ratio,
            config.disk_clean_forcibly_ratio,
            config.disk_warning_level_ratio,
            config.clean_file_forcibly,
        )

    def start(self) -> None:
        self._timer = PeriodicTimer(self._period_s, self.check_disk)
        self.check_disk()

    def check_disk(self) -> None:
        """Delete what may go. A disk that was full may have room again, so the log may try to
        allocate a segment, and epochs that found no room are saved."""
        space, store = self._ports.files.space(self._folder), self._replica.store
        store.log.full = False
        self._replica.save_soon()
        self._update_pressure(space)
        point = delete_up_to(
            store.full_segments(), self._needed(), self._ports.clock.wall_ms(), space, self._policy
        )
        if point is not None and not self._deleting:
            self._deleting = True
            self._deletion = self._tasks.start(self._delete(point))

    def _update_pressure(self, space: Space) -> None:
        before, self._pressure = self._pressure, self._policy.pressure(space)
        self._replica.store.refuses = self._pressure is DiskPressure.FULL
        if self._pressure is not before:
            free = space.free_bytes
            self._events.write("disk", pressure=self._pressure.name, freeBytes=free)

    async def _delete(self, point: int) -> None:
        try:
            await self._replica.delete_before(point)
        finally:
            self._deleting = False

    async def finish(self) -> None:
        """Begin no deletion any more, and wait for the one that is under way."""
        if self._timer is not None:
            self._timer.stop()
        if self._deletion is not None:
            await asyncio.gather(self._deletion, return_exceptions=True)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._tasks.cancel()
