"""What a power cut leaves of a file: its changes that no sync had covered, and how chance deals
with them.

Every change keeps what it overwrote until a sync has covered it, so the disk's own state is always
the present one with the newest changes undone. Nothing is copied but what is overwritten, which for
a log is nothing.

A power cut keeps none of the uncovered changes, or all of them, or the first few with the next one
torn at a sector; sometimes one sector within what was kept is left behind. A sector that was not
written has what it had before: zeros, where nothing was ever written, which is how a torn tail of
zeros comes about. When a write that made the file longer is torn, the new length may have reached
the disk without the bytes, and then the rest is zeros as well. The kernel writes back of its own
accord: of more than MOST_WAITING changes the oldest are on disk.

Simulated files (`_simulated/content.py`) and real ones (`unsynced_writes.py`) are lost by these
rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Protocol

SECTOR, PAGE = 512, 4096
MOST_WAITING = 256
_KEEPS_NONE, _KEEPS_ALL = 0.25, 0.5  # and else a prefix
_LEAVES_A_SECTOR = 0.2
_KEEPS_THE_LENGTH = 0.5


class Medium(Protocol):
    """A file's bytes, as the disk has them."""

    @property
    def size(self) -> int: ...

    def put(self, data: bytes, at: int, /) -> None:
        """Write, without a change of it being noted."""
        ...

    def resized(self, size: int, /) -> None:
        """Cut, or make longer with zeros; nor is that."""
        ...


class Change:
    """What one change took away. `end`: behind the bytes written; `at` if none were. `old`: what
    was there, as far as it was not zeros behind the last byte ever written. `size`: of the file
    before it."""

    __slots__ = ("at", "end", "old", "size")

    def __init__(self, at: int, end: int, old: bytes, size: int) -> None:
        self.at, self.end, self.old, self.size = at, end, old, size

    @property
    def size_bytes(self) -> int:
        """How many it wrote, or cut off; zeros that were only allocated are none."""
        return self.end - self.at or len(self.old)


class Stranded:
    """What of a file is read, and neither on disk nor covered by any sync to come."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[Change] = []  # each within one page, in the order of the changes

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def size_bytes(self) -> int:
        return at_stake(self._pieces)

    @property
    def old_bytes(self) -> int:
        """What is kept to undo it."""
        return sum(len(piece.old) for piece in self._pieces)

    def add(self, failed: Iterable[Change]) -> None:
        """The changes that a sync should have covered."""
        for change in failed:
            if change.end == change.at:
                self._clip(change.at)
            self._pieces += _by_page(change)

    def take(self, at: int, end: int, size: int) -> list[Change]:
        """Of the pages that are written to, in a file of this size: they wait for a sync again."""
        touched = range(at // PAGE, -(-end // PAGE)) if at < end else range(0)
        taken = [p for p in self._pieces if p.at // PAGE in touched]
        self._pieces = [p for p in self._pieces if p.at // PAGE not in touched]
        for piece in taken:
            piece.size = size
        return taken

    def lose(self, medium: Medium) -> int:
        """All of it is gone; how many bytes that was."""
        self._clip(medium.size)
        lost = self.size_bytes
        for piece in reversed(self._pieces):
            _restore(medium, piece, piece.at)
        self._pieces.clear()
        return lost

    def _clip(self, size: int) -> None:
        """The file has come to end there."""
        self._pieces = [p for p in self._pieces if p.at < size]
        for piece in self._pieces:
            piece.end = min(piece.end, size)
            piece.old = piece.old[: piece.end - piece.at]


def _by_page(change: Change) -> Iterator[Change]:
    for page in range(change.at // PAGE * PAGE, change.end, PAGE):
        at, end = max(change.at, page), min(change.end, page + PAGE)
        if at < end:
            yield Change(at, end, change.old[at - change.at : end - change.at], change.size)


def at_stake(waiting: Sequence[Change]) -> int:
    """Bytes that a power cut may take."""
    return sum(change.size_bytes for change in waiting)


def lose(waiting: list[Change], medium: Medium, random: Random) -> int:
    """Take what chance takes of the changes, which are left empty; how many bytes that was."""
    count, stake = len(waiting), at_stake(waiting)
    if not count:
        return 0
    luck = random.random()
    if luck < _KEEPS_NONE:
        kept, torn = 0, False
    elif luck < _KEEPS_ALL:
        kept, torn = count, False
    else:
        kept, torn = random.randrange(count), True
    _undo_behind(waiting, medium, kept + torn)
    if torn:
        _tear(waiting, medium, random)
    left = _leave_a_sector(waiting, medium, random) if random.random() < _LEAVES_A_SECTOR else 0
    lost = stake - at_stake(waiting) + left
    waiting.clear()
    return lost


def _undo_behind(waiting: list[Change], medium: Medium, kept: int) -> None:
    while len(waiting) > kept:
        change = waiting.pop()
        _restore(medium, change, change.at)
        medium.resized(change.size)


def _tear(waiting: list[Change], medium: Medium, random: Random) -> None:
    """Of the last write, keep the sectors up to a random one."""
    change = waiting[-1]
    first, last = change.at // SECTOR, (change.end - 1) // SECTOR
    at = max(change.at, random.randint(first, last) * SECTOR) if change.end > change.at else 0
    if at <= change.at:
        _undo_behind(waiting, medium, len(waiting) - 1)
        return
    _restore(medium, change, at)
    if change.end > change.size:
        grown = random.random() < _KEEPS_THE_LENGTH
        medium.resized(max(at, change.size))
        medium.resized(change.end if grown else medium.size)
    change.end = at


def _leave_a_sector(waiting: Sequence[Change], medium: Medium, random: Random) -> int:
    """One sector of a kept write did not arrive, although later ones did; how much of it."""
    writes = [n for n, change in enumerate(waiting) if change.end > change.at]
    if not writes:
        return 0
    number = random.choice(writes)
    change = waiting[number]
    sector = random.randint(change.at // SECTOR, (change.end - 1) // SECTOR) * SECTOR
    start, end = max(sector, change.at), min(sector + SECTOR, change.end)
    if any(c.at < end and start < max(c.end, c.size) for c in waiting[number + 1 :]):
        return 0  # written again since: that came with the same luck
    _restore(medium, change, start, end)
    return end - start


def _restore(medium: Medium, change: Change, start: int, end: int | None = None) -> None:
    """Put back what the change overwrote from `start` on; zeros where there was nothing."""
    end = max(change.end, change.at + len(change.old)) if end is None else end
    old = change.old[start - change.at : end - change.at]
    if end > start:
        medium.put(old + bytes(end - start - len(old)), start)
