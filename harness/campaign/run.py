"""Campaigns: thousands of seeds, each a trial of its own in a simulated world.

Worker processes draw, carry out and judge one seed after another in scratch folders; a seed that
fails is kept as a full run, which can be checked, reported, replayed and shrunk like any other. A
worker that dies loses its seed, and that is said. A worker imports the code as it finds it; if that
is another edition than the campaign began with, the seed is lost too, and the campaign ends.

No seed is dropped without a word: it failed, is clean, proves nothing, was lost with its worker, or
was abandoned when the campaign ended while it was under way. What is finished is written down at
once (`harness.campaign.checkpoint`), and added up with other campaigns of its kind
(`harness.judge.campaign_evidence`).
"""

import hashlib
import json
import shutil
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from harness import registry
from harness.campaign.checkpoint import Checkpoint, Finished
from harness.campaign.pool import Done, carried_out
from harness.campaign.simulation import STOPPED, Outcome, simulated
from harness.campaign.swarm import HOSTS, drawn
from harness.campaign.tally import Row, Tally
from harness.errors import BadRequest, SeatrialError
from harness.history.runs import kept
from harness.plans import planned_kinds
from harness.run.interrupts import stoppable
from harness.run.preflight import refuse_unknown
from harness.trial import DEMANDS, Trial

AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED = 0, 1, 2
KEPT = 10  # runs of each class of failure
GRACE_S = 30.0  # for seeds that are under way when the time is over
DRAWN_FIRST, OF_MORE = 1000, 100  # seeds, where what is asked for may fit some of them only
HOPELESS = 5  # seeds that were lost before any was done
DOUBTS = 0.1  # share of unproven seeds above which nothing is decided
CHANGED = "the code has changed since the campaign began, so this would be another seed"


@dataclass(frozen=True)
class Campaign:
    """What to do. `base` is common to all seeds; `plan`, if any, is the plan of each."""

    base: Trial
    seeds: Sequence[int]
    jobs: int = 2
    plan: str | None = None
    within_s: float | None = None
    to_the_end: bool = False  # also when a mutant has been caught

    @property
    def mutant(self) -> str:
        return str(self.base.settings.get("mutant", ""))

    @cached_property
    def own_finding(self) -> str:
        """The code that convicts the mutant; empty if the system does not say."""
        mutants = registry.system(self.base.system).mutants()
        return str(getattr(mutants.get(self.mutant), "finding", ""))

    @cached_property
    def profile(self) -> str:
        return drawn(self.seeds[0], self.base, self.plan)[0].profile

    @property
    def key(self) -> str:
        """Campaigns of the same key and code do the same for the same seed: options, profile,
        mutant, contract and plan are the same."""
        told = json.dumps([tomllib.loads(self.base.to_toml()), self.plan], sort_keys=True)
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    @property
    def in_full(self) -> bool:
        """It is judged by the whole contract and by all that the workload wants to have checked."""
        return in_full(tomllib.loads(self.base.to_toml()))

    def refuse(self) -> None:
        """BadRequest or Unsupported when a seed of it makes no sense.

        What names nodes may fit the sizes of one seed and not of the next, so then many are drawn.
        """
        if not self.seeds:
            raise BadRequest("there are no seeds to simulate; use --seeds 1..100")
        refuse_unknown(self.base)
        registry.load("workload", self.base.workload)(self.base).check_options()
        drawn(self.seeds[0], self.base, self.plan)
        named = bool(self.base.targets) or self.plan is not None
        most = DRAWN_FIRST if len(self.seeds) <= DRAWN_FIRST else OF_MORE
        for seed in self.seeds[1:most] if named else ():
            self._refuse(seed)

    def _refuse(self, seed: int) -> None:
        try:
            drawn(seed, self.base, self.plan)
        except SeatrialError as e:
            raise BadRequest(f"seed {seed} draws other sizes: {e}; fix them with --nodes") from e


def in_full(base: Mapping[str, Any]) -> bool:
    return set(base["contract"]) == set(DEMANDS) and not base["checkers"]


@dataclass
class Course:
    """How far a campaign has come."""

    campaign: Campaign
    began_s: float
    begun: list[int] = field(default_factory=list)  # seeds that a worker was given
    resumed: set[int] = field(default_factory=set)  # seeds that were finished before it was killed
    beside: list[Row] = field(default_factory=list)  # finished then, too, and not asked for now
    rows: list[Row] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)  # of the rows
    lost: dict[int, str] = field(default_factory=dict)  # seed -> why
    unkept: dict[int, str] = field(default_factory=dict)  # failed seed -> why its run is not kept
    runs: dict[int, Path] = field(default_factory=dict)  # failed seed -> where it is kept
    peak_bytes: int = 0  # of a worker
    edition: str = ""  # of the code that it began with
    took_s: float = 0.0
    interrupted: bool = False
    late: bool = False  # the time was over before the seeds were
    unsaved: str = ""  # why what is finished is not written down before the end

    def interrupt(self) -> None:
        self.interrupted = True

    @property
    def caught(self) -> Row | None:
        """The first seed that failed; of a mutant, by its own finding."""
        failed = (row for row in self.rows if row.failure and not self._inconclusive(row))
        return min(failed, key=lambda row: self.campaign.seeds.index(row.seed), default=None)

    def _inconclusive(self, row: Row) -> bool:
        """Return whether a mutant's seed failed, but not by the finding that convicts it: other
        failures may have come without the mutant."""
        failed = set(row.failure)
        if not self.campaign.mutant or not failed:
            return False
        own = self.campaign.own_finding
        if own:
            return own not in failed
        return failed <= {STOPPED, *registry.reasons("standstill")}

    @property
    def inconclusive(self) -> int:
        """Seeds that failed in a way that catches no mutant."""
        return sum(map(self._inconclusive, self.rows))

    @property
    def abandoned(self) -> list[int]:
        """Seeds under way; of a campaign that has ended, those that never came to an end."""
        return sorted(set(self.begun) - {row.seed for row in self.rows} - self.lost.keys())

    @property
    def not_begun(self) -> int:
        """Seeds."""
        return len(self.campaign.seeds) - len({*self.begun, *self.resumed})

    @property
    def kind(self) -> dict[str, str]:
        """What is summed has to be the same in all of it."""
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
        """The code is another one now."""
        return CHANGED in self.lost.values()

    @property
    def hopeless(self) -> bool:
        """No worker can do anything."""
        return not self.rows and len(self.lost) >= HOPELESS

    @property
    def faults_to_catch(self) -> int:
        """Counted faults of the seeds up to the first that failed; 0 when none did."""
        if not self.caught:
            return 0
        last = self.campaign.seeds.index(self.caught.seed)
        upto = set(self.campaign.seeds[: last + 1])
        return Tally.of(row for row in self.rows if row.seed in upto).faults

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
        """For programs."""
        campaign = self.campaign
        return {
            "profile": campaign.profile,
            "mutant": campaign.mutant or None,
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
        }


Watch = Callable[[Course], None]  # called whenever something may have changed


@dataclass(frozen=True)
class OneSeed:
    """What a worker does with a seed; the folder is told when the run is worth keeping."""

    base: Trial
    plan: str | None = None
    edition: str = ""  # of the code that it is to be done with; empty: of any

    def __call__(self, seed: int, scratch: Path) -> tuple[Row, Path | None]:
        self._refuse_changed()
        row, folder = self._judged(seed, scratch)
        self._refuse_changed()  # it may have imported something
        return row, folder

    def _refuse_changed(self) -> None:
        if self.edition and _edition_of(len(sys.modules)) != self.edition:
            raise BadRequest(CHANGED)

    def _judged(self, seed: int, scratch: Path) -> tuple[Row, Path | None]:
        trial, plan = drawn(seed, self.base, self.plan)
        folder = scratch / trial.name
        shutil.rmtree(folder, ignore_errors=True)  # of a worker that was lost
        row = row_of(simulated(trial, plan, folder), plan)
        if row.failure:
            return row, folder
        shutil.rmtree(folder)
        return row, None


def row_of(outcome: Outcome, plan: str) -> Row:
    return Row(
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
    )


def conduct(
    campaign: Campaign,
    runs: Path,
    watch: Watch,
    work: Any = None,
    checkpoint: Checkpoint | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Course:
    """Carry out a campaign, and keep the runs of seeds that failed under `runs`.

    Ctrl-C and the end of its time end it early, with what was done so far; `stopped` says whether a
    request to stop came before. What the checkpoint says
    to be finished is not done again.
    """
    course = Course(campaign, time.monotonic())
    with stoppable(course.interrupt):
        if stopped():
            course.interrupt()
        course.edition = edition()
        for one in checkpoint.found if checkpoint else ():
            _resume(course, one, runs)
        work = work or OneSeed(campaign.base, campaign.plan, course.edition)
        _carry_out(course, work, runs, watch, checkpoint)
    return course


def _resume(course: Course, one: Finished, runs: Path) -> None:
    if one.row.seed not in course.campaign.seeds:
        course.beside.append(one.row)
        return
    course.resumed.add(one.row.seed)
    course.rows.append(one.row)
    course.tally = course.tally.plus(one.row)
    if one.run:
        course.runs[one.row.seed] = runs / one.run
    elif one.unkept:
        course.unkept[one.row.seed] = one.unkept


def _carry_out(
    course: Course, work: Any, runs: Path, watch: Watch, checkpoint: Checkpoint | None
) -> None:
    if course.interrupted:
        return
    with closing(carried_out(work, _offered(course), course.campaign.jobs)) as steps:
        for done in steps:
            if done is not None:
                _take(course, done, runs)
                if checkpoint and done.result:
                    checkpoint.add(_finished(course, done.item))
                    course.unsaved = checkpoint.broken
            course.took_s = time.monotonic() - course.began_s
            watch(course)
            course.late = course.late or _overdue(course, GRACE_S)
            if course.interrupted or course.hopeless or _overdue(course, GRACE_S):
                break


def _offered(course: Course) -> Iterator[int]:
    """Seeds, as long as more are wanted."""
    campaign = course.campaign
    for seed in campaign.seeds:
        if course.changed or (campaign.mutant and not campaign.to_the_end and course.caught):
            return
        if seed in course.resumed:
            continue
        if _overdue(course, 0):
            course.late = True
            return
        course.begun.append(seed)
        yield seed


def _overdue(course: Course, by_s: float) -> bool:
    within_s = course.campaign.within_s
    return within_s is not None and time.monotonic() - course.began_s >= within_s + by_s


def _take(course: Course, done: Done[int, tuple[Row, Path | None]], runs: Path) -> None:
    course.peak_bytes = max(course.peak_bytes, done.peak_bytes)
    if done.result is None:
        course.lost[done.item] = done.lost
        return
    row, folder = done.result
    row = replace(row, cpu_s=done.cpu_s)  # drawing and judging included
    course.rows.append(row)
    course.tally = course.tally.plus(row)
    if folder is None:
        return
    if sum(row.words == other.words for other in course.rows) <= KEPT:
        _keep(course, row.seed, folder, runs)
    shutil.rmtree(folder, ignore_errors=True)


def _keep(course: Course, seed: int, folder: Path, runs: Path) -> None:
    try:
        course.runs[seed] = kept(folder, f"seed-{seed}", runs).path
    except SeatrialError as e:
        course.unkept[seed] = str(e)


def _finished(course: Course, seed: int) -> Finished:
    """The seed that was taken last."""
    run = course.runs.get(seed)
    return Finished(course.rows[-1], run.name if run else "", course.unkept.get(seed, ""))


def edition() -> str:
    """Of the code: the same seed means the same run to it."""
    told = registry.hosts(HOSTS).edition
    assert told, "simulated hosts have one"
    return told()


@cache
def _edition_of(modules: int) -> str:
    """As the code lies there now: looked at again whenever there are more modules."""
    registry.module("hosts", HOSTS).edition.cache_clear()
    return edition()
