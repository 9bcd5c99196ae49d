"""Runs that were recorded when trials said `survives`, judged today. All three are of simulated
worlds; the isolated master is killed in each.

    valid    allack-min2: nothing is lost
    invalid  unsafe-default: 236 acknowledged messages are lost
    amnesty  the same, and 10 s later a fsync is slow on one broker, which `survives` does not name:
             that fault permitted every finding, so the stored verdict is valid
"""

import shutil
from pathlib import Path

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict

RUNS = Path(__file__).parent / "with_survives"


@pytest.mark.parametrize(
    ("name", "was", "now", "lost"),
    [
        ("valid", Judgement.VALID, Judgement.VALID, 0),
        ("invalid", Judgement.INVALID, Judgement.INVALID, 236),
        ("amnesty", Judgement.VALID, Judgement.INVALID, 236),
    ],
)
def test_a_stored_run_is_read_and_judged(
    tmp_path: Path, name: str, was: Judgement, now: Judgement, lost: int
) -> None:
    """Its trial, its history and its verdict; one unclaimed fault permits nothing any more."""
    run = RunDir.open(Path(shutil.copytree(RUNS / name, tmp_path / name)))
    assert Verdict.read(run.verdict_file).verdict is was
    assert run.trial().claims["*"] == "none"
    assert run.trial().claims["kill"] == "all"
    verdict = judge_small(History.open(run))
    assert verdict.verdict is now
    assert verdict.stats("loss")["lost"] == lost
    convicting = {f.code: f.excused for c in verdict.checkers for f in c.findings if f.convicts}
    assert convicting == ({"LOST_ACKED": 0, "UNREAD_ACKED": 0} if lost else {})
