"""A run's folder as one compressed archive, made while it is sent.

Nothing is kept: each file is read a piece at a time, so a run of any size takes no memory. A run in
progress is archived as it stands: a file that grows meanwhile is cut where it ended when its turn
came, one that shrank is filled up. Only plain files are taken, each under the run's own name.
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
GZIP = 31  # zlib's word for a window of 32 KB with gzip's head and tail
FAST = 1  # most of a run is compressed already


def archived(folder: Path) -> Iterator[bytes]:
    """The archive, piece by piece."""
    squeeze = zlib.compressobj(FAST, wbits=GZIP)
    for path, mode in entries(folder):
        if stat.S_ISREG(mode) and path.name not in LEFT_OUT:
            for piece in _member(path, folder):
                if small := squeeze.compress(piece):
                    yield small
    yield squeeze.compress(bytes(2 * BLOCK_BYTES)) + squeeze.flush()


def _member(path: Path, folder: Path) -> Iterator[bytes]:
    """A file's head and content; nothing when it is gone, or something else by now."""
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
