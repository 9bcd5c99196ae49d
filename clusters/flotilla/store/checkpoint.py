"""The checkpoint: how far the log was confirmed and on disk, and where it begins.

    two slots of 512 bytes: u64 sequence | u64 confirmed | u64 flushed | u64 min offset | u32 CRC

The slots are written in turn, so a torn write leaves the other one. The checkpoint may be older
than the present state, never newer: the log is confirmed at least up to `confirmed`, was on disk at
least up to `flushed`, and may be deleted before `min offset`. A log that ends before `flushed` is
damaged, not torn; recovery refuses it.

A full disk may have no room for the checkpoint. Then the last one stays; without one, all offsets
count as 0, which is older than any state. Only a truncation of the log needs a new one.

Slots of the first edition, u64 sequence | u64 confirmed | u32 CRC, have the confirm offset only:
the log then begins and ends where records are found.
"""

import struct
from typing import NamedTuple, NoReturn
from zlib import crc32

from ..world.ports import File, Ports, is_out_of_space

_SLOT = struct.Struct(">QQQQI")
_OLDER = struct.Struct(">QQI")
_STRIDE = 512


class Marks(NamedTuple):
    """Offsets of the log."""

    confirmed: int = 0
    flushed: int = 0
    min_offset: int = 0


class StoreCheckpoint:
    """The file `checkpoint` in the store. `damage`: what could not be read of it."""

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
        """Return whether there is a checkpoint."""
        return self._sequence > 0

    def _load(self, at: int) -> tuple[int, bool, Marks]:
        """Return a slot's sequence, whether it has `flushed` and `min_offset`, and its offsets."""
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
        """Put the slots of an earlier process on disk.

        They are written again, since a sync after a failed one covers nothing else (recovery.py).
        """
        try:
            self._file.pwrite(self._file.pread(2 * _STRIDE, 0), 0)
        except OSError as e:
            self._fail(str(e))
        await self.sync()

    def write(self, marks: Marks) -> None:
        """Write a checkpoint if there is room on disk; else the last one stays."""
        if marks != self.marks:
            self._put(marks)

    def _put(self, marks: Marks) -> str:
        """Write one slot; return why there was no room, "" if it was written."""
        sequence = self._sequence + 1
        head = struct.pack(">QQQQ", sequence, *marks)
        try:
            self._file.pwrite(head + crc32(head).to_bytes(4), sequence % 2 * _STRIDE)
        except OSError as e:
            if not is_out_of_space(e):
                self._fail(str(e))
            return str(e)
        self._sequence, self.tells_disk, self.marks = sequence, True, marks
        return ""

    async def settle(self, marks: Marks) -> None:
        """Write both slots durably, before the log is truncated: no older slot may remain."""
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
    """Read a slot of the first edition, None if it is not one."""
    slot, rest = data[: _OLDER.size], data[_OLDER.size :]
    if len(slot) < _OLDER.size or any(rest) or crc32(slot[:-4]) != int.from_bytes(slot[-4:]):
        return None
    sequence, confirmed, _ = _OLDER.unpack(slot)
    return sequence, False, Marks(confirmed)


def log_is_whole(end: int, flushed: int) -> bool:
    """Return whether a log that ends at `end` has everything that was on disk."""
    return end >= flushed
