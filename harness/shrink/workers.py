"""Who answers what shrinking asks: simulated worlds, some at a time, each in another process.

A question's candidates are tried in their order, and all with one luck before any with the next;
the answer is the first of that order that fails, however many run at once and whichever is done
first. So the result depends on nothing but the case, unless somebody stops the search.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

from harness.campaign.pool import Done
from harness.campaign.simulation import STOPPED, simulated
from harness.errors import BadRequest
from harness.explain.failing_run import when_s
from harness.history.rundir import RunDir
from harness.judge.verdict import Verdict
from harness.run.launch import planned
from harness.shrink.search import Case, Dialogue, Found, Question, chances, shrunk
from harness.trial import Trial


@dataclass(frozen=True)
class Attempt:
    """One world: trial and plan, as TOML."""

    trial: str
    plan: str

    @classmethod
    def of(cls, case: Case) -> "Attempt":
        return cls(case.trial.to_toml(), case.plan_toml)


@dataclass(frozen=True)
class Tried:
    """How it ended: classes of failure, the first of which counts, and the first in words. `lost`:
    the test bed failed, which says nothing of it."""

    failure: tuple[str, ...] = ()
    why: str = ""
    about_s: float | None = None  # when, after the load began, as far as is known
    lost: bool = False


def tried(attempt: Attempt, scratch: Path) -> Tried:
    """Carry it out and leave nothing behind. What makes no sense does not fail."""
    folder = Path(mkdtemp(prefix="try-", dir=scratch))
    try:
        trial = Trial.from_toml(attempt.trial)
        outcome = simulated(trial, planned(trial, attempt.plan), folder / "run")
        when = about_s(outcome.run, outcome.verdict)
    except BadRequest as e:
        return Tried(why=str(e))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Tried(classes(outcome.failure, outcome.why), outcome.why, when)


def about_s(run: RunDir, verdict: Verdict | None) -> float | None:
    """When the first thing happened that convicts, after the load began."""
    at_s = when_s(verdict.first) if verdict else None
    began_ns = run.state().get("load_began_ns", 0)
    return at_s - began_ns / 1e9 if at_s is not None else None


def classes(failure: tuple[str, ...], why: str) -> tuple[str, ...]:
    """Worlds that stopped are told apart by what stopped them."""
    if failure[:1] != (STOPPED,):
        return failure
    words = why.split(": ", 2)
    return (": ".join((STOPPED, *words[1:2])), *failure[1:])


class Tries(Iterator[Attempt]):
    """The search under way: what to try next, and the best so far.

    It is asked for attempts, and given their results, by whoever carries them out. There may be
    none just now, because everything depends on what is being tried.
    """

    def __init__(self, case: Case, most: int, wanted: str = "") -> None:
        """`wanted`: the failure to be kept, of a run that may not fail every time."""
        self.best, self._origin, self._wanted = case, case.trial.seed, wanted
        self._endings: dict[Attempt, list[bool]] = {}  # whatever the luck: did it fail?
        self.over = False
        self.count = 0
        self.lost = 0  # of them: the test bed failed
        self.first: Tried | None = None  # how the case itself ended
        self._search = self._certain(case, most)
        self._known: dict[Attempt, Tried] = {}
        self._tried: set[Attempt] = set()
        self._put(next(self._search))

    @property
    def failure(self) -> str:
        """What must be kept."""
        return self._wanted or (next(iter(self.first.failure), "") if self.first else "")

    @property
    def proven(self) -> bool:
        """The case has failed here."""
        return bool(self.failure) and self.first is not None and self.failure in self.first.failure

    def failed_at(self, case: Case) -> int:
        """Which try of a case, whatever its luck, was the first that failed, from 1; 0: none was.

        A case that has failed is not tried again, so this says nothing of how often it fails.
        """
        endings = self._endings.get(Attempt.of(case.lucky(0)), [])
        return endings.index(True) + 1 if True in endings else 0

    def __next__(self) -> Attempt:
        for attempt, _ in () if self.over else self._open:
            if attempt not in self._tried:
                self._tried.add(attempt)
                return attempt
        raise StopIteration

    def take(self, done: Done[Attempt, Tried]) -> None:
        """A result. The search goes on as far as it can."""
        ended = self._known[done.item] = done.result or Tried(why=done.lost)
        self.count += 1
        self.lost += ended.lost
        if not self.first or (self._wanted and not (self.proven or ended.lost)):
            self.first = ended
        self._note(done.item)
        while not self.over and (answer := self._answer()):
            self._go_on(*answer)

    def _note(self, attempt: Attempt) -> None:
        """For which of its tries a case failed at."""
        for open_, found in self._open:
            if open_ == attempt:
                failed = bool(self.failure) and self.failure in self._known[attempt].failure
                whatever_luck = Attempt.of(found.case.lucky(0))
                self._endings.setdefault(whatever_luck, []).append(failed)
                return

    def _answer(self) -> tuple[Found | None] | None:
        """The answer to the question, when there is one."""
        for attempt, found in self._open:
            if attempt not in self._known:
                return None
            if self.failure and self.failure in self._known[attempt].failure:
                return (found,)
        return (None,)

    def _go_on(self, found: Found | None) -> None:
        if found:
            self.best = found.case
        try:
            self._put(self._search.send(found))
        except StopIteration as end:
            self.best, self.over = end.value, True

    def _put(self, question: Question) -> None:
        lucky = (chances(case, self._origin, question.chances) for case in question.cases)
        rounds = zip(*lucky, strict=True)
        places = chain.from_iterable(enumerate(cases) for cases in rounds)
        self._open = [(Attempt.of(case), Found(at, case)) for at, case in places]

    def _certain(self, case: Case, most: int) -> Dialogue:
        """First of all, that the case fails."""
        if (yield Question([case], most if self._wanted else 1)) is None:
            return case
        about_s = self.first.about_s if self.first else None
        return (yield from shrunk(case, most, about_s, certain=not self._wanted))
