"""Which code something was made with: a hash of files, so that it is known when that is another.

A suite that was interrupted goes on only with the code that it began with, and a cell of a recorded
table is measured again when the code that made it is another one. Every Python and TOML file of a
folder counts, wherever the packages are installed, and of every package that brings plug-ins.

Each run is carried out by a process of its own, with the code of that moment; so whoever has begun
with one code asks after each run whether it is still the same.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Look:
    """Names of files and hashes of what is in them: of our own, and of other people's plug-ins."""

    ours: tuple[tuple[str, bytes], ...]
    theirs: tuple[tuple[str, bytes], ...]


def contents(folders: tuple[str, ...] = ALL) -> str:
    """The files below these folders of `ALL`, and those of other people's plug-ins, by name and
    content, as they were when any of them was first asked for."""
    digest = hashlib.blake2b(digest_size=8)
    below, look = tuple(f"{folder}/" for folder in folders), _first()
    for name, hashed in (*(one for one in look.ours if one[0].startswith(below)), *look.theirs):
        digest.update(f"{name}\0".encode())
        digest.update(hashed)
    return digest.hexdigest()


def changed() -> bool:
    """Whether any of them is another by now, or can not be read any more."""
    first = _first()
    try:
        return _now() != first
    except OSError:
        return True


def _now() -> _Look:
    ours = sorted(path for folder in ALL for path in (ROOT / folder).rglob("*"))
    return _Look(_hashed(_named(ours, ROOT)), _hashed(_theirs()))


@cache
def _first() -> _Look:
    return _now()


def _hashed(files: Iterable[tuple[Path, str]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, hashlib.blake2b(path.read_bytes()).digest()) for path, name in files)


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
