"""Computes a digest of a running broker's log on its own node: `log_digest.py LOG BEGIN END`.

LOG is the folder of segments, each named by its first offset; the digest covers all bytes from
BEGIN to END, which the log must hold. The script needs only Python's standard library.
"""

import hashlib
import sys
from pathlib import Path

PIECE_BYTES = 1 << 20


def digest(log: Path, begin: int, end: int) -> str:
    """Return the digest of this range. Raises EOFError if a part of it is missing."""
    bases = sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())
    digest_ = hashlib.blake2b(digest_size=16)
    at = begin
    for base, following in zip(bases, [*bases, end][1:], strict=True):
        if base <= at < min(following, end):
            at = _read(log / f"{base:020d}", at - base, min(following, end) - base, digest_) + base
    if at < end:
        raise EOFError(f"the log has nothing at {at}, before {end}")
    return digest_.hexdigest()


def _read(segment: Path, at: int, end: int, found: "hashlib.blake2b") -> int:
    """Add a part of a segment to the digest; return the offset where it ended."""
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
