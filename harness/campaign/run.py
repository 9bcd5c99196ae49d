"""Campaigns: thousands of seeds, each a trial of its own in a simulated world.

Worker processes draw, carry out and judge one seed after another in scratch folders; a seed that
fails is kept as a full run, which can be checked, reported, replayed and shrunk like any other. A
worker that dies loses its seed, which is reported. A worker imports the code as it is; if that
differs from the code that the campaign began with, the seed is lost, too, and the campaign ends.

Every seed has a result: it failed, is clean, proves nothing, was lost with its worker, or was
abandoned when the campaign ended during it. Finished seeds are stored at once
(`harness.campaign.checkpoint`), and added to other campaigns of the same kind
(`harness.judge.campaign_evidence`).
"""

import shutil
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import registry
from harness.campaign.checkpoint import CampaignCheckpoint, FinishedSeed, checkpoint_key
from harness.campaign.features import features_of, packed
from harness.campaign.guided import GuidedSearch, SearchCandidate
from harness.campaign.pool import PoolResult, Steps, run_in_pool
from harness.campaign.simulation import STOPPED, SeedOutcome, record_messages, simulate
from harness.campaign.swarm import HOSTS, draw_trial, recover_within_s
from harness.campaign.tally import CampaignTotals, SeedResult
from harness.errors import BadRequest, SeatrialError
from harness.history.rundir import RunDir
from harness.history.runs import adopt_run
from harness.plans import planned_kinds
from harness.run.interrupts import on_stop_signal
from harness.run.preflight import (
    drawable_workloads,
    refuse_no_program,
    refuse_unable_clients,
    refuse_unknown,
)
from harness.trial import DEMANDS, Trial

AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED = 0, 1, 2
KEPT = 10  # runs of each class of failure
GRACE_S = 30.0  # for running seeds when the time is over
MOST_DRAWN, OF_MORE = 1000, 100  # seeds to draw in advance, where options may not fit all of them
HOPELESS = 5  # seeds lost before any was finished
DOUBTS = 0.1  # share of unproven seeds above which nothing is decided
DURATIONS_S = (10.0, 20.0, 40.0)  # of the load, where a search is free to draw it
WORKLOAD, DURATION, RECOVERY = "workload", "duration_s", "recover_within_s"  # fields of a trial
CHANGED = "the code has changed since the campaign began, so this would be another seed"


@dataclass(frozen=True)
class Campaign:
    """A campaign to carry out. `base` is common to all seeds, and so is `plan`, if given.

    guided  search: seeds are the numbers of candidates, without gaps
    free    what a guided search chooses, too: WORKLOAD, DURATION, and RECOVERY by the workload
    """

    base: Trial
    seeds: Sequence[int]
    jobs: int = 2
    plan: str | None = None
    within_s: float | None = None
    to_the_end: bool = False  # continue after a mutant is caught
    guided: bool = False
    free: frozenset[str] = frozenset()

    @cached_property
    def bases(self) -> tuple[Trial, ...]:
        """The trials that seeds are drawn from."""
        base = self.base
        drawn = WORKLOAD in self.free
        workloads = drawable_workloads(base, HOSTS) if drawn else (base.workload,)
        durations_s = DURATIONS_S if DURATION in self.free else (base.duration_s,)
        bases = [
            replace(base, workload=workload, duration_s=duration_s)
            for workload in workloads
            for duration_s in durations_s
        ]
        if RECOVERY in self.free:
            bases = [replace(base, recover_within_s=recover_within_s(base)) for base in bases]
        return tuple(bases)

    @property
    def mutant(self) -> str:
        return str(self.base.settings.get("mutant", ""))

    @cached_property
    def own_finding(self) -> str:
        """The code that convicts the mutant; empty if the system defines none."""
        mutants = registry.system(self.base.system).mutants()
        return str(getattr(mutants.get(self.mutant), "finding", ""))

    @cached_property
    def profile(self) -> str:
        return draw_trial(self.seeds[0], self.base, self.plan)[0].profile

    @property
    def key(self) -> str:
        """A hash of options, profile, mutant, contract and plan: campaigns with the same key and
        code do the same for the same seed; guided ones unless a candidate was lost."""
        search = [["guided", *self.seeds[:1], sorted(self.free)]] if self.guided else []
        return checkpoint_key(self.base, self.plan, *search)

    @property
    def in_full(self) -> bool:
        """Whether it is judged by the whole contract and all checkers of the workload."""
        return in_full(tomllib.loads(self.base.to_toml()))

    def refuse(self) -> None:
        """Raise BadRequest or Unsupported if a seed cannot be carried out.

        Options that name nodes may fit the sizes of one seed and not of another, so many are drawn.
        """
        if not self.seeds:
            raise BadRequest("there are no seeds to simulate; use --seeds 1..100")
        if self.guided and (self.plan is not None or self.base.plan):
            raise BadRequest(
                "a guided campaign makes its own plans; leave --plan out, or use --drawn"
            )
        if self.guided and not without_gaps(self.seeds):
            raise BadRequest(
                "a guided campaign makes each candidate from the results of those before it, so "
                "its seeds have no gaps; use --seeds 1..100, or --drawn"
            )
        refuse_unknown(self.base)
        refuse_no_program(self.base)
        registry.load("workload", self.base.workload)(self.base).check_options()
        refuse_unable_clients(self.base)
        draw_trial(self.seeds[0], self.base, self.plan)
        named = bool(self.base.targets) or self.plan is not None
        most = MOST_DRAWN if len(self.seeds) <= MOST_DRAWN else OF_MORE
        for seed in self.seeds[1:most] if named else ():
            self._refuse(seed)

    def _refuse(self, seed: int) -> None:
        try:
            draw_trial(seed, self.base, self.plan)
        except SeatrialError as e:
            raise BadRequest(f"seed {seed} draws other sizes: {e}; set them with --nodes") from e


def without_gaps(seeds: Sequence[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(seeds))


def in_full(base: Mapping[str, Any]) -> bool:
    return set(base["contract"]) == set(DEMANDS) and not base["checkers"]


@dataclass
class CampaignState:
    """The state of a campaign."""

    campaign: Campaign
    began_s: float
    begun: list[int] = field(default_factory=list)  # seeds given to a worker
    resumed: set[int] = field(default_factory=set)  # seeds finished before an interruption
    beside: list[SeedResult] = field(default_factory=list)  # finished then, not asked for now
    rows: list[SeedResult] = field(default_factory=list)
    tally: CampaignTotals = field(default_factory=CampaignTotals)  # of the rows
    lost: dict[int, str] = field(default_factory=dict)  # seed -> why
    unkept: dict[int, str] = field(default_factory=dict)  # failed seed -> why its run is not kept
    runs: dict[int, Path] = field(default_factory=dict)  # failed seed -> where it is kept
    peak_bytes: int = 0  # of a worker
    edition: str = ""  # of the code it began with
    took_s: float = 0.0
    interrupted: bool = False
    late: bool = False  # the time was over before the seeds were
    unsaved: str = ""  # why finished seeds are not stored before the end
    search: GuidedSearch | None = None

    def interrupt(self) -> None:
        self.interrupted = True

    @property
    def features(self) -> Sequence[tuple[float, int]]:
        """Of a guided search: CPU seconds, and how many features were found by then."""
        return self.search.progress.curve if self.search else ()

    @property
    def caught(self) -> SeedResult | None:
        """The first seed that failed; of a mutant, by its own finding."""
        failed = (row for row in self.rows if row.failure and not self._inconclusive(row))
        return min(failed, key=lambda row: self.campaign.seeds.index(row.seed), default=None)

    def _inconclusive(self, row: SeedResult) -> bool:
        """Return whether a mutant's seed failed, but not by the finding that convicts it: the
        failure may not be the mutant's."""
        failed = set(row.failure)
        if not self.campaign.mutant or not failed:
            return False
        own = self.campaign.own_finding
        if own:
            return own not in failed
        return failed <= {STOPPED, *registry.reasons("standstill")}

    @property
    def inconclusive(self) -> int:
        """The number of failed seeds that do not convict the mutant."""
        return sum(map(self._inconclusive, self.rows))

    @property
    def abandoned(self) -> list[int]:
        """Seeds that began and did not end."""
        return sorted(set(self.begun) - {row.seed for row in self.rows} - self.lost.keys())

    @property
    def continues(self) -> bool:
        """Whether the same command would do more of a search."""
        if self.campaign.mutant and self.caught and not self.campaign.to_the_end:
            return False
        return bool(self.not_begun or self.abandoned or self.lost or self.beside)

    @property
    def not_begun(self) -> int:
        """The number of seeds that were not begun."""
        return len(self.campaign.seeds) - len({*self.begun, *self.resumed})

    @property
    def kind(self) -> dict[str, str]:
        """What must be equal in campaigns that are added up."""
        campaign = self.campaign
        return {
            "edition": self.edition,
            "key": campaign.key,
            "profile": campaign.profile,
            "mutant": campaign.mutant,
        }

    @property
    def too_doubtful(self) -> bool:
        return self.tally.doubtful > DOUBTS * self.tally.seeds

    @property
    def changed(self) -> bool:
        """Whether the code has changed since the beginning."""
        return CHANGED in self.lost.values()

    @property
    def hopeless(self) -> bool:
        """Whether no worker can finish a seed."""
        return not self.rows and len(self.lost) >= HOPELESS

    @property
    def faults_to_catch(self) -> int:
        """Counted faults of the seeds up to the first that failed; 0 if none did."""
        if not self.caught:
            return 0
        last = self.campaign.seeds.index(self.caught.seed)
        upto = set(self.campaign.seeds[: last + 1])
        return CampaignTotals.of(row for row in self.rows if row.seed in upto).faults

    @property
    def exit_code(self) -> int:
        mutant = bool(self.campaign.mutant)
        if self.caught:
            return AS_EXPECTED if mutant else NOT_AS_EXPECTED
        unfinished = self.interrupted or self.lost or self.abandoned or not self.rows
        if unfinished or self.too_doubtful or self.inconclusive:
            return UNDECIDED
        return NOT_AS_EXPECTED if mutant else AS_EXPECTED

    def plain(self) -> dict[str, Any]:
        """Return the state for JSON."""
        campaign = self.campaign
        return {
            "profile": campaign.profile,
            "mutant": campaign.mutant or None,
            "guided": campaign.guided,
            "edition": self.edition,
            **self.tally.plain(),
            "seeds_asked_for": len(campaign.seeds),
            "seeds_not_begun": self.not_begun,
            "seeds_resumed": len(self.resumed),
            "abandoned": self.abandoned,
            "lost": {str(seed): why for seed, why in self.lost.items()},
            "runs": {str(seed): str(path) for seed, path in self.runs.items()},
            "unkept": {str(seed): why for seed, why in self.unkept.items()},
            "peak_bytes": self.peak_bytes,
            "took_s": round(self.took_s, 1),
            "interrupted": self.interrupted,
            "faults_to_catch": self.faults_to_catch or None,
            **({"search": self.search.plain()} if self.search else {}),
        }


Judged = tuple[SeedResult, Path | None]  # a seed's result, and the folder of a run to keep
Watch = Callable[[CampaignState], None]  # called whenever something may have changed


@dataclass(frozen=True)
class SeedRunner:
    """Carries out a seed in a worker; returns the folder of a run to keep."""

    base: Trial
    plan: str | None = None
    edition: str = ""  # of the code to run; empty: any
    failures: Counter[str] = field(default_factory=Counter, compare=False)  # of this worker

    def __call__(self, item: int | SearchCandidate, scratch: Path) -> Judged:
        self._refuse_changed()
        row, folder = self._judged(item, scratch)
        self._refuse_changed()  # it may have imported more modules
        return row, folder

    def _refuse_changed(self) -> None:
        if self.edition and _edition_of(len(sys.modules)) != self.edition:
            raise BadRequest(CHANGED)

    def _judged(self, item: int | SearchCandidate, scratch: Path) -> Judged:
        if isinstance(item, SearchCandidate):
            trial, plan = item.trial, item.plan
        else:
            trial, plan = draw_trial(item, self.base, self.plan)
        folder = scratch / trial.name
        shutil.rmtree(folder, ignore_errors=True)  # of a worker that was lost
        outcome = simulate(trial, plan, folder)
        row = row_of(outcome, plan)
        if isinstance(item, SearchCandidate):
            row = _searched(row, outcome, item)
        if row.failure:
            self.failures[row.words] += 1
            if self.failures[row.words] <= KEPT:
                record_messages(RunDir(folder), scratch=scratch)
            return row, folder
        shutil.rmtree(folder)
        return row, None


def row_of(outcome: SeedOutcome, plan: str) -> SeedResult:
    return SeedResult(
        seed=outcome.seed,
        digest=outcome.digest,
        failure=outcome.failure,
        unproven=outcome.unproven,
        why=outcome.why,
        seconds=outcome.seconds,
        cpu_s=outcome.cpu_s,
        planned=dict(Counter(planned_kinds(plan))),
        counted=outcome.faults,
        events=outcome.events,
        operations=outcome.operations,
        acknowledged=outcome.acknowledged,
        looks=outcome.looks,
        unseen=outcome.unseen,
        choices=outcome.choices,
        in_force=outcome.in_force,
        before=outcome.before,
    )


def _searched(row: SeedResult, outcome: SeedOutcome, candidate: SearchCandidate) -> SeedResult:
    """Return the row with what a search learns from it."""
    choices = {f"choice {point}": count for point, count in outcome.choices.items()}
    seen = features_of(outcome.history, {**outcome.looks, **choices})
    return replace(
        row,
        seed=candidate.number,
        steps=outcome.steps,
        features=packed(seen.features),
        weak_s=seen.weak_s,
        tried=candidate.digest,
    )


def conduct(
    campaign: Campaign,
    runs: Path,
    watch: Watch,
    work: Any = None,
    checkpoint: CampaignCheckpoint | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> CampaignState:
    """Carry out a campaign, and keep the runs of failed seeds under `runs`.

    Ctrl-C and the end of its time end it early, with the results so far; `stopped` returns whether
    a request to stop came before. Seeds that are finished in the checkpoint are skipped.
    """
    state = CampaignState(campaign, time.monotonic())
    with on_stop_signal(state.interrupt):
        if stopped():
            state.interrupt()
        state.edition = edition()
        if campaign.guided:
            state.search = GuidedSearch(campaign.bases, campaign.seeds[0])
        else:
            for one in checkpoint.finished if checkpoint else ():
                _resume(state, one, runs)
        work = work or SeedRunner(campaign.base, campaign.plan, state.edition)
        _carry_out(state, work, runs, watch, checkpoint)
    return state


def _resume(state: CampaignState, one: FinishedSeed, runs: Path) -> None:
    if one.row.seed not in state.campaign.seeds:
        state.beside.append(one.row)
        return
    state.resumed.add(one.row.seed)
    state.rows.append(one.row)
    state.tally = state.tally.plus(one.row)
    if one.run:
        state.runs[one.row.seed] = runs / one.run
    elif one.unkept:
        state.unkept[one.row.seed] = one.unkept


def _carry_out(
    state: CampaignState,
    work: Any,
    runs: Path,
    watch: Watch,
    checkpoint: CampaignCheckpoint | None,
) -> None:
    if state.interrupted:
        return
    items: Iterator[int | SearchCandidate | None]
    items = _candidates(state, runs, checkpoint) if state.search else _next_seeds(state)
    steps: Steps[int | SearchCandidate, Judged] = run_in_pool(work, items, state.campaign.jobs)
    with closing(steps):
        for done in steps:
            if done is not None:
                _take(state, done, runs)
                if checkpoint and done.result:
                    checkpoint.add(_last_finished(state, number_of(done.item)))
                    state.unsaved = checkpoint.broken
            state.took_s = time.monotonic() - state.began_s
            watch(state)
            state.late = state.late or _overdue(state, GRACE_S)
            if state.interrupted or state.hopeless or _overdue(state, GRACE_S):
                break
    if state.search:
        state.search.learn_rest()


def number_of(item: int | SearchCandidate) -> int:
    return item if isinstance(item, int) else item.number


def _next_seeds(state: CampaignState) -> Iterator[int]:
    """Yield seeds while more are needed."""
    for seed in state.campaign.seeds:
        if _is_over(state):
            return
        if seed not in state.resumed:
            state.begun.append(seed)
            yield seed


def _candidates(
    state: CampaignState, runs: Path, checkpoint: CampaignCheckpoint | None
) -> Iterator[SearchCandidate | None]:
    """Yield the candidates of a search that have no stored result; None while results are missing
    that the next one depends on."""
    finished = checkpoint.finished if checkpoint else ()
    search, stored = state.search, {one.row.seed: one for one in finished}
    assert search
    state.beside += [one.row for one in finished if one.row.seed not in state.campaign.seeds]
    for number in state.campaign.seeds:
        if _is_over(state):
            return
        while (candidate := search.candidate()) is None:
            yield None
        if search.recall(candidate, stored.get(number)):
            _resume(state, stored[number], runs)
            continue
        state.begun.append(number)
        yield candidate


def _is_over(state: CampaignState) -> bool:
    """Return whether no more seeds are needed, or there is no time for them."""
    campaign = state.campaign
    state.late = state.late or _overdue(state, 0)
    caught = campaign.mutant and not campaign.to_the_end and state.caught
    return bool(state.changed or caught or state.late or state.interrupted)


def _overdue(state: CampaignState, by_s: float) -> bool:
    within_s = state.campaign.within_s
    return within_s is not None and time.monotonic() - state.began_s >= within_s + by_s


def _take(
    state: CampaignState,
    done: PoolResult[int | SearchCandidate, Judged],
    runs: Path,
) -> None:
    state.peak_bytes = max(state.peak_bytes, done.peak_bytes)
    number = number_of(done.item)
    if done.result is None:
        state.lost[number] = done.lost
        if state.search:
            state.search.add(number, None)
        return
    row, folder = done.result
    made_s = 0.0 if isinstance(done.item, int) else done.item.made_s
    row = replace(row, cpu_s=done.cpu_s + made_s)  # drawing and judging included
    if state.search:
        state.search.add(number, row)
    state.rows.append(row)
    state.tally = state.tally.plus(row)
    if folder is None:
        return
    if sum(row.words == other.words for other in state.rows) <= KEPT:
        _keep(state, row.seed, folder, runs)
    shutil.rmtree(folder, ignore_errors=True)


def _keep(state: CampaignState, seed: int, folder: Path, runs: Path) -> None:
    try:
        state.runs[seed] = adopt_run(folder, f"seed-{seed}", runs).path
    except SeatrialError as e:
        state.unkept[seed] = str(e)


def _last_finished(state: CampaignState, seed: int) -> FinishedSeed:
    """Return the last seed as finished."""
    run = state.runs.get(seed)
    return FinishedSeed(state.rows[-1], run.name if run else "", state.unkept.get(seed, ""))


def edition() -> str:
    """Return the edition of the code: with the same edition, a seed is the same run."""
    read = registry.hosts(HOSTS).edition
    assert read, "simulated hosts have one"
    return read()


@cache
def _edition_of(modules: int) -> str:
    """Return the edition of the code now; read again after each import."""
    getattr(registry.hosts(HOSTS).edition, "cache_clear", lambda: None)()
    return edition()
