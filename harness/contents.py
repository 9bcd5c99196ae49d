"""Which code something was made with: a hash of files, so that it is known when that is another.

A suite that was interrupted goes on only with the code that it began with, and a cell of a recorded
table is measured again when the code that made it is another one. Every Python and TOML file of a
folder counts, wherever the packages are installed.
"""

import hashlib
from functools import cache
from pathlib import Path

import harness

ROOT = Path(harness.__file__).resolve().parents[1]
SUFFIXES = (".py", ".toml")
ALL = ("harness", "nemesis", "checkers", "clusters")
BROKEN = ("clusters", "nemesis", "harness/workloads")  # what a run is of, whoever judges it


@cache
def contents(folders: tuple[str, ...] = ALL, root: Path = ROOT) -> str:
    """The files below these folders, by name and content."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
