"""The disk of a simulated host: folders and files that outlive its processes, as ext4 keeps them.

The death of a process loses nothing: what was written is in the kernel. A power cut takes from
every file what `content` says. Data covered by a finished sync is never lost. Creations, removals
and renames go into one journal, in order, and a power cut keeps a prefix of it; a finished sync of
a folder makes the journal durable up to the last entry about the folder. Two rules are stricter
than ext4, because POSIX allows them and other file systems do so: a sync of a file does not save
its name, and data may reach the disk before or after any name. A rename is atomic. Of a file that
lost its name nothing is left.

A sync takes time, and syncs queue up, as on one device. Its effect needs the kernel only: it comes
even if the process that asked for it has died, and covers what was written before. After a failed
sync the kernel marks the pages that it could not write as clean. Mostly they can still be read, as
on ext4 and XFS, until a power cut shows that the disk never had them; sometimes they are lost at
once, except for what had reached the disk. No later sync covers them, unless they are written
again: a process that syncs again and trusts the result is wrong.

Faults: `room_bytes` (how much may still be added; then ENOSPC, after a partial write, as in a
kernel), `full` (no space at all, whatever `room_bytes` is), `read_only` (EROFS for changes of files
and names), `write_error` and `sync_error` (an errno, EIO), `delay_ns` (each sync takes longer),
`hang` (no sync ends), `flip_bit`, `cut_end`, `empty`. `full` and `read_only` do not apply to spared
files. `no_descriptors`: no file can be opened and no folder read (EMFILE).
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from clusters.hosts._world.content import Content

PLENTY_BYTES = 1 << 40  # space of a disk without a limit
DROP_CHANCE = 0.25  # chance that the changes of a failed sync are lost at once
MAX_NAMES_WAITING = 256  # older journal entries are written out
SyncDone = Callable[[OSError | None], None]


class Timer(Protocol):
    """What the disk needs of the world."""

    @property
    def now_ns(self) -> int: ...

    def after(self, delay_ns: int, call: Callable[[], None]) -> object: ...


@dataclass(frozen=True)
class SyncTimes:
    """How long a sync takes: usually between the first two values, sometimes up to the third."""

    least_ns: int = 80_000
    usual_ns: int = 400_000
    slow_ns: int = 15_000_000
    slow_share: float = 0.01


class Folder:
    """Names and what they name. `journaled`: the count of the last journal entry about it."""

    __slots__ = ("entries", "journaled")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.journaled = 0


Node = Folder | Content
_JournalEntry = tuple[tuple[Folder, str, Node | None], ...]  # what each name named before


class Disk:
    """One host's disk. Everything but the end of a sync happens at once."""

    def __init__(self, timer: Timer, random: Random, pace: SyncTimes = SyncTimes()) -> None:
        self.room_bytes: int | None = None
        self.write_error = self.sync_error = 0
        self.full = self.read_only = self.no_descriptors = False
        self.delay_ns = 0
        self._hung: list[Callable[[], None]] | None = None  # syncs that wait for the hang to end
        self.cuts = 0
        self.loses_everything = False  # in the next power cut, instead of a random part
        self.lost = 0, 0, 0  # in the last power cut: files, names, bytes
        self.on_append: dict[
            str, Callable[[bytes], object]
        ] = {}  # path -> called with appended data
        self._timer, self._random, self._pace = timer, random, pace
        self._root = Folder()
        self._journal: list[_JournalEntry] = []
        self._written = 0  # journal entries on disk
        self._free_at_ns = 0

    @property
    def free_bytes(self) -> int:
        return 0 if self.full else self.room_left_bytes

    @property
    def room_left_bytes(self) -> int:
        """What would be free if it were not set to be full."""
        return PLENTY_BYTES if self.room_bytes is None else self.room_bytes

    # names

    def look_up(self, path: str) -> Node:
        """Return the file or folder. Raises FileNotFoundError or NotADirectoryError."""
        folder, name = self._place(path)
        if not name:
            return folder
        node = folder.entries.get(name)
        if node is None:
            raise error_of(errno.ENOENT, path)
        return node

    def file(self, path: str, *, create: bool = False) -> Content:
        """Return the file at `path`, made if `create` is set."""
        folder, name = self._place(path)
        node = folder.entries.get(name) if name else folder
        if isinstance(node, Folder):
            raise error_of(errno.EISDIR, path)
        if node is None:
            if not create:
                raise error_of(errno.ENOENT, path)
            self._check_names()
            node = Content()
            self._change_names((folder, name, node))
        return node

    def folder(self, path: str) -> Folder:
        node = self.look_up(path)
        if not isinstance(node, Folder):
            raise error_of(errno.ENOTDIR, path)
        return node

    def make_folders(self, path: str) -> None:
        folder, names = self._root, _names(path)
        for depth, name in enumerate(names):
            node = folder.entries.get(name)
            if node is None:
                self._check_names()
                node = Folder()
                self._change_names((folder, name, node))
            if not isinstance(node, Folder):
                last = depth == len(names) - 1
                raise error_of(errno.EEXIST if last else errno.ENOTDIR, path)
            folder = node

    def remove(self, path: str) -> None:
        node = self.file(path)
        self._check_names()
        self._change_names((*self._place(path), None))
        self._grow(-node.size)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, over another file if there is one."""
        node = self.file(source)
        folder, name = self._place(target)
        there = folder.entries.get(name) if name else folder
        self._check_names()
        if isinstance(there, Folder):
            raise error_of(errno.EISDIR, target)
        if there is node:
            return
        self._change_names((folder, name, node), (*self._place(source), None))
        self._grow(-there.size if there else 0)

    # bytes

    def write(self, file: Content, data: bytes | memoryview, offset: int) -> None:
        """Write all of it, or as much as there is space for and then raise ENOSPC."""
        if not data:
            return
        self._check_write(file, offset)
        end = offset + len(data)
        lacking = self._lacking(file, end - file.size)
        fits = max(len(data) - lacking, 0)
        if fits:
            self._grow(max(offset + fits - file.size, 0))
            file.write(data[:fits], offset)
        if lacking:
            raise error_of(errno.ENOSPC)

    def truncate(self, file: Content, size: int) -> None:
        if size < 0:
            raise error_of(errno.EINVAL)
        self._check_change(file)
        self._grow(min(size - file.size, 0))
        file.resize(size)

    def allocate(self, file: Content, size: int) -> None:
        if size <= 0:
            raise error_of(errno.EINVAL)
        self._check_write(file, 0)
        if self._lacking(file, size - file.size):
            raise error_of(errno.ENOSPC)
        if size > file.size:
            self._grow(size - file.size)
            file.resize(size)

    def sync_file(self, file: Content, done: SyncDone) -> None:
        """Sync what the file holds now; `done` is called when the device reports success or
        failure."""
        changes = file.changes

        def end() -> None:
            error = self.sync_error
            if not error:
                file.settle(changes)
            elif self._random.random() < DROP_CHANCE:
                file.lose(self._random)
            else:
                file.fail_sync(changes)
            done(error_of(error) if error else None)

        self._queue(end)

    def sync_folder(self, folder: Folder, done: SyncDone) -> None:
        journaled = folder.journaled

        def end() -> None:
            if not self.sync_error:
                self._write_journal(journaled)
            done(error_of(self.sync_error) if self.sync_error else None)

        self._queue(end)

    # calls of the node's agent

    def put(self, path: str, data: bytes, *, spared: bool = False) -> None:
        """Write a file that is durable from the start, with the folders above it.

        `spared`: everything added later is durable, too. An event log is evidence, not under test.
        """
        read_only, self.read_only = self.read_only, False
        self.make_folders("/".join(_names(path)[:-1]))
        self.read_only = read_only
        folder, name = self._place(path)
        self._change_names((folder, name, Content(data, spared=spared)))
        self._write_journal(self._written + len(self._journal))

    def power_cut(self) -> None:
        """Lose unsynced data. No process may have a file open."""
        self.cuts += 1
        random = None if self.loses_everything else self._random
        self.loses_everything = False
        names = len(self._journal)
        kept = random.randint(0, names) if names and random else 0
        self._undo_names(kept)
        lost = list(self._lose_from(self._root, random))
        self.lost = sum(map(bool, lost)), names - kept, sum(lost)
        self._free_at_ns = 0
        if self._hung:
            self._hung.clear()

    def hang(self, on: bool) -> None:
        """Let no sync end any more; or end those that hang, and let later ones end in time."""
        hung, self._hung = self._hung or [], (self._hung or []) if on else None
        if not on:
            for end in hung:
                self._timer.after(0, end)

    @property
    def hangs(self) -> bool:
        return self._hung is not None

    def waiting(self, path: str) -> tuple[int, int, int]:
        """Return what no sync has covered: files below a folder, names, and bytes in those
        files."""
        waiting = [file for _, file in self.files(path) if file.waiting and not file.spared]
        return len(waiting), len(self._journal), sum(file.at_stake_bytes for file in waiting)

    def files(self, path: str) -> Iterator[tuple[str, Content]]:
        """Yield every file below a folder, with its path there."""
        for name, node in sorted(self.folder(path).entries.items()):
            if isinstance(node, Folder):
                yield from ((f"{name}/{below}", f) for below, f in self.files(f"{path}/{name}"))
            else:
                yield name, node

    def flip_bit(self, path: str, bit: int) -> None:
        self.file(path).flip(bit)

    def cut_end(self, path: str, size: int) -> None:
        """Cut off the file's end, durably."""
        file = self.file(path)
        self._grow(min(size - file.size, 0))
        file.resize(size)
        file.settle(file.changes)

    def empty(self, path: str) -> None:
        """Remove everything below a folder, durably."""
        folder = self.folder(path)
        self._grow(-_size_of(folder))
        for name in list(folder.entries):
            self._change_names((folder, name, None))
        self._write_journal(self._written + len(self._journal))

    def used_bytes(self) -> int:
        return _size_of(self._root)

    # internals

    def _place(self, path: str) -> tuple[Folder, str]:
        """Return the folder that holds a path's last name, and the name; an empty name means the
        root."""
        if not path:
            raise error_of(errno.ENOENT, path)
        *above, last = _names(path) or [""]
        folder = self._root
        for name in above:
            node = folder.entries.get(name)
            if node is None:
                raise error_of(errno.ENOENT, path)
            if not isinstance(node, Folder):
                raise error_of(errno.ENOTDIR, path)
            folder = node
        return folder, last

    def _change_names(self, *changes: tuple[Folder, str, Node | None]) -> None:
        """Change names, all at once, as one entry of the journal."""
        self._journal.append(tuple((f, name, f.entries.get(name)) for f, name, _ in changes))
        count = self._written + len(self._journal)
        for folder, name, node in changes:
            _set(folder, name, node)
            folder.journaled = count
            if isinstance(node, Folder):
                node.journaled = count
        if len(self._journal) > MAX_NAMES_WAITING:
            self._write_journal(self._written + 1)

    def _write_journal(self, count: int) -> None:
        if count > self._written:
            del self._journal[: count - self._written]
            self._written = count

    def _undo_names(self, kept: int) -> None:
        for deed in reversed(self._journal[kept:]):
            for folder, name, before in reversed(deed):
                _set(folder, name, before)
        self._written += len(self._journal)
        self._journal.clear()

    def _lose_from(self, folder: Folder, random: Random | None) -> Iterator[int]:
        """Yield how many bytes each file has lost."""
        for name in sorted(folder.entries):
            node = folder.entries[name]
            if isinstance(node, Folder):
                yield from self._lose_from(node, random)
            else:
                yield node.lose(random)

    def _queue(self, end: Callable[[], None]) -> None:
        pace, draw, cuts = self._pace, self._random.random, self.cuts
        most_ns = pace.slow_ns if draw() < pace.slow_share else pace.usual_ns
        takes_ns = pace.least_ns + int(draw() * (most_ns - pace.least_ns)) + self.delay_ns
        now_ns = self._timer.now_ns
        self._free_at_ns = max(self._free_at_ns, now_ns) + takes_ns

        def unless_cut() -> None:
            if self._hung is not None:
                self._hung.append(unless_cut)
            elif cuts == self.cuts:
                end()

        self._timer.after(self._free_at_ns - now_ns, unless_cut)

    def _check_write(self, file: Content, offset: int) -> None:
        if offset < 0:
            raise error_of(errno.EINVAL)
        self._check_change(file)
        if self.write_error:
            raise error_of(self.write_error)

    def _check_change(self, file: Content) -> None:
        if self.read_only and not file.spared:
            raise error_of(errno.EROFS)

    def _check_names(self) -> None:
        if self.read_only:
            raise error_of(errno.EROFS)

    def _lacking(self, file: Content, growth: int) -> int:
        if self.full and not file.spared:
            return max(growth, 0)
        return 0 if self.room_bytes is None else max(growth - self.room_bytes, 0)

    def _grow(self, by: int) -> None:
        if self.room_bytes is not None:
            self.room_bytes -= by


def _names(path: str) -> list[str]:
    """Return the names of a path. There are no links, so `..` removes the name before it."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return names


def _set(folder: Folder, name: str, node: Node | None) -> None:
    if node is None:
        folder.entries.pop(name, None)
    else:
        folder.entries[name] = node


def _size_of(node: Node) -> int:
    if isinstance(node, Folder):
        return sum(map(_size_of, node.entries.values()))
    return node.size


def error_of(number: int, path: str | None = None) -> OSError:
    """Return the operating system's error; Python picks the subclass by the number."""
    words = os.strerror(number)
    return OSError(number, words) if path is None else OSError(number, words, path)
