"""Which code something was made with: a hash of files, so that it is known when that is another.

A suite that was interrupted goes on only with the code that it began with, and a cell of a recorded
table is measured again when the code that made it is another one. Every Python and TOML file of a
folder counts, wherever the packages are installed, and of every package that brings plug-ins.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import harness
from harness.registry import KINDS

ROOT = Path(harness.__file__).resolve().parents[1]
SUFFIXES = (".py", ".toml")
ALL = ("harness", "nemesis", "checkers", "clusters")
BROKEN = ("clusters", "nemesis", "harness/workloads")  # what a run is of, whoever judges it


@cache
def contents(folders: tuple[str, ...] = ALL, root: Path = ROOT) -> str:
    """The files below these folders, and those of other people's plug-ins, by name and content."""
    digest = hashlib.blake2b(digest_size=8)
    ours = sorted(path for folder in folders for path in (root / folder).rglob("*"))
    for path, name in [*_named(ours, root), *_theirs()]:
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def _named(paths: Iterable[Path], root: Path) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.suffix in SUFFIXES and path.is_file():
            yield path, path.relative_to(root).as_posix()


def _theirs() -> Iterator[tuple[Path, str]]:
    """All of each package, for a plug-in may be made of several files."""
    entries = [entry for kind in KINDS for entry in entry_points(group=f"seatrial.{kind}")]
    for package in sorted({entry.module.partition(".")[0] for entry in entries}):
        spec = find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            yield from _named(sorted(folder.rglob("*")), folder.parent)
        if spec and spec.has_location and not spec.submodule_search_locations:
            yield from _named([Path(str(spec.origin))], Path(str(spec.origin)).parent)
