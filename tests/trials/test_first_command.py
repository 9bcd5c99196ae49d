"""The first command that a newcomer types, on a copy of the repository that has no .venv yet.

The machine's own Python is tried: it is the one that a newcomer has, and often an older release.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bed, pytest.mark.spark]

SYSTEM = Path("/usr/bin/python3")
SUPPORTED = "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"
LEFT_OUT = (".venv", ".git", "runs", "dist", "site", "__pycache__", ".*_cache", ".hypothesis")
OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # this test may run under `make test`
SHORT = "--faults kill --duration 11s --rhythm quiet_s=3,fault_s=6,recovery_s=2 --no-report"


def python() -> str:
    """The machine's own Python if Seatrial supports it, else the one that runs the tests."""
    base = getattr(sys, "_base_executable", sys.executable)
    for path in (str(SYSTEM), base):
        if Path(path).exists() and not subprocess.run([path, "-c", SUPPORTED]).returncode:
            return path
    raise AssertionError(f"neither {SYSTEM} nor {base} can make a virtual environment")


def test_make_demo_works_with_the_python_of_this_machine(root: Path, tmp_path: Path) -> None:
    """It installs what running needs and no more, says so, and ends with a verdict."""
    clone = tmp_path / "clone"
    shutil.copytree(root, clone, ignore=shutil.ignore_patterns(*LEFT_OUT))
    ran = subprocess.run(
        ["make", "demo", f"PYTHON={python()}", f"DEMO={SHORT}"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in OF_MAKE},
    )
    words = f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    assert ran.returncode == 0, words
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("Installing Seatrial into .venv, with Python 3."), words
    assert "GB of disk" in lines[1], words
    assert (clone / "runs" / "latest" / "verdict.json").is_file()
    packages = {path.name for path in (clone / ".venv").glob("lib/python*/site-packages/*")}
    assert "pyspark" in packages
    assert not packages & {"pytest", "mypy", "mkdocs", "playwright", "hypothesis"}
