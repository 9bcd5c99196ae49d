"""Shrinking a run on real hosts: candidates are run one after another, for real.

The same plan does not fail every time there, so every candidate has several chances, up to its
first failure, and what is to be kept is what the run was convicted of. How often something fails
can not be learnt from tries that end with a failure; so what is left when nothing gets smaller any
more, or when most of the time is over, is tried again, as often as a candidate has chances, and of
these tries each counts. A try is
an ordinary run among the others, so that `seatrial heal --all` finds what one that was killed has
left; it is removed when it is over, unless it is the least that has failed so far.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.campaign.pool import Done
from harness.campaign.simulation import Outcome
from harness.cli.session import say
from harness.errors import BadRequest, BedFailed
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.runs import point_at
from harness.judge.judge import judge_here
from harness.judge.verdict import Verdict
from harness.run import launch
from harness.run.interrupts import stoppable
from harness.shrink.search import Case
from harness.shrink.simulated import PREFIX, Patience, Progress, check_failed
from harness.shrink.workers import Attempt, Tried, Tries, about_s
from harness.trial import Trial

NARROWING = 0.75  # of the time; in the rest what is left is tried again
Watch = Callable[[Progress], None]
Run = Callable[[Trial, str, Path], RunDir]  # KeyboardInterrupt: it was stopped


@dataclass
class _Kept:
    """Folders of tries that failed; only that of the best stays."""

    folders: dict[Attempt, RunDir] = field(default_factory=dict)

    def only(self, best: Attempt) -> None:
        for attempt in [attempt for attempt in self.folders if attempt != best]:
            shutil.rmtree(self.folders.pop(attempt).path, ignore_errors=True)


def searched(
    case: Case, wanted: str, patience: Patience, watch: Watch, runs: Path, run: Run | None = None
) -> tuple[Progress, Outcome]:
    """The least that fails like the case, and its run. BadRequest when it does not fail again;
    BedFailed when the bed fails at once, so that nothing can be learnt of it."""
    name = PREFIX + case.trial.name.removeprefix(PREFIX)
    case = replace(case, trial=replace(case.trial, name=name))
    progress = Progress(case, Tries(case, patience.luck, wanted))
    search = _Search(progress, wanted, patience, watch, runs, run or _run)
    with stoppable(progress.stop):
        try:
            search.narrow()
            search.again()
        except KeyboardInterrupt as stop:
            progress.stop()
            if str(stop):  # what the run has left behind
                say(f"the run was stopped{stop}")
    if progress.stopped and not progress.tries.proven:
        raise KeyboardInterrupt
    check_failed(progress.tries, case)
    left = search.kept.folders[search.best]
    point_at(left, runs)  # the last try is not there any more
    return progress, _outcome(left)


@dataclass
class _Search:
    """Try after try, until the time is over or somebody stops it."""

    progress: Progress
    wanted: str
    patience: Patience
    watch: Watch
    runs: Path
    run: Run
    kept: _Kept = field(default_factory=_Kept)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def best(self) -> Attempt:
        """The least that failed: the search's own, or while that is the given run, any luck."""
        best, folders = Attempt.of(self.progress.tries.best), self.kept.folders
        return best if best in folders else next(reversed(folders), best)

    def narrow(self) -> None:
        """Until nothing gets smaller."""
        tries, folders = self.progress.tries, self.kept.folders
        for attempt in tries:
            folder, tried = tried_for_real(attempt, self.runs, self.run)
            if tried.lost and tries.first is None:
                raise BedFailed(tried.why)
            if folder:
                folders[attempt] = folder
            tries.take(Done(attempt, tried))
            if self.wanted not in tried.failure and folder:
                shutil.rmtree(folders.pop(attempt).path, ignore_errors=True)
            self.kept.only(self.best)
            self.progress.whole = tries.over
            self._tell()
            if tries.over or self._over(NARROWING):
                return

    def again(self) -> None:
        """What is left, for how often it fails."""
        if not self.progress.tries.proven:
            return
        again = self.progress.again
        for _ in range(self.patience.luck):
            if self._over():
                return
            folder, tried = tried_for_real(self.best, self.runs, self.run)
            if folder:
                again.judged += 1
                again.failed += self.wanted in tried.failure
                shutil.rmtree(folder.path, ignore_errors=True)
            else:
                again.lost += 1
            self._tell()

    def _tell(self) -> None:
        self.progress.took_s = time.monotonic() - self.began_s
        self.watch(self.progress)

    def _over(self, share: float = 1.0) -> bool:
        """Whether so much of the time is."""
        return self.progress.stopped or self.progress.took_s >= share * self.patience.within_s


def tried_for_real(attempt: Attempt, runs: Path, run: Run) -> tuple[RunDir | None, Tried]:
    """Run it and judge it. What makes no sense, or what the bed failed, does not fail."""
    try:
        folder = run(Trial.from_toml(attempt.trial), attempt.plan, runs)
    except (BadRequest, BedFailed) as e:
        return None, Tried(why=str(e), lost=isinstance(e, BedFailed))
    state = folder.state()
    if state.get("interrupted"):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise KeyboardInterrupt
    if error := state.get("error"):
        shutil.rmtree(folder.path, ignore_errors=True)
        return None, Tried(why=str(error), lost=True)
    verdict = judge_here(History.open(folder))
    return folder, Tried(verdict.convicting, verdict.sentence, about_s(folder, verdict))


def _run(trial: Trial, plan: str, runs: Path) -> RunDir:
    return launch.run(trial, plan, runs=runs)


def _outcome(folder: RunDir) -> Outcome:
    with suppress(ValueError, KeyError):
        verdict = Verdict.read(folder.verdict_file)
        return Outcome(
            seed=folder.trial().seed,
            run=folder,
            digest="",
            verdict=verdict,
            failure=verdict.convicting,
            why=verdict.sentence,
        )
    raise BedFailed(f"{folder.verdict_file} cannot be read any more")
