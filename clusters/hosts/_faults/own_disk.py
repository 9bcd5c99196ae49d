"""Gives a folder a file system of its own, and cuts the power of its disk.

    python3 -I -S own_disk.py make|restore|sync|check|release FOLDER
    python3 -I -S own_disk.py cut FOLDER GROUP    also kills the process group, which writes there
    python3 -I -S own_disk.py try FOLDER          once, in a mount namespace of its own

The file system is ext4 on a loop device, whose file is FOLDER.img. The ioctl EXT4_IOC_SHUTDOWN
without a flush of the journal leaves it as a power cut does: nothing in memory reaches it any more,
and mounting it again replays the journal. So it does not matter how data was written, by system
calls or through mapped memory, nor what a program is written in. It is mounted such that the kernel
adds little of its own: metadata is committed by a sync only, not every five seconds, and a file
that is renamed over another is not written back for that.

A mount that was copied into another mount namespace would keep the dead file system alive, so the
caller's namespace must be its only one. The loop device is cleared by the kernel when the mount is
gone, also when the last process of the namespace is killed.

A node's own Python runs it as root, and it needs e2fsprogs, util-linux and coreutils, nothing else;
the answer is one JSON line.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
NEWNS, MS_REC, MS_PRIVATE = 0x00020000, 16384, 1 << 18
PAGE, PORTION = 4096, 1 << 20
MAX_BYTES = 16 << 30  # the file is sparse: only what is written takes room
TRIED_BYTES = 16 << 20
OPTIONS = "loop,noauto_da_alloc,commit=3600,noinit_itable"
LATER = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
IMAGE, BEFORE, COPY = ".img", ".before", ".copy"  # beside the folder
STOPPED_WITHIN_S, FREE_WITHIN_S = 2.0, 10.0
POLL_S = 0.01
ZEROS = crc32(bytes(PAGE))

Json = dict[str, Any]


class Contents:
    """Names and files of a folder, as they are read now.

    names: path -> inode, or the target of a symbolic link
    files: inode -> size, and a checksum of each page that is not all zeros, by number
    """

    def __init__(self, names: dict[str, str], files: dict[str, tuple[int, dict[str, int]]]) -> None:
        self.names, self.files = names, files

    @classmethod
    def read(cls, folder: str) -> Contents:
        found = cls({}, {})
        for where, folders, files in os.walk(folder):
            for path in (os.path.join(where, name) for name in (*folders, *files)):
                info = os.lstat(path)
                linked = os.readlink(path) if stat.S_ISLNK(info.st_mode) else ""
                found.names[os.path.relpath(path, folder)] = linked or str(info.st_ino)
                if stat.S_ISREG(info.st_mode) and str(info.st_ino) not in found.files:
                    found.files[str(info.st_ino)] = info.st_size, dict(_pages(path))
        return found


def losses(before: Contents, after: Contents) -> Json:
    """Return what is lost, in the terms of `UnsyncedReport`. Bytes are those of pages that differ,
    up to the end that the file had, or that it has now if it had been cut."""
    names = before.names.keys() | after.names.keys()
    lost_names = sum(before.names.get(name) != after.names.get(name) for name in names)
    lost_files = lost_bytes = 0
    for inode, (size, pages) in before.files.items():
        size_after, pages_after = after.files.get(inode, (0, {}))
        differ = {n for n, crc in pages.items() if pages_after.get(n) != crc}
        differ |= pages_after.keys() - pages.keys()
        longest = max(size, size_after)
        lost_bytes += sum(max(0, min(PAGE, longest - int(n) * PAGE)) for n in differ)
        lost_files += bool(differ) or size != size_after
    return {
        "files": lost_files,
        "names": lost_names,
        "size_bytes": lost_bytes,
        "lost_files": lost_files,
        "lost_names": lost_names,
        "lost_bytes": lost_bytes,
    }


def make(folder: str, size: int = MAX_BYTES) -> Json:
    """Make a file system, empty, and mount it on the folder, which keeps its owner and mode."""
    os.makedirs(folder, exist_ok=True)
    owner, room = os.stat(folder), os.statvfs(folder)
    image = folder + IMAGE
    with open(image, "wb") as file:
        file.truncate(min(size, room.f_bavail * room.f_frsize))
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", LATER, image)
    _run("mount", "-o", OPTIONS, image, folder)
    os.rmdir(f"{folder}/lost+found")  # some programs want an empty folder
    os.chown(folder, owner.st_uid, owner.st_gid)
    os.chmod(folder, stat.S_IMODE(owner.st_mode))
    return sync(folder)


def sync(folder: str) -> Json:
    """Make everything in the folder durable."""
    _run("sync", "-f", folder)
    return {}


def cut(folder: str, group: int) -> Json:
    """Stop the processes, keep what they read in the folder, cut the power, and kill them."""
    _refuse_unmounted(folder)
    os.killpg(group, signal.SIGSTOP)
    _wait(lambda: all(map(_is_stopped, _writers(folder, group))), STOPPED_WITHIN_S)
    before = Contents.read(folder)
    with open(folder + BEFORE, "w") as file:
        json.dump([before.names, before.files], file)
    shut_down(folder)
    os.killpg(group, signal.SIGKILL)
    return {}


def shut_down(folder: str) -> None:
    """Cut the power. Raises OSError if the file system takes a file after it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(fd)
    try:
        os.close(os.open(f"{folder}/.seatrial", os.O_CREAT | os.O_WRONLY))
    except OSError:
        return
    raise OSError(f"{folder} can be written to, though its power was cut")


def restore(folder: str) -> Json:
    """Mount the file system again after a cut, once no process uses it; return what is lost."""
    if not os.path.exists(folder + BEFORE):
        return losses(Contents({}, {}), Contents({}, {}))
    _unmount(folder)
    _run("mount", "-o", OPTIONS, folder + IMAGE, folder)
    with open(folder + BEFORE) as file:
        before = Contents(*json.load(file))
    os.remove(folder + BEFORE)
    return losses(before, Contents.read(folder))


def check(folder: str) -> Json:
    """Write to the file system; return why that is impossible."""
    path = f"{folder}/.seatrial"
    try:
        _refuse_unmounted(folder)
        with open(path, "wb") as file:
            file.write(b"seatrial")
            os.fsync(file.fileno())
        os.remove(path)
    except OSError as e:
        return {"why": f"{e.filename or folder}: {e.strerror or e}"}
    return {"why": ""}


def release(folder: str) -> Json:
    """Kill what uses the file system; leave its files in the folder, without the file system."""
    for pid in _users(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    restore(folder)
    _run("cp", "-a", "--sparse=always", f"{folder}/.", folder + COPY)
    _unmount(folder)
    os.rmdir(folder)
    os.rename(folder + COPY, folder)
    os.remove(folder + IMAGE)
    return {}


def try_all(folder: str) -> Json:
    """Do once what a cut does, in mounts of this process; return why it cannot be done."""
    try:
        private_mounts()
        _attempt(f"{folder}/tried")
    except OSError as e:
        return {"why": " ".join(str(e).split())}
    return {"why": ""}


def _attempt(disk: str) -> None:
    make(disk, TRIED_BYTES)
    for name in ("synced", "unsynced"):
        with open(f"{disk}/{name}", "wb") as file:
            file.write(b"seatrial")
            file.flush()
            if name == "synced":
                os.fsync(file.fileno())
    shut_down(disk)
    _unmount(disk)
    _run("mount", "-o", OPTIONS, disk + IMAGE, disk)
    sizes = {name: os.path.getsize(f"{disk}/{name}") for name in os.listdir(disk)}
    _unmount(disk)
    if sizes.get("synced") != 8 or sizes.get("unsynced"):
        raise OSError("after a cut, the disk had not what was synced, and only that")


def private_mounts() -> None:
    """Give this process a mount namespace, from which nothing is seen outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEWNS) or libc.mount(
        b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"mount namespaces: {os.strerror(number)}")


# ------------------------------------------------------------------------------------- file systems


def _pages(path: str) -> Iterator[tuple[str, int]]:
    """Yield number and checksum of each page that is not all zeros; holes are not read."""
    with open(path, "rb", buffering=0) as file:
        at = 0
        while (at := _next_data(file.fileno(), at)) >= 0:
            at = at // PAGE * PAGE
            data = os.pread(file.fileno(), PORTION, at)
            for start in range(0, len(data), PAGE):
                page = data[start : start + PAGE]
                crc = crc32(page + bytes(PAGE - len(page)))
                if crc != ZEROS:
                    yield str((at + start) // PAGE), crc
            if not data:
                return
            at += len(data)


def _next_data(fd: int, at: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError:  # there is none
        return -1


def _refuse_unmounted(folder: str) -> None:
    if not os.path.ismount(folder):
        raise OSError(f"{folder} has no file system of its own")


def _unmount(folder: str) -> None:
    """Unmount the folder, as soon as no process uses it."""
    failed: list[OSError] = []

    def unmounted() -> bool:
        try:
            _run("umount", folder)
        except OSError as e:
            failed.append(e)
        return not os.path.ismount(folder)

    if not _wait(unmounted, FREE_WITHIN_S):
        pids = ", ".join(map(str, _users(folder))) or "none that can be found"
        raise OSError(f"{failed[-1]}; processes that use it: {pids}")


def _run(*argv: str) -> None:
    """Run a program. Raises OSError with what it printed."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise OSError(f"the program {argv[0]} is missing") from None
    if done.returncode:
        raise OSError(f"{argv[0]}: {' '.join(done.stderr.split()) or done.returncode}")


# ---------------------------------------------------------------------------------------- processes


def _pids() -> Iterator[int]:
    """Yield all processes but this one, the agent that started it, and process 1."""
    ours = {1, os.getpid(), os.getppid()}
    yield from (
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid not in ours
    )


def _users(folder: str) -> list[int]:
    """Return the processes that have a file of the folder's file system open or mapped, or their
    working directory there."""
    device = os.stat(folder).st_dev
    return [pid for pid in _pids() if any(True for _ in _uses(pid, device, writing=False))]


def _writers(folder: str, ancestor: int) -> list[int]:
    """Return a process, and those below it, that can write to a file there without opening one."""
    device = os.stat(folder).st_dev
    parents = {pid: _parent(pid) for pid in _pids()}
    below = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return [pid for pid in below if any(True for _ in _uses(pid, device, writing=True))]


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _uses(pid: int, device: int, writing: bool) -> Iterator[str]:
    proc = f"/proc/{pid}"
    with contextlib.suppress(OSError):  # it may end, or close a file, at any moment
        if not writing and os.stat(f"{proc}/cwd").st_dev == device:
            yield "cwd"
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"{proc}/fd"):
            with contextlib.suppress(OSError):
                there = os.stat(f"{proc}/fd/{fd}").st_dev == device
                if there and not (writing and _is_read_only(f"{proc}/fdinfo/{fd}")):
                    yield fd
    number = f"{os.major(device):02x}:{os.minor(device):02x}"
    with contextlib.suppress(OSError), open(f"{proc}/maps") as maps:
        for line in maps:
            addresses, allowed, _, where, *_ = line.split()
            if where == number and (not writing or {"w", "s"} <= {*allowed}):
                yield addresses


def _is_read_only(fdinfo: str) -> bool:
    with open(fdinfo) as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
    return flags & os.O_ACCMODE == os.O_RDONLY


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped or gone."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "TtZX":
                    return False
    return True


def _wait(holds: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return held


ACTIONS: dict[str, Callable[..., Json]] = {
    "make": make,
    "cut": cut,
    "restore": restore,
    "sync": sync,
    "check": check,
    "release": release,
    "try": try_all,
}


def main() -> None:
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    action, folder, *more = sys.argv[1:]
    try:
        print(json.dumps(ACTIONS[action](folder, *map(int, more))))
    except OSError as e:
        sys.exit(" ".join(str(e).split()))


if __name__ == "__main__":
    main()
