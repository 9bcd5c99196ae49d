"""From a failing run to the shortest that fails the same way, which becomes a run of its own.

What is kept is the first finding that convicts; others may vanish on the way. A stop, by Ctrl-C,
SIGTERM, a closed terminal or because the time is over, keeps the best so far.
"""

import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import registry
from harness.campaign.pool import carried_out
from harness.campaign.simulation import Outcome, outcome, stood_still
from harness.campaign.swarm import HOSTS
from harness.campaign.tally import many
from harness.cli.hints import check_command
from harness.cli.session import NOT_TRUSTED, Trusted, replayed
from harness.errors import BadRequest, BedFailed
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.runs import start_run
from harness.judge.verdict import Verdict
from harness.run.interrupts import stoppable
from harness.run.parent_pipe import alone
from harness.run.runner import carry_out
from harness.run.story import run as story
from harness.shrink.search import Case
from harness.shrink.workers import Tries, tried

PREFIX = "shrunk-"


@dataclass(frozen=True)
class Patience:
    """How much is spent: on all, on each candidate, at once."""

    within_s: float = 300.0
    luck: int = 8
    jobs: int = 2


@dataclass
class Again:
    """What is left, tried again when nothing gets smaller any more: how often it was judged, how
    often it failed then, and how often the test bed did, which says nothing of it."""

    judged: int = 0
    failed: int = 0
    lost: int = 0

    @property
    def count(self) -> int:
        return self.judged + self.lost


@dataclass
class Progress:
    """The search as it goes on. `took_s` of the real clock; `whole`: it came to its end."""

    start: Case
    tries: Tries
    again: Again = field(default_factory=Again)  # on real hosts
    took_s: float = 0.0
    whole: bool = False
    stopped: bool = False  # somebody asked for it

    def stop(self) -> None:
        self.stopped = True


def failing(run: RunDir, trusted: Trusted = NOT_TRUSTED) -> Case:
    """The trial and plan of a run that failed. BadRequest when there is nothing to shrink."""
    request = replayed(run, trusted)
    if not _failed(run):
        raise BadRequest(f"{run.path} did not fail, so there is nothing to shrink")
    faults = registry.nemesis().load(request.plan_text, str(run.plan_file)).faults
    return Case(replace(request.trial, plan=""), faults)


def _failed(run: RunDir) -> bool:
    """As far as is known: a run without a verdict may have."""
    if run.state().get("error") or not run.verdict_file.is_file():
        return True
    try:
        verdict = Verdict.read(run.verdict_file)
        return bool(verdict.convicting or stood_still(History.open(run), verdict))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadRequest(
            f"{run.verdict_file} cannot be read; {check_command(run)} writes it again"
        ) from e


def convicted(run: RunDir) -> str:
    """What a run on real hosts was convicted of. BadRequest when nobody knows."""
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.path} has no verdict yet: {check_command(run)} makes one")
    if codes := Verdict.read(run.verdict_file).convicting:
        return codes[0]
    raise BadRequest(f"{run.path} was convicted of nothing, so there is nothing to shrink")


def searched(case: Case, patience: Patience, watch: Callable[[Progress], None]) -> Progress:
    """The least that fails like the case. BadRequest when the case does not fail any more."""
    progress = Progress(case, Tries(case, patience.luck))
    with stoppable(progress.stop):
        _search(progress, patience, watch)
    if progress.stopped and not progress.tries.first:
        raise KeyboardInterrupt
    check_failed(progress.tries, case)
    return progress


def _search(progress: Progress, patience: Patience, watch: Callable[[Progress], None]) -> None:
    began_s = time.monotonic()
    with closing(carried_out(tried, progress.tries, patience.jobs)) as results:
        for done in results:
            if done:
                progress.tries.take(done)
            progress.took_s = time.monotonic() - began_s
            progress.whole = progress.tries.over
            watch(progress)
            if progress.whole or progress.stopped or progress.took_s >= patience.within_s:
                return


def check_failed(tries: Tries, case: Case) -> None:
    """BadRequest when the case did not fail again, and nothing can be learnt of it."""
    how = "simulated" if case.trial.hosts == HOSTS else "run"
    if tries.first is None:
        raise BadRequest(f"the time was over before the run was {how} once; allow more --within")
    if not tries.proven:
        why = f" ({tries.first.why})" if tries.first.why else ""
        judged = tries.count - tries.lost
        times = "" if judged == 1 else f" {judged} times"
        lost = f", and the test bed failed {many(tries.lost, 'more time')}" if tries.lost else ""
        raise BadRequest(
            f"the trial {case.trial.name} does not fail when it is {how} again{times}{why}{lost}, "
            "so it cannot be shrunk"
        )


def kept(case: Case, runs: Path) -> Outcome:
    """The case as a run of its own, with everything that a run has."""
    name = PREFIX + case.trial.name.removeprefix(PREFIX)
    trial = replace(case.trial, name=name)
    with start_run(trial, case.plan_toml, runs) as run:
        with run.log.open("a") as log, redirect_stderr(log):
            carry_out(run, story, alone)
        result = outcome(run)
    if not result.failure:
        raise BedFailed(f"the shrunk trial did not fail again; please report it with {run.path}")
    return result
