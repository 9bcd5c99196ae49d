"""Our code for nodes: one archive of plain Python, for Python 3.11 without packages.

It holds the cluster under test, the client process with its driver, and `tomli_w`, which is plain
Python, too. Systems and workloads of other packages travel with it: the package that each entry
point names, without what that package imports from elsewhere, and the list of its entry points, so
that the plug-ins are found on nodes. The same sources give the same bytes, so an image made of them
can be found by its name.
"""

import gzip
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import tomli_w

import clusters
import harness

SUFFIXES = {".py", ".toml"}
GROUPS = ("seatrial.system", "seatrial.workload")  # of the plug-ins that client processes load


@cache
def archive() -> bytes:
    """Return a .tar.gz of `harness/`, `clusters/`, `tomli_w/` and the packages of plug-ins."""
    plain = io.BytesIO()
    outside = _outside_entries()
    roots = map(_root, (clusters, harness, tomli_w))
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in (*sources(*roots, *_outside_roots(outside)), *_entry_points(outside)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


def _outside_entries() -> list[EntryPoint]:
    """Return the entry points of systems and workloads of other packages."""
    found = [entry for group in GROUPS for entry in entry_points(group=group)]
    return sorted(found, key=lambda entry: (entry.group, entry.name, entry.value))


def _outside_roots(entries: Iterable[EntryPoint]) -> Iterator[Path]:
    """Yield the folder, or the single file, of each package once."""
    for package in sorted({entry.module.partition(".")[0] for entry in entries}):
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            yield Path(next(iter(spec.submodule_search_locations))).resolve()
        elif spec is not None and spec.origin:
            yield Path(spec.origin).resolve()


def _entry_points(entries: Sequence[EntryPoint]) -> Iterator[tuple[str, bytes]]:
    """Yield the files by which `importlib.metadata` finds the entry points of each package."""
    for package in sorted({_package(entry) for entry in entries}):
        lines = []
        for group in GROUPS:
            own = [e for e in entries if e.group == group and _package(e) == package]
            lines += [f"[{group}]", *(f"{e.name} = {e.value}" for e in own)]
        folder = f"{re.sub('[-_.]+', '_', package)}-1.dist-info"
        yield f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n".encode()
        yield f"{folder}/entry_points.txt", "\n".join([*lines, ""]).encode()


def _package(entry: EntryPoint) -> str:
    return str(entry.dist.name) if entry.dist else "outside"


def sources(*roots: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the code in these packages' folders, sorted by name; a module
    that is a single file has its own name."""
    for root in roots:
        if root.is_file():
            yield root.name, root.read_bytes()
        for path in sorted(root.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield f"{root.name}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _root(package: ModuleType) -> Path:
    return Path(str(package.__file__)).resolve().parent
