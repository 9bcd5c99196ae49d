"""What a node uses besides the event loop: files, randomness, wall clock, process.

Monotonic time and the network are the asyncio loop itself (`loop.time()`, `call_later`,
Protocols). Everything else goes through a `Ports` value that is passed to each node's main, so the
same code runs on a real disk and in a simulated world. No other module of Flotilla may use `time`,
`random`, `os`, `open` or threads.

Durability contract: bytes given to `pwrite` survive the death of the process; only bytes covered
by a finished `sync` survive the loss of power. A failed `sync` leaves the state of the file
unknown, so the process must stop (`Exit.fatal`) and never retry. Bytes that a restarted process
finds are covered by its own sync only if it writes them again.
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

from .choices import USUAL, Choices

Buffer = bytes | bytearray | memoryview
PID_BITS = 22  # of Linux
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # two minutes
RETRY_S = 1.0  # after a lack of file descriptors, as asyncio's ACCEPT_RETRY_DELAY
T = TypeVar("T")


class File(Protocol):
    """An open file, addressed by offset."""

    def pwrite(self, data: Buffer, offset: int) -> int: ...

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes, fewer at the end of the file."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Extend the file with zeros to at least `size` bytes and reserve the space."""
        ...

    async def sync(self) -> None:
        """Put the data on disk. After an OSError the process must stop."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Space:
    """The size of a disk and its free part."""

    free_bytes: int
    total_bytes: int


class FileSystem(Protocol):
    """A file system. Paths are strings as the configuration gives them."""

    def open(self, path: str) -> File:
        """Open for reading and writing; create the file if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder, [] if it does not exist."""
        ...

    def makedirs(self, path: str) -> None: ...

    def resolve(self, path: str) -> str:
        """Return the path to which symbolic links lead."""
        ...

    def remove(self, path: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def append(self, path: str, data: bytes) -> None:
        """Append without a sync; for event logs."""
        ...

    async def replace(self, path: str, data: bytes) -> None:
        """Write the whole file atomically and durably: temporary, sync, rename, sync folder.

        Calls for one path are carried out in their order.
        """
        ...

    async def sync_folder(self, path: str) -> None:
        """Make the creation and removal of files in a folder durable."""
        ...

    def space(self, path: str) -> Space:
        """Return the space of the disk that holds this file or folder."""
        ...


class RandomSource(Protocol):
    def uniform(self, a: float, b: float) -> float: ...

    def getrandbits(self, k: int) -> int: ...


class WallClock(Protocol):
    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by this node's clock, which may be wrong."""
        ...


class Exit(Protocol):
    def fatal(self, why: str) -> NoReturn:
        """Stop the process at once; it writes nothing more."""
        ...


class NodeProcess(Protocol):
    """The node's own process."""

    def pid(self) -> int: ...

    def on_stop_request(self, stop: Callable[[], object]) -> None:
        """Call `stop` in the running loop when the process is asked to stop."""
        ...

    def print_line(self, line: str) -> None:
        """Print a line to standard output."""
        ...

    def print_error(self, line: str) -> None:
        """Print a line to standard error."""
        ...


@dataclass(frozen=True)
class Ports:
    """The interfaces of one node to the outside."""

    files: FileSystem
    randomness: RandomSource
    clock: WallClock
    exit: Exit
    process: NodeProcess
    choices: Choices = USUAL


class OsFile:
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


class OsFileSystem:
    """The operating system's file system."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sync")
        self._replacing: dict[str, asyncio.Lock] = {}

    def open(self, path: str) -> File:
        return OsFile(path, self._pool)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)

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
        file = OsFile(temporary, self._pool)
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


class OsClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class OsExit:
    def fatal(self, why: str) -> NoReturn:
        print(f"FATAL {why}", file=sys.stderr, flush=True)
        os._exit(70)


class OsProcess:
    """A process of the operating system; SIGTERM and SIGINT ask it to stop."""

    def pid(self) -> int:
        return os.getpid()

    def on_stop_request(self, stop: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)

    def print_line(self, line: str) -> None:
        print(line, flush=True)

    def print_error(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def real(seed: int | None = None) -> Ports:
    """Return the operating system's ports; randomness is seeded from `seed` or the system."""
    return Ports(OsFileSystem(), random.Random(seed), OsClock(), OsExit(), OsProcess())


def is_out_of_space(e: OSError) -> bool:
    """Return whether the disk was full or descriptors were short.

    Then nothing has changed, and the caller may try again.
    """
    return e.errno in (errno.ENOSPC, errno.EDQUOT) or is_out_of_files(e)


def is_out_of_files(e: OSError) -> bool:
    """Return whether the limit of open files and connections was reached."""
    return e.errno in (errno.EMFILE, errno.ENFILE)


async def retry_when_out_of_files(act: Callable[[], Awaitable[T]]) -> T:
    """Call `act`; repeat it while file descriptors are short."""
    while True:
        try:
            return await act()
        except OSError as e:
            if not is_out_of_files(e):
                raise
        await asyncio.sleep(RETRY_S)


def enable_keepalive(server: asyncio.Server) -> None:
    """Enable TCP keep-alive (RFC 9293, 3.8.4) on accepted connections.

    A peer that lost power or cannot be reached for two minutes is disconnected; most connections
    only wait for the other side and would not notice.
    """
    for listener in server.sockets:  # accepted connections inherit the options
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def arguments() -> Sequence[str]:
    """Return the command line without the program's name."""
    return sys.argv[1:]


def _sync_folder(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def incarnation_of(ports: Ports) -> int:
    """Return a number that is unique among the processes of this node.

    It is not random, because a seed gives every process of a node the same random numbers.
    """
    return ports.clock.wall_ms() << PID_BITS | ports.process.pid()
