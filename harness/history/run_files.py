"""What lies in a run's folder, and whether it may be opened.

A run may have come from elsewhere, in an archive that somebody sent. A link in it could lead to any
file of this machine, to be shown or to be written over; a pipe could stop whoever reads it.
"""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

from harness.cli.settings_file import FILE
from harness.errors import BadRequest
from harness.history.remote_run import Address, shadowed
from harness.history.rundir import RunDir

MAX_MEMORY_BYTES = 3 << 30  # of which Arrow reserves 1 GB


@contextmanager
def stored_run(place: str, whole: bool = False) -> Iterator[RunDir]:
    """A run that may have come from anywhere, by its folder or its address; what was made of it is
    where it lies when the block is left. `whole`: with what nodes said, of one in storage."""
    if address := Address.of(place):
        with shadowed(address, whole) as run:
            yield run
    else:
        yield opened(Path(place))


def limit_memory() -> None:
    """Make allocations fail beyond what showing a run needs, so that one which expands without
    bounds ends in a sentence, and does not take the memory of the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, hard))


def opened(path: Path) -> RunDir:
    """Return the run in a folder. Raises BadRequest if it is none, or holds what should not be
    opened."""
    run = RunDir.open(path)
    if FILE.is_file() and Path.cwd().is_relative_to(run.path):
        raise BadRequest(
            f"{FILE} of this folder is part of the run, which may come from another person, and"
            " sets options of commands; run the command from another folder"
        )
    if why := unfit(run.path):
        raise BadRequest(f"{path} is not opened: {why}; remove that and try again")
    return run


def entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Everything in a folder but folders, with its mode; links are told, not followed."""
    for where, folders, names in os.walk(folder):
        folders.sort()
        linked = [name for name in folders if os.path.islink(os.path.join(where, name))]
        for name in sorted([*names, *linked]):
            path = Path(where, name)
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue
            yield path, mode


def unfit(folder: Path, most: float = inf) -> str:
    """Why nothing in a folder should be opened: a link out of it, or what is no file, or more than
    `most` files. Empty when all of it may be."""
    for number, (path, mode) in enumerate(entries(folder)):
        if number >= most:
            return f"it holds more than {most:,} files"
        if stat.S_ISLNK(mode) and not _within(path, folder):
            return f"{_name(path, folder)} is a link that leads out of its folder"
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            return f"{_name(path, folder)} is neither a file nor a folder"
    return ""


def _name(path: Path, folder: Path) -> str:
    return os.fsencode(path.relative_to(folder)).decode("utf-8", "replace")


def _within(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False
