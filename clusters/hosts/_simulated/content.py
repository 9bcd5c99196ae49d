"""The bytes of one virtual file: what is read now, and what a power cut would leave of them.

Every change keeps what it overwrote until a sync has covered it, so the disk's own state is always
the present one with the newest changes undone. Nothing is copied but what is overwritten, which for
a log is nothing. Zeros behind the last byte ever written cost no memory, so preallocated segments
are free.

A power cut keeps none of the uncovered changes, or all of them, or the first few with the next one
torn at a sector; sometimes one sector within what was kept is left behind. A sector that was not
written has what it had before: zeros, where nothing was ever written, which is how a torn tail of
zeros comes about. When a write that made the file longer is torn, the new length may have reached
the disk without the bytes, and then the rest is zeros as well. The kernel writes back of its own
accord: of more than MOST_WAITING changes the oldest are on disk.
"""

import random

SECTOR = 512
MOST_WAITING = 256
_KEEPS_NONE, _KEEPS_ALL = 0.25, 0.5  # and else a prefix
_LEAVES_A_SECTOR = 0.2
_KEEPS_THE_LENGTH = 0.5


class _Change:
    """What one change took away. `end`: behind the bytes written; `at` if none were. `old`: what
    was there, as far as it was not zeros behind the last byte ever written."""

    __slots__ = ("at", "end", "old", "size")

    def __init__(self, at: int, end: int, old: bytes, size: int) -> None:
        self.at, self.end, self.old, self.size = at, end, old, size


class Content:
    """A file's bytes. `changes` counts them all; a sync covers those up to a count.

    `spared`: nothing is ever lost. For what an observer wants to read afterwards.
    """

    __slots__ = ("_data", "_first", "_waiting", "changes", "size", "spared")

    def __init__(self, data: bytes = b"", *, spared: bool = False) -> None:
        self._data = bytearray(data)
        self.spared = spared
        self.size = len(data)
        self.changes = self._first = 0
        self._waiting: list[_Change] = []

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        data = bytes(self._data[offset:end])
        return data if len(data) == end - offset else data + bytes(end - offset - len(data))

    @property
    def waiting(self) -> int:
        """Changes that no sync has covered."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Bytes of memory this takes, beside what waits for a sync."""
        return len(self._data)

    # changes

    def write(self, data: bytes | memoryview, offset: int) -> None:
        end = offset + len(data)
        self._note(_Change(offset, end, bytes(self._data[offset:end]), self.size))
        self._put(data, offset)
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        """Cut, or make longer with zeros."""
        if size == self.size:
            return
        self._note(_Change(size, size, bytes(self._data[size:]), self.size))
        self._cut(size)
        self.size = size

    def settle(self, changes: int) -> None:
        """The first `changes` of all are on disk now."""
        if changes > self._first:
            del self._waiting[: changes - self._first]
            self._first = changes

    def flip(self, bit: int) -> None:
        """A bit of the medium itself turns over; no sync or power cut turns it back."""
        at, mask = bit // 8, 1 << bit % 8
        self._put(bytes([self.read(1, at)[0] ^ mask]), at)

    # a power cut

    def lose(self, random: random.Random) -> None:
        """Forget what chance takes of the changes that no sync has covered."""
        if self.spared:
            self.settle(self.changes)
        count = len(self._waiting)
        if not count:
            return
        luck = random.random()
        if luck < _KEEPS_NONE:
            kept, torn = 0, False
        elif luck < _KEEPS_ALL:
            kept, torn = count, False
        else:
            kept, torn = random.randrange(count), True
        self._undo_behind(kept + torn)
        if torn:
            self._tear(self._waiting[kept], random)
        if random.random() < _LEAVES_A_SECTOR:
            self._leave_a_sector(random)
        self.settle(self.changes)

    def _undo_behind(self, kept: int) -> None:
        while len(self._waiting) > kept:
            change = self._waiting.pop()
            self._restore(change, change.at)
            self._resized(change.size)

    def _tear(self, change: _Change, random: random.Random) -> None:
        """Of one write, keep the sectors up to a random one."""
        first, last = change.at // SECTOR, (change.end - 1) // SECTOR
        at = max(change.at, random.randint(first, last) * SECTOR) if change.end > change.at else 0
        if at <= change.at:
            self._waiting.pop()
            self._restore(change, change.at)
            self._resized(change.size)
            return
        self._restore(change, at)
        if change.end > change.size:
            grown = random.random() < _KEEPS_THE_LENGTH
            self._resized(max(at, change.size))
            self._resized(change.end if grown else self.size)
        change.end = at

    def _leave_a_sector(self, random: random.Random) -> None:
        """One sector of a kept write did not arrive, although later ones did."""
        writes = [n for n, change in enumerate(self._waiting) if change.end > change.at]
        if not writes:
            return
        number = random.choice(writes)
        change = self._waiting[number]
        sector = random.randint(change.at // SECTOR, (change.end - 1) // SECTOR) * SECTOR
        start, end = max(sector, change.at), min(sector + SECTOR, change.end)
        later = self._waiting[number + 1 :]
        if any(c.at < end and start < max(c.end, c.size) for c in later):
            return  # written again since: that came with the same luck
        self._restore(change, start, end)

    def _restore(self, change: _Change, start: int, end: int | None = None) -> None:
        """Put back what the change overwrote from `start` on; zeros where there was nothing."""
        end = max(change.end, change.at + len(change.old)) if end is None else end
        old = change.old[start - change.at : end - change.at]
        self._put(old + bytes(end - start - len(old)), start)

    # bytes and zeros

    def _note(self, change: _Change) -> None:
        self._waiting.append(change)
        self.changes += 1
        if len(self._waiting) > MOST_WAITING:
            self.settle(self.changes - MOST_WAITING)

    def _put(self, data: bytes | memoryview, offset: int) -> None:
        held = len(self._data)
        if offset > held:
            self._data += bytes(offset - held)
        self._data[offset : offset + len(data)] = data

    def _cut(self, size: int) -> None:
        if size < len(self._data):
            del self._data[size:]

    def _resized(self, size: int) -> None:
        self._cut(size)
        self.size = size
