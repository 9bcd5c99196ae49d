"""The record at the head of each segment with the next offset of every queue (`ledger` on disk).

    u8 topic size | topic | u16 queue | u64 next queue offset | ...

Retention deletes whole segments, and with them the last messages of quiet queues. Their next queue
offset must not start at 0 again: consumers are further, and would take reused offsets for old ones.
RocketMQ keeps a file for each queue, which a replica that copies the log from its present beginning
does not get. Here the log itself has the offsets: a replica that has it from the first byte of a
segment has all of them. Retention never makes a log begin at a segment without this record.
"""

import struct
from collections.abc import Iterable, Iterator

from ..net.wire import MAX_FRAME
from .record import HEAD_SIZE

QueueEnd = tuple[bytes, int, int]  # topic, queue, next queue offset
KEY = b"ledger"  # as the key of the record, which has no topic
_MAX_PART_OF_SEGMENT = 4  # the record takes at most a quarter of its segment, or is left out
_MAX_BYTES = MAX_FRAME // 2  # slaves get a record in one frame
_SIZE = struct.Struct(">B")
_PLACE = struct.Struct(">HQ")


def pack(ends: Iterable[QueueEnd]) -> bytes:
    return b"".join(
        _SIZE.pack(len(topic)) + topic + _PLACE.pack(queue, following)
        for topic, queue, following in ends
    )


def unpack(body: bytes) -> Iterator[QueueEnd]:
    at = 0
    while at < len(body):
        topic_at = at + _SIZE.size
        at = topic_at + body[at]
        yield body[topic_at:at], *_PLACE.unpack_from(body, at)
        at += _PLACE.size


def fits(record_size: int, message_size: int, segment_size: int) -> bool:
    """Return whether a segment may begin with such a record, followed by this message."""
    room = segment_size - message_size - HEAD_SIZE
    return record_size <= min(room, segment_size // _MAX_PART_OF_SEGMENT, _MAX_BYTES)
