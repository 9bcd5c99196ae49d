"""What a slave takes for its master's records, before any of them touches its log (spec 7.2).

The CRC shows that bytes arrived as they were sent, not that a sound master sent them. What no sound
log contains is refused as Senseless, which ends the connection: records of another epoch than
announced, one that crosses a segment or leaves a rest that no filler fits into, a queue offset that
leaves a hole (filling one of 2**60 would take all memory) or lies before the queue's first, a
ledger that can not be read.
"""

import struct
from collections.abc import Sequence

from ..net.wire import Senseless
from . import ledger, record
from .consume_queue import Key, QueueIndex

MOST_QUEUE_OFFSET = 2**62


def check(
    found: Sequence[record.Entry], data: bytes, epoch: int, segment_size: int, index: QueueIndex
) -> None:
    """`found`: the records of `data`."""
    start = found[0].offset
    ends: dict[Key, int] = {}
    for e in found:
        if e.epoch != epoch:
            raise Senseless(f"records of another epoch than {epoch}")
        rest = -e.end % segment_size
        if e.size + rest > segment_size - e.offset % segment_size or 0 < rest < record.HEAD_SIZE:
            raise Senseless(f"a record from {e.offset} to {e.end} in segments of {segment_size}")
        if e.topic:
            _check_queue_offset(e, ends, index)
        elif e.key == ledger.KEY:
            _check_ledger(record.payload(data, e.offset - start, e.offset).body)


def _check_queue_offset(e: record.Entry, ends: dict[Key, int], index: QueueIndex) -> None:
    key = (e.topic, e.queue)
    queue = index.queues.get(key)
    known = queue is not None and len(queue.positions) > 0
    end = ends.get(key, queue.end if queue and known else None)
    low = queue.base if queue and known else 0
    if e.queue_offset >= MOST_QUEUE_OFFSET or (
        end is not None and not low <= e.queue_offset <= end
    ):
        raise Senseless(f"queue offset {e.queue_offset} behind {end} at {e.offset}")
    ends[key] = max(end or 0, e.queue_offset + 1)


def _check_ledger(body: bytes) -> None:
    try:
        standings = list(ledger.unpack(body))
    except (IndexError, struct.error) as e:
        raise Senseless(f"a ledger that cannot be read: {e}") from e
    if any(following >= MOST_QUEUE_OFFSET for _, _, following in standings):
        raise Senseless("a ledger of queue offsets that no queue has")
