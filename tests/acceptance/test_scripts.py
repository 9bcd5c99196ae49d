"""Scripts of this folder find what they import when they are started by hand.

pytest's `pythonpath` is not there then, only the script's own folder and what it adds itself.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = sorted(each.name for each in HERE.glob("*.py") if "__main__" in each.read_text())
SCRIPTS.remove(Path(__file__).name)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_its_modules(script: str) -> None:
    code = "import runpy, sys; sys.path[0] = sys.argv[1]; runpy.run_path(sys.argv[2])"
    argv = [sys.executable, "-c", code, str(HERE), str(HERE / script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
