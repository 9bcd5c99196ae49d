"""The commit log: one stream of records in preallocated segments, addressed by byte offset.

    commitlog/00000000000000000000, 00000000000067108864, ...   named by their first offset

Appends are collected and written once per turn of the event loop. Three positions follow each
other: `max_offset` (appended), `written` (given to the kernel: survives the death of the process)
and `flushed` (on disk: survives the loss of power). Nothing is acknowledged or sent to a slave
before it is written. With `commit_interval_s` (RocketMQ's `transientStorePoolEnable`) a master's
appends wait in memory that long and are written together; a killed process loses them, but none of
them was acknowledged. A slave's appends are always written at once.

Truncation is durable before anything new may be written: later segments are removed from the last
one down, the rest of the truncated one becomes zeros, and both are synced. A crash in between
leaves a prefix of the old log; a truncated fork can never return (apache/rocketmq#10666).

A segment is allocated before the first byte of a record that needs it is accepted (`reserve`), so a
full disk refuses records and tears none. When a write or a sync fails nevertheless, the state of
the disk is unknown and the process stops. It also stops when a record that was once sound is
damaged, and names the file and the byte.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from ..net.connection import Tasks
from ..world.choices import MAX_SYNC_DELAY_S, delay
from ..world.ports import (
    RETRY_S,
    File,
    Ports,
    is_out_of_files,
    is_out_of_space,
    retry_when_out_of_files,
)
from . import record
from .flushing import flushed_by_write

NAME_DIGITS = 20
_READ_AHEAD = 64 * 1024
_PORTION = 1 << 20  # bytes that are read at a time


class StoreError(Exception):
    """The store cannot be opened; the text says why and what to do."""


class DiskFull(ValueError):
    """There is no room for these records; none of them was accepted."""


def ignore() -> None:
    """A listener that does nothing."""


class CommitLog:
    """One broker's log. `recovery.recover` opens it and finds its end."""

    def __init__(
        self,
        folder: str,
        segment_size: int,
        ports: Ports,
        *,
        sync_flush: bool,
        commit_interval_s: float = 0.0,
        flushed_by_write: Callable[[int, int, int], int] = flushed_by_write,
    ) -> None:
        self.segment_size = segment_size
        self.full, self.why_full = False, "the disk is full"
        self.min_offset = self.max_offset = self.written = self.flushed = 0
        self.on_written: Callable[[], None] = ignore
        self.on_flushed: Callable[[], None] = ignore
        self.on_damaged: Callable[[int], None] = lambda base: None
        self._folder = folder
        self._ports = ports
        self._sync_flush = sync_flush
        self._commit_interval_s = commit_interval_s
        self._flushed_by_write = flushed_by_write
        self._segments: dict[int, File] = {}
        self._pending: list[bytes] = []
        self._tail = (0, b"")
        self._dirty: dict[int, File] = {}
        self._made = True  # files of an earlier process may not be durable yet
        self._sync_wanted = self._syncing = False
        self._disk = asyncio.Lock()
        self._tasks = Tasks()
        ports.files.makedirs(folder)

    # opening

    def bases(self) -> list[int]:
        """Return the first offsets of the segments on disk, sorted."""
        names = self._ports.files.listdir(self._folder)
        bases = sorted(int(name) for name in names if name.isdigit())
        if any(base % self.segment_size for base in bases):
            raise StoreError(
                f"the segments in {self._folder} were made with another mappedFileSizeCommitLog; "
                "set it as it was, or start with an empty store"
            )
        return bases

    def open_at(self, base: int, end: int) -> None:
        """Open the segments from `base` on as a log that ends at `end`; remove earlier ones."""
        for known in self.bases():
            if base <= known <= end:
                self._open(known)
            elif known < base:
                self._remove(known)
        self.min_offset, self.max_offset, self.written = base, end, end
        self._tail = (end, b"")

    def write_again(self, flushed: int) -> None:
        """Write again what is after `flushed`, and the last page.

        A sync of it by an earlier process may have failed. Then the pages are clean for the kernel
        and not on disk, and no sync covers them.
        """
        at = max(min(flushed, self.written - 1), self.min_offset)
        try:
            while at < self.written:
                data = self.read(at, _PORTION)
                self._write(data, at)
                at += len(data)
        except OSError as e:
            self._fail(f"the commit log cannot be written again: {e}, at {self.place_of(at)}")

    # appending

    def room(self, size: int) -> int:
        """Return the size of the filler needed before a record of `size` bytes, 0 for none."""
        left = self.segment_size - self.max_offset % self.segment_size
        return 0 if size + record.HEAD_SIZE <= left else left

    def reserve(self, size: int) -> bool:
        """Allocate room on disk for a record of `size` bytes; return whether there is room."""
        start = self.max_offset + self.room(size)
        return self._reserve(start - start % self.segment_size)

    def _reserve(self, base: int) -> bool:
        if base in self._segments:
            return True
        if self.full:
            return False
        try:
            self._open(base)
        except OSError as e:
            if not is_out_of_space(e):
                self._fail(f"{self.path(base)} cannot be made: {e}")
            self._remove(base)
            self._refuse(e)
        return not self.full

    def _refuse(self, e: OSError) -> None:
        """Refuse records until the disk is checked again, or descriptors may be free again."""
        self.full, self.why_full = True, "the disk is full"
        if is_out_of_files(e):
            self.why_full = "too many files are open"
            asyncio.get_running_loop().call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self.full = False

    def append(self, data: bytes) -> int:
        """Append whole records; return the offset after them.

        They are written at the end of this turn, or after `commit_interval_s`.
        """
        if not self._pending:
            loop = asyncio.get_running_loop()
            if self._commit_interval_s:
                loop.call_later(self._commit_interval_s, self.write_out)
            else:
                loop.call_soon(self.write_out)
        self._pending.append(data)
        self.max_offset += len(data)
        return self.max_offset

    def append_copy(self, data: bytes) -> None:
        """Append a master's records; they are written at the end of this turn. Raises DiskFull."""
        first = self.max_offset - self.max_offset % self.segment_size
        for base in range(first, self.max_offset + len(data), self.segment_size):
            if not self._reserve(base):
                raise DiskFull(self.why_full)
        if self._commit_interval_s:
            asyncio.get_running_loop().call_soon(self.write_out)
        self.append(data)

    def write_out(self) -> None:
        """Write what is pending; call the listener."""
        if not self._pending:
            return
        data, records = b"".join(self._pending), len(self._pending)
        self._pending.clear()
        try:
            self._write(data, self.written)
        except OSError as e:
            place = self.place_of(self.written)
            self._fail(f"the commit log cannot be written: {e}, at {place} or after it")
        self._tail = (self.written, data)
        self.written += len(data)
        self.flushed = self._flushed_by_write(records, self.written, self.flushed)
        if self._sync_flush:
            self.request_sync()
        self.on_written()

    def _write(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            base = offset - offset % self.segment_size
            part = view[: base + self.segment_size - offset]
            file = self._segments.get(base) or self._open(base)
            file.pwrite(part, offset - base)
            self._dirty[base] = file
            offset += len(part)
            view = view[len(part) :]

    def _open(self, base: int) -> File:
        path = self.path(base)
        self._made = self._made or not self._ports.files.exists(path)
        file = self._ports.files.open(path)
        if file.size() < self.segment_size:
            self._allocate(file)
        self._segments[base] = self._dirty[base] = file
        return file

    def _allocate(self, file: File) -> None:
        try:
            file.allocate(self.segment_size)
        except OSError:
            file.close()
            raise

    def path(self, base: int) -> str:
        return f"{self._folder}/{base:0{NAME_DIGITS}d}"

    def place_of(self, offset: int) -> str:
        """Return the byte and the file of an offset, for messages."""
        at = offset % self.segment_size
        return f"byte {at} of {self.path(offset - at)}"

    # reading

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` written bytes from `offset` on, never across a segment's end."""
        if offset < self.min_offset:
            raise ValueError(f"the log before {self.min_offset} is deleted; {offset} was asked for")
        size = min(size, self.written - offset)
        tail_at, tail = self._tail
        if offset >= tail_at:
            return tail[offset - tail_at : offset - tail_at + size]
        base = offset - offset % self.segment_size
        return self.segment_read(base, offset, min(size, base + self.segment_size - offset))

    def segment_read(self, base: int, offset: int, size: int) -> bytes:
        try:
            return self._segments[base].pread(size, offset - base)
        except OSError as e:
            self._fail(f"the commit log cannot be read: {e}, at {self.place_of(offset)}")

    def records(self, offset: int, size: int) -> bytes:
        """Whole records from `offset` on: as many as fit into `size`, but at least one.

        Records from the disk are checked, since a slave could only refuse damaged ones.
        """
        data = self.read(offset, size)
        if offset < self._tail[0]:
            return self._sound_records(offset, data)
        if offset + len(data) == self.written:
            return data
        fit = record.whole(data)
        if fit == 0:
            return self.read(offset, record.declared_size(data, 0))
        return data[:fit]

    def _sound_records(self, offset: int, data: bytes) -> bytes:
        fit = record.sound(data, offset)
        if fit == 0:
            data = self.read(offset, record.declared_size(data, 0))
            fit = record.sound(data, offset)
        if fit == 0:
            self.damaged(offset)
        return data[:fit]

    def damaged(self, offset: int) -> NoReturn:
        """Stop: the record at `offset` is not what was written."""
        self.on_damaged(offset - offset % self.segment_size)
        self._fail(f"the record at {self.place_of(offset)} (offset {offset}) is damaged")

    def stored_ms(self, offset: int) -> int:
        """Return the store time of the record at `offset`, 0 if there is none yet."""
        return record.stored_ms(self.read(offset, record.HEAD_SIZE))

    def payload(self, offset: int, window: "ReadWindow") -> record.Payload:
        """Return the message of the record at `offset`, read through the caller's window."""
        at = offset - window.start
        size = record.declared_size(window.data, at) if at >= 0 else 0
        if size == 0 or at + size > len(window.data):
            window.start, window.data, at = offset, self.read(offset, _READ_AHEAD), 0
            size = record.declared_size(window.data, 0)
            if size > len(window.data):
                window.data = self.read(offset, size)
        return record.payload(window.data, at, offset)

    # making durable

    def request_sync(self) -> None:
        """Sync soon; requests during a sync share the next one."""
        self._sync_wanted = True
        if not self._syncing:
            self._syncing = True
            self._tasks.start(self._sync_while_wanted())

    async def _sync_while_wanted(self) -> None:
        try:
            while self._sync_wanted:
                self._sync_wanted = False
                await delay(self._ports.choices, "sync-late", MAX_SYNC_DELAY_S)
                await self.sync()
        finally:
            self._syncing = False

    async def sync(self) -> None:
        """Put everything appended so far on disk."""
        async with self._disk:
            self.write_out()
            goal = self.written
            await self._sync_dirty()
            self.flushed = goal
        self.on_flushed()

    async def _sync_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        made, self._made = self._made, False
        try:
            for file in dirty.values():
                await file.sync()
            if made:
                await retry_when_out_of_files(lambda: self._ports.files.sync_folder(self._folder))
        except OSError as e:
            self._fail(f"the commit log cannot be synced: {e}")

    # truncating and deleting

    async def truncate(self, point: int, *, durably: bool = True) -> None:
        """Truncate the log at `point`, a record's start."""
        async with self._disk:
            self.write_out()
            if durably:
                await self._erase_from(point)
            self.max_offset = self.written = point
            self._tail = (point, b"")
            await self._sync_dirty()
            self.flushed = point

    async def _erase_from(self, point: int) -> None:
        self._made = True
        for base in reversed(await retry_when_out_of_files(self._all_bases)):
            if base >= point and base > self.min_offset:
                self._remove(base)
        base = point - point % self.segment_size
        if base in self._segments:
            self._zero(self._segments[base], point - base)
            self._dirty[base] = self._segments[base]

    async def reset(self, offset: int) -> None:
        """Make the log empty; it begins at `offset`, a segment's first byte."""
        if offset % self.segment_size:
            raise StoreError(f"a log cannot begin at {offset}, inside a segment")
        async with self._disk:
            self.write_out()
            self._made = True
            for base in reversed(await retry_when_out_of_files(self._all_bases)):
                self._remove(base)
            self.min_offset = self.max_offset = self.written = self.flushed = offset
            self._tail = (offset, b"")
            self._open(offset)
            await self._sync_dirty()

    async def delete_before(self, offset: int) -> None:
        """Delete the segments before `offset`, a segment's first byte (retention).

        Files that return after a loss of power are removed at the next start (`open_at`).
        """
        if not self.min_offset <= offset <= self.written or offset % self.segment_size:
            raise ValueError(f"a log from {self.min_offset} cannot begin at {offset}")
        async with self._disk:
            self.min_offset = offset
            for base in sorted(self._segments):
                if base < offset:
                    self._remove(base)

    async def _all_bases(self) -> list[int]:
        return sorted({*self.bases(), *self._segments})

    def _remove(self, base: int) -> None:
        file = self._segments.pop(base, None)
        self._dirty.pop(base, None)
        if file is not None:
            file.close()
        if self._ports.files.exists(self.path(base)):
            self._ports.files.remove(self.path(base))

    def _zero(self, file: File, at: int) -> None:
        if self._is_blank(file, at):
            return
        try:
            file.truncate(at)
            file.allocate(self.segment_size)
        except OSError as e:
            self._fail(f"the commit log cannot be truncated at byte {at}: {e}")

    def _is_blank(self, file: File, at: int) -> bool:
        """Return whether there are only zeros from `at` on: then nothing needs to be written."""
        if file.size() != self.segment_size:
            return False
        portions = (file.pread(_PORTION, at) for at in range(at, self.segment_size, _PORTION))
        return all(portion == bytes(len(portion)) for portion in portions)

    def close(self) -> None:
        self._tasks.cancel()
        self._pending.clear()
        for file in self._segments.values():
            file.close()
        self._segments.clear()

    def _fail(self, why: str) -> NoReturn:
        self._ports.exit.fatal(why)


class ReadWindow:
    """A part of the log that was read at once, for a reader that goes forwards."""

    def __init__(self) -> None:
        self.start = 0
        self.data = b""
