"""Hunts: what was found and what failed is stored and found again, whatever happens meanwhile.

Runs end here as a test says; tests/cli/test_searching.py has real ones.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.campaign import hunt as hunting
from harness.campaign.checkpoint import FinishedSeed, open_checkpoint
from harness.campaign.hunt import EDITION, Hunt, HuntState, conduct
from harness.campaign.tally import SeedResult
from harness.campaign.view import show_hunt
from harness.cli.options import Request
from harness.cli.session import RunEnd
from harness.history.rundir import RunDir
from harness.history.runs import update_latest
from harness.judge.verdict import Finding, Judgement, Result, Verdict
from harness.trial import Trial

BASE = Trial(hosts="local", profile="sync-flush", duration_s=20.0, short_faults=True)
FAILED = "the engine is gone"

End = Callable[[int, RunDir], RunEnd]  # of the n-th run of a hunt, in its folder


class NoEngines:
    """Spark is not needed: nothing is judged."""

    def ready(self) -> None:
        return None


def valid(number: int, run: RunDir) -> RunEnd:
    return RunEnd(number, run, Verdict(Judgement.VALID, "all is well", (), ()))


def invalid(number: int, run: RunDir, code: str = "LOST_ACKED", **more: str) -> RunEnd:
    found = Finding(code, 1, "1 was lost", "no-loss")
    verdict = Verdict(Judgement.INVALID, "1 was lost", (), (Result("loss", (found,)),))
    return RunEnd(number, run, verdict, **more)


def failed(number: int, run: RunDir) -> RunEnd:
    return RunEnd(number, run, error=FAILED)


@contextmanager
def ending(monkeypatch: pytest.MonkeyPatch, end: End) -> Iterator[list[str]]:
    """Runs end as `end` says. Yields the plans of those that were carried out."""
    plans = list[str]()

    def run_one(request: Request, runs: Path, spark: object) -> RunEnd:
        plans.append(request.plan_text or "")
        run = RunDir(runs / f"run-{len(list(runs.iterdir()))}-{len(plans)}")
        run.path.mkdir()
        run.update_state(ended=True)
        return end(len(plans), run)

    with monkeypatch.context() as patched:
        patched.setattr(hunting, "run_one", run_one)
        patched.setattr(hunting, "prepare", lambda request: None)
        patched.setattr(hunting, "render", lambda ending, shown: None)
        yield plans


def hunted(runs: Path, trials: int, repeat: int = 2, first_only: bool = False) -> HuntState:
    hunt = Hunt(BASE, ("messages",), 3600.0, trials, first_only, repeat)
    with open_checkpoint(hunt.key, EDITION, runs) as checkpoint:
        return conduct(hunt, runs, lambda state, row: None, NoEngines(), checkpoint)  # type: ignore[arg-type]


def shown(state: HuntState) -> str:
    out = StringIO()
    show_hunt(state, Console(file=out, width=200, highlight=False))
    return out.getvalue()


def kept(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir() if path.is_dir())


def test_a_finding_is_repeated_and_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the command that continues the hunt; invalid runs are kept, by whatever codes."""
    ends = {2: invalid, 3: valid, 4: lambda n, run: invalid(n, run, "OFFSET_CONFLICT")}
    with ending(monkeypatch, lambda n, run: ends.get(n, valid)(n, run)) as plans:
        first = hunted(tmp_path, 3)
    assert plans[1] == plans[2] == plans[3] != plans[4]
    assert (first.exit_code, len(kept(tmp_path))) == (1, 2)
    with ending(monkeypatch, valid) as plans:
        again = hunted(tmp_path, 4)
    assert len(plans) == 1
    for state in (first, again):
        (found,) = state.findings
        assert (found.codes, found.tries, len(found.runs)) == (("LOST_ACKED",), 3, 2)
        assert "Shown by 2 of 3 runs of its plan" in shown(state)
    assert again.exit_code == 1


def test_a_failed_test_bed_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored, too, so that the search comes to the same plans again; three in a row end the
    hunt, with what to do."""
    with ending(monkeypatch, lambda n, run: (failed if n == 2 else valid)(n, run)) as plans:
        state = hunted(tmp_path, 4)
    assert state.exit_code == 2
    assert state.failed == {2: FAILED}
    with ending(monkeypatch, failed) as more:
        state = hunted(tmp_path, 99)
    assert len(more) == 3
    assert not {*plans} & {*more}
    assert "failed 3 times in a row; see " in state.ended
    assert not kept(tmp_path)
    with ending(monkeypatch, valid) as more:
        state = hunted(tmp_path, 9)
    assert len(more) == 2  # the test bed was mended, and the same command goes on
    assert (state.failed_before, state.failed, state.exit_code) == (4, {}, 0)
    assert "4 whose test bed failed" in shown(state)


def test_a_bed_that_fails_under_load_makes_no_trial_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded before may convict, though."""
    sound = Verdict(Judgement.VALID, "all is well", (), ())
    with ending(monkeypatch, lambda n, run: RunEnd(n, run, sound, error=FAILED)):
        state = hunted(tmp_path, 1)
    assert (state.rows, state.failed) == ([], {1: FAILED})
    with ending(monkeypatch, lambda n, run: invalid(n, run, error=FAILED)):
        state = hunted(tmp_path, 2, repeat=0)
    assert state.exit_code == 1


def test_what_was_found_before_a_stop_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run that was stopped without a finding leaves nothing."""
    with ending(monkeypatch, lambda n, run: invalid(n, run, stopped="by Ctrl-C")):
        state = hunted(tmp_path, 9)
    assert (state.exit_code, state.stopped, len(state.findings)) == (1, True, 1)
    assert len(kept(tmp_path)) == 1

    def stop(number: int, run: RunDir) -> RunEnd:
        return RunEnd(number, run, stopped="by Ctrl-C")

    with ending(monkeypatch, stop):
        state = hunted(tmp_path, 9)
    assert state.stopped
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("found", [False, True])
def test_a_run_that_says_that_it_was_stopped_ends_the_hunt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    """A stop that ends the load early is noted in the run's folder, which is removed: the hunt
    ends all the same, also if it came while a finding was repeated."""

    def stop(number: int, run: RunDir) -> RunEnd:
        if found and not kept(tmp_path)[1:]:
            return invalid(number, run)
        run.update_state(interrupted=True)
        return valid(number, run)

    with ending(monkeypatch, stop) as begun:
        state = hunted(tmp_path, trials=5)
    assert (state.stopped, state.failed, len(begun)) == (True, {}, 1 + found)


def test_of_two_hunts_at_once_the_finding_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stores what it did; the command that continues them takes over both."""
    hunt = Hunt(BASE, ("messages",), 3600.0, 1)
    clean = SeedResult(1, tried="x")
    convicted = FinishedSeed(replace(clean, failure=("LOST_ACKED",)), "run", "", "", ("run",), 4)
    results = [FinishedSeed(clean), convicted, replace(convicted, tries=1), FinishedSeed(clean)]
    with ExitStack() as both:
        for one in results:  # each process has a file of its own, in the order of its name
            both.enter_context(open_checkpoint(hunt.key, EDITION, tmp_path)).add(one)
    files = sorted(tmp_path.glob("*.part"))
    assert len(files) == len(results)
    with open_checkpoint(hunt.key, EDITION, tmp_path) as checkpoint:
        assert checkpoint.finished == (convicted,)
    with ending(monkeypatch, valid):
        assert hunted(tmp_path, 1).exit_code == 1


def test_latest_names_a_run_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest one, although the runs of a hunt come and go; or there is none."""

    def end(number: int, run: RunDir) -> RunEnd:
        run.trial_file.write_text(BASE.to_toml())
        update_latest(run, tmp_path)
        return (invalid if number == 2 else valid)(number, run)

    with ending(monkeypatch, end):
        hunted(tmp_path, 1)
        assert not (tmp_path / "latest").is_symlink()
        state = hunted(tmp_path, 3, repeat=0)
    (found,) = state.findings
    assert (tmp_path / "latest").resolve() == found.runs[0].resolve()


def test_the_first_finding_ends_a_hunt_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ending(monkeypatch, invalid):
        state = hunted(tmp_path, 9, repeat=0, first_only=True)
    assert len(state.rows) == 1
    assert "without --first it continues" in state.ended
