"""Raft's term, vote and entries on disk.

    file     8 bytes magic | head | u32 CRC-32 of the head | records | zeros
    head     u64 base index | u64 base term | u32 size of the records that came with it
    record   u32 size of the body | u32 CRC-32 of size and body | body
    body     u64 term | u8 length of vote | vote | u64 first | u32 count | entries
    entry    u64 term | u8 kind | u32 size | data

A record holds everything of one `RaftEffects`: the hard state and, if `first` is not 0, entries
that replace all from `first` on. It is written by one `pwrite` and synced before the next is
written. Size 0 is the end: the file is preallocated with zeros, and a torn tail of zeros is not a
record. The log begins behind `base`. To drop its beginning, the file is replaced by one with a
later base whose first record holds the remaining entries (Raft 7).

Only the last record can be torn, since every earlier one was synced before. So a bad record with no
good one behind it is cut. A good record behind a bad one proves that the disk lost something that
this node had promised; such a node refuses to start rather than vote twice. The head, and the
record that came with it, were written as a whole or not at all, and are never cut.

If the sync of the last record failed, the record can be read although it is not on disk, and no
later sync covers it. So it is written again before it is trusted (see `store/recovery.py`).

The first edition had neither snapshots nor changes of the members. Its file has no head, and its
entries have no kind, since all were for the state machine. A member that starts converts such a
file, as a whole or not at all, before it sends anything. The first edition cannot read the result:
there is no way back.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ..world.ports import File, FileSystem, retry_when_out_of_files
from .log import START, EntryId, RaftLog
from .messages import LogEntry
from .votes import Vote

MAGIC = b"RAFTWAL2"
_BASE = struct.Struct(">QQI")
_CRC = struct.Struct(">I")
HEAD_BYTES = len(MAGIC) + _BASE.size + _CRC.size
_RECORD_HEAD = struct.Struct(">II")
_TERM = struct.Struct(">QB")
_RANGE = struct.Struct(">QI")
_ENTRY = struct.Struct(">QBI")
_FIRST_EDITION_ENTRY = struct.Struct(">QI")  # term, size of the data
_MIN_BODY = _TERM.size + _RANGE.size
CHUNK_BYTES = 256 * 1024


class WalDamaged(Exception):
    """Synced records are unreadable, so promises are lost. The text says which byte."""


@dataclass(frozen=True)
class RecoveredWal:
    vote: Vote
    base: EntryId
    entries: tuple[LogEntry, ...]
    end: int  # the offset of the next record
    cut: int  # bytes behind `end` that were not zero
    last: int = HEAD_BYTES  # the offset of the last record; `end` if there is none


class Wal:
    """The file. `recover` reads it; from then on it is only written."""

    def __init__(self, files: FileSystem, path: str, end: int) -> None:
        self._files, self._path = files, path
        self._file: File = files.open(path)
        self._end = end

    @classmethod
    async def recover(cls, files: FileSystem, path: str) -> tuple["Wal", RecoveredWal]:
        """Read the file and make its content durable; cut a torn tail. Raises WalDamaged."""
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
        """Append a record. It counts when `sync` has returned."""
        record = pack(vote, first, entries)
        self._file.pwrite(record, self._end)
        self._end += len(record)
        self._reserve()

    async def sync(self) -> None:
        await self._file.sync()

    async def rewrite(self, vote: Vote, base: EntryId, entries: tuple[LogEntry, ...]) -> None:
        """Replace the log by one that begins behind `base`. It is on disk on return."""
        record = pack(vote, base.index + 1, entries)
        whole = head(base, len(record)) + record
        await retry_when_out_of_files(lambda: self._files.replace(self._path, whole))
        former, self._file = self._file, await retry_when_out_of_files(self._open)
        former.close()
        self._end = HEAD_BYTES + len(record)
        self._reserve()

    def close(self) -> None:
        self._file.close()

    async def _open(self) -> File:
        return self._files.open(self._path)

    def _reserve(self) -> None:
        """Allocate space ahead, so that a sync writes data and not the file's size."""
        if self._file.size() < self._end + CHUNK_BYTES // 4:
            self._file.allocate(self._end + CHUNK_BYTES)


def head(base: EntryId, with_bytes: int = 0) -> bytes:
    packed = _BASE.pack(base.index, base.term, with_bytes)
    return MAGIC + packed + _CRC.pack(zlib.crc32(packed))


def pack(vote: Vote, first: int, entries: tuple[LogEntry, ...]) -> bytes:
    voted_for = (vote.voted_for or "").encode()
    parts = [_TERM.pack(vote.term, len(voted_for)), voted_for, _RANGE.pack(first, len(entries))]
    for entry in entries:
        parts += (_ENTRY.pack(entry.term, entry.kind, len(entry.data)), entry.data)
    body = b"".join(parts)
    return _RECORD_HEAD.pack(len(body), _checksum(len(body), body)) + body


def parse(data: bytes) -> RecoveredWal:
    """Replay all records. Raises WalDamaged if a record that was synced is unreadable."""
    base, with_bytes = _parse_head(data)
    return _replay(data, HEAD_BYTES, base, _ENTRY, HEAD_BYTES + with_bytes)


def _replay(data: bytes, at: int, base: EntryId, entry: struct.Struct, synced: int) -> RecoveredWal:
    """Replay the records from byte `at` on. `entry`: the head of their entries; bytes before
    `synced` were synced with what is before them. Raises WalDamaged."""
    vote, log, end, last = Vote(), RaftLog(base=base), at, at
    for body, next_end in _records(data, at):
        vote, first, entries = _unpack(body, entry)
        if first:
            _put(log, first, entries, end)
        last, end = end, next_end
    if end < synced:
        raise WalDamaged(f"byte {end}: the record that came with the head is unreadable")
    tail = data[end:]
    cut = 0 if tail == bytes(len(tail)) else len(tail.rstrip(b"\0"))  # rstrip is slow
    _refuse_if_good_follows(data, end, cut)
    return RecoveredWal(vote, base, log.entries_from(base.index + 1), end, cut, last)


def parse_first_edition(data: bytes) -> RecoveredWal:
    """Replay a log of the first edition. Raises WalDamaged."""
    return _replay(data, 0, START, _FIRST_EDITION_ENTRY, synced=0)


async def convert_first_edition(files: FileSystem, path: str) -> bool:
    """Convert a log of the first edition. Return False if it is not one. Raises WalDamaged."""
    data = files.read(path) if files.exists(path) else b""
    if _record_at(data, 0) is None:
        return False
    recovered = parse_first_edition(data)
    record = pack(recovered.vote, 1, recovered.entries)
    await files.replace(path, head(START, len(record)) + record)
    return True


def _put(log: RaftLog, first: int, entries: tuple[LogEntry, ...], at: int) -> None:
    try:
        log.replace(first, entries)
    except ValueError as e:
        raise WalDamaged(f"byte {at}: {e}") from e


def _parse_head(data: bytes) -> tuple[EntryId, int]:
    if data[: len(MAGIC)] != MAGIC:
        raise WalDamaged("byte 0: it does not begin like a Raft log")
    packed = data[len(MAGIC) : len(MAGIC) + _BASE.size]
    if data[len(MAGIC) + _BASE.size : HEAD_BYTES] != _CRC.pack(zlib.crc32(packed)):
        raise WalDamaged(f"byte {len(MAGIC)}: the head does not match its checksum")
    index, term, with_bytes = _BASE.unpack(packed)
    return EntryId(index, term), with_bytes


def _records(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    while (body := _record_at(data, at)) is not None:
        at += _RECORD_HEAD.size + len(body)
        yield body, at


def _record_at(data: bytes, at: int) -> bytes | None:
    """Return the body of the record at `at`; None if there is no sound record."""
    if at + _RECORD_HEAD.size > len(data):
        return None
    size, crc = _RECORD_HEAD.unpack_from(data, at)
    start = at + _RECORD_HEAD.size
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
        if _record_at(data, at) is not None:
            raise WalDamaged(f"byte {bad}: the record is unreadable, but the one at {at} is sound")


def _checksum(size: int, body: bytes) -> int:
    return zlib.crc32(body, size)
