"""The bytes of one virtual file: what is read now, and what a power cut would leave of them.

What of it a sync has not covered, and how a cut takes that, is
`clusters/hosts/_faults/power_loss.py`; there too, what becomes of bytes whose sync failed.
Zeros behind the last byte ever written cost no memory, so preallocated segments are free.
"""

import random

from clusters.hosts._faults.power_loss import MOST_WAITING, Change, Stranded, at_stake, lose


class Content:
    """A file's bytes. `changes` counts them all; a sync covers those up to a count.

    `spared`: nothing is ever lost. For what an observer wants to read afterwards.
    """

    __slots__ = ("_data", "_first", "_stranded", "_waiting", "changes", "size", "spared")

    def __init__(self, data: bytes = b"", *, spared: bool = False) -> None:
        self._data = bytearray(data)
        self.spared = spared
        self.size = len(data)
        self.changes = self._first = 0
        self._waiting: list[Change] = []
        self._stranded = Stranded()

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        data = bytes(self._data[offset:end])
        return data if len(data) == end - offset else data + bytes(end - offset - len(data))

    @property
    def waiting(self) -> int:
        """Changes that no sync has covered."""
        return len(self._waiting) + len(self._stranded)

    @property
    def at_stake_bytes(self) -> int:
        """... and how much they changed."""
        return 0 if self.spared else at_stake(self._waiting) + self._stranded.size_bytes

    @property
    def held(self) -> int:
        """Bytes of memory this takes, beside what waits for a sync."""
        return len(self._data)

    # changes

    def write(self, data: bytes | memoryview, offset: int) -> None:
        end = offset + len(data)
        self._wake(offset, end)
        self._note(Change(offset, end, bytes(self._data[offset:end]), self.size))
        self.put(data, offset)
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        """Cut, or make longer with zeros."""
        if size == self.size:
            return
        self._wake(size, self.size)
        self._note(Change(size, size, bytes(self._data[size:]), self.size))
        self._cut(size)
        self.size = size

    def settle(self, changes: int) -> None:
        """The first `changes` of all are on disk now."""
        if changes > self._first:
            del self._waiting[: changes - self._first]
            self._first = changes

    def strand(self, changes: int) -> None:
        """A sync of the first `changes` of all has failed, and nothing that is read shows it."""
        if self.spared:
            return
        count = max(changes - self._first, 0)
        self._stranded.add(self._waiting[:count])
        later, woken = self._waiting[count:], []
        for change in later:
            end = change.at + change.size_bytes
            woken += self._stranded.take(change.at, end, later[0].size)
        self._waiting = woken + later
        self._first = self.changes - len(self._waiting)

    def flip(self, bit: int) -> None:
        """A bit of the medium itself turns over; no sync or power cut turns it back."""
        at, mask = bit // 8, 1 << bit % 8
        self.put(bytes([self.read(1, at)[0] ^ mask]), at)

    # a power cut

    def lose(self, random: random.Random) -> int:
        """Forget what chance takes of the changes that no sync has covered; how many bytes."""
        if self.spared:
            self.settle(self.changes)
        lost = lose(self._waiting, self, random)
        self._first = self.changes
        return lost + self._stranded.lose(self)

    # bytes and zeros

    def _wake(self, at: int, end: int) -> None:
        """These bytes are about to change: what is stranded on their pages waits with them."""
        for piece in self._stranded.take(at, end, self.size):
            self._note(piece)

    def _note(self, change: Change) -> None:
        self._waiting.append(change)
        self.changes += 1
        if len(self._waiting) > MOST_WAITING:
            self.settle(self.changes - MOST_WAITING)

    def put(self, data: bytes | memoryview, offset: int) -> None:
        held = len(self._data)
        if offset > held:
            self._data += bytes(offset - held)
        self._data[offset : offset + len(data)] = data

    def _cut(self, size: int) -> None:
        if size < len(self._data):
            del self._data[size:]

    def resized(self, size: int) -> None:
        self._cut(size)
        self.size = size
