"""What a power cut leaves of a file: rules for its unsynced changes.

Every change keeps the bytes that it overwrote until a sync covers it, so the state on disk is the
present state with the newest changes undone. Only overwritten bytes are copied, which for a log are
none.

A power cut keeps none of the unsynced changes, or all of them, or the first few with the next one
torn at a sector; sometimes one sector within the kept changes is missing. A sector that was not
written has its old content: zeros, if it was never written, which is how a torn tail of zeros comes
about. If a write that extended the file is torn, the new length may have reached the disk without
the bytes, and the rest is zeros as well. The kernel writes back on its own: of more than
MAX_WAITING changes the oldest are on disk.

Simulated files (`_world/content.py`) and real ones (`unsynced_writes.py`) follow these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Protocol

SECTOR, PAGE = 512, 4096
MAX_WAITING = 256
_KEEPS_NONE, _KEEPS_ALL = 0.25, 0.5  # cumulative; else a prefix is kept
_LEAVES_A_SECTOR = 0.2
_KEEPS_THE_LENGTH = 0.5


class Medium(Protocol):
    """The bytes of a file on disk."""

    @property
    def size(self) -> int: ...

    def put(self, data: bytes, at: int, /) -> None:
        """Write without recording a change."""
        ...

    def set_size(self, size: int, /) -> None:
        """Cut the file, or extend it with zeros, without recording a change."""
        ...


class UnsyncedChange:
    """The bytes that one change replaced.

    at, end: the range written; a resize has at == end old: the replaced bytes, without zeros behind
    the last byte ever written size: of the file before the change
    """

    __slots__ = ("at", "end", "old", "size")

    def __init__(self, at: int, end: int, old: bytes, size: int) -> None:
        self.at, self.end, self.old, self.size = at, end, old, size

    @property
    def size_bytes(self) -> int:
        """How many bytes it wrote or cut off; zeros that were only allocated do not count."""
        return self.end - self.at or len(self.old)


class FailedSyncChanges:
    """Changes whose sync failed: they are read, but are not on disk, and no later sync
    covers them."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[UnsyncedChange] = []  # each within one page, in order

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def size_bytes(self) -> int:
        return at_stake(self._pieces)

    @property
    def old_bytes(self) -> int:
        """The size of the bytes kept to undo the changes."""
        return sum(len(piece.old) for piece in self._pieces)

    def add(self, failed: Iterable[UnsyncedChange]) -> None:
        """Add changes that a sync should have covered."""
        for change in failed:
            if change.end == change.at:
                self._clip(change.at)
            self._pieces += _by_page(change)

    def take(self, at: int, end: int, size: int) -> list[UnsyncedChange]:
        """Return the changes on pages that are written to, in a file of this size: they wait for a
        sync again."""
        touched = range(at // PAGE, -(-end // PAGE)) if at < end else range(0)
        taken = [p for p in self._pieces if p.at // PAGE in touched]
        self._pieces = [p for p in self._pieces if p.at // PAGE not in touched]
        for piece in taken:
            piece.size = size
        return taken

    def lose(self, medium: Medium) -> int:
        """Undo all of it; return how many bytes are lost."""
        self._clip(medium.size)
        lost = self.size_bytes
        for piece in reversed(self._pieces):
            _restore(medium, piece, piece.at)
        self._pieces.clear()
        return lost

    def _clip(self, size: int) -> None:
        """The file now ends at `size`."""
        self._pieces = [p for p in self._pieces if p.at < size]
        for piece in self._pieces:
            piece.end = min(piece.end, size)
            piece.old = piece.old[: piece.end - piece.at]


def _by_page(change: UnsyncedChange) -> Iterator[UnsyncedChange]:
    for page in range(change.at // PAGE * PAGE, change.end, PAGE):
        at, end = max(change.at, page), min(change.end, page + PAGE)
        if at < end:
            yield UnsyncedChange(at, end, change.old[at - change.at : end - change.at], change.size)


def at_stake(waiting: Sequence[UnsyncedChange]) -> int:
    """Return how many bytes a power cut may take."""
    return sum(change.size_bytes for change in waiting)


def lose(waiting: list[UnsyncedChange], medium: Medium, random: Random | None) -> int:
    """Take a random part of the changes, or all without `random`; return how many bytes are lost.

    The changes are left empty.
    """
    count, stake = len(waiting), at_stake(waiting)
    if not count:
        return 0
    if random is None:
        _undo_behind(waiting, medium, 0)
        return stake
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


def _undo_behind(waiting: list[UnsyncedChange], medium: Medium, kept: int) -> None:
    while len(waiting) > kept:
        change = waiting.pop()
        _restore(medium, change, change.at)
        medium.set_size(change.size)


def _tear(waiting: list[UnsyncedChange], medium: Medium, random: Random) -> None:
    """Keep the sectors of the last write up to a random one."""
    change = waiting[-1]
    first, last = change.at // SECTOR, (change.end - 1) // SECTOR
    at = max(change.at, random.randint(first, last) * SECTOR) if change.end > change.at else 0
    if at <= change.at:
        _undo_behind(waiting, medium, len(waiting) - 1)
        return
    _restore(medium, change, at)
    if change.end > change.size:
        grown = random.random() < _KEEPS_THE_LENGTH
        medium.set_size(max(at, change.size))
        medium.set_size(change.end if grown else medium.size)
    change.end = at


def _leave_a_sector(waiting: Sequence[UnsyncedChange], medium: Medium, random: Random) -> int:
    """Undo one sector of a kept write, although later writes arrived; return how many bytes that
    is."""
    writes = [n for n, change in enumerate(waiting) if change.end > change.at]
    if not writes:
        return 0
    number = random.choice(writes)
    change = waiting[number]
    sector = random.randint(change.at // SECTOR, (change.end - 1) // SECTOR) * SECTOR
    start, end = max(sector, change.at), min(sector + SECTOR, change.end)
    if any(c.at < end and start < max(c.end, c.size) for c in waiting[number + 1 :]):
        return 0  # it was overwritten later, and that write arrived
    _restore(medium, change, start, end)
    return end - start


def _restore(medium: Medium, change: UnsyncedChange, start: int, end: int | None = None) -> None:
    """Put back what the change overwrote from `start` on, or zeros if there was nothing."""
    end = max(change.end, change.at + len(change.old)) if end is None else end
    old = change.old[start - change.at : end - change.at]
    if end > start:
        medium.put(old + bytes(end - start - len(old)), start)
