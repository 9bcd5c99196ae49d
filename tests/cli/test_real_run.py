"""One short real trial through the console script, and what can be done with its run afterwards.

tests/trials/test_stopped_command.py sends signals to a trial in progress.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from harness.history.rundir import RunDir
from harness.operation import F, Type

pytestmark = [pytest.mark.bed, pytest.mark.spark]

SCRIPT = Path(sys.executable).with_name("seatrial")
TRIAL = """\
name = "short"
duration_s = 11
faults = ["pause"]
targets = ["master"]
seed = 3
load = { rate = 100 }
[rhythm]
quiet_s = 3
fault_s = 6
recovery_s = 2
"""


def seatrial(cwd: Path, *arguments: str) -> "CompletedProcess[str]":
    return subprocess.run(
        [SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def sea(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one trial has been run."""
    folder = tmp_path_factory.mktemp("sea")
    (folder / "short.toml").write_text(TRIAL)
    ran = seatrial(folder, "run", "short.toml", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(ran.stdout) == json.loads(_latest(folder).verdict_file.read_text())
    return folder


def _latest(folder: Path) -> RunDir:
    return RunDir.open(folder / "runs" / "latest")


def test_a_sound_trial_is_valid_and_shown(sea: Path) -> None:
    """The verdict is in verdict.json, in words in the report, and the trial can be read back."""
    run = _latest(sea)
    verdict = json.loads(run.verdict_file.read_text())
    assert (verdict["verdict"], verdict["reasons"]) == ("valid", [])
    assert "<html" in run.report_file.read_text()
    assert run.trial().seed == 3
    assert run.state()["ended"] is True


def test_report_changes_no_verdict(sea: Path) -> None:
    """Rendering again writes the page and leaves the verdict alone."""
    run = _latest(sea)
    verdict = run.verdict_file.read_bytes()
    run.report_file.unlink()
    shown = seatrial(sea, "report", "runs/latest")
    assert (shown.returncode, shown.stdout.strip()) == (0, str(run.report_file))
    assert run.report_file.is_file()
    assert run.verdict_file.read_bytes() == verdict


def test_a_message_that_vanished_is_1(sea: Path, tmp_path: Path) -> None:
    """The same history without one acknowledged message at its end is invalid, and is exit 1."""
    broken = tmp_path / "broken"
    shutil.copytree(_latest(sea).path, broken)
    lost = _forget_one_message(RunDir.open(broken))
    checked = seatrial(tmp_path, "check", "broken", "--json")
    assert checked.returncode == 1, checked.stderr
    findings = [f for row in json.loads(checked.stdout)["checkers"] for f in row["findings"]]
    (loss,) = [f for f in findings if f["code"] == "LOST_ACKED"]
    assert loss["count"] == 1
    assert [row["value"] for row in loss["evidence"]] == [lost]


def _forget_one_message(run: RunDir) -> int:
    """Take the first acknowledged value out of every read and every replica, and the writers' own
    counts away, which would tell that rows are missing."""
    for count in run.journal.glob("*.count"):
        count.unlink()
    ops = {path: pq.read_table(path) for path in sorted(run.history.glob("ops-*.parquet"))}
    rows = pa.concat_tables(ops.values())
    acked = pc.and_(pc.equal(rows["type"], Type.OK), pc.equal(rows["f"], F.SEND))
    value: int = pc.min(rows.filter(acked)["value"]).as_py()
    for path, table in ops.items():
        seen = pc.and_(pc.not_equal(table["f"], F.SEND), pc.equal(table["value"], value))
        pq.write_table(table.filter(pc.invert(pc.fill_null(seen, False))), path)
    for path in run.history.glob("replicas-*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.filter(pc.not_equal(table["value"], value)), path)
    return value


def test_a_failed_bed_is_255(tmp_path: Path) -> None:
    """Where no run can be written, nothing is started, and the sentence says what to do."""
    (tmp_path / "runs").write_text("in the way")
    ran = seatrial(tmp_path, "run", "messages", "--duration", "5s")
    assert ran.returncode == 255
    assert "--runs" in ran.stderr.splitlines()[-1]
