"""Copies a node's files into the run's folder: unpacks a tar stream.

Logs and data of a node are evidence, and may be malformed or hostile: only regular files are
written, and only below the folder. A file that is too large is left out with a line in the run's
log. Long runs of zeros, as in a preallocated log, become holes.
"""

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

MAX_FILE_BYTES = 64 << 20
MAX_NODE_BYTES = 16 << 30  # per node
MAX_FILES = 200_000
PORTION_BYTES = 1 << 20
ZEROS = bytes(PORTION_BYTES)


class ByteStream(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class IterableReader:
    """Reads an iterable of bytes like a file."""

    def __init__(self, portions: Iterable[bytes]) -> None:
        self._portions: Iterator[bytes] = iter(portions)
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes, or b"" at the end."""
        if not self._rest:
            self._rest = next(self._portions, b"")
        data = self._rest[:size] if size >= 0 else self._rest
        self._rest = self._rest[len(data) :]
        return data


def unpack(stream: ByteStream, into: Path) -> list[str]:
    """Write the files of a tar stream below `into`; return descriptions of those that were left
    out.

    Names in the stream are below one folder, whose own name is ignored.
    """
    left_out: list[str] = []
    files, size_bytes = 0, 0
    with tarfile.open(fileobj=stream, mode="r|", bufsize=PORTION_BYTES) as tar:  # type: ignore[call-overload]
        for member in tar:
            path = _path_below(into, member.name)
            if path is None or not member.isreg():
                continue
            files, size_bytes = files + 1, size_bytes + member.size
            if files > MAX_FILES or size_bytes > MAX_NODE_BYTES:
                return [*left_out, f"{path} and all after it: more than a node may write"]
            content = tar.extractfile(member)
            if member.size > MAX_FILE_BYTES or content is None:
                left_out.append(f"{path} ({member.size >> 20} MB)")
            else:
                _write(path, content, member.size)
    return left_out


def _path_below(into: Path, name: str) -> Path | None:
    """Return the target of a member, or None if it is the folder itself, leads out of it or is no
    valid name."""
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
