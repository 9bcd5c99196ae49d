"""The index of a full segment, saved so that the next start need not read the segment.

    consumequeue/<first offset>   one file for each segment that is on disk and confirmed

It has the positions of the segment's records by queue, the positions of its fillers, its epochs,
and its messages' keys by hash (`key_index`). It is made from memory when the segment is full and
synced, never changed, and durably removed before its segment is truncated or deleted, so it has
nothing that the log does not have. A clean stop also writes one for the first part of the last
segment; recovery scans from its end. A missing or damaged file costs the scan of a segment.

Numbers are in the byte order of the machine, which the magic number shows.
"""

import struct
from array import array
from dataclasses import dataclass, field
from zlib import crc32

Run = tuple[int, int]  # epoch, where its records begin
Stretch = tuple[bytes, int, int, "array[int]"]  # topic, queue, first queue offset, positions

_MAGIC = 0x464C4F5458303031
_HEAD = struct.Struct("=QI")  # magic, CRC of the rest
_COUNTS = struct.Struct("=QQIIII")  # base, end, runs, stretches, fillers, keys
_RUN = struct.Struct("=QQ")
_STRETCH = struct.Struct("=BHQI")  # topic size, queue, first queue offset, positions


@dataclass(frozen=True)
class SegmentIndex:
    """The records from `base` to `end`; `hashes` of keys and the `places` of their messages."""

    base: int
    end: int
    runs: list[Run]
    stretches: list[Stretch]
    fillers: "array[int]"
    hashes: "array[int]" = field(default_factory=lambda: array("I"))
    places: "array[int]" = field(default_factory=lambda: array("Q"))

    @property
    def records(self) -> int:
        return len(self.fillers) + sum(len(positions) for *_, positions in self.stretches)


def pack(index: SegmentIndex) -> bytes:
    counts = len(index.runs), len(index.stretches), len(index.fillers), len(index.hashes)
    parts = [_COUNTS.pack(index.base, index.end, *counts)]
    parts += (_RUN.pack(*run) for run in index.runs)
    for topic, queue, first, positions in index.stretches:
        parts += (_STRETCH.pack(len(topic), queue, first, len(positions)), topic)
        parts.append(positions.tobytes())
    parts += (index.fillers.tobytes(), index.places.tobytes(), index.hashes.tobytes())
    rest = b"".join(parts)
    return _HEAD.pack(_MAGIC, crc32(rest)) + rest


def unpack(data: bytes) -> SegmentIndex:
    """Parse a file. Raises ValueError if it is damaged or of another byte order."""
    if len(data) < _HEAD.size + _COUNTS.size:
        raise ValueError("it ends too early")
    magic, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc32(memoryview(data)[_HEAD.size :]) != crc:
        raise ValueError("its check sum does not match")
    return _unpack(data)


def _unpack(data: bytes) -> SegmentIndex:
    base, end, runs, stretches, fillers, keys = _COUNTS.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _COUNTS.size
    found_runs = [_RUN.unpack_from(data, at + i * _RUN.size) for i in range(runs)]
    at += runs * _RUN.size
    found: list[Stretch] = []
    for _ in range(stretches):
        size, queue, first, count = _STRETCH.unpack_from(data, at)
        topic_at = at + _STRETCH.size
        at = topic_at + size + 8 * count
        topic = data[topic_at : topic_at + size]
        found.append((topic, queue, first, _longs(data[topic_at + size : at])))
    hashes_at = len(data) - 4 * keys
    return SegmentIndex(
        base,
        end,
        found_runs,
        found,
        _longs(data[at : at + 8 * fillers]),
        array("I", data[hashes_at:]),
        _longs(data[hashes_at - 8 * keys : hashes_at]),
    )


def _longs(data: bytes) -> "array[int]":
    return array("Q", data)
