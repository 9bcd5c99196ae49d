"""The consume queues: for each queue, where in the log its messages are.

The index holds *every* record of the log, in memory, and is rebuilt by scanning the log at start.
What a consumer may see is a second, smaller mark, `visible_end`, moved by dispatching up to the
confirm offset. Queue offsets are thus given out from the whole log and never from its visible
part, and recovery shows nothing that is not confirmed: the original derived both from the same
files and had to repair them (apache/rocketmq#7689, #6609, #6344).
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

from .record import Entry

Key = tuple[bytes, int]
_HOLE = 2**64 - 1


class ConsumeQueue:
    """Physical offsets of one queue's messages; position i is queue offset `base` + i."""

    __slots__ = ("base", "key", "positions", "visible_end")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.base = self.visible_end = 0
        self.positions = array("Q")

    @property
    def end(self) -> int:
        return self.base + len(self.positions)

    def put(self, queue_offset: int, offset: int) -> None:
        positions = self.positions
        if queue_offset == self.base + len(positions):
            positions.append(offset)
            return
        if not positions:
            self.base = self.visible_end = queue_offset
        if queue_offset < self.base:
            raise ValueError(f"queue offset {queue_offset} is below {self.base}, the first one")
        while self.end <= queue_offset:
            self.positions.append(_HOLE)
        self.positions[queue_offset - self.base] = offset

    def visible(self, queue_offset: int, count: int) -> list[int]:
        """Physical offsets from `queue_offset` on, as far as consumers may see."""
        end = min(self.visible_end, queue_offset + count)
        found = self.positions[queue_offset - self.base : end - self.base]
        return [offset for offset in found if offset != _HOLE]

    def cut_tail(self, point: int) -> None:
        del self.positions[bisect_left(self.positions, point) :]
        self.visible_end = min(self.visible_end, self.end)

    def cut_head(self, point: int) -> None:
        gone = bisect_left(self.positions, point)
        del self.positions[:gone]
        self.base += gone
        self.visible_end = max(self.visible_end, self.base)


class QueueIndex:
    """All queues of a log. Fillers live under the empty topic, so every record start is known."""

    def __init__(self) -> None:
        self.queues: dict[Key, ConsumeQueue] = {}
        self.dispatched = 0
        self.fresh: dict[Key, None] = {}
        self._waiting: deque[tuple[int, ConsumeQueue, int]] = deque()
        self._fillers = array("Q")

    def queue(self, key: Key) -> ConsumeQueue:
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = ConsumeQueue(key)
        return found

    def add(self, e: Entry) -> None:
        """A record that was appended to the log."""
        offset, size, _, topic, queue_id, queue_offset = e
        if not topic:
            self._fillers.append(offset)
            return
        queue = self.queues.get((topic, queue_id)) or self.queue((topic, queue_id))
        queue.put(queue_offset, offset)
        self._waiting.append((offset + size, queue, queue_offset))

    def dispatch(self, limit: int) -> bool:
        """Make records up to `limit` visible; true when there are any, in the queues `fresh`."""
        waiting = self._waiting
        moved = False
        while waiting and waiting[0][0] <= limit:
            _, queue, queue_offset = waiting.popleft()
            queue.visible_end = queue_offset + 1
            self.fresh[queue.key] = None
            moved = True
        self.dispatched = max(self.dispatched, limit)
        return moved

    def take_fresh(self) -> dict[Key, None]:
        fresh, self.fresh = self.fresh, {}
        return fresh

    def truncate(self, point: int) -> None:
        for queue in self.queues.values():
            queue.cut_tail(point)
        while self._waiting and self._waiting[-1][0] > point:
            self._waiting.pop()
        del self._fillers[bisect_left(self._fillers, point) :]
        self.dispatched = min(self.dispatched, point)

    def delete_before(self, point: int) -> None:
        for queue in self.queues.values():
            queue.cut_head(point)
        del self._fillers[: bisect_left(self._fillers, point)]

    def reset(self, offset: int) -> None:
        self.queues.clear()
        self._waiting.clear()
        self._fillers = array("Q")
        self.dispatched = offset

    def last_start_before(self, point: int) -> int | None:
        """The start of the record that lies just before `point`; None when there is none."""
        starts = (_before(positions, point) for positions in self._all_positions())
        return max((start for start in starts if start is not None), default=None)

    def is_start(self, point: int) -> bool:
        for positions in self._all_positions():
            at = bisect_left(positions, point)
            if at < len(positions) and positions[at] == point:
                return True
        return False

    def _all_positions(self) -> Iterator["array[int]"]:
        yield self._fillers
        for queue in self.queues.values():
            yield queue.positions


def _before(positions: "array[int]", point: int) -> int | None:
    at = bisect_left(positions, point)
    return positions[at - 1] if at else None


def dispatch_limit(confirm_offset: int, end: int) -> int:
    """Up to where the log may be seen: what is confirmed, not what is there."""
    return min(confirm_offset, end)


def next_queue_offset(visible_end: int, end: int) -> int:
    """A new message's queue offset: behind every message of the log, seen or not."""
    return max(visible_end, end)


def kept_at_promotion(confirm_offset: int, end: int) -> int:
    """How much of its log a new master keeps: all of it.

    What lies between the confirm offset and the end may have been acknowledged by the old master.
    """
    return max(confirm_offset, end)
