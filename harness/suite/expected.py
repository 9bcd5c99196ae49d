"""What should come of a run of a suite, and whether it did.

A finding is certain, so one that nobody expected counts whatever else went wrong. The converse does
not hold: a run that was to lose messages, and did, shows what the suite says of it only if it went
as the suite says. If its test bed failed, a node was gone for good, a checker gave up, or faults
were not seen at work, something else may have cost the messages, and the run is undecided.

Besides its verdict a run may have figures that are to be within bounds. One that is beyond its
bound is not as expected; of one that nobody counted nothing is known.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness import registry
from harness.cli.options import Request
from harness.cli.session import Ending
from harness.judge.judge import CUT_SHORT, EXCUSED
from harness.judge.verdict import Judgement

AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED = 0, 1, 2
EXCUSED_RUN = "excused"  # a run that is unknown because all that was found is excused
WORDS = {AS_EXPECTED: "as expected", NOT_AS_EXPECTED: "NOT as expected", UNDECIDED: "undecided"}
# codes of reasons for which even a finding that was expected shows nothing, beside those that say
# that planned faults were not seen to take effect
NOT_AS_PLANNED = CUT_SHORT | frozenset(
    ("NOT_HEALED", "CHECKER_FAILED", "CHECKER_TIMEOUT", "JOURNAL_DAMAGED", "HISTORY_MALFORMED")
)


@dataclass(frozen=True)
class Bound:
    """A figure of the run (harness.suite.figures) that is to be no more, or no less, than that."""

    figure: str
    value: float
    most: bool = True

    def __str__(self) -> str:
        return f"{self.figure} {'<=' if self.most else '>='} {self.value:.10g}"

    def holds(self, value: float) -> bool:
        return value <= self.value if self.most else value >= self.value


@dataclass(frozen=True)
class Expected:
    """One run of a suite and what should come of it. `name`: of the run among the others.
    `excused`: it should be unknown because all that is found is excused."""

    asked: Request
    verdict: Judgement
    findings: tuple[str, ...] = ()
    name: str = ""
    bounds: tuple[Bound, ...] = ()
    excused: bool = False

    @property
    def title(self) -> str:
        return self.name or self.asked.trial.name

    @property
    def wanted(self) -> str:
        word = EXCUSED_RUN if self.excused else self.verdict
        return ", ".join((word, *self.findings, *map(str, self.bounds)))

    @property
    def key(self) -> str:
        """The same for the same trial, plan and expectation, whatever file they are read from."""
        told = (self.title, self.asked.trial.to_toml(), self.asked.plan_text or "", self.wanted)
        return hashlib.blake2b("\0".join(told).encode(), digest_size=8).hexdigest()

    def compare(self, ending: Ending, figures: Mapping[str, float] = MappingProxyType({})) -> int:
        """What the run proves of it."""
        verdict = ending.verdict
        if verdict is None:
            return UNDECIDED
        invalid = Judgement.INVALID
        if verdict.verdict is invalid and self.verdict is not invalid:
            return NOT_AS_EXPECTED
        if ending.error or self._doubts(ending):
            return UNDECIDED
        if verdict.verdict is not self.verdict:
            unproven = verdict.verdict is Judgement.UNKNOWN
            return UNDECIDED if unproven else NOT_AS_EXPECTED
        if not set(self.findings) <= set(ending.codes):
            return NOT_AS_EXPECTED
        if self.excused and not is_excused(ending):
            return UNDECIDED
        return self._within(figures)

    def against(self, ending: Ending, figures: Mapping[str, float]) -> tuple[str, ...]:
        """What speaks against it although the verdict is the one that was expected."""
        if ending.verdict is None or ending.verdict.verdict is not self.verdict:
            return ()
        known = [b for b in self.bounds if b.figure in figures]
        beyond = [
            f"{b.figure} {_told(figures[b.figure])}"
            for b in known
            if not b.holds(figures[b.figure])
        ]
        missing = [f"{b.figure} is not known" for b in self.bounds if b.figure not in figures]
        return tuple(dict.fromkeys((*self._doubts(ending), *beyond, *missing)))

    def _within(self, figures: Mapping[str, float]) -> int:
        """A figure beyond its bound outweighs one that nobody counted."""
        if any(b.figure in figures and not b.holds(figures[b.figure]) for b in self.bounds):
            return NOT_AS_EXPECTED
        known = all(b.figure in figures for b in self.bounds)
        return AS_EXPECTED if known else UNDECIDED

    def _doubts(self, ending: Ending) -> tuple[str, ...]:
        """Codes of the reasons for which the run was not the one that the suite asks for."""
        if ending.verdict is None or ending.verdict.verdict is not self.verdict:
            return ()
        against = CUT_SHORT
        if self.verdict is Judgement.INVALID:
            against = NOT_AS_PLANNED | registry.reasons("unobserved")
        codes = dict.fromkeys(reason.code for reason in ending.verdict.reasons)
        return tuple(code for code in codes if code in against)


def is_excused(ending: Ending) -> bool:
    """Whether the run is unknown, and faults that are not claimed explain what was found."""
    verdict = ending.verdict
    if verdict is None or verdict.verdict is not Judgement.UNKNOWN:
        return False
    return any(reason.code == EXCUSED for reason in verdict.reasons)


def _told(value: float) -> str:
    return f"{value:.10g}" if math.isfinite(value) else "never"


def verdict_of(codes: Sequence[int]) -> int:
    """A wrong verdict outweighs a missing one."""
    for worst in (NOT_AS_EXPECTED, UNDECIDED):
        if worst in codes:
            return worst
    return AS_EXPECTED
