"""Damages files of a stopped node: flips bits, cuts off ends, or removes everything.

    python3 -S -s damage.py '{"do": "flip", "folder": "/seatrial/broker-1/store", ...}'

The node's own Python runs it, and it needs nothing else; the answer is one JSON line. The places
are drawn from a seed, within the data: logs are often preallocated, and flipping a bit in the zeros
behind their end would damage nothing. With `stripe = [i, n]`, only every nth sector from the ith on
is changed, so that n nodes with the same bytes are never damaged at the same place. The changes are
counted by reading the bytes again.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any, Protocol

SECTOR = 512
BLOCK = 1 << 20
SHOWN = 10

Json = dict[str, Any]


class FileTree(Protocol):
    """The files below a folder, by path."""

    def sizes(self) -> dict[str, int]: ...

    def read(self, path: str, size: int, offset: int) -> bytes: ...

    def flip(self, path: str, bit: int) -> None: ...

    def cut(self, path: str, size: int) -> None: ...

    def empty(self) -> None: ...


def wipe(files: FileTree) -> Json:
    """Remove everything."""
    sizes = files.sizes()
    files.empty()
    left = files.sizes()
    return {"files": len(sizes), "bytes": sum(sizes.values()), "left": len(left)}


def flip(
    files: FileTree, pattern: str, count: int, seed: int, stripe: tuple[int, int] = (0, 1)
) -> Json:
    """Flip so many random bits in the files that match."""
    dice = random.Random(seed)
    places = [
        (path, sector)
        for path, end in _data(files, pattern)
        for sector in range(stripe[0], -(-end // SECTOR), stripe[1])
    ]
    ends = dict(_data(files, pattern))
    bits: dict[tuple[str, int], None] = {}
    for path, sector in dice.choices(places, k=count) if places else ():
        last = min((sector + 1) * SECTOR, ends[path]) - 1
        bits[path, dice.randint(sector * SECTOR, last) * 8 + dice.randrange(8)] = None
    before = {(path, bit // 8): files.read(path, 1, bit // 8) for path, bit in bits}
    for path, bit in bits:
        files.flip(path, bit)
    changed = [place for place, byte in before.items() if files.read(place[0], 1, place[1]) != byte]
    return {"changed": len(changed), "where": [[*place] for place in changed[:SHOWN]]}


def cut(files: FileTree, pattern: str, size: int, seed: int) -> Json:
    """Cut a number of bytes off the end of one random file's data, and the preallocated space
    behind them."""
    dice = random.Random(seed)
    files_with_data = list(_data(files, pattern))
    if not files_with_data:
        return {"changed": 0, "where": []}
    path, end = dice.choice(files_with_data)
    point = max(0, end - size)
    files.cut(path, point)
    return {"changed": end - files.sizes()[path], "where": [[path, point]]}


def _data(files: FileTree, pattern: str) -> Iterator[tuple[str, int]]:
    """Yield the files that match and are not empty, and where their data ends."""
    for path, size in sorted(files.sizes().items()):
        if fnmatch(path, pattern) and (end := _data_end(files, path, size)):
            yield path, end


def _data_end(files: FileTree, path: str, size: int) -> int:
    """Return the offset behind the last byte that is not zero."""
    while size:
        start = (size - 1) // BLOCK * BLOCK
        if block := files.read(path, size - start, start).rstrip(b"\0"):
            return start + len(block)
        size = start
    return 0


class RealFileTree:
    """The files below a folder of this machine."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def sizes(self) -> dict[str, int]:
        paths = [
            os.path.join(where, name)
            for where, _, names in os.walk(self.folder)
            for name in names
            if not os.path.islink(os.path.join(where, name))
        ]
        return {os.path.relpath(path, self.folder): os.path.getsize(path) for path in paths}

    def read(self, path: str, size: int, offset: int) -> bytes:
        with open(os.path.join(self.folder, path), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def flip(self, path: str, bit: int) -> None:
        with open(os.path.join(self.folder, path), "r+b") as file:
            file.seek(bit // 8)
            byte = file.read(1)[0]
            file.seek(bit // 8)
            file.write(bytes([byte ^ 1 << bit % 8]))

    def cut(self, path: str, size: int) -> None:
        os.truncate(os.path.join(self.folder, path), size)

    def empty(self) -> None:
        for where, folders, names in os.walk(self.folder, topdown=False):
            for name in names:
                os.remove(os.path.join(where, name))
            for name in folders:
                path = os.path.join(where, name)
                (os.remove if os.path.islink(path) else os.rmdir)(path)


ACTIONS: dict[str, Callable[..., Json]] = {"wipe": wipe, "flip": flip, "cut": cut}


def apply(files: FileTree, order: Json) -> Json:
    """Carry out an order, from which `folder` was removed; return its result."""
    return ACTIONS[order.pop("do")](files, **order)


def main() -> None:
    order = json.loads(sys.argv[1])
    files = RealFileTree(order.pop("folder"))
    try:
        print(json.dumps(apply(files, order)))
    except OSError as e:
        sys.exit(f"{e.filename or 'it'}: {e.strerror or e}")


if __name__ == "__main__":
    main()
