"""What a node needs of the world besides the event loop: files, randomness, wall clock, process.

Monotonic time and the network are the asyncio loop itself (`loop.time()`, `call_later`,
Protocols). Everything else goes through a `Ports` value that is handed to each node's main, so
that the same code runs on a real disk or in a simulated world. No other module of Flotilla may
call `time`, `random`, `os`, `open` or start a thread.

Durability contract: bytes given to `pwrite` survive the death of the process; only bytes covered
by a finished `sync` survive the loss of power. A failed `sync` leaves the file's fate unknown, so
the process must stop (`Exit.fatal`) and never retry; and bytes that a later life finds are covered
by its sync only if it writes them again.
"""

import asyncio
import errno
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

Buffer = bytes | bytearray | memoryview
PID_BITS = 22  # Linux has no more
VANISHED_AFTER = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # two minutes
AGAIN_S = 1.0  # who found no descriptor tries again, as asyncio does that could not accept
T = TypeVar("T")


class File(Protocol):
    """An open file, addressed by offset."""

    def pwrite(self, data: Buffer, offset: int) -> int: ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes of zeros, space reserved."""
        ...

    async def sync(self) -> None:
        """Data on disk when this returns. OSError: stop the process."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Space:
    """How large a disk is, and how much of it may still be filled."""

    free_bytes: int
    total_bytes: int


class Files(Protocol):
    """A file system. Paths are strings as the configuration gives them."""

    def open(self, path: str) -> File:
        """Open for reading and writing, created when absent."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Sorted names; empty when there is no such folder."""
        ...

    def makedirs(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def append(self, path: str, data: bytes) -> None:
        """Add to the end, not synced: for logs that people read."""
        ...

    async def replace(self, path: str, data: bytes) -> None:
        """Write the whole file atomically and durably: temporary, sync, rename, sync folder.

        Calls for one path are carried out in their order, so the last one's data stays.
        """
        ...

    async def sync_folder(self, path: str) -> None:
        """Make creations and removals in a folder durable."""
        ...

    def space(self, path: str) -> Space:
        """Of the disk that holds this file or folder."""
        ...


class Randomness(Protocol):
    def uniform(self, a: float, b: float) -> float: ...

    def getrandbits(self, k: int) -> int: ...


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970 by this node's clock, right or wrong."""
        ...


class Exit(Protocol):
    def fatal(self, why: str) -> NoReturn:
        """Stop the process at once; nothing more may be written."""
        ...


class Process(Protocol):
    """What a node knows of the process that it is."""

    def pid(self) -> int: ...

    def on_stop_request(self, stop: Callable[[], object]) -> None:
        """Call `stop` in the running loop when the process is asked to end."""
        ...

    def say(self, line: str) -> None:
        """A line on standard output."""
        ...

    def complain(self, line: str) -> None:
        """A line on standard error."""
        ...


@dataclass(frozen=True)
class Ports:
    """The world of one node."""

    files: Files
    randomness: Randomness
    clock: Clock
    exit: Exit
    process: Process


class RealFile:
    """A file of the operating system; `sync` is fdatasync on a thread."""

    def __init__(self, path: str, pool: ThreadPoolExecutor) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._pool = pool

    def pwrite(self, data: Buffer, offset: int) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += os.pwrite(self._fd, view[written:], offset + written)
        return written

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    async def sync(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, os.fdatasync, self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFiles:
    """The operating system's file system."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sync")
        self._replacing: dict[str, asyncio.Lock] = {}

    def open(self, path: str) -> File:
        return RealFile(path, self._pool)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        os.remove(path)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def append(self, path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    async def replace(self, path: str, data: bytes) -> None:
        async with self._replacing.setdefault(path, asyncio.Lock()):
            await self._replace(path, data)

    async def _replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        file = RealFile(temporary, self._pool)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            await file.sync()
        finally:
            file.close()
        os.replace(temporary, path)
        await self.sync_folder(os.path.dirname(path))

    async def sync_folder(self, path: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, _sync_folder, path)

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        taken = found.f_blocks - found.f_bfree
        return Space(found.f_bavail * found.f_frsize, (taken + found.f_bavail) * found.f_frsize)


class RealClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RealExit:
    def fatal(self, why: str) -> NoReturn:
        print(f"FATAL {why}", file=sys.stderr, flush=True)
        os._exit(70)


class RealProcess:
    """A process of the operating system, asked to end by SIGTERM or SIGINT."""

    def pid(self) -> int:
        return os.getpid()

    def on_stop_request(self, stop: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def complain(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def real(seed: int | None = None) -> Ports:
    """The machine's own files, clock and process; randomness from `seed`, or from the system."""
    return Ports(RealFiles(), random.Random(seed), RealClock(), RealExit(), RealProcess())


def no_room(e: OSError) -> bool:
    """Did the disk only lack room, or the process a descriptor? Then nothing has changed, and it
    may be tried again."""
    return e.errno in (errno.ENOSPC, errno.EDQUOT) or out_of_files(e)


def out_of_files(e: OSError) -> bool:
    """Are as many files and connections open as may be? Some will be closed again."""
    return e.errno in (errno.EMFILE, errno.ENFILE)


async def patiently(act: Callable[[], Awaitable[T]]) -> T:
    """Do what needs a descriptor, as soon as there is one."""
    while True:
        try:
            return await act()
        except OSError as e:
            if not out_of_files(e):
                raise
        await asyncio.sleep(AGAIN_S)


def close_for_the_vanished(server: asyncio.Server) -> None:
    """Whoever dialled and then lost power, or its way to us, for two minutes has no connection any
    more: the kernel asks (RFC 9293, 3.8.4), for most of our connections wait for the other side."""
    for listener in server.sockets:  # who is let in inherits it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in VANISHED_AFTER.items():
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def arguments() -> Sequence[str]:
    """The command line without the program's name."""
    return sys.argv[1:]


def _sync_folder(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def life_of(ports: Ports) -> int:
    """A number that no other process of this node has: not of its dice, which a seed makes alike
    in every life."""
    return ports.clock.wall_ms() << PID_BITS | ports.process.pid()
