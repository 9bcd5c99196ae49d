"""The checkpoint: how far the log was confirmed, written in place beside the log.

Two slots take turns, each with a sequence number and a CRC, so a torn write leaves the other one.
The value is a lower bound: it may be older than the truth, never newer.
"""

import struct
from zlib import crc32

from ..ports import Files

_SLOT = struct.Struct(">QQI")
_STRIDE = 512


class Checkpoint:
    """The file `checkpoint` in the store."""

    def __init__(self, store: str, files: Files) -> None:
        self._file = files.open(f"{store}/checkpoint")
        slots = [self._load(0), self._load(_STRIDE)]
        self._sequence, self.confirm_offset = max(slots)
        self._synced = self.confirm_offset

    def _load(self, at: int) -> tuple[int, int]:
        data = self._file.pread(_SLOT.size, at)
        if len(data) < _SLOT.size:
            return 0, 0
        sequence, confirm_offset, crc = _SLOT.unpack(data)
        return (sequence, confirm_offset) if crc32(data[:-4]) == crc else (0, 0)

    def write(self, confirm_offset: int) -> None:
        if confirm_offset == self.confirm_offset:
            return
        self._sequence += 1
        self.confirm_offset = confirm_offset
        head = struct.pack(">QQ", self._sequence, confirm_offset)
        slot = head + crc32(head).to_bytes(4, "big")
        self._file.pwrite(slot, self._sequence % 2 * _STRIDE)

    async def sync(self) -> None:
        if self._synced != self.confirm_offset:
            self._synced = self.confirm_offset
            await self._file.sync()

    def close(self) -> None:
        self._file.close()
