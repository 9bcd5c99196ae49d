"""Raft's term, vote and entries on disk.

    file     8 bytes magic | head | u32 CRC-32 of the head | records | zeros
    head     u64 base index | u64 base term | u32 size of the records that came with it
    record   u32 size of the body | u32 CRC-32 of size and body | body
    body     u64 term | u8 length of vote | vote | u64 first | u32 count | entries
    entry    u64 term | u8 kind | u32 size | data

A record holds everything of one `Effects`: the hard state as it is then, and, when `first` is not
0, entries that replace all from `first` on. It is written by one `pwrite` and synced before the
next is written. Size 0 is the end: the file is preallocated with zeros, and a torn tail of zeros is
not a record. The log begins behind `base`; to drop its beginning, the file is replaced by another
one with a later base, and what is left of the entries in its first record (Raft 7).

Only the last record can be torn, since every earlier one was synced before. So a bad record with
nothing good behind it is cut, and a good record behind a bad one proves that the disk lost
something this node had promised; such a node refuses to start rather than vote twice. The head, and
the record that came with it, were there as a whole or not at all, and are never cut.

The sync of the last record may have failed, and then it is read though it is not on disk, and no
sync covers it any more. So it is written again before it is believed (see `store/recovery.py`).
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ..world.ports import File, Files, patiently
from .log import START, EntryId, RaftLog
from .messages import LogEntry
from .votes import Vote

MAGIC = b"RAFTWAL2"
_BASE = struct.Struct(">QQI")
_CRC = struct.Struct(">I")
HEAD_BYTES = len(MAGIC) + _BASE.size + _CRC.size
_HEAD = struct.Struct(">II")
_TERM = struct.Struct(">QB")
_RANGE = struct.Struct(">QI")
ENTRY = struct.Struct(">QBI")
_MIN_BODY = _TERM.size + _RANGE.size
CHUNK = 256 * 1024


class WalDamaged(Exception):
    """Synced records are unreadable: the node's promises are lost. The text says which byte."""


@dataclass(frozen=True)
class RecoveredWal:
    vote: Vote
    base: EntryId
    entries: tuple[LogEntry, ...]
    end: int  # where the next record goes
    cut: int  # bytes behind `end` that were not zero
    last: int = HEAD_BYTES  # where the last record begins; `end` if there is none


class Wal:
    """The file, opened by `recover` and only written from then on."""

    def __init__(self, files: Files, path: str, end: int) -> None:
        self._files, self._path = files, path
        self._file: File = files.open(path)
        self._end = end

    @classmethod
    async def recover(cls, files: Files, path: str) -> tuple["Wal", RecoveredWal]:
        """Read what is there and make it durable; a torn tail is cut. WalDamaged: `path` can not be
        trusted."""
        if not files.exists(path):
            await files.replace(path, head(START))
        data = files.read(path)
        recovered = parse(data)
        wal = cls(files, path, recovered.end)
        if recovered.cut:
            wal._file.truncate(recovered.end)
        wal._file.pwrite(data[recovered.last : recovered.end], recovered.last)
        wal._reserve()
        await wal.sync()
        return wal, recovered

    def write(self, vote: Vote, first: int, entries: tuple[LogEntry, ...]) -> None:
        """Put a record at the end; it counts once `sync` has returned."""
        record = pack(vote, first, entries)
        self._file.pwrite(record, self._end)
        self._end += len(record)
        self._reserve()

    async def sync(self) -> None:
        await self._file.sync()

    async def rewrite(self, vote: Vote, base: EntryId, entries: tuple[LogEntry, ...]) -> None:
        """A log that begins behind `base`, and nothing of what was there. On disk at the end."""
        record = pack(vote, base.index + 1, entries)
        whole = head(base, len(record)) + record
        await patiently(lambda: self._files.replace(self._path, whole))
        former, self._file = self._file, await patiently(self._open)
        former.close()
        self._end = HEAD_BYTES + len(record)
        self._reserve()

    def close(self) -> None:
        self._file.close()

    async def _open(self) -> File:
        return self._files.open(self._path)

    def _reserve(self) -> None:
        """Room ahead, so that a sync writes data and not the file's size."""
        if self._file.size() < self._end + CHUNK // 4:
            self._file.allocate(self._end + CHUNK)


def head(base: EntryId, with_bytes: int = 0) -> bytes:
    packed = _BASE.pack(base.index, base.term, with_bytes)
    return MAGIC + packed + _CRC.pack(zlib.crc32(packed))


def pack(vote: Vote, first: int, entries: tuple[LogEntry, ...]) -> bytes:
    voted_for = (vote.voted_for or "").encode()
    parts = [_TERM.pack(vote.term, len(voted_for)), voted_for, _RANGE.pack(first, len(entries))]
    for entry in entries:
        parts += (ENTRY.pack(entry.term, entry.kind, len(entry.data)), entry.data)
    body = b"".join(parts)
    return _HEAD.pack(len(body), _checksum(len(body), body)) + body


def parse(data: bytes) -> RecoveredWal:
    """Replay all records; WalDamaged when what was surely synced is unreadable."""
    base, with_bytes = _parse_head(data)
    return replay(data, HEAD_BYTES, base, ENTRY, HEAD_BYTES + with_bytes)


def replay(data: bytes, at: int, base: EntryId, entry: struct.Struct, least: int) -> RecoveredWal:
    """The records from byte `at` on, whose entries begin so; those before `least` were synced with
    what is before them. WalDamaged."""
    vote, log, end, last = Vote(), RaftLog(base=base), at, at
    for body, next_end in _records(data, at):
        vote, first, entries = _unpack(body, entry)
        if first:
            _put(log, first, entries, end)
        last, end = end, next_end
    if end < least:
        raise WalDamaged(f"byte {end}: the record that came with the head is unreadable")
    tail = data[end:].rstrip(b"\0")
    _refuse_if_good_follows(data, end, len(tail))
    return RecoveredWal(vote, base, log.since(base.index + 1), end, len(tail), last)


def _put(log: RaftLog, first: int, entries: tuple[LogEntry, ...], at: int) -> None:
    try:
        log.replace(first, entries)
    except ValueError as e:
        raise WalDamaged(f"byte {at}: {e}") from e


def _parse_head(data: bytes) -> tuple[EntryId, int]:
    if data[: len(MAGIC)] != MAGIC:
        raise WalDamaged("byte 0: it does not begin as a Raft log does")
    packed = data[len(MAGIC) : len(MAGIC) + _BASE.size]
    if data[len(MAGIC) + _BASE.size : HEAD_BYTES] != _CRC.pack(zlib.crc32(packed)):
        raise WalDamaged(f"byte {len(MAGIC)}: the head does not match its checksum")
    index, term, with_bytes = _BASE.unpack(packed)
    return EntryId(index, term), with_bytes


def _records(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    while (body := record_at(data, at)) is not None:
        at += _HEAD.size + len(body)
        yield body, at


def record_at(data: bytes, at: int) -> bytes | None:
    """The body of the sound record there; None when there is none."""
    if at + _HEAD.size > len(data):
        return None
    size, crc = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if size < _MIN_BODY or start + size > len(data):
        return None
    body = data[start : start + size]
    return body if _checksum(size, body) == crc else None


def _unpack(body: bytes, entry: struct.Struct) -> tuple[Vote, int, tuple[LogEntry, ...]]:
    term, vote_size = _TERM.unpack_from(body)
    at = _TERM.size + vote_size
    voted_for = body[_TERM.size : at].decode() or None
    first, count = _RANGE.unpack_from(body, at)
    at += _RANGE.size
    entries = []
    for _ in range(count):
        entry_term, *kind, size = entry.unpack_from(body, at)
        at += entry.size + size
        entries.append(LogEntry(entry_term, body[at - size : at], *kind))
    return Vote(term, voted_for), first, tuple(entries)


def _refuse_if_good_follows(data: bytes, bad: int, size: int) -> None:
    for at in range(bad + 1, bad + size):
        if record_at(data, at) is not None:
            raise WalDamaged(f"byte {bad}: the record is unreadable, yet one at {at} is sound")


def _checksum(size: int, body: bytes) -> int:
    return zlib.crc32(body, size)
