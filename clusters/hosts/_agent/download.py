"""What a node wrote, brought home: a tar stream unpacked into the run's folder.

Logs and data of a node are evidence, and nothing in them is trusted to be well formed: only plain
files are written, and only below the folder. A file that is too large is left out with a line in
the run's log. The long runs of zeros in a preallocated log take no room here.
"""

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

LARGEST_BYTES = 64 << 20
MAX_BYTES = 16 << 30  # of a node
MAX_FILES = 200_000
PORTION_BYTES = 1 << 20
ZEROS = bytes(PORTION_BYTES)


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Portions:
    """An iterable of bytes, to be read like a file."""

    def __init__(self, portions: Iterable[bytes]) -> None:
        self._portions: Iterator[bytes] = iter(portions)
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """Up to so many bytes; nothing at the end."""
        if not self._rest:
            self._rest = next(self._portions, b"")
        data = self._rest[:size] if size >= 0 else self._rest
        self._rest = self._rest[len(data) :]
        return data


def unpack(stream: Readable, into: Path) -> list[str]:
    """Write the files of a tar stream below `into`; the names of those that were left out.

    Names in the stream are below one folder, whose own name does not matter.
    """
    left_out: list[str] = []
    files, size_bytes = 0, 0
    with tarfile.open(fileobj=stream, mode="r|", bufsize=PORTION_BYTES) as tar:  # type: ignore[call-overload]
        for member in tar:
            path = _below(into, member.name)
            if path is None or not member.isreg():
                continue
            files, size_bytes = files + 1, size_bytes + member.size
            if files > MAX_FILES or size_bytes > MAX_BYTES:
                return [*left_out, f"{path} and all after it: it is more than a node writes"]
            content = tar.extractfile(member)
            if member.size > LARGEST_BYTES or content is None:
                left_out.append(f"{path} ({member.size >> 20} MB)")
            else:
                _write(path, content, member.size)
    return left_out


def _below(into: Path, name: str) -> Path | None:
    """Where a member goes; nowhere when it is the folder itself, leads out of it or is no name."""
    parts = [part for part in PurePosixPath(name).parts if part != "."][1:]
    return into.joinpath(*parts) if parts and ".." not in parts and "\0" not in name else None


def _write(path: Path, content: IO[bytes], size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while data := content.read(PORTION_BYTES):
            if data == ZEROS[: len(data)]:
                file.seek(len(data), os.SEEK_CUR)
            else:
                file.write(data)
        file.truncate(size)
