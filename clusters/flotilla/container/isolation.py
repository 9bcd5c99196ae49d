"""What a broker inside a container has of its own: its end, and files that end with it.

A fatal error of a broker (a failed sync, a damaged store) must stop it before it writes another
byte. A process of its own just ends. Inside a container that isolates faults only that broker ends:
its `fatal` raises InnerFailed, and so does whatever it does with files from then on, so that a part
of it that still runs can neither acknowledge nor mark the store as cleanly closed.
"""

from collections.abc import Callable
from typing import NoReturn

from ..world.ports import Buffer, Exit, File, FileSystem, Space


class InnerFailed(Exception):
    """A broker inside a container has failed; the rest of the process goes on."""


class InnerExit:
    """The end of one broker: of its process, unless it is isolated or has not started yet.

    `on_failure` is called once, with the reason.
    """

    def __init__(
        self, name: str, process: Exit, isolates: bool, on_failure: Callable[[str], None]
    ) -> None:
        self.started = False
        self.why = ""
        self._name, self._process, self._isolates = name, process, isolates
        self._on_failure = on_failure

    def fatal(self, why: str) -> NoReturn:
        if self.started and not self._isolates:
            self._process.fatal(f"{self._name}: {why}")
        if not self.why:
            self.why = why
            self._on_failure(why)
        raise InnerFailed(why)

    def refuse_after_failure(self) -> None:
        """Raise InnerFailed if the broker has failed."""
        if self.why:
            raise InnerFailed(self.why)


class IsolatedFile:
    """A file of a broker; unusable once the broker has failed."""

    def __init__(self, file: File, end: InnerExit) -> None:
        self._file, self._end = file, end

    def pwrite(self, data: Buffer, offset: int) -> int:
        self._end.refuse_after_failure()
        return self._file.pwrite(data, offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._end.refuse_after_failure()
        return self._file.pread(size, offset)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._end.refuse_after_failure()
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._end.refuse_after_failure()
        self._file.allocate(size)

    async def sync(self) -> None:
        self._end.refuse_after_failure()
        await self._file.sync()
        self._end.refuse_after_failure()

    def close(self) -> None:
        self._file.close()


class IsolatedFiles:
    """The file system as a broker sees it; unusable once the broker has failed."""

    def __init__(self, files: FileSystem, end: InnerExit) -> None:
        self._all, self._end = files, end

    @property
    def _files(self) -> FileSystem:
        self._end.refuse_after_failure()
        return self._all

    def open(self, path: str) -> File:
        return IsolatedFile(self._files.open(path), self._end)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self._files.listdir(path)

    def makedirs(self, path: str) -> None:
        self._files.makedirs(path)

    def resolve(self, path: str) -> str:
        return self._files.resolve(path)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def append(self, path: str, data: bytes) -> None:
        self._all.append(path, data)  # the event log: evidence of the failure

    async def replace(self, path: str, data: bytes) -> None:
        await self._files.replace(path, data)
        self._end.refuse_after_failure()

    async def sync_folder(self, path: str) -> None:
        await self._files.sync_folder(path)
        self._end.refuse_after_failure()

    def space(self, path: str) -> Space:
        return self._all.space(path)
