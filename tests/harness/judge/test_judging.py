"""A run that is being judged says so, and keeps nothing else from anybody."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from harness.cli import session
from harness.cli.options import Request
from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.history.runs import is_running, write_run
from harness.judge import judge
from harness.judge.lock import is_being_judged, judging
from harness.judge.verdict import Judgement, Verdict
from harness.trial import Trial

VERDICT = Verdict(Judgement.VALID, "Valid: all of it.", (), ())


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(Trial(), "", tmp_path)


def test_whoever_judges_says_so(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before its engine is there until the verdict is; the run itself is over, and may be
    healed."""
    seen: list[tuple[bool, bool]] = []

    def slowly(_: object, judged: RunDir, *__: object) -> Verdict:
        seen.append((is_being_judged(judged.path), is_running(judged.path)))
        return VERDICT

    monkeypatch.setattr(judge, "judge_by", slowly)
    monkeypatch.setattr("harness.spark.session.launch", lambda *_: ExitStack())
    monkeypatch.delenv("SEATRIAL_SPARK", raising=False)
    before = sorted(run.path.iterdir())
    assert session.judge_run(run, 1).verdict == VERDICT
    assert seen == [(True, False)]
    assert not is_being_judged(run.path)
    assert sorted(run.path.iterdir()) == before


def test_the_judge_is_loaded_while_the_cluster_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not under load; and before the run has ended, so that the verdict need not wait for it."""
    loaded, at_phase = Event(), ""

    def load(trial: Trial) -> None:
        assert (at_phase, trial) == ("drain", Trial())
        loaded.set()

    def run_trial(
        trial: Trial, plan: str, on_status: Callable[[Mapping[str, str]], None], runs: Path
    ) -> RunDir:
        nonlocal at_phase
        for at_phase in ("raised", "load", "healed", "drain"):
            on_status({"phase": at_phase})
        assert loaded.wait(30)
        raise BedFailed("the end of the test")

    monkeypatch.setattr(judge, "load_checkers", load)
    monkeypatch.setattr("harness.run.launch.run", run_trial)
    ended = session.run_one(Request(Trial(), ""), tmp_path, ExitStack())  # type: ignore[arg-type]
    assert ended.error == "the end of the test"


def test_two_may_judge_at_once(run: RunDir) -> None:
    """Nobody waits for the other."""
    with judging(run):
        with judging(run):
            assert is_being_judged(run.path)
        assert is_being_judged(run.path)
    assert not is_being_judged(run.path)


def test_a_judge_that_was_killed_judges_no_more(run: RunDir) -> None:
    """However it died."""
    program = f"""
import signal
from pathlib import Path
from harness.judge.lock import judging
from harness.history.rundir import RunDir

with judging(RunDir(Path({str(run.path)!r}))):
    print("begun", flush=True)
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        assert is_being_judged(run.path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not is_being_judged(run.path)
    with judging(run):
        assert is_being_judged(run.path)


def test_where_nothing_can_be_written_it_goes_unsaid(run: RunDir) -> None:
    """That is no reason not to judge; nor is a link there one to go elsewhere."""
    elsewhere = run.path / "elsewhere"
    elsewhere.mkdir()
    os.symlink(elsewhere, run.path / ".judging")
    with judging(run):
        assert not is_being_judged(run.path)
    assert not list(elsewhere.iterdir())
    (run.path / ".judging").unlink()
    (run.path / ".judging").write_text("")
    with judging(run):
        assert not is_being_judged(run.path)
