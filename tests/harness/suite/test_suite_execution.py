"""A suite stops where it is asked to, and goes on from there: told without a cluster or Spark."""

import os
import sys
import time
from pathlib import Path

import pytest
from suite_rows import row, turn

from harness.cli.options import Request
from harness.cli.session import RunEnd
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.history.runs import start_run
from harness.suite import execution
from harness.suite.command import SuiteRequest, run_suite
from harness.suite.execution import CHANGED, SuiteBudget, SuiteState, conduct, repeated_runs
from harness.suite.log import SuiteLog
from harness.suite.store import NIGHTS, UNDECIDED, SuiteRow
from harness.suite.view import conclusion, details

CALM, STORM = turn("calm").cell, turn("storm").cell


class Engines:
    """Spark that is never asked for."""

    def __init__(self, at_once: bool = True) -> None: ...

    def ready(self) -> None: ...

    def close(self) -> None: ...


def _conducted(runs: Path, **known: SuiteRow) -> SuiteState:
    asked = repeated_runs([CALM, STORM], 1)
    rows = {turn.key: known[turn.cell.title] for turn in asked if turn.cell.title in known}
    state = SuiteState(Path("suites/night.toml"), asked, rows)
    with SuiteLog(state.suite, [one.key for one in state.turns], runs) as log:
        conduct(state, runs, log, SuiteBudget(), lambda row: None, page=False)
        assert bool(log.begun) == bool(state.early)
    return state


def test_what_was_recorded_when_it_was_stopped_is_judged_with_the_time_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between a run's end and its verdict: no run is made twice, and its row tells of all of
    its time, not of judging alone."""
    made = []

    def run_one(asked: Request, runs: Path, spark: object) -> RunEnd:
        made.append(asked.trial.name)
        if asked is CALM.request:
            return RunEnd(1, error="no cluster came up")
        with start_run(asked.trial, "", runs) as run:
            run.update_state(ended=True)
        os.utime(run.path / "run.json", (time.time() + 90,) * 2)
        raise KeyboardInterrupt

    def judged(run: RunDir, seed: int, spark: object) -> RunEnd:
        return RunEnd(seed, run, error="it was judged")

    monkeypatch.setattr(sys, "argv", ["seatrial", "suite", "night.toml"])
    for name, stand_in in (("Engines", Engines), ("run_one", run_one), ("judge_run", judged)):
        monkeypatch.setattr(execution, name, stand_in)
    early = _conducted(tmp_path)
    assert early.early == execution.STOPPED
    assert [row.came for row in early.table] == ["no cluster came up", early.early]
    again = _conducted(tmp_path)
    assert (again.early, again.resumed) == ("", 1)
    assert [row.came for row in again.table] == ["no cluster came up", "it was judged"]
    assert again.table[1].took_s >= 90.0
    assert made == ["calm", "storm"]


def test_programs_are_fetched_before_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of a run have no way to the package registries; one that has no program costs no
    other run."""
    done = []

    def prepare(asked: Request) -> None:
        done.append(f"fetched for {asked.trial.name}")
        if asked is CALM.request:
            raise BedFailed("no registry answers")

    def run_one(asked: Request, runs: Path, spark: object) -> RunEnd:
        done.append(f"ran {asked.trial.name}")
        return RunEnd(1, error="it ran")

    for name, stand_in in (("Engines", Engines), ("prepare", prepare), ("run_one", run_one)):
        monkeypatch.setattr(execution, name, stand_in)
    state = _conducted(tmp_path)
    assert done == ["fetched for calm", "fetched for storm", "ran storm"]
    assert [row.came for row in state.table] == ["no registry answers", "it ran"]


def test_what_can_not_be_judged_is_told_and_the_suite_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was whole when the command died, and of which somebody has spoiled a file."""

    def run_one(asked: Request, runs: Path, spark: object) -> RunEnd:
        if asked is STORM.request:
            return RunEnd(1, error="no cluster came up")
        with start_run(asked.trial, "", runs) as run:
            run.update_state(ended=True)
        raise KeyboardInterrupt

    def judged(run: RunDir, seed: int, spark: object) -> RunEnd:
        raise BadRequest("names.json cannot be read")

    for name, stand_in in (("Engines", Engines), ("run_one", run_one), ("judge_run", judged)):
        monkeypatch.setattr(execution, name, stand_in)
    _conducted(tmp_path)
    again = _conducted(tmp_path)
    assert [row.came for row in again.table] == ["names.json cannot be read", "no cluster came up"]
    assert again.table[0].run


def test_code_that_changes_under_it_ends_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has the code of its moment. What was done before stays; the run under which it has
    changed counts as never begun, also when the code is put back; no other begins."""
    made = []

    def run_one(asked: Request, runs: Path, spark: object) -> RunEnd:
        made.append(asked.trial.name)
        return RunEnd(1, error="no cluster came up")

    for name, stand_in in (("Engines", Engines), ("run_one", run_one)):
        monkeypatch.setattr(execution, name, stand_in)
    monkeypatch.setattr(execution, "code_changed", lambda: len(made) > 1)
    state = SuiteState(Path("suites/night.toml"), repeated_runs([CALM, STORM], 2))
    keys, rows = [one.key for one in state.turns], list[SuiteRow]()
    with SuiteLog(state.suite, keys, tmp_path) as log:
        conduct(state, tmp_path, log, SuiteBudget(), rows.append, page=False)
        assert (list(log.rows), log.begun) == (keys[:1], {})
    assert made == ["calm", "storm"]
    assert [row.came for row in state.table] == ["no cluster came up", *[CHANGED] * 3]
    assert rows == [state.table[0]]
    assert state.exit_code == UNDECIDED
    assert f"3 were not run: {CHANGED}" in conclusion(state)
    assert any("starts over" in line for line in details(state, ()))


def test_what_was_done_before_an_interruption_is_no_row_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record knows it too by then, but neither its folder nor what it took."""

    def run_one(asked: Request, runs: Path, spark: object) -> RunEnd:
        if asked is STORM.request:
            raise KeyboardInterrupt
        return RunEnd(1, error="no cluster came up")

    for name, stand_in in (("Engines", Engines), ("run_one", run_one)):
        monkeypatch.setattr(execution, name, stand_in)
    _conducted(tmp_path)
    again = _conducted(tmp_path, calm=row(known=True))
    assert again.resumed == 1
    assert not again.table[0].known
    assert again.table[0].came == "no cluster came up"


def test_a_night_is_told_though_no_other_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has taken all night is summed up first."""
    monkeypatch.setattr(execution, "Engines", Engines)
    monkeypatch.setattr(execution, "run_one", lambda *asked: RunEnd(1, error="it was run"))
    suite = tmp_path / "night.toml"
    suite.write_text('[[trial]]\nexpect = "valid"\nwith = { hosts = "simulated" }\n')
    (tmp_path / "runs" / "suites" / NIGHTS).mkdir(parents=True)
    assert run_suite(SuiteRequest(suite, page=False), tmp_path / "runs") == UNDECIDED
    assert "it was run" in (tmp_path / "runs" / "suites" / "night.md").read_text()
    said = capsys.readouterr().err
    assert "not compared with earlier ones" in said
    assert "later nights will not be compared with this one" in said
