"""Shrinking real runs, with simulated worlds in the place of real hosts: they fail by chance only
where a test says so."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import sinking

from harness.errors import BadRequest, BedFailed
from harness.registry import nemesis
from harness.rundir import RunDir
from harness.shrink import Case
from harness.shrink_view import frequencies
from harness.shrinking import Patience, Progress
from harness.shrinking_real import Run, searched
from harness.simulation import simulated
from harness.trial import Trial

LOST = "LOST_ACKED"
CASE = Case(sinking.TRIAL, nemesis().load(sinking.PLAN).faults)
TRIES = 5


class Watch:
    """Stops the search after so many tries: no test waits for its end."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, progress: Progress) -> None:
        self.left -= 1
        progress.took_s = 1e9 if self.left <= 0 else 0.0


def worlds(flaky: int = 0) -> Run:
    """Runs in simulated worlds; of a flaky bed every so manieth is a run without faults."""
    numbers: Iterator[int] = count(1)

    def run(trial: Trial, plan: str, runs: Path) -> RunDir:
        number = next(numbers)
        calm = flaky and (number - 1) % flaky == 0
        return simulated(trial, "" if calm else plan, runs / f"run-{number}").run

    return run


def test_a_run_becomes_smaller_by_real_tries(tmp_path: Path) -> None:
    """Only the least that failed stays, as a run; how often it failed is told."""
    progress, outcome = searched(CASE, LOST, Patience(60.0, 2), Watch(TRIES), tmp_path, worlds())
    assert LOST in outcome.failure
    assert len(progress.tries.best.plan) < len(CASE.plan)
    assert [path.name for path in tmp_path.iterdir()] == [outcome.run.path.name]
    assert outcome.run.plan_file.read_text() == progress.tries.best.plan_toml
    assert outcome.run.trial().name == "shrunk-sinking"
    assert "What was given failed 1 of 1 times" in frequencies(progress)


def test_what_fails_only_now_and_then_is_tried_again(tmp_path: Path) -> None:
    """The first try does not fail: the second chance does, and both are counted."""
    patience, bed = Patience(60.0, 3), worlds(flaky=TRIES)
    progress, outcome = searched(CASE, LOST, patience, Watch(3), tmp_path, bed)
    assert progress.tries.frequency(progress.start) == (1, 2)
    assert LOST in outcome.failure


def test_what_does_not_fail_again_is_refused(tmp_path: Path) -> None:
    """After all its chances, and nothing is left behind."""
    with pytest.raises(BadRequest, match=r"does not fail when it is .* again 2 times"):
        searched(CASE, LOST, Patience(60.0, 2), Watch(99), tmp_path, worlds(flaky=1))
    assert not list(tmp_path.iterdir())


def test_a_bed_that_fails_proves_nothing(tmp_path: Path) -> None:
    """It is no failure of the candidate, and the sentence is told."""

    def broken(trial: Trial, plan: str, runs: Path) -> RunDir:
        raise BedFailed("the hosts are on fire")

    with pytest.raises(BadRequest, match="the hosts are on fire"):
        searched(CASE, LOST, Patience(60.0, 2), Watch(99), tmp_path, broken)


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    """Before the first failure there is none."""
    run, numbers = worlds(), count(1)

    def stopped(trial: Trial, plan: str, runs: Path) -> RunDir:
        if next(numbers) > 1:
            raise KeyboardInterrupt
        return run(trial, plan, runs)

    progress, outcome = searched(CASE, LOST, Patience(60.0, 2), Watch(99), tmp_path, stopped)
    assert progress.stopped
    assert not progress.whole
    assert len(nemesis().load(outcome.run.plan_file.read_text()).faults) == len(CASE.plan)
    with pytest.raises(KeyboardInterrupt):
        searched(CASE, LOST, Patience(60.0, 2), Watch(99), tmp_path / "again", stopped)
