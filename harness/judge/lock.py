"""A run that is being judged says so, for whoever looks at it from outside.

Its own lock is free by then: its nodes are gone, and whatever is left of them may be healed. So
there is another one, in a folder of its own that goes when the verdict is there; the kernel lets go
of it if the judge dies, so nobody is taken for a judge who is none.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness.history.rundir import RunDir
from harness.history.runs import held, is_running

FOLDER = ".judging"


@contextmanager
def being_judged(run: RunDir) -> Iterator[None]:
    """For the length of the block. Where nothing can be written, or somebody judges it already,
    it goes unsaid."""
    place = run.path / FOLDER
    with ExitStack() as lock:
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            if not place.is_symlink():
                lock.enter_context(held(RunDir(place)))
                lock.callback(shutil.rmtree, place, ignore_errors=True)
        yield


def is_being_judged(folder: Path) -> bool:
    """Is somebody at it now?"""
    place = folder / FOLDER
    return not place.is_symlink() and is_running(place)
