"""A lock that shows that a run is being judged.

The run's own lock is free by then, and its nodes may be healed. So there is another lock, in a
folder of its own that is removed when the verdict is written; the kernel releases it if the judging
process dies.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness.history.rundir import RunDir
from harness.history.runs import is_running, locked

FOLDER = ".judging"


@contextmanager
def judging(run: RunDir) -> Iterator[None]:
    """Hold the lock during the block. If nothing can be written, or another process holds it,
    continue without."""
    place = run.path / FOLDER
    with ExitStack() as lock:
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            if not place.is_symlink():
                lock.enter_context(locked(RunDir(place)))
                lock.callback(shutil.rmtree, place, ignore_errors=True)
        yield


def is_being_judged(folder: Path) -> bool:
    """Whether a process is judging the run now."""
    place = folder / FOLDER
    return not place.is_symlink() and is_running(place)
