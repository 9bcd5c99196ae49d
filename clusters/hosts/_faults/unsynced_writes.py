"""What a node's files were given that no sync has covered, and how a power cut takes it from them.

The gate (`syscall_tracer.py`) tells this ledger of every call that changes a file or a name below
one folder, just before the call is carried out. So the ledger can still read what is about to be
overwritten, cut off or replaced, and keeps that until a sync covers it: bytes by file, and names in
one journal, in their order. A removed file is kept open, so that it can be given back. When the
node has been killed, `lose` takes from its files what chance takes, by the rules of
`power_loss.py`, and from the journal its end, as the simulated disk does (`_simulated/disk.py`):
a sync of a folder makes the journal durable up to the last entry about that folder, while a sync of
a file does not save its name.

A sync counts as soon as it is let through: what a node was told to be durable is never taken. What
a sync that was refused should have covered is at stake until it is written again, as where the disk
failed and the kernel takes it for clean. Of old bytes and open files only so many are kept; beyond
that the oldest count as synced, as a kernel writes back of its own accord. What can not be undone
is counted and told. A file is named by a path under which it can be opened, such as `/proc/7/fd/3`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from clusters.hosts._faults.power_loss import MOST_WAITING, Change, Stranded, at_stake, lose

MOST_NAMES_WAITING = 256
MOST_FILES = 200
MOST_OLD_BYTES = 64 << 20
COPIED_BYTES = 1 << 20
PROBE = ".seatrial-probe"  # the gate's own prober: nothing of the node's

Json = dict[str, Any]
Key = tuple[int, int]  # a file: its device and its number there


@dataclass
class Tracked:
    """A real file with changes that no sync has covered."""

    fd: int
    path: str
    waiting: list[Change] = field(default_factory=list)
    stranded: Stranded = field(default_factory=Stranded)

    @property
    def at_stake_bytes(self) -> int:
        return at_stake(self.waiting) + self.stranded.size_bytes

    @property
    def old_bytes(self) -> int:
        """Kept in memory."""
        return sum(len(change.old) for change in self.waiting) + self.stranded.old_bytes

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def put(self, data: bytes, at: int) -> None:
        while data:
            written = os.pwrite(self.fd, data, at)
            data, at = data[written:], at + written

    def resized(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def zeros(self, start: int, end: int) -> bytes:
        """What is there, without the zeros at its end: those need not be kept."""
        return os.pread(self.fd, max(end - start, 0), start).rstrip(b"\0")


@dataclass
class Made:
    """A name that came to be: of a file, a folder or a link."""

    path: str

    def folders(self) -> tuple[str, ...]:
        return (os.path.dirname(self.path), self.path)

    def undo(self) -> None:
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            os.rmdir(self.path)
        elif os.path.lexists(self.path):
            os.unlink(self.path)

    def close(self) -> None:
        """Nothing was kept open."""


@dataclass
class Removed:
    """A name that is gone, and what it named: a file that is kept open, a link, or a folder."""

    path: str
    mode: int
    fd: int = -1
    link: str = ""

    def folders(self) -> tuple[str, ...]:
        return (os.path.dirname(self.path),)

    def undo(self) -> None:
        if os.path.lexists(self.path):
            return  # the call had failed
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
class Renamed:
    """Something that has another name, which may have been somebody else's."""

    source: str
    target: str
    replaced: Removed | None

    def folders(self) -> tuple[str, ...]:
        return (os.path.dirname(self.source), os.path.dirname(self.target), self.target)

    def undo(self) -> None:
        if os.path.lexists(self.source):
            return  # the call had failed
        os.rename(self.target, self.source)
        if self.replaced:
            self.replaced.undo()

    def close(self) -> None:
        if self.replaced:
            self.replaced.close()


Name = Made | Removed | Renamed


class Ledger:
    """Of all files below a folder."""

    def __init__(self, below: str) -> None:
        self.below = os.path.realpath(below)
        self.missed = 0  # calls that could not be looked at
        self.mapped: set[str] = set()  # files that were written to through memory, unseen
        self._files: dict[Key, Tracked] = {}  # the one that has waited longest is first
        self._names: list[Name] = []
        self._old_bytes = 0

    def has(self, path: str) -> bool:
        return path.startswith(f"{self.below}/") and not path.endswith(PROBE)

    # bytes

    def write(self, file: str, at: int | None, size: int, durable: bool = False) -> None:
        """So many bytes are written; without `at`, to the file's end. `durable`: and synced."""
        if durable:
            self.sync(file)
        elif size and (found := self._found(file, info := os.stat(file))):
            end = info.st_size
            at = end if at is None else at
            self._note(found, Change(at, at + size, found.zeros(at, min(at + size, end)), end))

    def resize(self, file: str, size: int, only_longer: bool = False) -> None:
        """Cut, or made longer with zeros."""
        end = (info := os.stat(file)).st_size
        changes = size > end or (size < end and not only_longer)
        if changes and (found := self._found(file, info)):
            self._note(found, Change(size, size, found.zeros(size, end), end))

    def sync(self, file: str) -> None:
        """Of a file, or of a folder."""
        info = os.stat(file)
        if stat.S_ISDIR(info.st_mode):
            self._sync_folder(os.path.realpath(file))
        elif found := self._files.get(_key(info)):
            self._covered(found, _key(info))

    def fail(self, file: str) -> None:
        """A sync of it is refused: no later one covers what this one should have covered."""
        if found := self._files.get(_key(os.stat(file))):
            before = found.old_bytes
            found.stranded.add(found.waiting)
            found.waiting.clear()
            self._old_bytes += found.old_bytes - before

    def overlooked(self, file: str) -> None:
        """A change of a kind that nobody here can undo."""
        self.missed += 1
        self.sync(file)

    def map(self, file: str) -> None:
        """What is written through a mapping is not seen."""
        self.mapped.add(os.path.relpath(os.path.realpath(file), self.below))

    # names

    def make(self, path: str) -> None:
        if not os.path.lexists(path):
            self._remember(Made(path))

    def remove(self, path: str) -> None:
        if os.path.lexists(path):
            self._remember(_removed(path))

    def rename(self, source: str, target: str) -> None:
        there = os.path.lexists(target)
        if os.path.lexists(source) and not (
            there and os.path.samestat(*map(os.lstat, (source, target)))
        ):
            self._remember(Renamed(source, target, _removed(target) if there else None))

    # what becomes of it

    def lose(self, seed: int) -> Json:
        """Take what chance takes. Nobody may write any more. What was at stake, and what is
        lost; afterwards all that is left is durable."""
        random = Random(seed)
        told = {
            "files": len(self._files),
            "names": len(self._names),
            "size_bytes": sum(file.at_stake_bytes for file in self._files.values()),
        }
        files = sorted(self._files.values(), key=lambda file: file.path)
        lost = [self._lost(file, random) for file in files]
        kept = random.randint(0, len(self._names)) if self._names else 0
        told |= {
            "lost_files": sum(map(bool, lost)),
            "lost_names": len(self._names) - kept,
            "lost_bytes": sum(lost),
        }
        for name in reversed(self._names[kept:]):
            try:
                name.undo()
            except OSError:
                self.missed += 1
        return {**told, "unseen": self._forgot()}

    def settle(self) -> None:
        """All that is there now is durable."""
        for key in list(self._files):
            self._settle(key)
        self._names_settled(len(self._names))

    def _lost(self, file: Tracked, random: Random) -> int:
        try:
            return lose(file.waiting, file, random) + file.stranded.lose(file)
        except OSError:  # a disk without room, say
            self.missed += 1
            return 0

    def _forgot(self) -> list[str]:
        """Begin anew; what could not be seen until now, in words."""
        said = [f"{path} is mapped into memory" for path in sorted(self.mapped)]
        if self.missed:
            said.append(f"{self.missed} changes could not be followed or undone")
        self.mapped, self.missed = set(), 0
        self.settle()
        self._old_bytes = 0
        return said

    # inside

    def _found(self, file: str, info: os.stat_result) -> Tracked | None:
        """With an open descriptor of ours, so that its number stays its own."""
        if not stat.S_ISREG(info.st_mode):
            return None
        key = _key(info)
        if key not in self._files:
            if len(self._files) >= MOST_FILES:
                self._settle(next(iter(self._files)))
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            self._files[key] = Tracked(fd, os.readlink(f"/proc/self/fd/{fd}"))
        return self._files[key]

    def _note(self, file: Tracked, change: Change) -> None:
        end = change.at + change.size_bytes
        file.waiting += (*file.stranded.take(change.at, end, change.size), change)
        self._old_bytes += len(change.old)
        while len(file.waiting) > MOST_WAITING:
            self._old_bytes -= len(file.waiting.pop(0).old)
        while self._old_bytes > MOST_OLD_BYTES:
            self._settle(next(iter(self._files)))

    def _covered(self, file: Tracked, key: Key) -> None:
        """By a sync; what is stranded is not."""
        if not file.stranded:
            self._settle(key)
            return
        self._old_bytes -= sum(len(change.old) for change in file.waiting)
        file.waiting.clear()

    def _settle(self, key: Key) -> None:
        """Whatever it holds is durable."""
        if file := self._files.pop(key, None):
            self._old_bytes -= file.old_bytes
            os.close(file.fd)

    def _remember(self, name: Name) -> None:
        self._names.append(name)
        if len(self._names) > MOST_NAMES_WAITING:
            self._names_settled(1)

    def _sync_folder(self, folder: str) -> None:
        about = [n for n, name in enumerate(self._names) if folder in name.folders()]
        self._names_settled(about[-1] + 1 if about else 0)

    def _names_settled(self, count: int) -> None:
        for name in self._names[:count]:
            name.close()
        del self._names[:count]


def _removed(path: str) -> Removed:
    """What is about to lose its name."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return Removed(path, info.st_mode, link=os.readlink(path))
    if not stat.S_ISREG(info.st_mode):
        return Removed(path, info.st_mode)
    return Removed(path, info.st_mode, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _copy(fd: int, path: str, mode: int) -> None:
    """A file that has lost its last name, under a name."""
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
