"""The checkpoint: how far the log was confirmed and on disk, and where it begins.

    two slots of 512 bytes: u64 sequence | u64 confirmed | u64 flushed | u64 min offset | u32 CRC

The slots take turns, so a torn write leaves the other one. What it says may be older than the
truth, never newer: so much is confirmed, so much of the log was on disk and must be there again,
and before the min offset everything may be deleted. A log that ends before `flushed` is damaged,
not torn: recovery refuses it (see there).

A disk may have no room for it. Then the last one stays, and if there is none, that says nothing and
is older than any truth. Only who is about to cut the log can not do with an older one.

The first edition's slots, u64 sequence | u64 confirmed | u32 CRC, say what is confirmed and nothing
of the disk: the log begins and ends where records are found.
"""

import struct
from typing import NamedTuple, NoReturn
from zlib import crc32

from ..world.ports import File, Ports, no_room

_SLOT = struct.Struct(">QQQQI")
_OLDER = struct.Struct(">QQI")
_STRIDE = 512


class Marks(NamedTuple):
    """Offsets of the log."""

    confirmed: int = 0
    flushed: int = 0
    min_offset: int = 0


class Checkpoint:
    """The file `checkpoint` in the store. `damage`: what could not be read of it, for people."""

    def __init__(self, store: str, ports: Ports) -> None:
        self.path = f"{store}/checkpoint"
        self.damage: list[str] = []
        self._ports = ports
        self._file: File = ports.files.open(self.path)
        slots = [self._load(0), self._load(_STRIDE)]
        self._sequence, self.tells_disk, self.marks = max(slots)
        self._synced = 0

    @property
    def known(self) -> bool:
        """Is there one?"""
        return self._sequence > 0

    def _load(self, at: int) -> tuple[int, bool, Marks]:
        """The sequence, whether it speaks of the disk, and what it says."""
        data = self._file.pread(_SLOT.size, at)
        if not any(data):
            return 0, False, Marks()
        if older := _older(data):
            return older
        if len(data) < _SLOT.size or crc32(data[:-4]) != int.from_bytes(data[-4:]):
            self.damage.append(f"the slot at byte {at} of {self.path} is damaged")
            return 0, False, Marks()
        sequence, *marks, _ = _SLOT.unpack(data)
        return sequence, True, Marks(*marks)

    async def renew(self) -> None:
        """What an earlier life wrote is on disk when this returns. It is written again: a sync that
        comes after one that failed covers nothing else (see `recovery`)."""
        try:
            self._file.pwrite(self._file.pread(2 * _STRIDE, 0), 0)
        except OSError as e:
            self._fail(str(e))
        await self.sync()

    def write(self, marks: Marks) -> None:
        """If there is room; else the last one stays, and the next call tries again."""
        if marks != self.marks:
            self._put(marks)

    def _put(self, marks: Marks) -> str:
        """Why there is no room for it, if so; the other slot is as it was."""
        sequence = self._sequence + 1
        head = struct.pack(">QQQQ", sequence, *marks)
        try:
            self._file.pwrite(head + crc32(head).to_bytes(4), sequence % 2 * _STRIDE)
        except OSError as e:
            if not no_room(e):
                self._fail(str(e))
            return str(e)
        self._sequence, self.tells_disk, self.marks = sequence, True, marks
        return ""

    async def settle(self, marks: Marks) -> None:
        """Both slots, durably: no older one may speak of a log that is about to be cut."""
        for _ in range(2):
            why = self._put(marks)
            if why and self.known:
                self._fail(why)
            await self.sync()

    def _fail(self, why: str) -> NoReturn:
        self._ports.exit.fatal(f"{self.path} cannot be written: {why}")

    async def sync(self) -> None:
        if self._synced == self._sequence:
            return
        self._synced = self._sequence
        try:
            await self._file.sync()
        except OSError as e:
            self._ports.exit.fatal(f"{self.path} cannot be synced: {e}")

    def close(self) -> None:
        self._file.close()


def _older(data: bytes) -> tuple[int, bool, Marks] | None:
    """A slot of the first edition."""
    slot, rest = data[: _OLDER.size], data[_OLDER.size :]
    if len(slot) < _OLDER.size or any(rest) or crc32(slot[:-4]) != int.from_bytes(slot[-4:]):
        return None
    sequence, confirmed, _ = _OLDER.unpack(slot)
    return sequence, False, Marks(confirmed)


def log_is_whole(end: int, flushed: int) -> bool:
    """A log that was found to end at `end`: is everything there that was on disk?"""
    return end >= flushed
