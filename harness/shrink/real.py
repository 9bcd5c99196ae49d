"""Shrinks a run on real hosts, where candidates run one after another.

A plan does not fail every time there, so every candidate has several tries, up to its first
failure, and the failure to keep is the finding that convicted the run. Tries that end with the
first failure do not show how often a candidate fails. So when nothing gets smaller, or most of the
time is over, the result is run again, as often as a candidate has tries, and each of these runs
counts. A try is an ordinary run among the others, so that `seatrial heal --all` finds what a killed
one has left; it is removed at its end, unless it is the smallest that has failed so far.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.campaign.pool import PoolResult
from harness.campaign.simulation import SeedOutcome
from harness.cli.session import say
from harness.errors import BadRequest, BedFailed
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.runs import update_latest
from harness.judge.judge import judge_small
from harness.judge.verdict import Verdict
from harness.run import launch
from harness.run.interrupts import on_stop_signal
from harness.shrink.search import Case
from harness.shrink.simulated import PREFIX, SearchLimits, ShrinkState, check_failed
from harness.shrink.workers import Attempt, AttemptResult, CandidatePool, failure_time_s
from harness.trial import Trial

NARROWING = 0.75  # of the time; in the rest the result is run again
Watch = Callable[[ShrinkState], None]
Run = Callable[[Trial, str, Path], RunDir]  # KeyboardInterrupt: it was stopped


@dataclass
class _FailedRuns:
    """Folders of tries that failed; only that of the best stays."""

    folders: dict[Attempt, RunDir] = field(default_factory=dict)

    def only(self, best: Attempt) -> None:
        for attempt in [attempt for attempt in self.folders if attempt != best]:
            shutil.rmtree(self.folders.pop(attempt).path, ignore_errors=True)


def search_on_hosts(
    case: Case,
    wanted: str,
    patience: SearchLimits,
    watch: Watch,
    runs: Path,
    run: Run | None = None,
) -> tuple[ShrinkState, SeedOutcome]:
    """Return the smallest case that fails like this one, and its run. Raises BadRequest if it does
    not fail again, BedFailed if the test bed fails at the first try."""
    name = PREFIX + case.trial.name.removeprefix(PREFIX)
    case = replace(case, trial=replace(case.trial, name=name))
    progress = ShrinkState(case, CandidatePool(case, patience.luck, wanted))
    search = _Search(progress, wanted, patience, watch, runs, run or _run)
    with on_stop_signal(progress.stop):
        try:
            search.narrow()
            search.again()
        except KeyboardInterrupt as stop:
            progress.stop()
            if str(stop):  # what the run has left on its hosts
                say(f"the run was stopped{stop}")
    if progress.stopped and not progress.tries.proven:
        raise KeyboardInterrupt
    check_failed(progress.tries, case)
    left = search.kept.folders[search.best]
    update_latest(left, runs)  # the last try has been removed
    return progress, _outcome(left)


@dataclass
class _Search:
    """A search that ends when it is complete, stopped, or out of time."""

    progress: ShrinkState
    wanted: str
    patience: SearchLimits
    watch: Watch
    runs: Path
    run: Run
    kept: _FailedRuns = field(default_factory=_FailedRuns)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def best(self) -> Attempt:
        """The smallest attempt that failed: the search's, or the last one of the given run."""
        best, folders = Attempt.of(self.progress.tries.best), self.kept.folders
        return best if best in folders else next(reversed(folders), best)

    def narrow(self) -> None:
        """Search until nothing gets smaller."""
        tries, folders = self.progress.tries, self.kept.folders
        for attempt in tries:
            folder, tried = run_attempt_on_hosts(attempt, self.runs, self.run)
            if tried.lost and tries.first is None:
                raise BedFailed(tried.why)
            if folder:
                folders[attempt] = folder
            tries.take(PoolResult(attempt, tried))
            if self.wanted not in tried.failure and folder:
                shutil.rmtree(folders.pop(attempt).path, ignore_errors=True)
            self.kept.only(self.best)
            self.progress.whole = tries.over
            self._report()
            if tries.over or self._over(NARROWING):
                return

    def again(self) -> None:
        """Run the result again, to count how often it fails."""
        if not self.progress.tries.proven:
            return
        again = self.progress.again
        for _ in range(self.patience.luck):
            if self._over():
                return
            folder, tried = run_attempt_on_hosts(self.best, self.runs, self.run)
            if folder:
                again.judged += 1
                again.failed += self.wanted in tried.failure
                shutil.rmtree(folder.path, ignore_errors=True)
            else:
                again.lost += 1
            self._report()

    def _report(self) -> None:
        self.progress.took_s = time.monotonic() - self.began_s
        self.watch(self.progress)

    def _over(self, share: float = 1.0) -> bool:
        """Return whether this share of the time is over, or the search was stopped."""
        return self.progress.stopped or self.progress.took_s >= share * self.patience.within_s


def run_attempt_on_hosts(
    attempt: Attempt, runs: Path, run: Run
) -> tuple[RunDir | None, AttemptResult]:
    """Run and judge an attempt. An invalid one, or a failed test bed, is not a failure."""
    try:
        folder = run(Trial.from_toml(attempt.trial), attempt.plan, runs)
    except (BadRequest, BedFailed) as e:
        return None, AttemptResult(why=str(e), lost=isinstance(e, BedFailed))
    state = folder.state()
    if state.get("interrupted"):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise KeyboardInterrupt
    if error := state.get("error"):
        shutil.rmtree(folder.path, ignore_errors=True)
        return None, AttemptResult(why=str(error), lost=True)
    verdict = judge_small(History.open(folder))
    return folder, AttemptResult(
        verdict.convicting, verdict.sentence, failure_time_s(folder, verdict)
    )


def _run(trial: Trial, plan: str, runs: Path) -> RunDir:
    return launch.run(trial, plan, runs=runs)


def _outcome(folder: RunDir) -> SeedOutcome:
    with suppress(ValueError, KeyError):
        verdict = Verdict.read(folder.verdict_file)
        return SeedOutcome(
            seed=folder.trial().seed,
            run=folder,
            history=History.open(folder),
            digest="",
            verdict=verdict,
            failure=verdict.convicting,
            why=verdict.sentence,
        )
    raise BedFailed(f"{folder.verdict_file} can no longer be read")
