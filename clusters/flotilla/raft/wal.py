"""Raft's term, vote and entries on disk.

One file of records, each written by one `pwrite` and synced before the next is written:

    u32 size of the body | u32 CRC-32 of size and body | body
    body     u64 term | u8 length of vote | vote | u64 first | u32 count | entries
    entry    u64 term | u32 size | data

A record holds everything of one `Effects`: the hard state as it is then, and, when `first` is not
0, entries that replace all from `first` on. Size 0 is the end: the file is preallocated with zeros,
and a torn tail of zeros is not a record.

Only the last record can be torn, since every earlier one was synced before. So a bad record with
nothing good behind it is cut, and a good record behind a bad one proves that the disk lost
something this node had promised; such a node refuses to start rather than vote twice.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ..ports import File, Files
from .core import Vote
from .log import Log
from .messages import Entry

_HEAD = struct.Struct(">II")
_TERM = struct.Struct(">QB")
_RANGE = struct.Struct(">QI")
_ENTRY = struct.Struct(">QI")
_LEAST_BODY = _TERM.size + _RANGE.size
CHUNK = 256 * 1024


class WalDamaged(Exception):
    """Synced records are unreadable: the node's promises are lost."""


@dataclass(frozen=True)
class Recovered:
    vote: Vote
    entries: tuple[Entry, ...]
    end: int  # where the next record goes
    cut: int  # bytes behind `end` that were not zero


class Wal:
    """The file, opened by `recover` and only written from then on."""

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._end = end

    @classmethod
    async def recover(cls, files: Files, path: str) -> tuple["Wal", Recovered]:
        """Read what is there, cut a torn tail. WalDamaged: `path` can not be trusted."""
        file = files.open(path)
        recovered = parse(file.pread(file.size(), 0))
        if recovered.cut:
            file.truncate(recovered.end)
        wal = cls(file, recovered.end)
        wal._reserve()
        await file.sync()
        await files.sync_folder(path.rpartition("/")[0])
        return wal, recovered

    def write(self, vote: Vote, first: int, entries: tuple[Entry, ...]) -> None:
        """Put a record at the end; it counts once `sync` has returned."""
        record = pack(vote, first, entries)
        self._file.pwrite(record, self._end)
        self._end += len(record)
        self._reserve()

    async def sync(self) -> None:
        await self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _reserve(self) -> None:
        """Room ahead, so that a sync writes data and not the file's size."""
        if self._file.size() < self._end + CHUNK // 4:
            self._file.allocate(self._end + CHUNK)


def pack(vote: Vote, first: int, entries: tuple[Entry, ...]) -> bytes:
    voted_for = (vote.voted_for or "").encode()
    parts = [_TERM.pack(vote.term, len(voted_for)), voted_for, _RANGE.pack(first, len(entries))]
    for entry in entries:
        parts += (_ENTRY.pack(entry.term, len(entry.data)), entry.data)
    body = b"".join(parts)
    return _HEAD.pack(len(body), _checksum(len(body), body)) + body


def parse(data: bytes) -> Recovered:
    """Replay all records; WalDamaged when a good one follows a bad one."""
    vote, log, end = Vote(), Log(), 0
    for body, next_end in _records(data):
        vote, first, entries = _unpack(body)
        if first:
            log.replace(first, entries)
        end = next_end
    tail = data[end:].rstrip(b"\0")
    _refuse_if_good_follows(data, end, len(tail))
    return Recovered(vote, log.since(1), end, len(tail))


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while (body := _record_at(data, at)) is not None:
        at += _HEAD.size + len(body)
        yield body, at


def _record_at(data: bytes, at: int) -> bytes | None:
    if at + _HEAD.size > len(data):
        return None
    size, crc = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if size < _LEAST_BODY or start + size > len(data):
        return None
    body = data[start : start + size]
    return body if _checksum(size, body) == crc else None


def _unpack(body: bytes) -> tuple[Vote, int, tuple[Entry, ...]]:
    term, vote_size = _TERM.unpack_from(body)
    at = _TERM.size + vote_size
    voted_for = body[_TERM.size : at].decode() or None
    first, count = _RANGE.unpack_from(body, at)
    at += _RANGE.size
    entries = []
    for _ in range(count):
        entry_term, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size + size
        entries.append(Entry(entry_term, body[at - size : at]))
    return Vote(term, voted_for), first, tuple(entries)


def _refuse_if_good_follows(data: bytes, bad: int, size: int) -> None:
    for at in range(bad + 1, bad + size):
        if _record_at(data, at) is not None:
            raise WalDamaged(f"the record at {bad} is unreadable, yet one at {at} is sound")


def _checksum(size: int, body: bytes) -> int:
    return zlib.crc32(body, size)
