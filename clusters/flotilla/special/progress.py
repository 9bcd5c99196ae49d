"""What a scan for delayed messages has delivered, and the decisions about special messages. Pure.

delay.py and halves.py say what they are for.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..broker.catalog import Catalog, MetadataChange
from ..net.wire import Status
from ..replication.epochs import EpochTable
from .envelope import DEAD_TOPIC, DELAY_TOPIC

_SCAN = "%delay-scan"  # what the progress is noted under
MAX_TRIES = 3  # as in RocketMQ


class DelayProgress(NamedTuple):
    """`floor`: a queue offset, `due_ms`: of the broker's wall clock, `end`: an offset of the log,
    in this epoch."""

    floor: int = 0
    due_ms: int = 0
    end: int = 0
    epoch: int = 0

    @classmethod
    def of(cls, catalog: Catalog) -> "DelayProgress":
        return cls(*(catalog.progress.get((_SCAN, DELAY_TOPIC, n), 0) for n in range(4)))

    def changes(self) -> list[MetadataChange]:
        places = ((_SCAN, DELAY_TOPIC, n) for n in range(4))
        return [
            MetadataChange("progress", list(place), value)
            for place, value in zip(places, self, strict=True)
        ]


def is_due(due_ms: int, now_ms: int) -> bool:
    return due_ms <= now_ms


def due_of(now_ms: int, delay_ms: int, put_ms: int) -> int:
    """Return when a message is due. `put_ms`: the due time of the last one that was put, which
    progress may name: a message that is due before it would count as put."""
    return max(now_ms + delay_ms, put_ms + 1)


def noted_until(put_ms: int, confirmed_ms: int, next_ms: int, strict: bool) -> int:
    """Return up to which due time messages are noted as put: those that the set has (strict), or
    those in the own log. `next_ms`: the due time of the next one, which may be the same."""
    return min(confirmed_ms if strict else put_ms, next_ms - 1)


def resumed(progress: DelayProgress, is_in_log: bool) -> DelayProgress:
    """Return the progress from which a new master goes on. `is_in_log`: its log has the last final
    message that the progress counts."""
    return progress if is_in_log else progress._replace(due_ms=0)


def drops(failures: int, until_success: bool) -> bool:
    """Return whether a final message that could not be put so often is dropped."""
    return not until_success and failures >= MAX_TRIES


def puts_final(commit: bool) -> bool:
    """Return whether a decision puts the final message."""
    return commit


def status_of_closed() -> Status:
    """Return the answer to a decision about a half message that is decided or discarded."""
    return Status.MESSAGE_ILLEGAL


def first_open(halves: Sequence[int], end: int) -> int:
    """Return the offset of half messages before which a new master need not read. `halves`: those
    that are open, or whose decisions the set may not have; `end`: behind the last one."""
    return min((*halves, end))


def discarded_to(topic: str) -> str:
    """Return the topic in which a half message ends whose producers never decided. `topic`: the one
    that it was meant for."""
    return DEAD_TOPIC


def log_has(end: int, epoch: int, epochs: EpochTable, low: int, high: int) -> bool:
    """Return whether a log from `low` to `high` has, or had, what ends at `end` in `epoch`."""
    if end <= low:
        return True
    return end <= high and epochs.at(end - 1, high)[0] == epoch
