"""The system calls that the tracer intercepts: their numbers and the meaning of their arguments.

The kernel passes the number of a call and six arguments; the data behind them is read from the
caller's memory, and descriptors are looked up in /proc. A call is always inspected just before it
is carried out. `tell` reports it to the recorder of unsynced changes (`unsynced_writes.py`).
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusters.hosts._faults.unsynced_writes import UnsyncedWrites

# numbers of the calls on each machine
_X86 = {
    "write": 1, "open": 2, "mmap": 9, "pwrite64": 18, "writev": 20, "msync": 26, "fsync": 74,
    "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84,
    "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "sync": 162, "openat": 257,
    "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266,
    "sync_file_range": 277, "fallocate": 285, "pwritev": 296, "syncfs": 306, "renameat2": 316,
    "pwritev2": 328,
}  # fmt: skip
_ARM = {
    "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "truncate": 45,
    "ftruncate": 46, "fallocate": 47, "openat": 56, "write": 64, "writev": 66, "pwrite64": 68,
    "pwritev": 70, "sync": 81, "fsync": 82, "fdatasync": 83, "sync_file_range": 84, "mmap": 222,
    "msync": 227, "syncfs": 267, "renameat2": 276, "pwritev2": 287,
}  # fmt: skip
MACHINES = {"x86_64": (0xC000003E, _X86, 317), "aarch64": (0xC00000B7, _ARM, 277)}
NAMES = {number: name for name, number in MACHINES.get(platform.machine(), (0, {}, 0))[1].items()}

SYNCS = frozenset({"fsync", "fdatasync", "sync_file_range", "msync"})
SYNC_ALL = frozenset({"sync", "syncfs"})
ALWAYS_ALLOWED = SYNC_ALL | {"mmap"}  # recorded, and always allowed
WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "pwritev2", "fallocate"})
AT_OFFSET = frozenset({"pwrite64", "pwritev", "pwritev2"})  # the fourth argument is the offset
# for each changed path: the arguments with the folder's descriptor (-1: none) and the path
PATHS = {
    "open": [(-1, 0)], "creat": [(-1, 0)], "truncate": [(-1, 0)], "mkdir": [(-1, 0)],
    "rmdir": [(-1, 0)], "unlink": [(-1, 0)], "link": [(-1, 1)], "symlink": [(-1, 1)],
    "rename": [(-1, 0), (-1, 1)], "openat": [(0, 1)], "mkdirat": [(0, 1)], "unlinkat": [(0, 1)],
    "renameat": [(0, 1), (2, 3)], "renameat2": [(0, 1), (2, 3)], "linkat": [(2, 3)],
    "symlinkat": [(1, 2)],
}  # fmt: skip
REMOVING = frozenset({"rmdir", "unlink", "unlinkat"})
RENAMING = frozenset({"rename", "renameat", "renameat2"})
MAKING = frozenset({"mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat"})
# calls that are intercepted only if one of these arguments has one of these bits
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CREAT = os.O_CREAT | os.O_TRUNC  # flags of `creat`
PROT_WRITE, MAP_SHARED = 2, 1
ONLY_WITH = {
    "open": [(1, FOR_WRITING)],
    "openat": [(2, FOR_WRITING)],
    "mmap": [(2, PROT_WRITE), (3, MAP_SHARED)],
}
MS_SYNC = 4
KEEPS_SIZE, EXCHANGES, NO_REPLACE = 1, 2, 1
WRITES_DURABLY, APPENDS = 2 | 4, 16  # flags of pwritev2
AT_CWD, NO_OFFSET = 0xFFFFFF9C, 0xFFFFFFFFFFFFFFFF
MAX_PATH_BYTES, MAX_PIECES = 4096, 1024
PAGE = 4096
PIECE = struct.Struct("=QQ")  # of an iovec: address, length


@dataclass(frozen=True)
class Call:
    """A system call that waits for an answer."""

    listener: int
    id: int
    thread: int
    name: str
    args: tuple[int, ...]

    @property
    def proc(self) -> str:
        return f"/proc/{self.thread}"

    def file(self, argument: int = 0) -> str:
        """Return the path under /proc by which the descriptor in this argument can be read and
        opened."""
        return f"{self.proc}/fd/{self.args[argument] & 0xFFFFFFFF}"


# ------------------------------------------------------------------- what a call is about


def is_below(call: Call, folder: str) -> bool:
    """Return whether the call concerns a file below the folder, or the folder itself. A call with
    invalid arguments does not: the kernel refuses it."""
    with suppress(OSError, OverflowError):
        return any(path == folder or path.startswith(f"{folder}/") for path in _paths(call))
    return False


def _paths(call: Call) -> Iterator[str]:
    if call.name not in PATHS:
        yield os.readlink(call.file())
        return
    for of_folder, of_path in PATHS[call.name]:
        fd = AT_CWD if of_folder < 0 else call.args[of_folder] & 0xFFFFFFFF
        folder = os.readlink(f"{call.proc}/cwd" if fd == AT_CWD else f"{call.proc}/fd/{fd}")
        path = os.path.join(folder, _text(call, call.args[of_path])).rstrip("/") or "/"
        yield os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def grows(call: Call) -> bool:
    """Return whether a write needs space that the file does not have yet."""
    info = os.stat(call.file())
    given = info.st_blocks * 512
    if call.name == "fallocate":
        return call.args[2] + call.args[3] > given
    pos, flags = (0, 0) if call.name in AT_OFFSET else _offset_and_flags(call)
    start = call.args[3] if call.name in AT_OFFSET else pos
    if flags & os.O_APPEND:
        start = info.st_size
    length = call.args[2] if call.name in ("write", "pwrite64") else 1
    return start + length > given or start + length > info.st_size


def _offset_and_flags(call: Call) -> tuple[int, int]:
    """Return the offset of the descriptor, and the flags with which it was opened."""
    fd = os.open(f"{call.proc}/fdinfo/{call.args[0] & 0xFFFFFFFF}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = os.read(fd, 256).split()
    finally:
        os.close(fd)
    return int(words[1]), int(words[3], 8)


def _text(call: Call, at: int) -> str:
    """Read a string from the caller's memory, page by page. Raises OSError if there is none."""
    data = b""
    with open(f"{call.proc}/mem", "rb", buffering=0) as memory:
        while b"\0" not in data and len(data) < MAX_PATH_BYTES:
            memory.seek(at + len(data))
            if not (piece := memory.read(PAGE - (at + len(data)) % PAGE)):
                raise ProcessLookupError(f"{call.proc} was killed meanwhile")
            data += piece
    return os.fsdecode(data.split(b"\0")[0])


def _length(call: Call) -> int:
    """Return how many bytes a write writes."""
    if call.name in ("write", "pwrite64"):
        return call.args[2]
    with open(f"{call.proc}/mem", "rb", buffering=0) as memory:
        memory.seek(call.args[1])
        vector = memory.read(PIECE.size * min(call.args[2], MAX_PIECES))
    return sum(length for _, length in PIECE.iter_unpack(vector))


# ---------------------------------------------------------------------- telling the ledger


def record(call: Call, ledger: UnsyncedWrites) -> None:
    """Report the changes of a call to the recorder. Raises OSError if they cannot be determined."""
    name = call.name
    if name in SYNC_ALL:
        ledger.settle()
    elif name == "msync":
        _record_memory_sync(call, ledger)
    elif name == "mmap":
        anonymous = call.args[4] & 0x80000000  # -1: no file
        if not anonymous and ledger.has(os.readlink(call.file(4))):
            ledger.map(call.file(4))
    elif name in PATHS:
        _record_names(call, ledger)
    elif name in ("fsync", "fdatasync"):
        if not _is_prober(call):
            ledger.sync(call.file())
    elif name != "sync_file_range" and ledger.has(os.readlink(call.file())):
        _record_write(call, ledger)


def record_failed_sync(call: Call, ledger: UnsyncedWrites) -> None:
    """Report a sync that the tracer makes fail. Raises OSError if its file cannot be determined."""
    if call.name in ("fsync", "fdatasync"):
        ledger.fail(call.file())


def _is_prober(call: Call) -> bool:
    """Return whether the caller is the tracer's own probe, whose syncs are not the node's."""
    with open(f"{call.proc}/cmdline", "rb") as line:
        words = line.read().split(b"\0")
    return b"try" in words and any(word.endswith(b"/syscall_tracer.py") for word in words)


def _record_write(call: Call, ledger: UnsyncedWrites) -> None:
    if call.name == "ftruncate":
        return ledger.resize(call.file(), call.args[1])
    if call.name == "fallocate":
        return _record_allocation(call, ledger)
    at, flags = _offset_and_flags(call)
    durable, appends = flags & os.O_DSYNC, flags & os.O_APPEND
    if call.name in AT_OFFSET and not (call.name == "pwritev2" and call.args[3] == NO_OFFSET):
        at = call.args[3]
    if call.name == "pwritev2":
        durable |= call.args[5] & WRITES_DURABLY
        appends |= call.args[5] & APPENDS
    return ledger.write(call.file(), None if appends else at, _length(call), bool(durable))


def _record_allocation(call: Call, ledger: UnsyncedWrites) -> None:
    """Report the new size of the file; other effects of fallocate are not followed."""
    mode = call.args[1] & 0xFFFFFFFF
    if not mode:
        ledger.resize(call.file(), call.args[2] + call.args[3], only_longer=True)
    elif mode != KEEPS_SIZE:
        ledger.overlooked(call.file())


def _record_names(call: Call, ledger: UnsyncedWrites) -> None:
    paths = list(_paths(call))
    if not any(map(ledger.has, paths)):
        return
    if call.name in RENAMING:
        flags = call.args[4] if call.name == "renameat2" else 0
        if flags & EXCHANGES:
            ledger.settle()
        elif not (flags & NO_REPLACE and os.path.lexists(paths[1])):
            ledger.rename(paths[0], paths[1])
    elif call.name in REMOVING:
        ledger.remove(paths[0])
    elif call.name in MAKING:
        ledger.make(paths[0])
    elif call.name == "truncate":
        ledger.resize(paths[0], call.args[1])
    else:
        _record_opening(call, paths[0], ledger)


def _record_opening(call: Call, path: str, ledger: UnsyncedWrites) -> None:
    flags = CREAT if call.name == "creat" else call.args[ONLY_WITH[call.name][0][0]]
    exists = os.path.exists(path)
    if flags & os.O_CREAT and not exists:
        ledger.make(path)
    if flags & os.O_TRUNC and exists and not (flags & os.O_CREAT and flags & os.O_EXCL):
        ledger.resize(path, 0)


def _record_memory_sync(call: Call, ledger: UnsyncedWrites) -> None:
    """Report a sync of the files that are mapped in the range; their other changes are
    synced, too."""
    start, end = call.args[0], call.args[0] + call.args[1]
    if not call.args[2] & MS_SYNC:
        return
    with open(f"{call.proc}/maps") as maps:
        for line in maps:
            where, _, _, _, _, *path = line.split(maxsplit=5)
            first, last = (int(word, 16) for word in where.split("-"))
            if first < end and start < last and path and ledger.has(path[0].strip()):
                ledger.sync(path[0].strip())
