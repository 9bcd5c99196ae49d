"""An ordinary user, without any privilege, whose PATH has no Java: what starts a command as one."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
PRIVILEGES = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")


@contextmanager
def home() -> Iterator[Path]:
    """A folder that the user owns, on a path that anybody may walk."""
    folder = Path(tempfile.mkdtemp(prefix="seatrial-user-"))
    (folder / "bin").mkdir()
    give(folder)
    yield folder
    shutil.rmtree(folder)


def give(folder: Path) -> None:
    """Make the user the owner of a folder."""
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def ordinary(home: Path, *needed: Path) -> Sequence[str]:
    """What a command is started with so that the user runs it. `needed`: folders it reads, besides
    those of this Python."""
    clean = ("env", "-i", f"HOME={home}", f"PATH={home / 'bin'}", "LANG=C.UTF-8")
    if os.geteuid() != 0:
        return clean
    user = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), *PRIVILEGES)
    script = "\n".join(["set -e", *opened(home, *needed), 'exec "$@"'])
    return ("unshare", "--mount", "sh", "-c", script, "sh", *user, *clean)


def opened(home: Path, *more: Path) -> Iterator[str]:
    """Commands that let anybody reach what the command needs, at its own place.

    Each folder that only root may enter is covered by one that anybody may, with what is needed of
    it inside. Only this mount namespace sees it.
    """
    cover = Path(tempfile.mkdtemp(prefix="cover-", dir=home))
    cover.chmod(0o755)
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, *more)}
    closed = {path: shut for path in sorted(needed) if (shut := _closed(path))}
    for path in closed:
        yield shlex.join(["mkdir", "-p", f"{cover}{path}"])
        yield shlex.join(["mount", "--bind", str(path), f"{cover}{path}"])
    for shut in sorted(set(closed.values())):
        yield shlex.join(["mount", "--rbind", f"{cover}{shut}", str(shut)])


def _closed(path: Path) -> Path | None:
    """The first folder on the way that an ordinary user may not enter."""
    return next((p for p in (*reversed(path.parents), path) if not p.stat().st_mode & 0o001), None)
