"""A suite stops where it is asked to, and goes on from there: told without a cluster or Spark."""

import os
import sys
import time
from pathlib import Path

import pytest
from suite_rows import turn

from harness.options import Request
from harness.rundir import RunDir
from harness.runs import start_run
from harness.session import Ending
from harness.suite import course as suite_course
from harness.suite.course import Budget, Course, conduct, turns
from harness.suite.log import SuiteLog

CALM, STORM = turn("calm").cell, turn("storm").cell


class Engines:
    """Spark that is never asked for."""

    def ready(self) -> None: ...

    def close(self) -> None: ...


def _conducted(runs: Path) -> Course:
    course = Course(Path("suites/night.toml"), turns([CALM, STORM], 1))
    with SuiteLog(course.suite, [one.key for one in course.asked], runs) as log:
        conduct(course, runs, log, Budget(), lambda row: None, page=False)
        assert bool(log.begun) == bool(course.early)
    return course


def test_what_was_recorded_when_it_was_stopped_is_judged_with_the_time_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between a run's end and its verdict: no run is made twice, and its row tells of all of
    its time, not of judging alone."""
    made = []

    def run_one(asked: Request, runs: Path, spark: object) -> Ending:
        made.append(asked.trial.name)
        if asked is CALM.asked:
            return Ending(1, error="no cluster came up")
        with start_run(asked.trial, "", runs) as run:
            run.update_state(ended=True)
        os.utime(run.path / "run.json", (time.time() + 90,) * 2)
        raise KeyboardInterrupt

    def judged(run: RunDir, seed: int, spark: object) -> Ending:
        return Ending(seed, run, error="it was judged")

    monkeypatch.setattr(sys, "argv", ["seatrial", "suite", "night.toml"])
    for name, stand_in in (("Engines", Engines), ("run_one", run_one), ("judged", judged)):
        monkeypatch.setattr(suite_course, name, stand_in)
    early = _conducted(tmp_path)
    assert early.early == suite_course.STOPPED
    assert [row.came for row in early.table] == ["no cluster came up", early.early]
    again = _conducted(tmp_path)
    assert (again.early, again.resumed) == ("", 1)
    assert [row.came for row in again.table] == ["no cluster came up", "it was judged"]
    assert again.table[1].took_s >= 90.0
    assert made == ["calm", "storm"]
