"""The checkpoint: how far the log was confirmed and on disk, and where it begins.

    two slots of 512 bytes: u64 sequence | u64 confirmed | u64 flushed | u64 min offset | u32 CRC

The slots take turns, so a torn write leaves the other one. What it says may be older than the
truth, never newer: so much is confirmed, so much of the log was on disk and must be there again,
and before the min offset everything may be deleted. A log that ends before `flushed` is damaged,
not torn: recovery refuses it (see there).

The first edition's slots, u64 sequence | u64 confirmed | u32 CRC, say what is confirmed and nothing
of the disk: the log begins and ends where records are found.
"""

import struct
from typing import NamedTuple
from zlib import crc32

from ..ports import File, Ports

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
        self._synced = self._sequence

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

    def write(self, marks: Marks) -> None:
        if marks != self.marks:
            self._put(marks)

    def _put(self, marks: Marks) -> None:
        self._sequence, self.tells_disk = self._sequence + 1, True
        self.marks = marks
        head = struct.pack(">QQQQ", self._sequence, *marks)
        try:
            self._file.pwrite(head + crc32(head).to_bytes(4), self._sequence % 2 * _STRIDE)
        except OSError as e:
            self._ports.exit.fatal(f"{self.path} can not be written: {e}")

    async def settle(self, marks: Marks) -> None:
        """Both slots, durably: no older one may speak of a log that is about to be cut."""
        for _ in range(2):
            self._put(marks)
            await self.sync()

    async def sync(self) -> None:
        if self._synced == self._sequence:
            return
        self._synced = self._sequence
        try:
            await self._file.sync()
        except OSError as e:
            self._ports.exit.fatal(f"{self.path} can not be synced: {e}")

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
