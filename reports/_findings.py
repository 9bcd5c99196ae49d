"""Findings as the page shows them: with stories of some witnesses, drawings, and their moments.

Stories are those of `seatrial explain`, told here for the first witnesses of what matters; of a
history of millions of operations fewer are told, for each takes a pass over it. How many depends on
the history's size alone, so a page made twice is the same page.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from harness.explain.story import Told as Story
from harness.explain.story import explained
from harness.judge.verdict import Finding, Result
from reports import _words
from reports._around import SILENCE, Around, around
from reports._counterexample import Counterexample, counterexample, drawn
from reports._lanes import Mark
from reports._run import WHEN, Told, explain_command, rank

STORIES = 3  # of a finding
MOST_STORIES = 12  # of a page
LARGE_BYTES = 64 << 20  # of operations: then one story a finding, and three in all
TONES = ("bad", "doubt", "quiet")


@dataclass(frozen=True)
class Witness:
    """One witness of a finding: its story, its operations as a drawing, the node events then."""

    name: str
    story: Story | None
    example: Counterexample | None
    around: Around = SILENCE
    zero: int = 0  # of the axis

    @property
    def subject(self) -> str:
        return _words.clip(self.story.subject if self.story else "", 400)

    @property
    def drawing(self) -> Markup | None:
        return drawn(self.example, self.zero) if self.example else None

    @property
    def moments(self) -> list[dict[str, Any]]:
        """Times on the axis: seconds since the load began."""
        if self.story is None:
            return []
        return [
            {"s": (step.t - self.zero) / 1e9, "faults": on, "words": _words.clip(step.words, 400)}
            for step, on in self.story.moments
        ]

    @property
    def times(self) -> tuple[int, ...]:
        return self.example.times if self.example else ()


@dataclass(frozen=True)
class Shown:
    """A finding on the page, number `number` of them."""

    number: int
    checker: str
    finding: Finding
    witnesses: tuple[Witness, ...]
    explain: str
    nodes: tuple[str, ...]
    times: tuple[tuple[int, str], ...]

    @property
    def tone(self) -> str:
        return TONES[rank(self.finding)]

    @property
    def standing(self) -> str:
        return _words.standing_of(self.finding)

    @property
    def columns(self) -> list[str]:
        return _words.columns(self.finding.evidence)

    def marks(self) -> Iterator[Mark]:
        for t, words in self.times:
            yield Mark(t, self.number, self.tone, words)


def shown(told: Told) -> list[Shown]:
    """All findings of a verdict, what convicts first."""
    left = _budget(told)
    counted: dict[str, int] = {}
    found = []
    for number, (result, finding) in enumerate(told.findings()):
        first = counted.get(finding.code, 0) + 1
        counted[finding.code] = first - 1 + len(finding.evidence)
        names = _witnesses(finding, first, left if rank(finding) < 2 else 0)
        left -= len(names)
        rows = zip(names, finding.evidence, strict=False)
        witnesses = tuple(_witness(told, name, row) for name, row in rows)
        found.append(_shown(told, number, first, (result, finding), witnesses))
    return found


def _budget(told: Told) -> int:
    size = sum(path.stat().st_size for path in told.history.files("ops"))
    return MOST_STORIES if size < LARGE_BYTES else STORIES


def _witnesses(finding: Finding, first: int, left: int) -> list[str]:
    """`LOST_ACKED:1` and so on; numbers go on where an earlier finding has the same code."""
    if not finding.evidence:
        return []
    each = STORIES if left > STORIES else 1
    count = min(each, left, len(finding.evidence))
    return [f"{finding.code}:{first + n}" for n in range(count)]


def _witness(told: Told, name: str, row: Mapping[str, Any]) -> Witness:
    story = told.part(f"the story of {name}", lambda: explained(told.run, name), None)
    example = told.part(
        f"the operations of {name}", lambda: counterexample(told.history, told.verdict, name), None
    )
    if example is not None and len(example.operations) < 2:
        example = None
    t = _when(row)
    if t is None and example is not None:
        t = min(example.times, default=None)
    moments = [] if t is None else [t - told.zero]
    moments += [step.t - told.zero for step, _ in story.moments] if story else []
    return Witness(name, story, example, around(told.events, moments), told.zero)


def _shown(
    told: Told,
    number: int,
    first: int,
    found: tuple[Result, Finding],
    witnesses: tuple[Witness, ...],
) -> Shown:
    """`first`: which number its first witness has among all of its code."""
    result, finding = found
    message = _words.clip(finding.message, 1200)
    times = tuple(_moments(told.zero, finding, first, witnesses))
    finding = replace(told.on_axis(finding), message=message[:1].upper() + message[1:])
    roles = told.named("roles")
    cells = {str(cell) for row in finding.evidence for cell in row.values()}
    return Shown(
        number=number,
        checker=result.checker,
        finding=finding,
        witnesses=witnesses,
        explain=explain_command(told, f"{finding.code}:{first}" if first > 1 else finding.code),
        nodes=tuple(sorted(node for node in roles if node in cells)),
        times=times,
    )


def _moments(
    zero: int, finding: Finding, first: int, witnesses: Sequence[Witness]
) -> Iterator[tuple[int, str]]:
    """When the evidence happened: each row's first moment; else when operations were invoked."""
    told = False
    for number, row in enumerate(finding.evidence, start=first):
        t = _when(row)
        if t is not None:
            told = True
            what = next((f", {row[name]}" for name in ("queue", "key", "node") if name in row), "")
            t -= zero
            yield t, f"{finding.code} witness {number}{what}, at {t / 1e9:.3f} s"
    for witness in () if told else witnesses:
        for t in witness.times:
            at = t - zero
            yield at, f"{witness.name}, an operation invoked at {at / 1e9:.3f} s"


def _when(row: Mapping[str, Any]) -> int | None:
    """A row's first moment, in ns since the run's start; None: it tells none that makes sense."""
    at = next((row[name] for name in WHEN if isinstance(row.get(name), int | float)), None)
    return round(at * 1e9) if at is not None and 0 <= at < 1e9 else None
