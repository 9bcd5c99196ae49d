"""Self-tests: when a mutant is caught, when it survived, and when nothing is decided."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.campaign.simulation import simulate
from harness.errors import BadRequest, UnknownName
from harness.history.rundir import RunDir
from harness.run import launch
from harness.run.interrupts import on_stop_signal
from harness.selftest.mutants import (
    ALL_CAUGHT,
    BLAMED,
    CAUGHT,
    DOUBTFUL,
    NOT_ALL,
    SURVIVED,
    UNDECIDED,
    CaseResult,
    MutantCase,
    MutantRun,
    SelftestState,
    cases,
    cheapest,
    conduct,
    of_hosts,
    run_case,
)
from harness.selftest.mutants_view import table
from harness.trial import Trial

CASE = MutantCase("bad", "LOST_ACKED", Path("bad.toml"), "simulated", 1.0)
VALID = MutantRun("valid", why="Valid: all is well")
LOST = MutantRun("invalid", ("LOST_ACKED", "SET_LACKS_ACKED"), 2, "Invalid: lost")
CRASHED = MutantRun("invalid", ("NODE_CRASHED",), 1, "Invalid: crashed")
BED = MutantRun(error="a host is gone")


def answer(mutant: list[MutantRun], sound: MutantRun = VALID) -> CaseResult:
    """With these runs of the mutant, one a seed."""
    runs = iter(mutant)
    return run_case(CASE, lambda case, seed, name: next(runs) if name else sound, range(1, 4))


def test_the_expected_finding_catches() -> None:
    """Among others, with the first seed that shows it; faults add up to there."""
    caught = answer([CRASHED, LOST])
    assert (caught.word, caught.seed, caught.faults, caught.sound) == (CAUGHT, 2, 3, "valid")


def test_another_finding_catches_nobody() -> None:
    """A node that crashed, seed after seed, is not what was expected: listed, never hidden."""
    survived = answer([CRASHED, CRASHED, VALID])
    assert (survived.word, survived.faults) == (SURVIVED, 2)
    assert "no LOST_ACKED" in survived.why


def test_a_run_in_which_a_node_crashed_catches_nobody() -> None:
    """Whatever else was found: a rule that does nothing but fail leaves its cluster without a head,
    which is what some mutants are to be caught by. Where nodes notice the harm and stop, as of two
    leaders of one term, and where the crash is the finding, it is as it should be."""
    both = replace(CRASHED, codes=("LOST_ACKED", "NODE_CRASHED"))
    assert answer([both, both, both]).word == SURVIVED
    assert answer([both, LOST]).seed == 2
    assert replace(CASE, stops=True).caught_by(both.codes)
    assert replace(CASE, finding="NODE_CRASHED").caught_by(CRASHED.codes)


def test_brackets_in_the_name_of_a_plan_are_no_markup() -> None:
    out = StringIO()
    shown = replace(answer([LOST]), case=replace(CASE, plan=Path("[red]bad.toml")))
    Console(file=out, width=200).print(table([shown]))
    assert "[red]bad" in out.getvalue()


def test_a_test_bed_that_failed_decides_nothing() -> None:
    assert answer([VALID, BED, VALID]).word == DOUBTFUL
    assert answer([BED, LOST]).word == CAUGHT


def test_what_is_found_where_the_test_bed_failed_catches_nobody() -> None:
    """The bed may have done the harm; the next seed may catch it."""
    full = replace(LOST, error="the disk of the host is full")
    doubtful = answer([full, full, full])
    assert (doubtful.word, doubtful.why) == (DOUBTFUL, full.error)
    assert answer([full, LOST]).seed == 2


@pytest.mark.parametrize(
    ("sound", "word"),
    [
        (LOST, BLAMED),
        (MutantRun("unknown", why="Unknown: too short"), DOUBTFUL),
        (BED, DOUBTFUL),
        (replace(VALID, error="a host is gone"), DOUBTFUL),
        (MutantRun("invalid", ("LOST_ACKED",), error="a host is gone"), DOUBTFUL),
    ],
)
def test_the_sound_build_has_to_be_valid(sound: MutantRun, word: str) -> None:
    """Under the same plan and seed; else the finding says nothing of the mutant."""
    assert answer([LOST], sound).word == word


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([CAUGHT, CAUGHT], ALL_CAUGHT),
        ([CAUGHT, SURVIVED], NOT_ALL),
        ([DOUBTFUL, BLAMED], NOT_ALL),
        ([CAUGHT, DOUBTFUL], UNDECIDED),
        ([CAUGHT], UNDECIDED),
        ([], UNDECIDED),
    ],
)
def test_exit_codes(words: list[str], code: int) -> None:
    """0 all caught, 1 one was not or the sound build was blamed, 2 undecided."""
    state = SelftestState([CASE, CASE], [CaseResult(CASE, word=word) for word in words])
    assert state.exit_code == code


def test_what_was_stopped_is_undecided() -> None:
    state = SelftestState([CASE], [CaseResult(CASE, word=CAUGHT)], interrupted=True)
    assert state.exit_code == UNDECIDED


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName):
        cases(["no-such-flaw"])
    with pytest.raises(BadRequest, match="ssh"):
        of_hosts(cases(["one-ack"]), "ssh")


def test_a_mutant_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no plan against the mutant"):
        cases(["one-ack"], stories=tmp_path)


def test_the_quick_ones_are_simulated() -> None:
    """As many as asked for, in the order of the list."""
    everything = cases()
    quick = cheapest(everything, 5)
    assert len(quick) == 5
    assert not any(case.is_real for case in quick)
    assert [case for case in everything if case in quick] == list(quick)


def test_the_quick_ones_of_real_hosts_are_none() -> None:
    """Which would test nothing."""
    with pytest.raises(BadRequest, match="--quick selects plans for simulated hosts"):
        cheapest(of_hosts(cases(), "local"))


# ------------------------------------------------------------------------------------ stopped


PLAN = """\
[trial]
hosts = "simulated"
duration_s = {duration_s}
load = {{ rate = 10 }}
settings = {{ timeScale = 0.1 }}
nodes = {{ controller = 1, client = 1 }}
short_faults = true

[[fault]]
kind = "pause"
at_s = 0.1
for_s = 0.1
target = "one nameserver"
"""


def real(folder: Path, duration_s: float) -> MutantCase:
    """A case that is carried out as real ones are, in a world: nothing is there to catch."""
    plan = folder / "one-ack.local.toml"
    plan.write_text(PLAN.format(duration_s=duration_s))
    return MutantCase("one-ack", "LOST_ACKED", plan, "local", 1.0)


def said(state: SelftestState) -> None:
    """Nobody watches."""


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """In the middle of a run, which is no evidence: no other seed and no other case begins."""
    runs = tmp_path / "runs"
    state = SelftestState([real(tmp_path, 600.0)] * 2)

    def pressed(status: Mapping[str, Any]) -> None:
        if status.get("phase") == "load":
            os.kill(os.getpid(), signal.SIGINT)

    def run(trial: Trial, plan: str, runs: Path) -> RunDir:
        return launch.run(trial, plan, pressed, runs)

    with on_stop_signal(state.interrupt):
        conduct(state, 1, runs, said, run)
    folders = [path for path in runs.iterdir() if not path.is_symlink()]
    assert [RunDir(path).state()["interrupted"] for path in folders] == [True]
    assert state.interrupted
    assert (state.answers, state.exit_code) == ([], UNDECIDED)


def test_ctrl_c_between_two_runs_ends_it(tmp_path: Path) -> None:
    """While one is judged, say: the next seed does not begin."""
    state = SelftestState([real(tmp_path, 0.5)])

    def run(trial: Trial, plan: str, runs: Path) -> RunDir:
        state.interrupt()
        return simulate(trial, plan, runs / str(trial.seed)).run

    conduct(state, 1, tmp_path / "runs", said, run)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["1"]
    assert (state.answers, state.exit_code) == ([], UNDECIDED)


def test_what_a_killed_run_leaves_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C twice kills the run, which takes nothing down."""
    state = SelftestState([real(tmp_path, 0.5)])

    def run(trial: Trial, plan: str, runs: Path) -> RunDir:
        raise KeyboardInterrupt("; what is left is removed by: seatrial heal")

    conduct(state, 1, tmp_path, said, run)
    assert (state.answers, state.exit_code) == ([], UNDECIDED)
    assert (
        "the run was stopped; what is left is removed by: seatrial heal" in capsys.readouterr().err
    )
