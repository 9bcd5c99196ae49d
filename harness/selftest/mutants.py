"""Is every planted bug caught, and the sound build not? The test of the tests.

A system may have *mutants*: known-bad variants of itself, each with the code of the finding that
convicts it. For each there is a story, a plan written against it: `NAME.toml` for simulated hosts,
and `NAME.HOSTS.toml` where the mistake can be shown on real ones too. A case is played with a few
seeds, until the expected finding is there: some harm takes luck, such as what a power cut tears. It
has to be that very code; a test bed that failed catches nobody. Neither does a run in which a node
crashed, whatever else was found in it: what was planted may not even have been reached. Only of a
mutant whose harm nodes notice themselves, and stop, both are expected. Then the sound build plays
the same plan with the same seed, and has to be *valid*.

Simulated cases are shared out to worker processes; real ones come after them, one at a time, since
they need the machine for themselves. A stop, by Ctrl-C, SIGTERM or a closed terminal, ends the
self-test, and a run that was cut short by it is no evidence of anything.
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
from harness.campaign.pool import carried_out
from harness.campaign.simulation import STOPPED, simulated
from harness.campaign.swarm import HOSTS as SIMULATED
from harness.cli.options import request
from harness.cli.session import say
from harness.errors import BadRequest, BedFailed, UnknownName
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_here
from harness.judge.verdict import Judgement, Verdict
from harness.run import launch
from harness.suite import bundled
from harness.trial import Trial

STORIES = bundled.folder() / "mutants"
SEEDS = range(1, 9)
SEEDS_OF_REAL_HOSTS = range(1, 4)
QUICK = 8  # cases
ALL_CAUGHT, NOT_ALL, UNDECIDED = 0, 1, 2
CRASH = "NODE_CRASHED"
CAUGHT, SURVIVED, BLAMED, DOUBTFUL = "caught", "survived", "sound build blamed", "undecided"


@dataclass(frozen=True)
class Case:
    """A mutant under the story that was written against it. `cost`: seconds of load times rate;
    `stops`: nodes may notice its harm and stop."""

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
        """Whether a run with these findings shows what was planted: a node that crashed may have
        done so in the rule itself, and its silence alone is many a finding."""
        crash_counts = self.stops or self.finding == CRASH
        return self.finding in codes and (crash_counts or CRASH not in codes)


@dataclass(frozen=True)
class Played:
    """What one run came to. `error`: the test bed failed, or the world stopped."""

    verdict: str = "no verdict"
    codes: tuple[str, ...] = ()
    faults: int = 0  # that count
    why: str = ""
    error: str = ""


@dataclass(frozen=True)
class Answer:
    """What became of a case. `faults`: counted in all runs of the mutant, the last one included."""

    case: Case
    seed: int = 0  # of the last run
    found: tuple[str, ...] = ()  # by it
    faults: int = 0
    sound: str = ""  # the sound build's verdict under the same plan and seed
    why: str = ""  # it is not caught, or not decided
    word: str = DOUBTFUL

    def plain(self) -> dict[str, Any]:
        """For programs."""
        rest = {key: value for key, value in asdict(self).items() if key != "case"}
        case = self.case
        head = {"mutant": case.mutant, "plan": str(case.plan), "hosts": case.hosts}
        return {**head, "expected": case.finding, **rest}


@dataclass
class Course:
    """How far a self-test has come."""

    cases: Sequence[Case]
    answers: list[Answer] = field(default_factory=list)
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
    names: Sequence[str] = (), system: str = "flotilla", stories: Path = STORIES
) -> tuple[Case, ...]:
    """All cases of these mutants, of all when none is named, in the system's order.

    BadRequest when a mutant has no story on simulated hosts.
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
    known = registry.system(system).mutants()
    if not known:
        raise BadRequest(f"the system {system} has no mutants, so there is nothing to test here")
    return known


def _of(name: str, mutant: Any, stories: Path) -> Iterator[Case]:
    plain = stories / f"{name}.toml"
    if not plain.is_file():
        raise BadRequest(f"there is no plan against the mutant {name}; it would be {plain}")
    for plan in (plain, *sorted(stories.glob(f"{name}.*.toml"))):
        trial = tomllib.loads(plan.read_text()).get("trial", {})
        rate = trial.get("load", {}).get("rate", 100)
        cost = float(trial.get("duration_s", 60.0)) * float(rate)
        hosts = str(trial.get("hosts", SIMULATED))
        yield Case(name, mutant.finding, plan, hosts, cost, getattr(mutant, "stops", False))


def of_hosts(chosen: Sequence[Case], hosts: str) -> tuple[Case, ...]:
    """Those on hosts of this kind. BadRequest when there is none."""
    kept = tuple(case for case in chosen if case.hosts == hosts)
    if not kept:
        known = ", ".join(sorted({case.hosts for case in chosen}))
        raise BadRequest(f"no plan against these mutants is for {hosts} hosts; there are: {known}")
    return kept


def cheapest(chosen: Sequence[Case], count: int = QUICK) -> tuple[Case, ...]:
    """Those simulated ones that take the least time. BadRequest when there is none."""
    simulated_ones = [case for case in chosen if not case.is_real]
    if not simulated_ones:
        raise BadRequest("--quick is for plans on simulated hosts; leave it out, or --hosts")
    kept = sorted(simulated_ones, key=lambda case: case.cost)[:count]
    return tuple(case for case in chosen if case in kept)


# ---------------------------------------------------------------------------------- playing them

Watch = Callable[[Course], None]  # called whenever something may have changed
Play = Callable[[Case, int, str], Played]  # a case, a seed, and the mutant or nothing
Run = Callable[[Trial, str, Path], RunDir]  # KeyboardInterrupt: it was stopped


def conduct(course: Course, jobs: int, runs: Path, watch: Watch, run: Run | None = None) -> None:
    """Play all cases; runs of real hosts are kept under `runs`, and made by `run`."""
    simulated_ones = [case for case in course.cases if not case.is_real]
    with closing(carried_out(in_worlds, simulated_ones, jobs)) as steps:
        for done in steps:
            if done is not None:
                course.answers.append(done.result or Answer(done.item, why=done.lost))
            watch(course)
            if course.interrupted:
                return
    play = _unless_stopped(course, on_hosts(runs, run or _run))
    for case in course.cases:
        if case.is_real and not course.interrupted:
            try:
                course.answers.append(answered(case, play, SEEDS_OF_REAL_HOSTS))
            except KeyboardInterrupt as stop:
                course.interrupt()
                if str(stop):  # what it has left behind
                    say(f"the run was stopped{stop}")
            watch(course)


def _unless_stopped(course: Course, play: Play) -> Play:
    """Nothing is begun after a request that came between two runs."""

    def played(case: Case, seed: int, mutant: str) -> Played:
        if course.interrupted:
            raise KeyboardInterrupt
        return play(case, seed, mutant)

    return played


def answered(case: Case, play: Play, seeds: Sequence[int]) -> Answer:
    """The mutant until it is caught, then the sound build under the same plan and seed."""
    faults, last, failed = 0, Played(), ""
    for seed in seeds:
        last = play(case, seed, case.mutant)
        faults += last.faults
        failed = failed or last.error
        if not last.error and case.caught_by(last.codes):
            return _beside_the_sound(case, seed, last, faults, play(case, seed, ""))
    if failed:
        return Answer(case, seeds[-1], last.codes, faults, why=failed)
    crashed = CRASH in last.codes and case.finding in last.codes
    wanted = f"{case.finding} without a crash" if crashed else case.finding
    why = f"no {wanted} with seeds {seeds[0]} to {seeds[-1]}; the last one: {last.why}"
    return Answer(case, seeds[-1], last.codes, faults, why=why, word=SURVIVED)


def _beside_the_sound(case: Case, seed: int, bad: Played, faults: int, sound: Played) -> Answer:
    word, why = CAUGHT, ""
    if sound.error or sound.verdict != Judgement.VALID:
        word = BLAMED if sound.verdict == Judgement.INVALID and not sound.error else DOUBTFUL
        why = f"the sound build: {sound.error or sound.why}"
    return Answer(case, seed, bad.codes, faults, sound.verdict, why, word)


def in_worlds(case: Case, scratch: Path) -> Answer:
    """What a worker does with a simulated case."""

    def play(case: Case, seed: int, mutant: str) -> Played:
        trial, plan = asked(case, seed, mutant)
        folder = scratch / f"{case.mutant}-{mutant or 'sound'}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # of a worker that was lost
        outcome = simulated(trial, plan, folder)
        shutil.rmtree(folder)
        if outcome.verdict is None or STOPPED in outcome.failure:
            return Played(error=outcome.why)
        return _played(outcome.verdict, sum(outcome.faults.values()))

    return answered(case, play, SEEDS)


def on_hosts(runs: Path, run: Run) -> Play:
    """Plays on the hosts that the plan names; the machine belongs to it. KeyboardInterrupt when the
    run was stopped by request: what it recorded is no evidence."""

    def play(case: Case, seed: int, mutant: str) -> Played:
        trial, plan = asked(case, seed, mutant)
        try:
            with redirect_stderr(StringIO()):
                folder = run(trial, plan, runs)
        except BedFailed as e:
            return Played(error=str(e))
        if folder.state().get("interrupted"):
            raise KeyboardInterrupt
        return judged(folder)

    return play


def _run(trial: Trial, plan: str, runs: Path) -> RunDir:
    return launch.run(trial, plan, runs=runs)


def judged(run: RunDir) -> Played:
    verdict = judge_here(History.open(run))
    counted = verdict.stats("coverage").get("effective", {})
    error = str(run.state().get("error") or "")
    played = _played(verdict, sum(counted.values()))
    return Played(played.verdict, played.codes, played.faults, played.why, error)


def _played(verdict: Verdict, faults: int) -> Played:
    return Played(str(verdict.verdict), tuple(verdict.convicting), faults, verdict.sentence)


def asked(case: Case, seed: int, mutant: str) -> tuple[Trial, str]:
    """The trial of a case and its plan as TOML."""
    settings = {"settings": {"mutant": mutant}} if mutant else {}
    name = f"{mutant or 'sound'}-against-{case.mutant}"
    wanted = request("", {"plan": str(case.plan), "seed": seed, "name": name, **settings})
    trial = wanted.trial
    return trial, launch.planned(trial, wanted.plan_text)
