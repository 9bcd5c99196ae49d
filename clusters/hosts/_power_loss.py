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

Simulated files (`_simulated/content.py`) and real ones (`_unsynced.py`) are lost by these rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

SECTOR = 512
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
