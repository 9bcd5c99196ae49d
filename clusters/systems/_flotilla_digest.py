"""A digest of a running broker's log, made on its own node: `_flotilla_digest.py LOG BEGIN END`.

LOG is the folder of segments, each named by the offset at which it begins; the digest is of all
bytes from BEGIN to END, which the log must hold. It needs Python's standard library, nothing else.
"""

import hashlib
import sys
from pathlib import Path

PIECE_BYTES = 1 << 20


def digest(log: Path, begin: int, end: int) -> str:
    """Of these bytes. EOFError: some of them are not there."""
    bases = sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())
    found = hashlib.blake2b(digest_size=16)
    at = begin
    for base, following in zip(bases, [*bases, end][1:], strict=True):
        if base <= at < min(following, end):
            at = _read(log / f"{base:020d}", at - base, min(following, end) - base, found) + base
    if at < end:
        raise EOFError(f"the log has nothing at {at}, before {end}")
    return found.hexdigest()


def _read(segment: Path, at: int, end: int, found: "hashlib.blake2b") -> int:
    """Add a part of a segment; where it ended."""
    with segment.open("rb") as file:
        file.seek(at)
        while at < end and (piece := file.read(min(PIECE_BYTES, end - at))):
            found.update(piece)
            at += len(piece)
    return at


def main() -> None:
    log, begin, end = sys.argv[1:]
    print(digest(Path(log), int(begin), int(end)))


if __name__ == "__main__":
    main()
