"""Which edition of the code a simulated run belongs to: a hash of all that decides how it goes.

A seed means the same run only to the same code. So the edition is kept with the run, and a run of
another edition is not replayed as if it were this one's.
"""

import hashlib
from functools import cache
from pathlib import Path

PACKAGES = ("clusters", "harness", "nemesis")
SUFFIXES = (".py", ".toml")
ROOT = Path(__file__).resolve().parents[3]


@cache
def edition() -> str:
    """Of the packages as they lie on disk, wherever that is."""
    digest = hashlib.blake2b(digest_size=16)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in SUFFIXES:
                digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
                digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
