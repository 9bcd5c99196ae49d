"""What a scan for delayed messages has delivered, and the decisions about special messages. Pure.

delay.py, halves.py and escape.py say what they are for.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..broker.catalog import Catalog, GroupQueue, MetadataChange
from ..net.wire import Status
from ..replication.epochs import EpochTable
from .envelope import DEAD_TOPIC, DELAY_TOPIC, HALF_TOPIC, OP_TOPIC

_SCAN = "%delay-scan"  # what the progress is noted under
HALF_SCAN, REVIVE_SCAN = "%half-scan", "%revive-scan"
ESCAPED = "%escaped"  # what escaped records are noted under
CLOCK_SET_S = 1.0  # the wall clock may be set while a scan waits; not scaled
MAX_TRIES, MAX_HALF_ESCAPES = 3, 10  # as in RocketMQ


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


def half_progress(catalog: Catalog) -> tuple[int, int]:
    """Return the queue offsets of half messages and of decisions before which all is decided."""
    half, op = (catalog.progress.get((HALF_SCAN, topic, 0), 0) for topic in (HALF_TOPIC, OP_TOPIC))
    return half, op


class EscapedRecords:
    """Which records of a system topic an acting master has escaped (escape.py).

    A record is named by its epoch and its queue offset: a log that was cut may have another one at
    that offset, of a later epoch. They are noted as ranges of offsets, each one row of
    `Catalog.progress`: its key has the topic, the epoch and the first offset, its value is the
    offset behind the last one; 0 removes the row.
    """

    def __init__(self, topic: str, progress: Mapping[GroupQueue, int]) -> None:
        self._topic = topic
        self._ranges: dict[int, list[list[int]]] = {}  # epoch -> [begin, end], in order
        for (scan, name, begin), end in sorted(progress.items()):
            of, _, epoch = name.rpartition("@")
            if scan == ESCAPED and of == topic:
                self._join(self._ranges.setdefault(int(epoch), []), begin, end)

    @staticmethod
    def _join(ranges: list[list[int]], begin: int, end: int) -> None:
        """Add a range that begins at or after the last one."""
        if ranges and begin <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], end)
        else:
            ranges.append([begin, end])

    def has(self, epoch: int, offset: int) -> bool:
        ranges = self._ranges.get(epoch, [])
        at = bisect_right(ranges, offset, key=lambda each: each[0]) - 1
        return at >= 0 and offset < ranges[at][1]

    def add(self, epoch: int, offset: int) -> list[MetadataChange]:
        """Note a record as escaped; return the changes of progress."""
        if self.has(epoch, offset):
            return []
        ranges = self._ranges.setdefault(epoch, [])
        at = bisect_right(ranges, offset, key=lambda each: each[0])
        begin, end, changes = offset, offset + 1, list[MetadataChange]()
        if at < len(ranges) and ranges[at][0] == end:
            end = ranges.pop(at)[1]
            changes.append(self._row(epoch, offset + 1, 0))
        if at and ranges[at - 1][1] == offset:
            begin = ranges[at - 1][0]
            ranges[at - 1][1] = end
        else:
            ranges.insert(at, [begin, end])
        return [*changes, self._row(epoch, begin, end)]

    def forget_before(self, offset: int) -> Iterator[MetadataChange]:
        """Forget records that no scan reads again; yield the changes of progress."""
        for epoch, ranges in self._ranges.items():
            while ranges and ranges[0][1] <= offset:
                yield self._row(epoch, ranges.pop(0)[0], 0)

    def _row(self, epoch: int, begin: int, end: int) -> MetadataChange:
        return MetadataChange("progress", [ESCAPED, f"{self._topic}@{epoch}", begin], end)


def is_due(due_ms: int, now_ms: int) -> bool:
    return due_ms <= now_ms


def pause_s(due_ms: int, now_ms: int, scan_s: float) -> float:
    """Return for how long a scan has nothing to do. `due_ms`: of the next message; `scan_s`: how
    often to try again if it is due already, and could not be put."""
    left_s = (due_ms - now_ms) / 1000
    return min(left_s, CLOCK_SET_S) if left_s > 0 else scan_s


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


def escape_drops(failures: int, until_success: bool) -> bool:
    """Return whether an acting master drops a final message that it could not escape so often."""
    return drops(failures, until_success)


def half_escape_drops(failures: int, strict: bool) -> bool:
    """Return whether an acting master drops a half message that it could not escape so often."""
    return not strict and failures >= MAX_HALF_ESCAPES


def is_escaped(status: Status) -> bool:
    """Return whether a message with this answer of another set is not to be escaped again."""
    return status is Status.SUCCESS


def sets_to_escape_to(own: str, takes_sends: Mapping[str, bool]) -> Sequence[str]:
    """Return the broker sets to which an acting master of the set `own` may escape a message.

    `takes_sends`: by name, whether the set has a master that takes sends.
    """
    return sorted(name for name, takes in takes_sends.items() if takes and name != own)


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
