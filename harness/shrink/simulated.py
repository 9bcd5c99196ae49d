"""Searches the shortest run that fails like a given one, and keeps it as a run of its own.

The failure to keep is the first finding that convicts; others may vanish. A stop, by Ctrl-C,
SIGTERM, a closed terminal or the end of the time, keeps the best candidate so far.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import registry
from harness.campaign.pool import run_in_pool
from harness.campaign.simulation import (
    SeedOutcome,
    carry_out,
    judge_simulated,
    record_messages,
    standstill_codes,
)
from harness.campaign.swarm import HOSTS
from harness.cli.hints import check_command
from harness.cli.session import NO_HOST_TRUST, HostTrust, replay_request
from harness.errors import BadRequest, BedFailed
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.runs import start_run
from harness.judge.verdict import Verdict
from harness.run.interrupts import on_stop_signal
from harness.shrink.search import Case
from harness.shrink.workers import CandidatePool, run_attempt
from harness.text.plurals import quantity

PREFIX = "shrunk-"


@dataclass(frozen=True)
class SearchLimits:
    """Limits of a search: time, tries of each candidate, parallel jobs."""

    within_s: float = 300.0
    luck: int = 8
    jobs: int = 2


@dataclass
class ResultRuns:
    """Runs of the result after the search: how many were judged, how many of those failed, and for
    how many the test bed failed."""

    judged: int = 0
    failed: int = 0
    lost: int = 0

    @property
    def count(self) -> int:
        return self.judged + self.lost


@dataclass
class ShrinkState:
    """The state of a search. `took_s`: of real time; `whole`: it is complete."""

    start: Case
    tries: CandidatePool
    again: ResultRuns = field(default_factory=ResultRuns)  # on real hosts
    took_s: float = 0.0
    whole: bool = False
    stopped: bool = False  # by request

    def stop(self) -> None:
        self.stopped = True


def failing_case(run: RunDir, trusted: HostTrust = NO_HOST_TRUST) -> Case:
    """Return the trial and plan of a failed run. Raises BadRequest if it did not fail."""
    request = replay_request(run, trusted)
    if not _failed(run):
        raise BadRequest(f"{run.path} did not fail, so there is nothing to shrink")
    faults = registry.nemesis().load(request.plan_text, str(run.plan_file)).faults
    return Case(replace(request.trial, plan=""), faults)


def _failed(run: RunDir) -> bool:
    """Return whether a run failed, or may have: it has no verdict."""
    if run.state().get("error") or not run.verdict_file.is_file():
        return True
    try:
        verdict = Verdict.read(run.verdict_file)
        return bool(verdict.convicting or standstill_codes(History.open(run), verdict))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadRequest(
            f"{run.verdict_file} cannot be read; {check_command(run)} writes it again"
        ) from e


def convicting_code(run: RunDir) -> str:
    """Return the first code that convicted a run. Raises BadRequest if there is none."""
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.path} has no verdict yet; to judge it: {check_command(run)}")
    if codes := Verdict.read(run.verdict_file).convicting:
        return codes[0]
    raise BadRequest(
        f"{run.path} has no finding that makes it invalid, so there is nothing to shrink"
    )


def search(case: Case, patience: SearchLimits, watch: Callable[[ShrinkState], None]) -> ShrinkState:
    """Search the smallest case that fails like this one. Raises BadRequest if it does not fail."""
    progress = ShrinkState(case, CandidatePool(case, patience.luck))
    with on_stop_signal(progress.stop):
        _search(progress, patience, watch)
    if progress.stopped and not progress.tries.first:
        raise KeyboardInterrupt
    check_failed(progress.tries, case)
    return progress


def _search(
    progress: ShrinkState, patience: SearchLimits, watch: Callable[[ShrinkState], None]
) -> None:
    began_s = time.monotonic()
    with closing(run_in_pool(run_attempt, progress.tries, patience.jobs)) as results:
        for done in results:
            if done:
                progress.tries.take(done)
            progress.took_s = time.monotonic() - began_s
            progress.whole = progress.tries.over
            watch(progress)
            if progress.whole or progress.stopped or progress.took_s >= patience.within_s:
                return


def check_failed(tries: CandidatePool, case: Case) -> None:
    """Raise BadRequest if the case did not fail again."""
    how = "simulated" if case.trial.hosts == HOSTS else "run"
    if tries.first is None:
        raise BadRequest(f"the time ended before the run was {how} once; set a longer --within")
    if not tries.proven:
        why = f" ({tries.first.why})" if tries.first.why else ""
        judged = tries.count - tries.lost
        times = "" if judged == 1 else f" {judged} times"
        lost = (
            f", and the test bed failed {quantity(tries.lost, 'more time')}" if tries.lost else ""
        )
        raise BadRequest(
            f"the trial {case.trial.name} does not fail when it is {how} again{times}{why}{lost}, "
            "so it cannot be shrunk"
        )


def keep_as_run(case: Case, runs: Path) -> SeedOutcome:
    """Carry out the case as a run that is kept."""
    name = PREFIX + case.trial.name.removeprefix(PREFIX)
    trial = replace(case.trial, name=name)
    with start_run(trial, case.plan_toml, runs) as run:
        carry_out(run)
        result = judge_simulated(run)
        if result.failure:
            record_messages(run)
    if not result.failure:
        raise BedFailed(f"the shrunk trial did not fail again; please report it with {run.path}")
    return result
