"""`seatrial explain` through the real console script: what is printed, and with which exit code."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import sinking

from harness.history.rundir import RunDir

Script = Callable[..., "CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run: RunDir = sinking.sunk(Path(tmp_path_factory.mktemp("told")) / "run").run
    return run


def test_a_story_is_printed_and_is_no_verdict(seatrial: Script, run: RunDir) -> None:
    """0 although the run is invalid: nothing was judged. As JSON it is JSON alone."""
    before = run.verdict_file.read_bytes()
    told = seatrial("explain", f"file://{run.path}", "LOST_ACKED")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("LOST_ACKED:1, found by loss: ")
    assert "\nConclusion: Broker-" in told.stdout
    plain = json.loads(seatrial("explain", str(run.path), "--json").stdout)
    assert plain["code"] == "LOST_ACKED"
    assert plain["conclusion"] in told.stdout
    assert run.verdict_file.read_bytes() == before


@pytest.mark.parametrize(
    ("finding", "says"),
    [
        ("LOST_AKED", "unknown finding 'LOST_AKED' (did you mean LOST_ACKED?)"),
        ("UNREAD_ACKED:99", "UNREAD_ACKED has witnesses 1 to "),
        ("LOST_ACKED:first", "'LOST_ACKED:first' is not a finding"),
    ],
)
def test_what_is_not_there_is_254(seatrial: Script, run: RunDir, finding: str, says: str) -> None:
    """One sentence, and nothing on standard output."""
    told = seatrial("explain", str(run.path), finding)
    (line,) = told.stderr.splitlines()
    assert (told.returncode, told.stdout) == (254, "")
    assert says in line


def test_the_report_says_how_to_ask(seatrial: Script, run: RunDir) -> None:
    """The page names the command for each finding."""
    assert seatrial("report", str(run.path)).returncode == 0
    page = run.report_file.read_text()
    assert f"seatrial explain {run.path} LOST_ACKED" in page


def test_explaining_starts_no_engine(run: RunDir) -> None:
    """No Spark is imported for it, so it is there in a second."""

    code = (
        "import sys; from harness.cli.exit_codes import exit_code;"
        f"code = exit_code(['explain', {str(run.path)!r}]);"
        "sys.exit(code or 'pyspark' in sys.modules or 'numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
