"""Hunts: a guided search on a real system, one trial after another.

The search is that of guided campaigns (`guided`); a trial is one of `seatrial run`, with the same
clients, faults and checkers, on the hosts that the base names. A real cluster does not do the same
twice, so a kept plan is run once more before it is mutated, and a trial that is *invalid* is
repeated: how often it is invalid again says how well the plan repeats what it found.

Runs that found nothing are removed. A hunt that ends, or is killed, continues with the same
command: each trial's result is stored at once (`checkpoint`), and the search comes to the same plan
again.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import registry
from harness.campaign.checkpoint import CampaignCheckpoint, FinishedSeed, checkpoint_key
from harness.campaign.features import features_of, packed
from harness.campaign.forms import draw_few
from harness.campaign.guided import ACTS, FEW, STANDING, GuidedSearch, SearchCandidate, SearchRules
from harness.campaign.simulation import count_events, counts_of, unproven_codes
from harness.campaign.tally import CampaignTotals, SeedResult
from harness.cli.doctor import refuse_unready
from harness.cli.options import Request
from harness.cli.prog_name import seatrial
from harness.cli.session import Engines, ReportOptions, RunEnd, render, run_one
from harness.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID, SeatrialError
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.runs import mend_latest
from harness.plans import planned_kinds
from harness.run.preflight import prepare, refuse_impossible
from harness.trial import Trial

if TYPE_CHECKING:
    from harness.spark.session import SparkLauncher

DRAWN_FIRST = 6
REPEATED = 3  # runs of a plan that found something
EDITION = "hunt-1"  # of the search: another one continues none of these
MAX_FAILED = 3  # in a row, after which a hunt ends


@dataclass(frozen=True)
class Hunt:
    """A hunt to carry out: trials like `base`, with one of these workloads each. `within_s`: no
    trial begins later; `trials`: at most so many in all."""

    base: Trial
    workloads: Sequence[str]
    within_s: float
    trials: int | None = None
    first_only: bool = False  # end with the first finding
    repeat: int = REPEATED

    @property
    def key(self) -> str:
        """A hash of what is asked for: a hunt with the same key continues. Without `version` it
        does so with whatever version of the system is there."""
        return checkpoint_key(self.base, *self.workloads)

    @property
    def bases(self) -> tuple[Trial, ...]:
        """The trials that candidates are drawn from."""
        return tuple(replace(self.base, workload=workload) for workload in self.workloads)

    def refuse(self, runs: Path, master: str | None = None) -> None:
        """Raise BadRequest or BedFailed if trials cannot be drawn or cannot run here."""
        for base in self.bases:
            trial, plan = draw_few(base.seed, base)
            request = Request(trial, registry.nemesis().dump(plan))
            refuse_impossible(request)
        refuse_unready(self.base.hosts, self.base.bed, runs, master)
        prepare(request)


@dataclass
class HuntFinding:
    """What a trial found: codes, the runs that show it, and how many of `tries` runs did."""

    number: int
    codes: tuple[str, ...]
    why: str
    after_s: float  # since the hunt began
    runs: list[Path] = field(default_factory=list)
    tries: int = 1


@dataclass
class HuntState:
    """The state of a hunt."""

    hunt: Hunt
    search: GuidedSearch
    rows: list[SeedResult] = field(default_factory=list)
    tally: CampaignTotals = field(default_factory=CampaignTotals)
    resumed: int = 0  # trials of an earlier command
    findings: list[HuntFinding] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)  # number -> why its test bed failed
    failed_before: int = 0  # test beds of an earlier command: they may have been repaired
    failed_in_a_row: int = 0  # of this command's trials, the last ones
    ended: str = ""  # why it ended
    unsaved: str = ""  # why results are not stored any more
    stopped: bool = False
    took_s: float = 0.0

    @property
    def done(self) -> int:
        """The number of trials that were carried out or tried."""
        return len(self.rows) + len(self.failed) + self.failed_before

    @property
    def exit_code(self) -> int:
        if self.tally.failures:
            return EXIT_INVALID
        clean = self.rows and not self.stopped and not self.failed
        return EXIT_VALID if clean and not self.tally.doubtful else EXIT_UNKNOWN

    def plain(self) -> dict[str, Any]:
        """Return the state for JSON."""
        found = [
            {
                "number": one.number,
                "codes": list(one.codes),
                "why": one.why,
                "after_s": round(one.after_s, 1),
                "shown": len(one.runs),
                "tries": one.tries,
                "runs": [str(run) for run in one.runs],
            }
            for one in self.findings
        ]
        return {
            "trials": len(self.rows),
            "trials_resumed": self.resumed,
            "faults": {"planned": dict(self.tally.planned), "counted": dict(self.tally.counted)},
            "operations": self.tally.operations,
            "failures": {codes: list(numbers) for codes, numbers in self.tally.failures.items()},
            "unproven": dict(self.tally.unproven),
            "test_bed_failed": {str(number): why for number, why in self.failed.items()},
            "test_bed_failed_before": self.failed_before,
            "findings": found,
            "features": self.search.progress.features,
            "plans_kept": self.search.progress.kept,
            "took_s": round(self.took_s, 1),
            "ended": self.ended,
        }


Watch = Callable[[HuntState, SeedResult], None]  # after each trial


RULES = SearchRules(
    ((FEW, 0.6), (STANDING, 0.2), (ACTS, 0.2)), lag=1, drawn_first=DRAWN_FIRST, rerun=True
)


def conduct(
    hunt: Hunt, runs: Path, watch: Watch, engines: Engines, checkpoint: CampaignCheckpoint
) -> HuntState:
    """Carry out a hunt. Ctrl-C ends it with what was found so far."""
    state = HuntState(hunt, GuidedSearch(hunt.bases, hunt.base.seed, RULES))
    began_s = time.monotonic()
    try:
        for candidate in _candidates(state, runs, checkpoint):
            if why := _over(state, began_s):
                state.ended = why
                break
            ending = _run(candidate, runs, engines.ready())
            state.took_s = time.monotonic() - began_s
            row = _take(state, candidate, ending, checkpoint)
            if row.failure and not state.stopped:
                _repeat(state, candidate, runs, engines, checkpoint)
            if state.stopped:
                break
            state.unsaved = checkpoint.broken
            watch(state, row)
    except KeyboardInterrupt:
        _stop(state)
    state.took_s = time.monotonic() - began_s
    return state


def _candidates(
    state: HuntState, runs: Path, checkpoint: CampaignCheckpoint
) -> Iterator[SearchCandidate]:
    """Yield candidates that have no stored result."""
    stored = {one.row.seed: one for one in checkpoint.finished}
    while candidate := state.search.candidate():
        if not state.search.recall(candidate, stored.get(candidate.number)):
            yield candidate
            continue
        one = stored[candidate.number]
        state.resumed += 1
        if one.lost:
            state.failed_before += 1
            continue
        _count(state, one.row)
        if one.row.failure:
            shown_by = [runs / name for name in one.shown_by]
            state.findings.append(
                HuntFinding(
                    one.row.seed, one.row.failure, one.row.why, one.after_s, shown_by, one.tries
                )
            )


def _over(state: HuntState, began_s: float) -> str:
    """Return why no more trials begin, and what to do; empty if more do."""
    hunt = state.hunt
    if time.monotonic() - began_s >= hunt.within_s:
        return "its time is over; the same command continues it"
    if hunt.trials is not None and state.done >= hunt.trials:
        return "it has done its trials; for more of them, give a higher --trials, or another --seed"
    if hunt.first_only and state.tally.failures:
        return "it has found something; without --first it continues"
    if state.failed_in_a_row >= MAX_FAILED:
        return (
            f"the test bed failed {MAX_FAILED} times in a row; see {seatrial()} doctor --hosts "
            f"{hunt.base.hosts}"
        )
    return ""


def _count(state: HuntState, row: SeedResult) -> None:
    state.rows.append(row)
    state.tally = state.tally.plus(row)


def _take(
    state: HuntState, candidate: SearchCandidate, ending: RunEnd, checkpoint: CampaignCheckpoint
) -> SeedResult:
    """Take the result of a candidate and store it. What was found counts, even if the hunt was
    stopped or the test bed failed meanwhile; nothing else does then."""
    run, number = ending.run, candidate.number
    if ending.interrupted:  # which the run's folder says, so before it is removed
        _stop(state)
    if not ending.codes and (ending.why or state.stopped or ending.verdict is None):
        return _without_result(state, candidate, ending, checkpoint)
    assert run
    row = row_of(ending, candidate)
    if row.failure:
        finding = HuntFinding(number, row.failure, row.why, state.took_s, [run.path])
        state.findings.append(finding)
        render(ending, ReportOptions())
        _store(state, row, checkpoint)
    else:
        checkpoint.add(FinishedSeed(row))
        _remove(run)
    state.search.add(number, row)
    state.search.learn_rest()
    state.failed_in_a_row = 0
    _count(state, row)
    return row


def _without_result(
    state: HuntState, candidate: SearchCandidate, ending: RunEnd, checkpoint: CampaignCheckpoint
) -> SeedResult:
    row = SeedResult(candidate.number, tried=candidate.digest, why=ending.why)
    if ending.run:
        _remove(ending.run)
    if not state.stopped:
        why = ending.why or "the run has no verdict"
        state.failed[candidate.number] = why
        state.failed_in_a_row += 1
        state.search.add(candidate.number, None)
        checkpoint.add(FinishedSeed(row, lost=why))
    return row


def _repeat(
    state: HuntState,
    candidate: SearchCandidate,
    runs: Path,
    engines: Engines,
    checkpoint: CampaignCheckpoint,
) -> None:
    """Run the plan of the last finding again, to see how often it is invalid. Invalid runs are
    kept."""
    finding, row = state.findings[-1], state.rows[-1]
    for _ in range(state.hunt.repeat):
        again = _run(candidate, runs, engines.ready())
        if again.interrupted:
            _stop(state)
        elif again.verdict:
            finding.tries += 1
        if again.run and again.codes:
            finding.runs.append(again.run.path)
            render(again, ReportOptions())
        elif again.run:
            _remove(again.run)
        _store(state, row, checkpoint)
        if state.stopped:
            return


def _store(state: HuntState, row: SeedResult, checkpoint: CampaignCheckpoint) -> None:
    """Store the last finding."""
    finding = state.findings[-1]
    names = tuple(run.name for run in finding.runs)
    checkpoint.add(
        FinishedSeed(row, names[0], shown_by=names, tries=finding.tries, after_s=finding.after_s)
    )


def _stop(state: HuntState) -> None:
    state.stopped, state.ended = True, "it was stopped; the same command continues it"


def _remove(run: RunDir) -> None:
    """Remove a run, unless something of it is left on its hosts, which `seatrial heal` can find."""
    if not run.state().get("left"):
        shutil.rmtree(run.path, ignore_errors=True)
        with suppress(OSError):
            mend_latest(run.path.parent)


def _run(candidate: SearchCandidate, runs: Path, spark: "SparkLauncher") -> RunEnd:
    request = Request(candidate.trial, candidate.plan)
    try:
        prepare(request)
        return run_one(request, runs, spark)
    except (SeatrialError, OSError) as e:
        return RunEnd(candidate.trial.seed, error=str(e))


def row_of(ending: RunEnd, candidate: SearchCandidate) -> SeedResult:
    """Return the result of a trial, with what the search learns from it."""
    run, verdict = ending.run, ending.verdict
    assert run
    assert verdict
    row = SeedResult(
        seed=candidate.number,
        failure=verdict.convicting,
        unproven=unproven_codes(verdict),
        why=verdict.sentence,
        seconds=candidate.trial.duration_s,
        planned=dict(Counter(planned_kinds(candidate.plan))),
        steps=1,
        tried=candidate.digest,
        **counts_of(verdict),
    )
    try:
        history = History.open(run)
        seen = features_of(history, logs=True)
        events = count_events(history.read("events"))
    except (SeatrialError, OSError, ValueError, KeyError, TypeError):
        return row  # nothing can be learned from damaged records; the verdict counts
    return replace(row, features=packed(seen.features), weak_s=seen.weak_s, events=events)
