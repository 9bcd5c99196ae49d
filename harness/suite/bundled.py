"""Trials, plans and suites that come with Seatrial, found by name from any folder.

They are the package `suites`: a folder of the clone, or package data of an installed wheel. A path
such as `suites/plans/one-way.toml` means the file below the current folder, and without one the
bundled file. Where a plan is expected, `one-way` means that plan, unless a file has this name.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from os.path import isfile as is_file
from pathlib import Path

from harness.errors import UnknownName

PACKAGE = "suites"
SUFFIX = ".toml"
FOLDERS = {"trial": ("trials/",), "plan": ("plans/", ""), "suite": ("",)}
PATTERNS = {"trial": "trials/*", "plan": "plans/**/*", "suite": "*"}
KINDS = tuple(FOLDERS)
COMMENT = re.compile(r"^#.*(?:\n#.*)*", re.MULTILINE)


@cache
def folder() -> Path:
    """Return where the bundled files are."""
    return Path(str(files(PACKAGE)))


def locate(path: Path) -> Path:
    """Return the path of the bundled file if there is none in the current folder."""
    if path.parts[:1] != (PACKAGE,) or is_file(path):
        return path
    bundled = folder().joinpath(*path.parts[1:])
    return bundled if is_file(bundled) else path


def path_of(kind: str, name: str) -> Path:
    """Return the path that a name stands for: a file here, else a bundled one, as suites/...

    A bundled file of another kind is better than none: its reader names the right command.
    Raises UnknownName if there is no such file.
    """
    path = Path(name)
    if is_file(path) or path.suffix or ".." in path.parts or path.is_absolute():
        return path
    for prefix in (*FOLDERS[kind], *(folder for each in FOLDERS.values() for folder in each)):
        bundled = Path(PACKAGE, f"{prefix}{name}{SUFFIX}")
        if is_file(locate(bundled)):
            return bundled
    if len(path.parts) == 1:
        raise UnknownName(kind, name, names(kind))
    return path


def names(kind: str) -> tuple[str, ...]:
    """Return the names of all bundled files of a kind."""
    prefix, files = FOLDERS[kind][0], folder().glob(f"{PATTERNS[kind]}{SUFFIX}")
    paths = (path.relative_to(folder() / prefix).with_suffix("") for path in files)
    return tuple(sorted(path.as_posix() for path in paths))


def describe(kind: str) -> Iterator[tuple[str, str]]:
    """Yield each name with the first sentence of its file's comment."""
    for name in names(kind):
        path = locate(Path(PACKAGE, f"{FOLDERS[kind][0]}{name}{SUFFIX}"))
        comment = COMMENT.search(path.read_text(encoding="utf-8"))
        text = " ".join((comment[0] if comment else "").replace("#", " ").split())
        yield name, re.split(r"(?<=[.?]) ", text)[0]
