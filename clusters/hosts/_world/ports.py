"""Flotilla's ports for one simulated process: its host's disk and clock, random numbers, its exit.

A process sees its files as the operating system would show them, errors included; the disk decides
how they survive it. A sync is awaited: the disk reports its end, and the process learns of it when
it runs (a paused one later, a dead one never).

A process that stops itself (`fatal`) is dead from that instant. Python still unwinds its stack,
`finally` by `finally`; every use of a file there raises SystemExit, so nothing more is written.
"""

import asyncio
import errno
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from clusters.flotilla.world.choices import POINTS, USUAL, Choices
from clusters.flotilla.world.ports import Buffer, File, Ports, Space
from clusters.hosts._world.content import Content
from clusters.hosts._world.disk import Disk, SyncDone, SyncTimes, error_of
from clusters.hosts._world.process import ProcessExit, SimHost, SimProcess
from clusters.hosts._world.world import World

SOFTWARE = 70
ENABLED = 0.25  # the share of choice points that a world enables, as FoundationDB's BUGGIFY


class VirtualFile:
    """`clusters.flotilla.world.ports.File` on a virtual disk."""

    __slots__ = ("_content", "_files")

    def __init__(self, files: "VirtualFiles", content: Content) -> None:
        self._files = files
        self._content: Content | None = content

    def pwrite(self, data: Buffer, offset: int) -> int:
        view = memoryview(data).cast("B")
        self._files.disk().write(self._open(), view, offset)
        return len(view)

    def pread(self, size: int, offset: int) -> bytes:
        self._files.disk()
        if size < 0 or offset < 0:
            raise error_of(errno.EINVAL)
        return self._open().read(size, offset)

    def size(self) -> int:
        return self._open().size

    def truncate(self, size: int) -> None:
        self._files.disk().truncate(self._open(), size)

    def allocate(self, size: int) -> None:
        self._files.disk().allocate(self._open(), size)

    async def sync(self) -> None:
        content, disk = self._open(), self._files.disk()
        await self._files.until(lambda done: disk.sync_file(content, done))

    def close(self) -> None:
        self._open()
        self._content = None

    def _open(self) -> Content:
        if self._content is None:
            raise error_of(errno.EBADF)
        return self._content


class VirtualFiles:
    """`clusters.flotilla.world.ports.Files`: what one process does with its host's disk."""

    def __init__(self, process: SimProcess, disk: Disk) -> None:
        self._process, self._disk = process, disk
        self._replacing: dict[str, asyncio.Lock] = {}

    def open(self, path: str) -> File:
        return VirtualFile(self, self._opening().file(path, create=True))

    def exists(self, path: str) -> bool:
        try:
            self.disk().look_up(path)
        except OSError:
            return False
        return True

    def listdir(self, path: str) -> list[str]:
        disk = self._opening()
        try:
            return sorted(disk.folder(path).entries)
        except OSError:
            return []

    def makedirs(self, path: str) -> None:
        self.disk().make_folders(path)

    def resolve(self, path: str) -> str:
        return path  # simulated disks have no links

    def remove(self, path: str) -> None:
        self.disk().remove(path)

    def read(self, path: str) -> bytes:
        content = self._opening().file(path)
        return content.read(content.size, 0)

    def append(self, path: str, data: bytes) -> None:
        """Append in one `write`, as real files do: a disk that is nearly full takes what fits."""
        content = self._opening().file(path, create=True)
        size = content.size
        try:
            self._disk.write(content, data, size)
        except OSError:
            if content.size == size:
                raise
        if hears := self._disk.on_append.get(path):
            hears(data)

    async def replace(self, path: str, data: bytes) -> None:
        async with self._replacing.setdefault(path, asyncio.Lock()):
            await self._replace(path, data)

    async def _replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        file = self.open(temporary)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            await file.sync()
        finally:
            file.close()
        self.disk().rename(temporary, path)
        await self.sync_folder(os.path.dirname(path))

    async def sync_folder(self, path: str) -> None:
        disk = self._opening()
        folder = disk.folder(path or "/")
        await self.until(lambda done: disk.sync_folder(folder, done))

    def space(self, path: str) -> Space:
        disk = self.disk()
        disk.look_up(path)
        return Space(disk.free_bytes, disk.free_bytes + disk.used_bytes())

    # internals

    def disk(self) -> Disk:
        """Return the host's disk, while the process lives."""
        if self._process.loop.dead:
            raise ProcessExit(SOFTWARE)
        return self._disk

    def _opening(self) -> Disk:
        """Return the disk for a call that needs a file descriptor."""
        disk = self.disk()
        if disk.no_descriptors:
            raise error_of(errno.EMFILE)
        return disk

    def until(self, begin: Callable[[SyncDone], None]) -> "asyncio.Future[None]":
        """Return a future of the disk's answer, which is set when the process runs."""
        loop = self._process.loop
        future: asyncio.Future[None] = loop.create_future()

        def tell(error: OSError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        begin(lambda error: loop.enter(tell, error))
        return future


class VirtualClock:
    """The host's wall clock, exact or not."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def wall_ms(self) -> int:
        return self._process.host.clock.wall_ms()


class VirtualExit:
    """`os._exit`, as far as Python allows."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def fatal(self, why: str) -> NoReturn:
        self._process.print_error(f"FATAL {why}")
        self._process.exit(SOFTWARE)


class VirtualProcess:
    """The node's own process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def pid(self) -> int:
        return self._process.pid

    def on_stop_request(self, stop: Callable[[], object]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._process.loop.add_signal_handler(number, stop)

    def print_line(self, line: str) -> None:
        self._process.stdout.write(f"{line}\n")

    def print_error(self, line: str) -> None:
        self._process.print_error(line)


class WorldChoices:
    """The choices of a world: at its enabled points each question is answered in an unusual way
    with probability `chance`. A world enables each point or not, by its seed (swarm testing), or
    worlds would all be alike.

    `made`: how often, by point; None if `chance` is 0, which draws no random number.
    """

    def __init__(self, world: World, chance: float) -> None:
        self.made: Counter[str] | None = Counter(dict.fromkeys(POINTS, 0)) if chance else None
        self._world, self._chance = world, chance
        self._enabled = frozenset(
            point for point in POINTS if world.random(f"choice {point}").random() < ENABLED
        )

    def of(self, process: SimProcess) -> Choices:
        """Return the choices of one boot of a process."""
        if self.made is None:
            return USUAL
        random = self._world.random(f"choices of {process.identity}")
        return DrawnChoices(random, self._chance, self._enabled, self.made)


class DrawnChoices:
    """The choices of one boot of a process, drawn from its own random stream. The usual answers of
    other points draw nothing."""

    def __init__(
        self,
        random: random.Random,
        chance: float,
        enabled: frozenset[str],
        made: Counter[str],
    ) -> None:
        self._random, self._chance = random, chance
        self._enabled, self._made = enabled, made

    def chance(self, point: str) -> bool:
        if point not in self._enabled or self._random.random() >= self._chance:
            return False
        self._made[point] += 1
        return True

    def moment_s(self, point: str, most_s: float) -> float:
        return self._random.uniform(0.0, most_s) if self.chance(point) else 0.0

    def fewer(self, point: str, most: int, least: int = 1) -> int:
        return self._random.randint(least, most) if least < most and self.chance(point) else most


def disk_of(host: SimHost, pace: SyncTimes | None = None) -> Disk:
    """Return a disk for a host, which loses unsynced data when the host loses power."""
    disk = Disk(host.world, host.world.random(f"disk of {host.name}"), pace or SyncTimes())
    host.on_power_cut.append(disk.power_cut)
    return disk


def ports_of(
    process: SimProcess,
    disk: Disk,
    seed: int | None = None,
    *,
    choices: WorldChoices | None = None,
) -> Ports:
    """Return the ports of a simulated process. Each boot has random numbers of its own; with a seed
    all boots have the same, as on a real machine. Without `choices` all are the usual ones."""
    boot = f"boot {process.boot}" if seed is None else f"seed {seed}"
    luck = f"luck of {process.name} on {process.host.name}, {boot}"
    return Ports(
        VirtualFiles(process, disk),
        process.world.random(luck),
        VirtualClock(process),
        VirtualExit(process),
        VirtualProcess(process),
        choices.of(process) if choices else USUAL,
    )
