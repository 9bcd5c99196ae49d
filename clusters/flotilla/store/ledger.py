"""The ledger: a record at the head of each segment that says where every queue stands.

    u8 topic size | topic | u16 queue | u64 next queue offset | ...

Retention deletes whole segments, and with them the last messages of quiet queues. Their next queue
offset must not start again at 0: consumers have gone further, and would take old offsets for new
ones. The original keeps a file of each queue, which a replica that copies the log from its present
beginning does not get. Here the log itself carries the offsets: whoever has it from the first byte
of a segment knows all of them. Retention never makes a log begin where no ledger is.
"""

import struct
from collections.abc import Iterable, Iterator

from ..net.wire import MAX_FRAME
from .record import HEAD_SIZE

Standing = tuple[bytes, int, int]  # topic, queue, next queue offset
KEY = b"ledger"  # in the place of a message's key, beside the empty topic
_MOST_OF_SEGMENT = 4  # a ledger takes at most this part of its segment, or there is none
_MOST_BYTES = MAX_FRAME // 2  # a record goes to slaves in one frame
_SIZE = struct.Struct(">B")
_PLACE = struct.Struct(">HQ")


def pack(standings: Iterable[Standing]) -> bytes:
    return b"".join(
        _SIZE.pack(len(topic)) + topic + _PLACE.pack(queue, following)
        for topic, queue, following in standings
    )


def unpack(body: bytes) -> Iterator[Standing]:
    at = 0
    while at < len(body):
        topic_at = at + _SIZE.size
        at = topic_at + body[at]
        yield body[topic_at:at], *_PLACE.unpack_from(body, at)
        at += _PLACE.size


def fits(record_size: int, message_size: int, segment_size: int) -> bool:
    """May a segment begin with a ledger of this size, if this message comes behind it?"""
    room = segment_size - message_size - HEAD_SIZE
    return record_size <= min(room, segment_size // _MOST_OF_SEGMENT, _MOST_BYTES)
