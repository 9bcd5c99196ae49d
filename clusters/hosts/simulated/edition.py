"""The edition of the code: a hash of all files that decide how a simulated run goes.

A seed means the same run only to the same code. So the edition is stored with the run, and a run of
another edition is not replayed as if it were one of this edition. The edition covers everything
that drawing, running and judging a seed can import, and nothing else: a new report does not
invalidate yesterday's evidence.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("clusters", "harness", "nemesis", "checkers")
BEGINNINGS = (
    "harness/campaign/simulation.py",
    "harness/campaign/swarm.py",
    "clusters/hosts/simulated/hosts.py",
)
PLUGINS = ("clusters/systems", "harness/workloads", "nemesis", "checkers")  # imported by name
PROGRAMS = ("clusters/flotilla", "clusters/flotilla_mutants")
SUFFIXES = (".py", ".toml")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(.*))$", re.M
)
_NAME = re.compile(r"[\w.]+")


@cache
def edition() -> str:
    """Return the hash of the files as they are on disk."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(sources()):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def sources() -> frozenset[Path]:
    """Return the files that a simulated run depends on."""
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in SUFFIXES
    }
    folders = tuple(f"{folder}/" for folder in (*PLUGINS, *PROGRAMS))
    waiting = [*BEGINNINGS, *(file for file in there if file.startswith(folders))]
    found: set[str] = set()
    modules: set[tuple[str, ...]] = set()
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            if file.endswith(".py"):
                package = tuple(file.split("/")[:-1])
                new = _imported_names(package, (ROOT / file).read_bytes()) - modules
                modules |= new
                waiting += there.intersection(each for name in new for each in _files(name))
    return frozenset(ROOT / file for file in found)


@cache  # a campaign reads the edition again after each import
def _imported_names(package: tuple[str, ...], code: bytes) -> frozenset[tuple[str, ...]]:
    """Return the names of our modules, and of what is in them, that a module imports anywhere.

    They are found by a pattern, since parsing all modules would take longer than a short run."""
    imported: set[tuple[str, ...]] = set()
    for dots, source, taken, modules in _IMPORT.findall(code.decode()):
        if modules:
            imported.update(tuple(name.split(".")) for name in _first_words(modules))
        else:
            above = package[: len(package) + 1 - len(dots)] if dots else ()
            module = (*above, *(source.split(".") if source else ()))
            imported |= {module, *((*module, name) for name in _first_words(taken))}
    return frozenset(name for name in imported if name[0] in PACKAGES)


def _first_words(listed: str) -> Iterator[str]:
    """Yield the names in the list of an import statement, without comments and other names."""
    for part in re.sub(r"#.*", "", listed).strip("() ").split(","):
        if found := _NAME.search(part):
            yield found[0]


def _files(name: tuple[str, ...]) -> Iterator[str]:
    """Yield where the file of a module of ours, and those of its packages, would be."""
    for depth in range(1, len(name) + 1):
        folder = "/".join(name[:depth])
        yield from (f"{folder}/__init__.py", f"{folder}.py")
