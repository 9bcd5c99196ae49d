"""Campaigns: thousands of seeds, each a trial of its own in a simulated world.

Worker processes draw, carry out and judge one seed after another in scratch folders; a seed that
fails is kept as a full run, which can be checked, reported, replayed and shrunk like any other. A
worker that dies loses its seed, and that is said. A worker imports the code as it finds it; if that
is another edition than the campaign began with, the seed is lost too, and the campaign ends.

Each campaign adds a line to `campaigns.jsonl` in the folder of runs: what it was, of which edition
of the code, and a row for each seed. So evidence adds up over campaigns of the same code, as far as
they were judged in full: each world once, however it was asked for.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from harness import registry
from harness.errors import BadRequest, BedFailed, SeatrialError
from harness.plans import planned_kinds
from harness.preflight import refuse_unknown
from harness.runs import kept
from harness.simulation import STOPPED, Outcome, simulated
from harness.stopping import stoppable
from harness.swarm import HOSTS, drawn
from harness.tally import Row, Tally
from harness.trial import DEMANDS, Trial
from harness.workers import Done, carried_out

AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED = 0, 1, 2
LOG = "campaigns.jsonl"
KEPT = 10  # runs of each class of failure
GRACE_S = 15.0  # for seeds that are under way when the time is over
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
    def profile(self) -> str:
        return drawn(self.seeds[0], self.base, self.plan)[0].profile

    @property
    def key(self) -> str:
        """Campaigns of the same key and code do the same for the same seed."""
        told = f"{self.base.to_toml()}\0{self.plan or ''}"
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    @property
    def in_full(self) -> bool:
        """It is judged by the whole contract and by all that the workload wants to have checked."""
        return _in_full(tomllib.loads(self.base.to_toml()))

    def refuse(self) -> None:
        """BadRequest or Unsupported when a seed of it makes no sense.

        What names nodes may fit the sizes of one seed and not of the next, so then many are drawn.
        """
        if not self.seeds:
            raise BadRequest("there are no seeds to simulate; say --seeds 1..100")
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


def _in_full(base: Mapping[str, Any]) -> bool:
    return set(base["contract"]) == set(DEMANDS) and not base["checkers"]


@dataclass
class Course:
    """How far a campaign has come."""

    campaign: Campaign
    began_s: float
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

    def interrupt(self) -> None:
        self.interrupted = True

    @property
    def caught(self) -> Row | None:
        """The first seed that failed; of a mutant, by a finding."""
        failed = (row for row in self.rows if row.failure and not self._inconclusive(row))
        return min(failed, key=lambda row: self.campaign.seeds.index(row.seed), default=None)

    def _inconclusive(self, row: Row) -> bool:
        """A world that stopped may have stopped without the mutant."""
        return bool(self.campaign.mutant) and row.failure == (STOPPED,)

    @property
    def inconclusive(self) -> int:
        """Seeds that failed in a way that catches no mutant."""
        return sum(map(self._inconclusive, self.rows))

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
        if self.interrupted or self.lost or not self.rows or self.too_doubtful or self.inconclusive:
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
    )


def conduct(campaign: Campaign, runs: Path, watch: Watch, work: Any = None) -> Course:
    """Carry out a campaign, and keep the runs of seeds that failed under `runs`.

    Ctrl-C and the end of its time end it early, with what was done so far.
    """
    course = Course(campaign, time.monotonic())
    with stoppable(course.interrupt):
        course.edition = edition()
        work = work or OneSeed(campaign.base, campaign.plan, course.edition)
        _carry_out(course, work, runs, watch)
    return course


def _carry_out(course: Course, work: Any, runs: Path, watch: Watch) -> None:
    with closing(carried_out(work, _offered(course), course.campaign.jobs)) as steps:
        for done in steps:
            if done is not None:
                _take(course, done, runs)
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
        if _overdue(course, 0):
            course.late = True
            return
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


# ---------------------------------------------------------------------------------- adding up


def edition() -> str:
    """Of the code: the same seed means the same run to it."""
    told: str = registry.module("hosts", HOSTS).edition()
    return told


@cache
def _edition_of(modules: int) -> str:
    """As the code lies there now: looked at again whenever there are more modules."""
    registry.module("hosts", HOSTS).edition.cache_clear()
    return edition()


def summed(course: Course, runs: Path) -> Tally:
    """All evidence that is like this campaign's, with its own: the sum of all campaigns of the same
    code, profile and mutant that were judged in full."""
    like, rows = _like(course), dict[str, Row]()
    for line in (*_noted(runs / LOG), _line(course)):
        try:
            if {key: line[key] for key in like} == like and _in_full(line["base"]):
                _add(rows, line["key"], map(Row.read, line["rows"]))
        except (KeyError, TypeError, AttributeError):
            continue  # of an older Seatrial
    return Tally.of(rows.values())


def _add(rows: dict[str, Row], key: str, more: Iterable[Row]) -> None:
    """Each world once, and as a failure if it ever was one; what is unproven is no evidence."""
    for row in more:
        world = row.digest or f"{key}/{row.seed}"
        before = rows.get(world)
        if not row.doubtful and not (before and before.failure):
            rows[world] = row


def _noted(file: Path) -> Iterator[Any]:
    """The campaigns of a file; not one that was cut short while it was written."""
    try:
        lines = file.read_bytes().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def noted(course: Course, runs: Path) -> None:
    """Add a line about the campaign to those of the others."""
    file = runs / LOG
    try:
        runs.mkdir(parents=True, exist_ok=True)
        _append(file, json.dumps(_line(course)).encode())
    except OSError as e:
        why = e.strerror or e
        raise BedFailed(f"this campaign can not be added to {file}: {why}; free space") from e


def _append(file: Path, line: bytes) -> None:
    """In one piece, and on a line of its own whatever the last one came to."""
    log = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(log).st_size
        torn = size > 0 and os.pread(log, 1, size - 1) != b"\n"
        text = b"\n" * torn + line + b"\n"
        if os.write(log, text) < len(text):
            raise OSError("it was cut short, for the disk is full")
    finally:
        os.close(log)


def _line(course: Course) -> dict[str, Any]:
    campaign = course.campaign
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        **_like(course),
        "key": campaign.key,
        "base": tomllib.loads(campaign.base.to_toml()),
        "took_s": round(course.took_s, 1),
        "rows": [row.plain() for row in course.rows],
    }


def _like(course: Course) -> dict[str, str]:
    campaign = course.campaign
    return {"edition": course.edition, "profile": campaign.profile, "mutant": campaign.mutant}
