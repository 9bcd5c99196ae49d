"""Open a run's folder safely.

A run may have come from another person, in an archive. A link in it could lead to any file of this
machine, to be shown or overwritten; a pipe could block its reader.
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
from harness.history.remote_run import RunAddress, local_copy
from harness.history.rundir import RunDir

MAX_MEMORY_BYTES = 3 << 30  # of which Arrow reserves 1 GB


@contextmanager
def open_run(place: str, whole: bool = False) -> Iterator[RunDir]:
    """Yield a run that may come from anywhere, by its folder or its address; files that were
    written are uploaded at the end of the block. `whole`: with the logs of nodes, of a run in
    storage."""
    if address := RunAddress.of(place):
        with local_copy(address, whole) as run:
            yield run
    else:
        yield open_untrusted(Path(place))


def limit_memory() -> None:
    """Make allocations fail beyond what showing a run needs, so that data which expands without
    bounds ends in an error message, and does not take the memory of the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, hard))


def open_untrusted(path: Path) -> RunDir:
    """Return the run in a folder. Raises BadRequest if it is none, or contains what should not be
    opened."""
    run = RunDir.open(path)
    if FILE.is_file() and Path.cwd().is_relative_to(run.path):
        raise BadRequest(
            f"{FILE} of this folder is part of the run, which may come from another person, and"
            " sets options of commands; run the command from another folder"
        )
    if why := unsafe_reason(run.path):
        raise BadRequest(f"{path} is not opened: {why}; remove that and try again")
    return run


def entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield everything in a folder but folders, with its mode; links are listed, not followed."""
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


def unsafe_reason(folder: Path, max_files: float = inf) -> str:
    """Return why nothing in a folder should be opened: a link out of it, a special file, or more
    than `max_files` files. Empty if all of it may be."""
    for number, (path, mode) in enumerate(entries(folder)):
        if number >= max_files:
            return f"it holds more than {max_files:,} files"
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
