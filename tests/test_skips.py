"""On a build machine nothing is skipped in silence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = {
    "a test": "import pytest\ndef test_it():\n    pytest.skip('no engine')\n",
    "a file": "import pytest\npytest.skip('no engine', allow_module_level=True)\n",
    "an expected failure": "import pytest\n@pytest.mark.xfail\ndef test_it():\n    assert False\n",
}


@pytest.mark.parametrize(
    ("skipped", "ci", "code"),
    [
        ("a test", "true", 1),
        ("a test", "1", 1),
        ("a test", "", 0),
        ("a file", "1", 2),
        ("a file", "", 5),
        ("an expected failure", "1", 0),
    ],
)
def test_a_skip_is_a_failure_where_ci_is_set(
    tmp_path: Path, root: Path, skipped: str, ci: str, code: int
) -> None:
    """A skipped test, or file of tests, fails the build, and says what was skipped and why."""
    (tmp_path / "conftest.py").write_text((root / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(SKIPS[skipped])
    argv = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tmp_path, tmp_path]
    env = {**os.environ, "CI": ci, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stdout
    assert ("CI allows no skips" in ran.stdout) == (code in (1, 2))
