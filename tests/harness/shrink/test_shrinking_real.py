"""Shrinking real runs, with simulated worlds in the place of real hosts: they fail by chance only
where a test says so."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path

import pytest
import sinking
from rich.console import Console

from harness.campaign.simulation import simulate
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.registry import nemesis
from harness.shrink.real import Run, search_on_hosts
from harness.shrink.search import Case
from harness.shrink.simulated import SearchLimits, ShrinkState
from harness.shrink.view import ShrinkScreen, frequencies, lines
from harness.trial import Trial

LOST = "LOST_ACKED"
CASE = Case(sinking.TRIAL, nemesis().load(sinking.PLAN).faults)
TRIES = 5


class Watch:
    """Stops the search after so many tries: no test waits for its end."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, progress: ShrinkState) -> None:
        self.left -= 1
        progress.took_s = 1e9 if self.left <= 0 else 0.0


def worlds(flaky: int = 0) -> Run:
    """Runs in simulated worlds; of a flaky bed every so manieth is a run without faults."""
    numbers: Iterator[int] = count(1)

    def run(trial: Trial, plan: str, runs: Path) -> RunDir:
        number = next(numbers)
        calm = flaky and (number - 1) % flaky == 0
        return simulate(trial, "" if calm else plan, runs / f"run-{number}").run

    return run


def test_a_run_becomes_smaller_by_real_tries(tmp_path: Path) -> None:
    """Only the least that failed stays, as a run; how often it fails is not known yet."""
    progress, outcome = search_on_hosts(
        CASE, LOST, SearchLimits(60.0, 2), Watch(TRIES), tmp_path, worlds()
    )
    assert LOST in outcome.failure
    assert len(progress.tries.best.plan) < len(CASE.plan)
    assert {path.resolve() for path in tmp_path.iterdir()} == {outcome.run.path.resolve()}
    assert (tmp_path / "latest").is_symlink()
    assert outcome.run.plan_file.read_text() == progress.tries.best.plan_toml
    assert outcome.run.trial().name == "shrunk-sinking"
    given, again = frequencies(progress)
    assert given == "The given run failed at try 1, the result at try 1."
    assert again.endswith("is unknown: it was not run again, because the time was over (--within).")


def test_what_fails_only_now_and_then_is_tried_again(tmp_path: Path) -> None:
    """The first try does not fail: the second chance does, which is told."""
    patience, bed = SearchLimits(60.0, 3), worlds(flaky=TRIES)
    progress, outcome = search_on_hosts(CASE, LOST, patience, Watch(3), tmp_path, bed)
    assert progress.tries.failed_at(progress.start) == 2
    assert LOST in outcome.failure


def test_what_does_not_fail_again_is_refused(tmp_path: Path) -> None:
    """After all its chances, and nothing is left behind."""
    with pytest.raises(BadRequest, match=r"does not fail when it is .* again 2 times"):
        search_on_hosts(CASE, LOST, SearchLimits(60.0, 2), Watch(99), tmp_path, worlds(flaky=1))
    assert not list(tmp_path.iterdir())


def test_a_bed_that_fails_at_once_is_told_at_once(tmp_path: Path) -> None:
    """It is no failure of the trial, and nothing can be learnt of it here."""
    tries = []

    def broken(trial: Trial, plan: str, runs: Path) -> RunDir:
        tries.append(trial)
        raise BedFailed("the hosts are on fire")

    with pytest.raises(BedFailed, match=r"^the hosts are on fire$"):
        search_on_hosts(CASE, LOST, SearchLimits(60.0, 8), Watch(99), tmp_path, broken)
    assert len(tries) == 1


def test_a_bed_that_fails_now_and_then_is_no_try(tmp_path: Path) -> None:
    """What was judged did not fail, and is told; what was lost is told beside it."""
    bed = endings(CALM, BED, BED)
    says = r"does not fail when it is run again \(Valid.*\), and the test bed failed 2 more times"
    with pytest.raises(BadRequest, match=says):
        search_on_hosts(REAL, LOST, SearchLimits(60.0, 3), Watch(99), tmp_path, bed)


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    """Before the first failure there is none."""
    run, numbers = worlds(), count(1)

    def stopped(trial: Trial, plan: str, runs: Path) -> RunDir:
        if next(numbers) > 1:
            raise KeyboardInterrupt
        return run(trial, plan, runs)

    progress, outcome = search_on_hosts(
        CASE, LOST, SearchLimits(60.0, 2), Watch(99), tmp_path, stopped
    )
    assert progress.stopped
    assert not progress.whole
    assert len(nemesis().load(outcome.run.plan_file.read_text()).faults) == len(CASE.plan)
    with pytest.raises(KeyboardInterrupt):
        search_on_hosts(CASE, LOST, SearchLimits(60.0, 2), Watch(99), tmp_path / "again", stopped)


# ---------------------------------------------------------------- how often what is left fails

REAL = replace(CASE, trial=replace(CASE.trial, hosts="local"))
FAILS, CALM, BED, STOP = "fails", "calm", "bed", "stop"


def endings(*given: str) -> Run:
    """Runs of a case that nothing can be left out of: how the given one ends, try by try."""
    left, numbers = iter(given), count(1)

    def run(trial: Trial, plan: str, runs: Path) -> RunDir:
        if plan != REAL.plan_toml or plain(trial) != plain(REAL.trial):
            raise BadRequest("what is smaller does not fail")
        ending = next(left)
        if ending == BED:
            raise BedFailed("the hosts are on fire")
        if ending == STOP:
            raise KeyboardInterrupt("; what is left is removed by: seatrial heal")
        plan = plan if ending == FAILS else ""
        return simulate(replace(trial, hosts="simulated"), plan, runs / f"run-{next(numbers)}").run

    return run


def plain(trial: Trial) -> Trial:
    """Without what changes from try to try."""
    return replace(trial, name="", seed=0, faults=())


def to_the_end(luck: int, runs: Path, *given: str) -> tuple[ShrinkState, list[str]]:
    """The search, and what is told of how often; no run stays but that which failed."""
    patience, bed = SearchLimits(60.0, luck), endings(*given)
    progress, outcome = search_on_hosts(REAL, LOST, patience, Watch(9999), runs, bed)
    assert {path.resolve() for path in runs.iterdir()} == {outcome.run.path.resolve()}
    assert LOST in outcome.failure
    return progress, list(frequencies(progress))


def test_what_is_left_is_tried_again(tmp_path: Path) -> None:
    """As often as --luck says, and each counts: tries of the search end with the first failure."""
    progress, told = to_the_end(3, tmp_path, CALM, FAILS, CALM, CALM, FAILS)
    assert progress.whole
    assert told == [
        "The given run failed at try 2, and nothing smaller did.",
        "Run again, the result failed 1 of 3 times.",
    ]


def test_a_search_leaves_time_for_that(tmp_path: Path) -> None:
    """It ends before its time does, for what it has found by then."""

    def watch(progress: ShrinkState) -> None:
        progress.took_s = 46.0

    progress, _ = search_on_hosts(CASE, LOST, SearchLimits(60.0, 2), watch, tmp_path, worlds())
    assert not progress.whole
    assert progress.tries.count == 1
    assert list(frequencies(progress))[1] == "Run again, the result failed 2 of 2 times."


def test_ctrl_c_keeps_what_is_known_of_how_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tries until then count."""
    progress, told = to_the_end(8, tmp_path, FAILS, FAILS, CALM, STOP)
    assert progress.stopped
    assert told[1] == "Run again, the result failed 1 of 2 times."
    assert "the run was stopped; what is left is removed by" in capsys.readouterr().err


def test_a_bed_that_fails_says_nothing_of_how_often(tmp_path: Path) -> None:
    """It is told beside it."""
    _, told = to_the_end(2, tmp_path / "some", FAILS, FAILS, BED)
    assert told[1].endswith("failed 1 of 1 time; the test bed failed 1 more time.")
    _, told = to_the_end(1, tmp_path / "none", FAILS, BED)
    assert told[1].endswith("was not judged once: the test bed failed 1 time.")


def test_a_stop_between_two_runs_is_heard(tmp_path: Path) -> None:
    """While one is judged, which is finished; no other begins."""
    run, numbers = worlds(), count(1)

    def stopped(trial: Trial, plan: str, runs: Path) -> RunDir:
        if next(numbers) == 2:
            signal.raise_signal(signal.SIGTERM)
        return run(trial, plan, runs)

    progress, outcome = search_on_hosts(
        CASE, LOST, SearchLimits(60.0, 2), Watch(99), tmp_path, stopped
    )
    assert progress.stopped
    assert progress.tries.count == 2
    assert LOST in outcome.failure


def test_it_is_told_as_it_goes_on(tmp_path: Path) -> None:
    """At which try something failed; then how often what is left did. All of them are counted."""
    told, bed = StringIO(), endings(FAILS, FAILS, CALM)
    with ShrinkScreen(Console(file=told, width=200)) as watch:
        progress, outcome = search_on_hosts(
            REAL, LOST, SearchLimits(600.0, 2), watch, tmp_path, bed
        )
    first, *_, last = told.getvalue().splitlines()
    assert first.endswith("5 faults in 4 s of load on 6 nodes, failed at try 1, 1 try")
    count = f"{progress.tries.count + 2} tries"
    assert last.endswith(f"; run again, failed 1 of 2 times, {count}")
    summary = next(lines(progress, outcome))
    assert f" became 5 faults in 4 s of load on 6 nodes: {count} in " in summary
