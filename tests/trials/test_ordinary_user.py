"""A trial of another system by a user without any privilege, on a machine without Java of its own.

test_installed_wheel.py has one of Flotilla.
"""

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


@pytest.fixture
def home() -> Iterator[Path]:
    with ordinary_user.home() as folder:
        yield folder


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
    command = ("run", "register", *words, *times, "--load", "rate=20", "--no-report")
    done = run_command.seatrial(*command, runs=home / "runs", wrapper=wrapper)
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    faults = run_command.faults(done.run)
    assert {fault["kind"] for fault in faults} == {"kill", "partition"}
    assert {fault["state"] for fault in faults} == {"installed"}
    recorded = run_command.state(done.run)["healthy"]["programs"]["etcd"]
    assert recorded["version"] == "3.5.1"
    assert done.run.stat().st_uid == (ordinary_user.NOBODY if os.geteuid() == 0 else os.geteuid())
