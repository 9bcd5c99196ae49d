"""Records the changes to a node's files that no sync has covered, and undoes them after a power
cut.

The tracer (`syscall_tracer.py`) reports every call that changes a file or a name below one folder,
just before the call is carried out. So the recorder can still read what will be overwritten, cut
off or replaced, and keeps that until a sync covers it: bytes by file, and names in one journal, in
order. A removed file is kept open, so that it can be restored. When the node has been killed,
`lose` takes a random part of its files' changes, or all, by the rules of `power_loss.py`, and the
end of the journal, like the simulated disk (`_world/disk.py`): a sync of a folder makes the journal
durable up to the last entry about that folder, while a sync of a file does not save its name.

A sync counts as soon as it is allowed: data reported to a node as durable is never taken. Data
that a refused sync should have covered stays at stake until it is written again, as after a failure
of the disk, when the kernel marks it as clean. The number of kept bytes and open files is limited;
beyond that the oldest count as synced, as a kernel writes back on its own. What cannot be undone is
counted and reported. A file is given by a path under which it can be opened, such as
`/proc/7/fd/3`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from clusters.hosts._faults.power_loss import (
    MAX_WAITING,
    FailedSyncChanges,
    UnsyncedChange,
    at_stake,
    lose,
)

MAX_NAMES_WAITING = 256
MAX_FILES = 200
MAX_OLD_BYTES = 64 << 20
COPIED_BYTES = 1 << 20
PROBE = ".seatrial-probe"  # the tracer's own probe file

Json = dict[str, Any]
Key = tuple[int, int]  # device and inode number


@dataclass
class TrackedFile:
    """A file with unsynced changes."""

    fd: int
    path: str
    waiting: list[UnsyncedChange] = field(default_factory=list)
    stranded: FailedSyncChanges = field(default_factory=FailedSyncChanges)

    @property
    def at_stake_bytes(self) -> int:
        return at_stake(self.waiting) + self.stranded.size_bytes

    @property
    def old_bytes(self) -> int:
        """The size of the replaced bytes that are kept in memory."""
        return sum(len(change.old) for change in self.waiting) + self.stranded.old_bytes

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def put(self, data: bytes, at: int) -> None:
        while data:
            written = os.pwrite(self.fd, data, at)
            data, at = data[written:], at + written

    def set_size(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def without_zeros(self, start: int, end: int) -> bytes:
        """Return the bytes of the range without trailing zeros, which need not be kept."""
        return os.pread(self.fd, max(end - start, 0), start).rstrip(b"\0")


@dataclass
class Creation:
    """A new name of a file, a folder or a link."""

    path: str

    def folders(self) -> tuple[str, ...]:
        return (os.path.dirname(self.path), self.path)

    def undo(self) -> None:
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            os.rmdir(self.path)
        elif os.path.lexists(self.path):
            os.unlink(self.path)

    def close(self) -> None:
        """Do nothing: no file is open."""


@dataclass
class Removal:
    """A removed name, and what it named: a file that is kept open, a link, or a folder."""

    path: str
    mode: int
    fd: int = -1
    link: str = ""

    def folders(self) -> tuple[str, ...]:
        return (os.path.dirname(self.path),)

    def undo(self) -> None:
        if os.path.lexists(self.path):
            return  # the call has failed
        if self.link:
            os.symlink(self.link, self.path)
        elif self.fd >= 0:
            _copy(self.fd, self.path, stat.S_IMODE(self.mode))
        elif stat.S_ISDIR(self.mode):
            os.mkdir(self.path, stat.S_IMODE(self.mode))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


@dataclass
class Renaming:
    """A changed name, which may have replaced another file."""

    source: str
    target: str
    replaced: Removal | None

    def folders(self) -> tuple[str, ...]:
        return (os.path.dirname(self.source), os.path.dirname(self.target), self.target)

    def undo(self) -> None:
        if os.path.lexists(self.source):
            return  # the call has failed
        os.rename(self.target, self.source)
        if self.replaced:
            self.replaced.undo()

    def close(self) -> None:
        if self.replaced:
            self.replaced.close()


NameChange = Creation | Removal | Renaming


class UnsyncedWrites:
    """The unsynced changes of all files below a folder."""

    def __init__(self, below: str) -> None:
        self.below = os.path.realpath(below)
        self.missed = 0  # calls that could not be recorded
        self.mapped: set[str] = set()  # files mapped into memory, whose writes are unseen
        self._files: dict[Key, TrackedFile] = {}  # the oldest first
        self._names: list[NameChange] = []
        self._old_bytes = 0

    def has(self, path: str) -> bool:
        return path.startswith(f"{self.below}/") and not path.endswith(PROBE)

    # bytes

    def write(self, file: str, at: int | None, size: int, durable: bool = False) -> None:
        """So many bytes are written; without `at`, to the end of the file. `durable`: synced with
        the write."""
        if durable:
            self.sync(file)
        elif size and (tracked := self._tracked(file, info := os.stat(file))):
            end = info.st_size
            at = end if at is None else at
            self._note(
                tracked,
                UnsyncedChange(at, at + size, tracked.without_zeros(at, min(at + size, end)), end),
            )

    def resize(self, file: str, size: int, only_longer: bool = False) -> None:
        """A file is cut, or extended with zeros."""
        end = (info := os.stat(file)).st_size
        changes = size > end or (size < end and not only_longer)
        if changes and (tracked := self._tracked(file, info)):
            self._note(tracked, UnsyncedChange(size, size, tracked.without_zeros(size, end), end))

    def sync(self, file: str) -> None:
        """A file or a folder is synced."""
        info = os.stat(file)
        if stat.S_ISDIR(info.st_mode):
            self._sync_folder(os.path.realpath(file))
        elif tracked := self._files.get(_key(info)):
            self._covered(tracked, _key(info))

    def fail(self, file: str) -> None:
        """A sync of the file is refused: no later one covers what it should have covered."""
        if tracked := self._files.get(_key(os.stat(file))):
            before = tracked.old_bytes
            tracked.stranded.add(tracked.waiting)
            tracked.waiting.clear()
            self._old_bytes += tracked.old_bytes - before

    def overlooked(self, file: str) -> None:
        """A change of a kind that cannot be undone."""
        self.missed += 1
        self.sync(file)

    def map(self, file: str) -> None:
        """The file is mapped into memory; writes through the mapping are not seen."""
        self.mapped.add(os.path.relpath(os.path.realpath(file), self.below))

    # names

    def make(self, path: str) -> None:
        if not os.path.lexists(path):
            self._remember(Creation(path))

    def remove(self, path: str) -> None:
        if os.path.lexists(path):
            self._remember(_removal(path))

    def rename(self, source: str, target: str) -> None:
        there = os.path.lexists(target)
        if os.path.lexists(source) and not (
            there and os.path.samestat(*map(os.lstat, (source, target)))
        ):
            self._remember(Renaming(source, target, _removal(target) if there else None))

    # losing and settling

    def lose(self, seed: int | None) -> Json:
        """Take a random part of the changes, or all without a seed. No process may write any more.

        Return what was at stake and what is lost; everything that is left is durable afterwards.
        """
        random = None if seed is None else Random(seed)
        counts = {
            "files": len(self._files),
            "names": len(self._names),
            "size_bytes": sum(file.at_stake_bytes for file in self._files.values()),
        }
        files = sorted(self._files.values(), key=lambda file: file.path)
        lost = [self._lose_from(file, random) for file in files]
        kept = random.randint(0, len(self._names)) if self._names and random else 0
        counts |= {
            "lost_files": sum(map(bool, lost)),
            "lost_names": len(self._names) - kept,
            "lost_bytes": sum(lost),
        }
        for name in reversed(self._names[kept:]):
            try:
                name.undo()
            except OSError:
                self.missed += 1
        return {**counts, "unseen": self._reset()}

    def settle(self) -> None:
        """Make everything that is there now durable."""
        for key in list(self._files):
            self._settle(key)
        self._names_settled(len(self._names))

    def _lose_from(self, file: TrackedFile, random: Random | None) -> int:
        try:
            return lose(file.waiting, file, random) + file.stranded.lose(file)
        except OSError:  # such as a full disk
            self.missed += 1
            return 0

    def _reset(self) -> list[str]:
        """Begin again; return what could not be seen until now, as sentences."""
        reasons = [f"{path} is mapped into memory" for path in sorted(self.mapped)]
        if self.missed:
            reasons.append(f"{self.missed} changes could not be followed or undone")
        self.mapped, self.missed = set(), 0
        self.settle()
        self._old_bytes = 0
        return reasons

    # internals

    def _tracked(self, file: str, info: os.stat_result) -> TrackedFile | None:
        """Return the file's record, with a descriptor that keeps its inode number from being
        reused."""
        if not stat.S_ISREG(info.st_mode):
            return None
        key = _key(info)
        if key not in self._files:
            if len(self._files) >= MAX_FILES:
                self._settle(next(iter(self._files)))
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            self._files[key] = TrackedFile(fd, os.readlink(f"/proc/self/fd/{fd}"))
        return self._files[key]

    def _note(self, file: TrackedFile, change: UnsyncedChange) -> None:
        end = change.at + change.size_bytes
        file.waiting += (*file.stranded.take(change.at, end, change.size), change)
        self._old_bytes += len(change.old)
        while len(file.waiting) > MAX_WAITING:
            self._old_bytes -= len(file.waiting.pop(0).old)
        while self._old_bytes > MAX_OLD_BYTES:
            self._settle(next(iter(self._files)))

    def _covered(self, file: TrackedFile, key: Key) -> None:
        """A sync covers the file's changes, except those whose sync failed."""
        if not file.stranded:
            self._settle(key)
            return
        self._old_bytes -= sum(len(change.old) for change in file.waiting)
        file.waiting.clear()

    def _settle(self, key: Key) -> None:
        """Make everything of a file durable."""
        if file := self._files.pop(key, None):
            self._old_bytes -= file.old_bytes
            os.close(file.fd)

    def _remember(self, name: NameChange) -> None:
        self._names.append(name)
        if len(self._names) > MAX_NAMES_WAITING:
            self._names_settled(1)

    def _sync_folder(self, folder: str) -> None:
        about = [n for n, name in enumerate(self._names) if folder in name.folders()]
        self._names_settled(about[-1] + 1 if about else 0)

    def _names_settled(self, count: int) -> None:
        for name in self._names[:count]:
            name.close()
        del self._names[:count]


def _removal(path: str) -> Removal:
    """Return a record of the name that will be removed."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return Removal(path, info.st_mode, link=os.readlink(path))
    if not stat.S_ISREG(info.st_mode):
        return Removal(path, info.st_mode)
    return Removal(path, info.st_mode, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _copy(fd: int, path: str, mode: int) -> None:
    """Restore a file that has lost its last name."""
    with open(path, "xb") as file:
        os.fchmod(file.fileno(), mode)
        for at, data in _portions(fd):
            if data.strip(b"\0"):
                os.pwrite(file.fileno(), data, at)
        os.ftruncate(file.fileno(), os.fstat(fd).st_size)


def _portions(fd: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while data := os.pread(fd, COPIED_BYTES, at):
        yield at, data
        at += len(data)


def _key(info: os.stat_result) -> Key:
    return info.st_dev, info.st_ino
