"""Keeping a broker's disk from filling: looks from time to time, deletes, refuses new messages.

The decisions are `store.retention`'s. After a look a full disk may have room again, so the log may
try once more to make the segment that it could not, and the epochs are saved that found none.
"""

from collections.abc import Callable

from ..config import Config
from ..events import EventLog
from ..net.connection import Tasks
from ..replication.replica import Replica
from ..store.retention import Keeping, Pressure, delete_up_to, hours_of
from ..world.ports import Ports, Space
from ..world.timers import Every

_MS_OF_HOUR = 3_600_000


class Retention:
    """One broker's; `needed`: the log from there on has to stay."""

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
        self._pressure = Pressure.NONE
        self._deleting = False
        self.adopt(config)
        self._period_s = config.clean_resource_s
        self._timer: Every | None = None

    def adopt(self, config: Config) -> None:
        """Keep the log for as long as this says, from the next look on."""
        self._keeping = Keeping(
            config.segment_size,
            config.file_reserved_h * _MS_OF_HOUR,
            hours_of(config.delete_when),
            config.disk_max_used_ratio,
            config.disk_clean_forcibly_ratio,
            config.disk_warning_level_ratio,
            config.clean_file_forcibly,
        )

    def start(self) -> None:
        self._timer = Every(self._period_s, self.look)
        self.look()

    def look(self) -> None:
        space, store = self._ports.files.space(self._folder), self._replica.store
        store.log.full = False
        self._replica.save_soon()
        self._note(space)
        point = delete_up_to(
            store.full_segments(), self._needed(), self._ports.clock.wall_ms(), space, self._keeping
        )
        if point is not None and not self._deleting:
            self._deleting = True
            self._tasks.start(self._delete(point))

    def _note(self, space: Space) -> None:
        known, self._pressure = self._pressure, self._keeping.pressure(space)
        self._replica.store.refuses = self._pressure is Pressure.FULL
        if self._pressure is not known:
            free = space.free_bytes
            self._events.write("disk", pressure=self._pressure.name, freeBytes=free)

    async def _delete(self, point: int) -> None:
        try:
            await self._replica.delete_before(point)
        finally:
            self._deleting = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._tasks.cancel()
