"""The content of one virtual file: what reads return now, and what a power cut would leave.

`clusters/hosts/_faults/power_loss.py` has the rules for unsynced changes, and for bytes whose sync
failed. Zeros behind the last byte ever written use no memory, so preallocated segments are free.
"""

import random

from clusters.hosts._faults.power_loss import (
    MAX_WAITING,
    FailedSyncChanges,
    UnsyncedChange,
    at_stake,
    lose,
)


class Content:
    """The bytes of a file. `changes` counts all changes; a sync covers those up to a count.

    `spared`: nothing is ever lost; for files that the harness reads afterwards.
    """

    __slots__ = ("_data", "_failed_sync", "_first", "_waiting", "changes", "size", "spared")

    def __init__(self, data: bytes = b"", *, spared: bool = False) -> None:
        self._data = bytearray(data)
        self.spared = spared
        self.size = len(data)
        self.changes = self._first = 0
        self._waiting: list[UnsyncedChange] = []
        self._failed_sync = FailedSyncChanges()

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        data = bytes(self._data[offset:end])
        return data if len(data) == end - offset else data + bytes(end - offset - len(data))

    @property
    def waiting(self) -> int:
        """The number of changes that no sync has covered."""
        return len(self._waiting) + len(self._failed_sync)

    @property
    def at_stake_bytes(self) -> int:
        """The size of these changes."""
        return 0 if self.spared else at_stake(self._waiting) + self._failed_sync.size_bytes

    @property
    def held(self) -> int:
        """The memory that the content takes, without the unsynced changes."""
        return len(self._data)

    # changes

    def write(self, data: bytes | memoryview, offset: int) -> None:
        end = offset + len(data)
        self._retry_failed(offset, end)
        self._note(UnsyncedChange(offset, end, bytes(self._data[offset:end]), self.size))
        self.put(data, offset)
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        if size == self.size:
            return
        self._retry_failed(size, self.size)
        self._note(UnsyncedChange(size, size, bytes(self._data[size:]), self.size))
        self._cut(size)
        self.size = size

    def settle(self, changes: int) -> None:
        """Make the first `changes` of all changes durable."""
        if changes > self._first:
            del self._waiting[: changes - self._first]
            self._first = changes

    def fail_sync(self, changes: int) -> None:
        """A sync of the first `changes` of all changes has failed, which reads do not show."""
        if self.spared:
            return
        count = max(changes - self._first, 0)
        self._failed_sync.add(self._waiting[:count])
        later, woken = self._waiting[count:], []
        for change in later:
            end = change.at + change.size_bytes
            woken += self._failed_sync.take(change.at, end, later[0].size)
        self._waiting = woken + later
        self._first = self.changes - len(self._waiting)

    def flip(self, bit: int) -> None:
        """Flip a bit on the medium; no sync or power cut restores it."""
        at, mask = bit // 8, 1 << bit % 8
        self.put(bytes([self.read(1, at)[0] ^ mask]), at)

    # a power cut

    def lose(self, random: random.Random | None) -> int:
        """Take a random part of the unsynced changes, or all; return how many bytes are lost."""
        if self.spared:
            self.settle(self.changes)
        lost = lose(self._waiting, self, random)
        self._first = self.changes
        return lost + self._failed_sync.lose(self)

    # bytes and zeros

    def _retry_failed(self, at: int, end: int) -> None:
        """These bytes will change: changes on their pages whose sync failed wait for a sync
        again."""
        for piece in self._failed_sync.take(at, end, self.size):
            self._note(piece)

    def _note(self, change: UnsyncedChange) -> None:
        self._waiting.append(change)
        self.changes += 1
        if len(self._waiting) > MAX_WAITING:
            self.settle(self.changes - MAX_WAITING)

    def put(self, data: bytes | memoryview, offset: int) -> None:
        held = len(self._data)
        if offset > held:
            self._data += bytes(offset - held)
        self._data[offset : offset + len(data)] = data

    def _cut(self, size: int) -> None:
        if size < len(self._data):
            del self._data[size:]

    def set_size(self, size: int) -> None:
        self._cut(size)
        self.size = size
