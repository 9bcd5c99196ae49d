"""What of the log may be deleted, and when. Pure; after RocketMQ's CleanCommitLogService.

Only whole segments are deleted, the oldest first, and only those that no replica needs: never
beyond the confirm offset, and on a master never beyond what a member of its set or a connected
slave has still to get. Of those

    older than fileReservedTime               are deleted at the hours `deleteWhen`
    the disk is diskMaxUsedSpaceRatio full    the same are deleted at any hour
    diskSpaceCleanForciblyRatio               younger ones, too, until the disk is less full, unless
                                              cleanFileForciblyEnable is false
    diskSpaceWarningLevelRatio                as above, and new messages are refused

A segment was finished when the next one began, which the log's records show: all replicas of a log
agree on it, and a restart does not change it. Ratios alone would call a large disk full that has
room for hours, so a disk with room for PLENTY_SEGMENTS more segments is never under pressure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ..world.ports import Space

PLENTY_SEGMENTS = 32
ALWAYS = "always"
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000


class DiskPressure(IntEnum):
    """How full the disk is."""

    NONE = 0
    ANY_HOUR = 1
    ANY_AGE = 2
    FULL = 3


@dataclass(frozen=True)
class RetentionPolicy:
    """The configured limits. Ratios are in percent. `hours`: of the day, UTC; None for all."""

    segment_bytes: int
    reserved_ms: float
    hours: frozenset[int] | None
    any_hour_ratio: int
    any_age_ratio: int
    full_ratio: int
    forcibly: bool = True

    def pressure(self, space: Space) -> DiskPressure:
        if space.free_bytes >= PLENTY_SEGMENTS * self.segment_bytes:
            return DiskPressure.NONE
        used = 100 * (space.total_bytes - space.free_bytes)
        limits = (self.any_hour_ratio, self.any_age_ratio, self.full_ratio)
        return DiskPressure(sum(used >= limit * space.total_bytes for limit in limits))

    def segments_to_free(self, space: Space) -> int:
        """Return how many segments to delete until the disk is below `any_age_ratio`."""
        used = space.total_bytes - space.free_bytes
        excess_bytes = used - self.any_age_ratio * space.total_bytes // 100
        return max(0, excess_bytes // self.segment_bytes + 1)

    def is_hour(self, now_ms: int) -> bool:
        return self.hours is None or now_ms % _DAY_MS // _HOUR_MS in self.hours


def hours_of(text: str) -> frozenset[int] | None:
    """Parse `04;16` or `always`. Raises ValueError."""
    if text == ALWAYS:
        return None
    hours = frozenset(int(hour) for hour in text.split(";"))
    if not hours <= frozenset(range(24)):
        raise ValueError(f"an hour is from 0 to 23, not {text}")
    return hours


def delete_up_to(
    full: Iterable[tuple[int, int]],
    needed: int,
    now_ms: int,
    space: Space,
    keeping: RetentionPolicy,
) -> int | None:
    """Return where the log may begin, None to delete nothing. `full`: (end, when finished) of the
    segments."""
    pressure, left = keeping.pressure(space), keeping.segments_to_free(space)
    timely = pressure >= DiskPressure.ANY_HOUR or keeping.is_hour(now_ms)
    forced = keeping.forcibly and pressure >= DiskPressure.ANY_AGE
    point = None
    for end, finished_ms in full:
        old = finished_ms > 0 and now_ms - finished_ms >= keeping.reserved_ms and timely
        if end > needed or not (old or (forced and left > 0)):
            break
        point = end
        left -= 1
    return point


def needed_from(confirmed: int, acks: Mapping[int, int | None], members: tuple[int, ...]) -> int:
    """Return the offset before which a master's log is confirmed and held by all slaves."""
    held = [acks.get(member) for member in members] + list(acks.values())
    return min([confirmed, *(ack or 0 for ack in held)])
