"""A run's folder as a compressed archive, made while it is sent.

Files are read a piece at a time and nothing is stored, so a run of any size needs little memory. A
run in progress is archived as it is: a file that grows meanwhile is cut at its first size, one that
shrinks is padded. Only regular files are included, under the run's own name.
"""

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from harness.history.run_files import entries
from harness.history.runs import BALLAST, LOCK

PIECE_BYTES = 1 << 18
BLOCK_BYTES = 512
LEFT_OUT = (BALLAST, LOCK)
GZIP = 31  # zlib's number for a window of 32 KB with gzip's header and trailer
FAST = 1  # most of a run is compressed already


def archive_pieces(folder: Path) -> Iterator[bytes]:
    """Yield the archive, piece by piece."""
    squeeze = zlib.compressobj(FAST, wbits=GZIP)
    for path, mode in entries(folder):
        if stat.S_ISREG(mode) and path.name not in LEFT_OUT:
            for piece in _member(path, folder):
                if small := squeeze.compress(piece):
                    yield small
    yield squeeze.compress(bytes(2 * BLOCK_BYTES)) + squeeze.flush()


def _member(path: Path, folder: Path) -> Iterator[bytes]:
    """Yield a file's header and content; nothing if it is gone, or no regular file any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with open(descriptor, "rb", buffering=0) as file:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode):
            return
        info = tarfile.TarInfo(str(path.relative_to(folder.parent)))
        info.size, info.mtime = known.st_size, int(known.st_mtime)
        yield info.tobuf(tarfile.PAX_FORMAT)
        left = info.size
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
    while left:
        filling = min(PIECE_BYTES, left)
        left -= filling
        yield bytes(filling)
    yield bytes(-info.size % BLOCK_BYTES)
