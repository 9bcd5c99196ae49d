"""The consume queues: for each queue, the positions of its messages in the log.

The index holds *every* record of the log, in memory, and is rebuilt at start: by scanning the log,
or from the files of full segments (`segment_index`). What consumers may see is a separate, lower
mark, `visible_end`, which dispatching moves up to the confirm offset. So queue offsets are assigned
from the whole log, never from its visible part, and recovery shows nothing that is not confirmed.
RocketMQ derived both from the same files and had to repair them (apache/rocketmq#7689, #6609,
#6344).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from .queue_ends import QueueEnd
from .record import RecordHeader
from .segment_index import Run, SegmentIndex

Key = tuple[bytes, int]
_HOLE = 2**64 - 1


class ConsumeQueue:
    """Physical offsets of one queue's messages; position i is queue offset `base` + i."""

    __slots__ = ("base", "dense", "key", "positions", "visible_end")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.base = self.visible_end = 0
        self.positions = array("Q")
        self.dense = True  # no holes and no offset used twice, as in every sound log

    @property
    def end(self) -> int:
        return self.base + len(self.positions)

    def put(self, queue_offset: int, offset: int) -> None:
        positions = self.positions
        if queue_offset == self.base + len(positions):
            positions.append(offset)
            return
        if not positions:
            self.begin_at(queue_offset)
        else:
            self.dense = False
        if queue_offset < self.base:
            raise ValueError(f"queue offset {queue_offset} is below {self.base}, the first one")
        while self.end <= queue_offset:
            self.positions.append(_HOLE)
        self.positions[queue_offset - self.base] = offset

    def begin_at(self, queue_offset: int) -> None:
        self.base = self.visible_end = queue_offset

    def visible(self, queue_offset: int, count: int) -> list[int]:
        """Return the physical offsets from `queue_offset` on, up to `visible_end`."""
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
    """All queues of a log, and the starts of its records that hold no message."""

    def __init__(self) -> None:
        self.queues: dict[Key, ConsumeQueue] = {}
        self.runs: list[Run] = []  # (epoch, where its records begin)
        self.dispatched = 0
        self.fresh: dict[Key, None] = {}
        self._waiting: deque[tuple[int, ConsumeQueue, int]] = deque()
        self._fillers = array("Q")

    def queue(self, key: Key) -> ConsumeQueue:
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = ConsumeQueue(key)
        return found

    def add(self, e: RecordHeader) -> None:
        """Index a record that was appended to the log."""
        offset, size, epoch, topic, queue_id, queue_offset, _ = e
        if not self.runs or self.runs[-1][0] != epoch:
            self.runs.append((epoch, offset))
        if not topic:
            self._fillers.append(offset)
            return
        queue = self.queues.get((topic, queue_id)) or self.queue((topic, queue_id))
        queue.put(queue_offset, offset)
        self._waiting.append((offset + size, queue, queue_offset))

    def take_ends(self, ends: Iterable[QueueEnd]) -> None:
        """Take the queue ends at the log's beginning, for queues whose messages are deleted."""
        for topic, queue_id, following in ends:
            queue = self.queue((topic, queue_id))
            if not queue.positions and queue.base < following:
                queue.begin_at(following)

    def ends(self) -> Iterator[QueueEnd]:
        for (topic, queue_id), queue in sorted(self.queues.items()):
            if queue.end:
                yield topic, queue_id, queue.end

    def dispatch(self, limit: int) -> bool:
        """Make records up to `limit` visible; return whether any queue in `fresh` has grown."""
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
        while self.runs and self.runs[-1][1] >= point:
            self.runs.pop()
        self.dispatched = min(self.dispatched, point)

    def delete_before(self, point: int) -> None:
        for queue in self.queues.values():
            queue.cut_head(point)
        del self._fillers[: bisect_left(self._fillers, point)]
        while len(self.runs) > 1 and self.runs[1][1] <= point:
            self.runs.pop(0)

    def reset(self, offset: int) -> None:
        self.queues.clear()
        self.runs.clear()
        self._waiting.clear()
        self._fillers = array("Q")
        self.dispatched = offset

    # files of full segments

    def segment(self, base: int, end: int) -> SegmentIndex | None:
        """Return the index of a part of the log, None if a queue in it is not dense."""
        stretches = []
        for key, queue in self.queues.items():
            low, high = bisect_left(queue.positions, base), bisect_left(queue.positions, end)
            if not queue.dense:
                return None
            stretches.append((*key, queue.base + low, queue.positions[low:high]))
        low, high = bisect_left(self._fillers, base), bisect_left(self._fillers, end)
        before = bisect_right(self.runs, base, key=itemgetter(1)) - 1
        runs = [(epoch, max(at, base)) for epoch, at in self.runs[max(before, 0) :] if at < end]
        return SegmentIndex(base, end, runs, stretches, self._fillers[low:high])

    def take(self, segment: SegmentIndex) -> None:
        """Add the index of a part of the log that an earlier process saved, all of it confirmed."""
        for epoch, at in segment.runs:
            if not self.runs or self.runs[-1][0] != epoch:
                self.runs.append((epoch, at))
        for topic, queue_id, first, positions in segment.stretches:
            queue = self.queue((topic, queue_id))
            if not queue.positions:
                queue.begin_at(first)
            queue.positions.extend(positions)
            queue.visible_end = queue.end
        self._fillers.extend(segment.fillers)
        self.dispatched = segment.end

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


def dispatch_limit(confirm_offset: int, end: int) -> int:
    """Return how far consumers may see the log: what is confirmed, not what is there."""
    return min(confirm_offset, end)


def next_pull_offset(last: int, found: int, wanted: int, high: int) -> int:
    """Return the offset where a consumer reads on, after `found` of `wanted` messages up to `last`.

    `high`: the end of the queue.
    """
    return last + 1


def times_of_batch(stored_ms: Sequence[int]) -> Sequence[int]:
    """Return the store times that a consumer gets with the messages of a pull: their own."""
    return stored_ms


def next_queue_offset(visible_end: int, end: int) -> int:
    """Return a new message's queue offset: after every message of the log, visible or not."""
    return max(visible_end, end)


def indexed_at_promotion(confirm_offset: int, end: int) -> int:
    """Return how far a new master indexes its log before it numbers a message: to the end.

    RocketMQ waits until everything is dispatched; otherwise numbers would be used twice.
    """
    return max(confirm_offset, end)


def kept_at_promotion(confirm_offset: int, end: int) -> int:
    """Return how much of its log a new master keeps: all of it.

    The old master may have acknowledged messages between the confirm offset and the end.
    """
    return max(confirm_offset, end)
