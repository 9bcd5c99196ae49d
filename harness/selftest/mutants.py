"""`seatrial selftest`: tests that planted bugs are detected, and a correct build passes.

A system may have *mutants*: known-bad variants of itself, each with the code of the finding that
convicts it. Each has a plan written against it: `NAME.toml` for simulated hosts, and
`NAME.HOSTS.toml` where real hosts can show the bug, too. A case is run with a few seeds until the
expected finding appears: some damage depends on chance, such as what a power cut tears. Only the
expected code counts; a failed test bed does not. Neither does a run in which a node crashed, since
the planted code may not have been reached; except for mutants whose damage nodes detect themselves,
and stop. Then the correct build runs with the same plan and seed, and must be *valid*.

Simulated cases run in worker processes; real ones follow, one at a time, since they need the whole
machine. A stop, by Ctrl-C, SIGTERM or a closed terminal, ends the self-test, and a run interrupted
by it does not count.
"""

import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, redirect_stderr
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from harness import registry
from harness.campaign.pool import run_in_pool
from harness.campaign.simulation import STOPPED, simulate
from harness.cli.options import request
from harness.cli.session import say
from harness.errors import BadRequest, BedFailed, UnknownName
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict
from harness.run import launch
from harness.suite import bundled
from harness.trial import SIMULATED, Trial

PLANS = bundled.folder() / "mutants"
SEEDS = range(1, 9)
SEEDS_OF_REAL_HOSTS = range(1, 4)
QUICK = 8  # cases
ALL_CAUGHT, NOT_ALL, UNDECIDED = 0, 1, 2
CRASH = "NODE_CRASHED"
CAUGHT, SURVIVED, BLAMED, DOUBTFUL = "caught", "survived", "sound build blamed", "undecided"


@dataclass(frozen=True)
class MutantCase:
    """A mutant and a plan written against it. `cost`: seconds of load times rate; `stops`: nodes
    may detect its damage and stop."""

    mutant: str
    finding: str
    plan: Path
    hosts: str
    cost: float
    stops: bool = False

    @property
    def is_real(self) -> bool:
        return self.hosts != SIMULATED

    def caught_by(self, codes: Sequence[str]) -> bool:
        """Return whether these findings convict the mutant. A crashed node may have crashed in the
        planted code, and its silence alone causes findings."""
        crash_counts = self.stops or self.finding == CRASH
        return self.finding in codes and (crash_counts or CRASH not in codes)


@dataclass(frozen=True)
class MutantRun:
    """The result of one run. `error`: the test bed failed, or the world stopped."""

    verdict: str = "no verdict"
    codes: tuple[str, ...] = ()
    faults: int = 0  # that count
    why: str = ""
    error: str = ""


@dataclass(frozen=True)
class CaseResult:
    """The result of a case. `faults`: counted in all runs of the mutant."""

    case: MutantCase
    seed: int = 0  # of the last run
    found: tuple[str, ...] = ()  # codes
    faults: int = 0
    sound: str = ""  # verdict of the correct build
    why: str = ""  # reason if it is not caught
    word: str = DOUBTFUL

    def plain(self) -> dict[str, Any]:
        """For programs."""
        rest = {key: value for key, value in asdict(self).items() if key != "case"}
        case = self.case
        head = {"mutant": case.mutant, "plan": str(case.plan), "hosts": case.hosts}
        return {**head, "expected": case.finding, **rest}


@dataclass
class SelftestState:
    """The state of a self-test."""

    cases: Sequence[MutantCase]
    answers: list[CaseResult] = field(default_factory=list)
    interrupted: bool = False

    def interrupt(self) -> None:
        self.interrupted = True

    @property
    def exit_code(self) -> int:
        words = {answer.word for answer in self.answers}
        if words & {SURVIVED, BLAMED}:
            return NOT_ALL
        done = not self.interrupted and len(self.answers) == len(self.cases)
        return ALL_CAUGHT if done and words == {CAUGHT} else UNDECIDED


# ------------------------------------------------------------------------------------ the cases


def cases(
    names: Sequence[str] = (), system: str = "flotilla", stories: Path = PLANS
) -> tuple[MutantCase, ...]:
    """Return all cases of these mutants, by default of all, in the system's order.

    Raises BadRequest if a mutant has no plan for simulated hosts.
    """
    mutants = _mutants(system)
    for name in names:
        if name not in mutants:
            raise UnknownName("mutant", name, mutants)
    return tuple(
        case
        for name, mutant in mutants.items()
        if not names or name in names
        for case in _of(name, mutant, stories)
    )


def _mutants(system: str) -> Mapping[str, Any]:
    mutants = registry.system(system).mutants()
    if not mutants:
        raise BadRequest(f"the system {system} has no mutants, so there is nothing to test")
    return mutants


def _of(name: str, mutant: Any, stories: Path) -> Iterator[MutantCase]:
    plain = stories / f"{name}.toml"
    if not plain.is_file():
        raise BadRequest(f"there is no plan against the mutant {name}; its file would be {plain}")
    for plan in (plain, *sorted(stories.glob(f"{name}.*.toml"))):
        trial = tomllib.loads(plan.read_text()).get("trial", {})
        rate = trial.get("load", {}).get("rate", 100)
        cost = float(trial.get("duration_s", 60.0)) * float(rate)
        hosts = str(trial.get("hosts", SIMULATED))
        yield MutantCase(name, mutant.finding, plan, hosts, cost, getattr(mutant, "stops", False))


def of_hosts(chosen: Sequence[MutantCase], hosts: str) -> tuple[MutantCase, ...]:
    """Return the cases on hosts of this kind. Raises BadRequest if there is none."""
    kept = tuple(case for case in chosen if case.hosts == hosts)
    if not kept:
        kinds = ", ".join(sorted({case.hosts for case in chosen}))
        raise BadRequest(f"no plan against these mutants is for {hosts} hosts; there are: {kinds}")
    return kept


def cheapest(chosen: Sequence[MutantCase], count: int = QUICK) -> tuple[MutantCase, ...]:
    """Return the simulated cases of the least cost. Raises BadRequest if there is none."""
    simulated_ones = [case for case in chosen if not case.is_real]
    if not simulated_ones:
        raise BadRequest("--quick selects plans for simulated hosts; omit it, or --hosts")
    kept = sorted(simulated_ones, key=lambda case: case.cost)[:count]
    return tuple(case for case in chosen if case in kept)


# ------------------------------------------------------------------------------------ execution

Watch = Callable[[SelftestState], None]  # called whenever something may have changed
Play = Callable[[MutantCase, int, str], MutantRun]  # a case, a seed, and the mutant or nothing
Run = Callable[[Trial, str, Path], RunDir]  # KeyboardInterrupt: it was stopped


def conduct(
    state: SelftestState, jobs: int, runs: Path, watch: Watch, run: Run | None = None
) -> None:
    """Run all cases; runs on real hosts are made by `run`, and kept under `runs`."""
    simulated_ones = [case for case in state.cases if not case.is_real]
    with closing(run_in_pool(in_worlds, simulated_ones, jobs)) as steps:
        for done in steps:
            if done is not None:
                state.answers.append(done.result or CaseResult(done.item, why=done.lost))
            watch(state)
            if state.interrupted:
                return
    play = _unless_stopped(state, on_hosts(runs, run or _run))
    for case in state.cases:
        if case.is_real and not state.interrupted:
            try:
                state.answers.append(run_case(case, play, SEEDS_OF_REAL_HOSTS))
            except KeyboardInterrupt as stop:
                state.interrupt()
                if str(stop):  # what it has left on its hosts
                    say(f"the run was stopped{stop}")
            watch(state)


def _unless_stopped(state: SelftestState, play: Play) -> Play:
    """Raise KeyboardInterrupt if a stop was requested between two runs."""

    def played(case: MutantCase, seed: int, mutant: str) -> MutantRun:
        if state.interrupted:
            raise KeyboardInterrupt
        return play(case, seed, mutant)

    return played


def run_case(case: MutantCase, play: Play, seeds: Sequence[int]) -> CaseResult:
    """Run the mutant until it is caught, then the correct build with the same plan and seed."""
    faults, last, failed = 0, MutantRun(), ""
    for seed in seeds:
        last = play(case, seed, case.mutant)
        faults += last.faults
        failed = failed or last.error
        if not last.error and case.caught_by(last.codes):
            return _beside_the_sound(case, seed, last, faults, play(case, seed, ""))
    if failed:
        return CaseResult(case, seeds[-1], last.codes, faults, why=failed)
    crashed = CRASH in last.codes and case.finding in last.codes
    wanted = f"{case.finding} without a crash" if crashed else case.finding
    why = f"no {wanted} with seeds {seeds[0]} to {seeds[-1]}; the last one: {last.why}"
    return CaseResult(case, seeds[-1], last.codes, faults, why=why, word=SURVIVED)


def _beside_the_sound(
    case: MutantCase, seed: int, bad: MutantRun, faults: int, sound: MutantRun
) -> CaseResult:
    word, why = CAUGHT, ""
    if sound.error or sound.verdict != Judgement.VALID:
        word = BLAMED if sound.verdict == Judgement.INVALID and not sound.error else DOUBTFUL
        why = f"the correct build: {sound.error or sound.why}"
    return CaseResult(case, seed, bad.codes, faults, sound.verdict, why, word)


def in_worlds(case: MutantCase, scratch: Path) -> CaseResult:
    """Run a simulated case in a worker."""

    def play(case: MutantCase, seed: int, mutant: str) -> MutantRun:
        trial, plan = case_trial(case, seed, mutant)
        folder = scratch / f"{case.mutant}-{mutant or 'sound'}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # of a worker that was lost
        outcome = simulate(trial, plan, folder)
        shutil.rmtree(folder)
        if outcome.verdict is None or STOPPED in outcome.failure:
            return MutantRun(error=outcome.why)
        return _mutant_run(outcome.verdict, sum(outcome.faults.values()))

    return run_case(case, play, SEEDS)


def on_hosts(runs: Path, run: Run) -> Play:
    """Return a function that runs a case on the hosts of its plan. It raises KeyboardInterrupt if
    the run was stopped by request: it does not count."""

    def play(case: MutantCase, seed: int, mutant: str) -> MutantRun:
        trial, plan = case_trial(case, seed, mutant)
        try:
            with redirect_stderr(StringIO()):
                folder = run(trial, plan, runs)
        except BedFailed as e:
            return MutantRun(error=str(e))
        if folder.state().get("interrupted"):
            raise KeyboardInterrupt
        return judge_mutant_run(folder)

    return play


def _run(trial: Trial, plan: str, runs: Path) -> RunDir:
    return launch.run(trial, plan, runs=runs)


def judge_mutant_run(run: RunDir) -> MutantRun:
    verdict = judge_small(History.open(run))
    counted = verdict.stats("coverage").get("effective", {})
    error = str(run.state().get("error") or "")
    played = _mutant_run(verdict, sum(counted.values()))
    return MutantRun(played.verdict, played.codes, played.faults, played.why, error)


def _mutant_run(verdict: Verdict, faults: int) -> MutantRun:
    return MutantRun(str(verdict.verdict), tuple(verdict.convicting), faults, verdict.sentence)


def case_trial(case: MutantCase, seed: int, mutant: str) -> tuple[Trial, str]:
    """Return the trial of a case, and its plan as TOML."""
    settings = {"settings": {"mutant": mutant}} if mutant else {}
    name = f"{mutant or 'sound'}-against-{case.mutant}"
    wanted = request("", {"plan": str(case.plan), "seed": seed, "name": name, **settings})
    trial = wanted.trial
    return trial, launch.make_plan(trial, wanted.plan_text)
