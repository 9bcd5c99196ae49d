"""What of the log may be deleted, and when: pure decisions (RocketMQ's cleaning of its files).

Only whole segments go, the oldest first, and only what nobody needs any more: never beyond the
confirm offset, and on a master never beyond what a member of its set or a connected slave still has
to get. Of those

    older than fileReservedTime               go at one of the hours `deleteWhen`
    the disk is diskMaxUsedSpaceRatio full    the same go at any hour
    diskSpaceCleanForciblyRatio               younger ones go too, until it is less full, unless
                                              cleanFileForciblyEnable is false
    diskSpaceWarningLevelRatio                as above, and new messages are refused; reads go on

A segment was finished when the next one began, which the log's own records tell: replicas of one
log agree on it, and a restart makes nothing young. Ratios alone would call a large disk full that
has room for hours, so a disk with room for PLENTY_SEGMENTS more segments is never under pressure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ..world.ports import Space

PLENTY_SEGMENTS = 32
ALWAYS = "always"
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000


class Pressure(IntEnum):
    """How full the disk is."""

    NONE = 0
    ANY_HOUR = 1
    ANY_AGE = 2
    FULL = 3


@dataclass(frozen=True)
class Keeping:
    """What the configuration says. Ratios in percent. `hours`: of the day, UTC; None: all."""

    segment_bytes: int
    reserved_ms: float
    hours: frozenset[int] | None
    any_hour_ratio: int
    any_age_ratio: int
    full_ratio: int
    forcibly: bool = True

    def pressure(self, space: Space) -> Pressure:
        if space.free_bytes >= PLENTY_SEGMENTS * self.segment_bytes:
            return Pressure.NONE
        used = 100 * (space.total_bytes - space.free_bytes)
        limits = (self.any_hour_ratio, self.any_age_ratio, self.full_ratio)
        return Pressure(sum(used >= limit * space.total_bytes for limit in limits))

    def segments_to_free(self, space: Space) -> int:
        """So many bring the disk below the level at which age counts again."""
        used = space.total_bytes - space.free_bytes
        excess_bytes = used - self.any_age_ratio * space.total_bytes // 100
        return max(0, excess_bytes // self.segment_bytes + 1)

    def is_hour(self, now_ms: int) -> bool:
        return self.hours is None or now_ms % _DAY_MS // _HOUR_MS in self.hours


def hours_of(text: str) -> frozenset[int] | None:
    """`04;16`, or `always`. ValueError: neither."""
    if text == ALWAYS:
        return None
    hours = frozenset(int(hour) for hour in text.split(";"))
    if not hours <= frozenset(range(24)):
        raise ValueError(f"an hour is from 0 to 23, not {text}")
    return hours


def delete_up_to(
    full: Iterable[tuple[int, int]], needed: int, now_ms: int, space: Space, keeping: Keeping
) -> int | None:
    """Where the log may begin; None where it does. `full`: (end, when finished) of its segments."""
    pressure, left = keeping.pressure(space), keeping.segments_to_free(space)
    timely = pressure >= Pressure.ANY_HOUR or keeping.is_hour(now_ms)
    forced = keeping.forcibly and pressure >= Pressure.ANY_AGE
    point = None
    for end, finished_ms in full:
        old = finished_ms > 0 and now_ms - finished_ms >= keeping.reserved_ms and timely
        if end > needed or not (old or (forced and left > 0)):
            break
        point = end
        left -= 1
    return point


def needed_from(confirmed: int, acks: Mapping[int, int | None], members: tuple[int, ...]) -> int:
    """A master's log before this offset is in all its slaves' logs and confirmed."""
    held = [acks.get(member) for member in members] + list(acks.values())
    return min([confirmed, *(ack or 0 for ack in held)])
