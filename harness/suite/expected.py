"""The expected result of a run of a suite, and its comparison with the actual one.

A finding is certain, so an unexpected one counts whatever else went wrong. The converse does not
hold: a run that was expected to lose messages, and did, confirms the expectation only if it went as
planned. If its test bed failed, a node was lost, a checker gave up, or faults were not observed in
effect, the loss may have another cause, and the run is undecided.

Besides its verdict a run may have figures with bounds. A figure beyond its bound is not as
expected; a missing figure leaves the run undecided.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness import registry
from harness.cli.options import Request
from harness.cli.session import RunEnd
from harness.judge.judge import CUT_SHORT, EXCUSED
from harness.judge.verdict import Judgement
from harness.suite.store import AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED

EXCUSED_RUN = "excused"  # unknown, because all findings are excused
# codes of reasons with which even an expected finding confirms nothing, besides those of planned
# faults that were not observed in effect
NOT_AS_PLANNED = CUT_SHORT | frozenset(
    ("NOT_HEALED", "CHECKER_FAILED", "CHECKER_TIMEOUT", "JOURNAL_DAMAGED", "HISTORY_MALFORMED")
)


@dataclass(frozen=True)
class FigureBound:
    """An upper or lower bound of a figure of the run (harness.suite.figures)."""

    figure: str
    value: float
    most: bool = True

    def __str__(self) -> str:
        return f"{self.figure} {'<=' if self.most else '>='} {self.value:.10g}"

    def holds(self, value: float) -> bool:
        return value <= self.value if self.most else value >= self.value


@dataclass(frozen=True)
class ExpectedRun:
    """One run of a suite and its expected result. `excused`: expect *unknown*, because all findings
    are excused."""

    request: Request
    verdict: Judgement
    findings: tuple[str, ...] = ()
    name: str = ""
    bounds: tuple[FigureBound, ...] = ()
    excused: bool = False

    @property
    def title(self) -> str:
        return self.name or self.request.trial.name

    @property
    def wanted(self) -> str:
        word = EXCUSED_RUN if self.excused else self.verdict
        return ", ".join((word, *self.findings, *map(str, self.bounds)))

    @property
    def key(self) -> str:
        """A hash of the trial, plan and expectation."""
        content = (
            self.title,
            self.request.trial.to_toml(),
            self.request.plan_text or "",
            self.wanted,
        )
        return hashlib.blake2b("\0".join(content).encode(), digest_size=8).hexdigest()

    def compare(self, ending: RunEnd, figures: Mapping[str, float] = MappingProxyType({})) -> int:
        """Compare a run with the expectation."""
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

    def against(self, ending: RunEnd, figures: Mapping[str, float]) -> tuple[str, ...]:
        """Return what contradicts the expectation although the verdict is the expected one."""
        if ending.verdict is None or ending.verdict.verdict is not self.verdict:
            return ()
        measured = [b for b in self.bounds if b.figure in figures]
        beyond = [
            f"{b.figure} {_formatted(figures[b.figure])}"
            for b in measured
            if not b.holds(figures[b.figure])
        ]
        missing = [f"{b.figure} is unknown" for b in self.bounds if b.figure not in figures]
        return tuple(dict.fromkeys((*self._doubts(ending), *beyond, *missing)))

    def _within(self, figures: Mapping[str, float]) -> int:
        """Compare figures with bounds; one beyond its bound outweighs a missing one."""
        if any(b.figure in figures and not b.holds(figures[b.figure]) for b in self.bounds):
            return NOT_AS_EXPECTED
        measured = all(b.figure in figures for b in self.bounds)
        return AS_EXPECTED if measured else UNDECIDED

    def _doubts(self, ending: RunEnd) -> tuple[str, ...]:
        """Return the codes of reasons why the run did not go as the suite demands."""
        if ending.verdict is None or ending.verdict.verdict is not self.verdict:
            return ()
        against = CUT_SHORT
        if self.verdict is Judgement.INVALID:
            against = NOT_AS_PLANNED | registry.reasons("unobserved")
        codes = dict.fromkeys(reason.code for reason in ending.verdict.reasons)
        return tuple(code for code in codes if code in against)


def is_excused(ending: RunEnd) -> bool:
    """Return whether the run is unknown because its findings are excused."""
    verdict = ending.verdict
    if verdict is None or verdict.verdict is not Judgement.UNKNOWN:
        return False
    return any(reason.code == EXCUSED for reason in verdict.reasons)


def _formatted(value: float) -> str:
    return f"{value:.10g}" if math.isfinite(value) else "never"
