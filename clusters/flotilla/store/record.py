"""The records of the commit log.

    u32 size | u32 crc | u64 offset | u32 epoch | u16 queue | u8 topic size | u16 key size
    | u64 queue offset | u64 store time in ms | topic | key | body

`size` counts the whole record; a size of 0 is the end of the log. The CRC covers everything after
it, including the record's own physical offset and epoch, so neither a tail of zeros nor a record
from elsewhere passes for a sound one. Records never cross segments: the rest of a segment is one
*filler*, so every byte of the log belongs to a record and slaves copy the log as plain bytes.
Fillers and queue ends (queue_ends.py) hold no message: their topic is empty.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

_PREFIX = struct.Struct(">II")
_REST = struct.Struct(">QIHBHQQ")
_ENTRY = struct.Struct(">IIQIHBHQQ")
HEAD_SIZE = _ENTRY.size
_CRC_END = _PREFIX.size


class DamagedRecord(ValueError):
    """The bytes are not the record that should be here."""


class RecordHeader(NamedTuple):
    """The position of a record, and the message that it holds. Fillers have no topic."""

    offset: int
    size: int
    epoch: int
    topic: bytes
    queue: int
    queue_offset: int
    key: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


class Payload(NamedTuple):
    """The part of a record that consumers get. `crc` is that of key and body."""

    queue_offset: int
    epoch: int
    crc: int
    key: bytes
    body: bytes
    stored_ms: int


def encode(
    offset: int,
    epoch: int,
    topic: bytes,
    queue: int,
    queue_offset: int,
    store_ms: int,
    key: bytes,
    body: bytes,
) -> bytes:
    head = _REST.pack(offset, epoch, queue, len(topic), len(key), queue_offset, store_ms)
    rest = b"".join((head, topic, key, body))
    return _PREFIX.pack(len(rest) + _PREFIX.size, crc32(rest)) + rest


def stored_content(key: bytes, body: bytes, begins_segment: bool) -> tuple[bytes, bytes]:
    """Return the key and the body that the record of a message holds: those that were sent.

    `begins_segment`: the rest of the segment before was too small for the record.
    """
    return key, body


def size_of(topic: bytes, key: bytes, body: bytes) -> int:
    return HEAD_SIZE + len(topic) + len(key) + len(body)


def filler(offset: int, epoch: int, size: int, store_ms: int) -> bytes:
    """Return a record of exactly `size` bytes (at least HEAD_SIZE) without a message."""
    return encode(offset, epoch, b"", 0, 0, store_ms, b"", bytes(size - HEAD_SIZE))


def entry(data: bytes, at: int, offset: int) -> RecordHeader | None:
    """Return the record at `data[at:]`, at `offset` of the log; None if it is not sound."""
    return next(entries(data, offset - at, at), None)


def entries(
    data: bytes, offset: int, at: int = 0, *, checked: bool = True
) -> Iterator[RecordHeader]:
    """Yield the sound records from `data[at:]` on; `data` begins at `offset` in the log.

    Without `checked`, the CRC is ignored.
    """
    view, end, unpack = memoryview(data), len(data), _ENTRY.unpack_from
    while end - at >= HEAD_SIZE:
        size, crc, own, epoch, queue, topic_size, key_size, queue_offset, _ = unpack(data, at)
        if own != offset + at or not HEAD_SIZE + topic_size + key_size <= size <= end - at:
            return
        if checked and crc32(view[at + _CRC_END : at + size]) != crc:
            return
        topic_at = at + HEAD_SIZE
        key_at = topic_at + topic_size
        topic, key = data[topic_at:key_at], data[key_at : key_at + key_size]
        yield RecordHeader(own, size, epoch, topic, queue, queue_offset, key)
        at += size


def payload(data: bytes, at: int, offset: int) -> Payload:
    """Return the message of the record at `data[at:]`. Raises DamagedRecord."""
    if entry(data, at, offset) is None:
        raise DamagedRecord(f"the record at offset {offset} is damaged")
    head = _ENTRY.unpack_from(data, at)
    size, _, _, epoch, _, topic_size, key_size, queue_offset, stored_ms = head
    key_at = at + HEAD_SIZE + topic_size
    body_at = key_at + key_size
    key, body = data[key_at:body_at], data[body_at : at + size]
    return Payload(queue_offset, epoch, crc32(body, crc32(key)), key, body, stored_ms)


def declared_size(data: bytes, at: int) -> int:
    """Return the declared size of the record at `data[at:]`, 0 at the end of the log or data."""
    if len(data) - at < _PREFIX.size:
        return 0
    size: int = _PREFIX.unpack_from(data, at)[0]
    return size


def whole(data: bytes) -> int:
    """Return how many bytes at the front of `data` are whole records, by declared sizes."""
    at = 0
    while size := declared_size(data, at):
        if at + size > len(data):
            break
        at += size
    return at


def sound(data: bytes, offset: int) -> int:
    """Return how many bytes at the front of `data`, at `offset` of the log, are sound records."""
    end = offset
    for e in entries(data, offset):
        end = e.end
    return end - offset


def stored_ms(head: bytes) -> int:
    """Return the store time of the record that begins with `head`, 0 at the end of the log."""
    if len(head) < HEAD_SIZE or not declared_size(head, 0):
        return 0
    at_ms: int = _ENTRY.unpack_from(head)[-1]
    return at_ms
