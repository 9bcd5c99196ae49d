"""Tries the candidates of a search in simulated worlds, several at a time, each in a process.

The candidates of a question are tried in their order, all with one seed before any with the next;
the answer is the first in this order that fails, independent of the number of processes and of
which is done first. So the result depends only on the case, unless the search is stopped.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

from harness.campaign.pool import PoolResult
from harness.campaign.simulation import STOPPED, simulate
from harness.errors import BadRequest
from harness.history.rundir import RunDir
from harness.judge.verdict import Verdict
from harness.run.launch import make_plan
from harness.shrink.search import (
    Case,
    Dialogue,
    FailingCandidate,
    Question,
    shrink_case,
    with_seeds,
)
from harness.trial import Trial


@dataclass(frozen=True)
class Attempt:
    """One simulated world: trial and plan, as TOML."""

    trial: str
    plan: str

    @classmethod
    def of(cls, case: Case) -> "Attempt":
        return cls(case.trial.to_toml(), case.plan_toml)


@dataclass(frozen=True)
class AttemptResult:
    """The result of an attempt: classes of failure, the first of which counts, and a sentence about
    it. `lost`: the test bed failed, so there is no result."""

    failure: tuple[str, ...] = ()
    why: str = ""
    about_s: float | None = None  # of the failure, since the load began, if known
    lost: bool = False


def run_attempt(attempt: Attempt, scratch: Path) -> AttemptResult:
    """Carry out an attempt and remove its files. An invalid one does not fail."""
    folder = Path(mkdtemp(prefix="try-", dir=scratch))
    try:
        trial = Trial.from_toml(attempt.trial)
        outcome = simulate(trial, make_plan(trial, attempt.plan), folder / "run")
        when = failure_time_s(outcome.run, outcome.verdict)
    except BadRequest as e:
        return AttemptResult(why=str(e))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return AttemptResult(failure_classes(outcome.failure, outcome.why), outcome.why, when)


def failure_time_s(run: RunDir, verdict: Verdict | None) -> float | None:
    """Return the time of the first convicting event since the load began, if known."""
    at_s = verdict.first_finding.first_moment_s if verdict and verdict.first_finding else None
    began_ns = run.state().get("load_began_ns", 0)
    return at_s - began_ns / 1e9 if at_s is not None else None


def failure_classes(failure: tuple[str, ...], why: str) -> tuple[str, ...]:
    """Return the classes of a failure; worlds that stopped are classified by the cause."""
    if failure[:1] != (STOPPED,):
        return failure
    words = why.split(": ", 2)
    return (": ".join((STOPPED, *words[1:2])), *failure[1:])


class CandidatePool(Iterator[Attempt]):
    """A search: what to try next, and the best candidate so far.

    The caller iterates over attempts, and returns their results by `take`. The iteration may stop
    for now, if all next attempts depend on results that are missing.
    """

    def __init__(self, case: Case, most: int, wanted: str = "") -> None:
        """`wanted`: the failure to keep, of a run that may not fail every time."""
        self.best, self._origin, self._wanted = case, case.trial.seed, wanted
        self._endings: dict[Attempt, list[bool]] = {}  # without the seed -> whether each try failed
        self.over = False
        self.count = 0
        self.lost = 0  # tries for which the test bed failed
        self.first: AttemptResult | None = None  # result of the case itself
        self._search = self._certain(case, most)
        self._known: dict[Attempt, AttemptResult] = {}
        self._tried: set[Attempt] = set()
        self._put(next(self._search))

    @property
    def failure(self) -> str:
        """The failure to keep."""
        return self._wanted or (next(iter(self.first.failure), "") if self.first else "")

    @property
    def proven(self) -> bool:
        """Whether the case itself has failed."""
        return bool(self.failure) and self.first is not None and self.failure in self.first.failure

    def failed_at(self, case: Case) -> int:
        """Return which try of a case, with any seed, failed first, from 1; 0 if none did.

        A case that has failed is not tried again, so this is not a rate.
        """
        endings = self._endings.get(Attempt.of(case.lucky(0)), [])
        return endings.index(True) + 1 if True in endings else 0

    def __next__(self) -> Attempt:
        for attempt, _ in () if self.over else self._open:
            if attempt not in self._tried:
                self._tried.add(attempt)
                return attempt
        raise StopIteration

    def take(self, done: PoolResult[Attempt, AttemptResult]) -> None:
        """Take a result, and continue the search as far as possible."""
        ended = self._known[done.item] = done.result or AttemptResult(why=done.lost)
        self.count += 1
        self.lost += ended.lost
        if not self.first or (self._wanted and not (self.proven or ended.lost)):
            self.first = ended
        self._note(done.item)
        while not self.over and (answer := self._answer()):
            self._go_on(*answer)

    def _note(self, attempt: Attempt) -> None:
        """Note whether a try of a case failed."""
        for open_, candidate in self._open:
            if open_ == attempt:
                failed = bool(self.failure) and self.failure in self._known[attempt].failure
                whatever_luck = Attempt.of(candidate.case.lucky(0))
                self._endings.setdefault(whatever_luck, []).append(failed)
                return

    def _answer(self) -> tuple[FailingCandidate | None] | None:
        """Return the answer to the question, if it is known."""
        for attempt, candidate in self._open:
            if attempt not in self._known:
                return None
            if self.failure and self.failure in self._known[attempt].failure:
                return (candidate,)
        return (None,)

    def _go_on(self, failing: FailingCandidate | None) -> None:
        if failing:
            self.best = failing.case
        try:
            self._put(self._search.send(failing))
        except StopIteration as end:
            self.best, self.over = end.value, True

    def _put(self, question: Question) -> None:
        lucky = (with_seeds(case, self._origin, question.tries) for case in question.cases)
        rounds = zip(*lucky, strict=True)
        places = chain.from_iterable(enumerate(cases) for cases in rounds)
        self._open = [(Attempt.of(case), FailingCandidate(at, case)) for at, case in places]

    def _certain(self, case: Case, most: int) -> Dialogue:
        """Try whether the case itself fails, then search."""
        if (yield Question([case], most if self._wanted else 1)) is None:
            return case
        about_s = self.first.about_s if self.first else None
        return (yield from shrink_case(case, most, about_s, certain=not self._wanted))
