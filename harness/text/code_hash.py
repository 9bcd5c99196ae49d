"""A hash of the code, so that results of other code are recognised.

An interrupted suite resumes only with the code that it began with, and a cell of a recorded table
is measured again if the code changed since. Every Python and TOML file of a folder counts, wherever
the packages are installed, and of every package that brings plug-ins.

Each run is carried out by a process of its own, with the code of that moment; so a command that
began with one code checks after each run whether it is still the same.
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
RUN_CODE = (
    "clusters",
    "nemesis",
    "harness/workloads",
)  # what a run depends on, apart from its judging


@dataclass(frozen=True)
class _CodeState:
    """Names of files and hashes of their contents: of our own, and of other packages' plug-ins."""

    ours: tuple[tuple[str, bytes], ...]
    theirs: tuple[tuple[str, bytes], ...]


def code_hash(folders: tuple[str, ...] = ALL) -> str:
    """Return a hash of the files below these folders of `ALL`, and of other packages' plug-ins, by
    name and content, as they were at the first call."""
    digest = hashlib.blake2b(digest_size=8)
    below, look = tuple(f"{folder}/" for folder in folders), _state_at_start()
    for name, hashed in (*(one for one in look.ours if one[0].startswith(below)), *look.theirs):
        digest.update(f"{name}\0".encode())
        digest.update(hashed)
    return digest.hexdigest()


def code_changed() -> bool:
    """Whether any of them changed since, or cannot be read any more."""
    first = _state_at_start()
    try:
        return _state_now() != first
    except OSError:
        return True


def _state_now() -> _CodeState:
    ours = sorted(path for folder in ALL for path in (ROOT / folder).rglob("*"))
    return _CodeState(_hashes(_named_files(ours, ROOT)), _hashes(_plugin_files()))


@cache
def _state_at_start() -> _CodeState:
    return _state_now()


def _hashes(files: Iterable[tuple[Path, str]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, hashlib.blake2b(path.read_bytes()).digest()) for path, name in files)


def _named_files(paths: Iterable[Path], root: Path) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.suffix in SUFFIXES and path.is_file():
            yield path, path.relative_to(root).as_posix()


def _plugin_files() -> Iterator[tuple[Path, str]]:
    """Yield all files of each package, since a plug-in may consist of several."""
    entries = [entry for kind in KINDS for entry in entry_points(group=f"seatrial.{kind}")]
    for package in sorted({entry.module.partition(".")[0] for entry in entries}):
        spec = find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            yield from _named_files(sorted(folder.rglob("*")), folder.parent)
        if spec and spec.has_location and not spec.submodule_search_locations:
            yield from _named_files([Path(str(spec.origin))], Path(str(spec.origin)).parent)
