"""Verdicts: what checkers found, what the contract makes of it, and how it all adds up.

A finding is *permitted* only when the trial's contract does not demand the property. Rows of it are
*excused* one by one, by faults that were observed in effect and that the system does not claim to
survive; a run whose only findings are excused is *unknown*. invalid > unknown > valid, and a
crashed or timed-out checker is unknown: it hides nobody else's result. `verdict.json` carries no
time of its own making, so checking twice gives the same bytes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.history.notes import CORRUPTED
from harness.text.parsing import json_in

SCHEMA_VERSION = 1
MOMENTS = ("acked_s", "at_s", "sent_s", "seen_s")  # columns of evidence, seconds since run start


class Judgement(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Excuse:
    """Rows of a finding that some unclaimed faults explain together: what only these nodes held."""

    faults: tuple[int, ...]
    rows: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something a checker convicts of, or (with `permitted`) reports.

    code      stable: LOST_ACKED
    count     exact
    message   a plain sentence with the count in it
    demand    the word of the contract it offends: no-loss ...; empty: only informs
    evidence  capped rows, each a flat mapping of names to numbers and strings
    faults    ids of the fault intervals it falls in
    permitted the contract does not demand it
    excuses   which of its rows are excused, and by what
    spans     begin and end (ns) of each thing that it counts, where known: what has no rows of its
              own is excused by time. Not stored
    broker_sets  of each span, in their order, where known. Not stored
    """

    code: str
    count: int
    message: str
    demand: str
    evidence: tuple[Mapping[str, Any], ...] = ()
    faults: tuple[int, ...] = ()
    permitted: bool = False
    excuses: tuple[Excuse, ...] = ()
    spans: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    broker_sets: tuple[str, ...] = field(default=(), compare=False)

    @property
    def excused(self) -> int:
        """Rows that do not convict."""
        return sum(excuse.rows for excuse in self.excuses)

    @property
    def first_moment_s(self) -> float | None:
        """The time of the first witness, in seconds since the run's start; None if unknown."""
        row = self.evidence[0] if self.evidence else {}
        return next((float(row[key]) for key in MOMENTS if row.get(key)), None)

    @property
    def convicts(self) -> bool:
        """Whether a row of it breaks what the contract demands, without an excuse."""
        return bool(self.demand) and not self.permitted and self.excused < self.count


@dataclass(frozen=True)
class Reason:
    """Why a run proves nothing: a stable code and what to do about it."""

    code: str
    message: str


@dataclass(frozen=True)
class Result:
    """One checker's answer. `stats` are numbers for the report; `reasons` make it unknown;
    `decided`: by demand, on how many operations, messages or other things it was decided."""

    checker: str
    findings: tuple[Finding, ...] = ()
    reasons: tuple[Reason, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    decided: Mapping[str, int] = field(default_factory=dict)

    @property
    def judgement(self) -> Judgement:
        if any(f.convicts for f in self.findings):
            return Judgement.INVALID
        return Judgement.UNKNOWN if self.reasons else Judgement.VALID


@dataclass(frozen=True)
class Verdict:
    """All checkers' answers and what they add up to. `events`: rows of history judged, by table."""

    verdict: Judgement
    sentence: str
    reasons: tuple[Reason, ...]
    checkers: tuple[Result, ...]
    schema_version: int = SCHEMA_VERSION
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def convicting(self) -> tuple[str, ...]:
        """Codes of the findings that the contract speaks against."""
        return tuple(f.code for f in self._convicting)

    @property
    def first(self) -> Finding | None:
        """The first finding that the contract speaks against."""
        return next(self._convicting, None)

    @property
    def _convicting(self) -> Iterator[Finding]:
        found = by_importance(f for result in self.checkers for f in result.findings)
        return (f for f in found if f.convicts)

    def stats(self, checker: str) -> Mapping[str, Any]:
        """What a checker counted; nothing if it was not asked."""
        return next((r.stats for r in self.checkers if r.checker == checker), {})

    def to_json(self) -> str:
        """Sorted and indented, so that equal verdicts are equal bytes."""
        fields = asdict(self)
        for row, result in zip(fields["checkers"], self.checkers, strict=True):
            row["verdict"] = result.judgement
            for finding in row["findings"]:
                del finding["spans"], finding["broker_sets"]
        return json.dumps(fields, indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Verdict":
        """A stored verdict. ValueError when the file is not one."""
        fields = json_in(path)
        return cls(
            verdict=Judgement(fields["verdict"]),
            sentence=fields["sentence"],
            reasons=tuple(Reason(**r) for r in fields["reasons"]),
            checkers=tuple(_result(r) for r in fields["checkers"]),
            schema_version=fields["schema_version"],
            events=fields.get("events", {}),
        )


def by_importance(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: damaged bodies first, the rest in the order of the checkers."""
    return sorted(findings, key=lambda finding: finding.code != CORRUPTED)


def add_up(results: Iterable[Result]) -> Judgement:
    """invalid > unknown > valid."""
    judgements = {result.judgement for result in results}
    for worst in (Judgement.INVALID, Judgement.UNKNOWN):
        if worst in judgements:
            return worst
    return Judgement.VALID


def _finding(row: Mapping[str, Any]) -> Finding:
    """A stored finding; until excuses were counted singly, none had any."""
    lists = {name: tuple(row[name]) for name in ("evidence", "faults")}
    excuses = tuple(
        Excuse(tuple(e["faults"]), e["rows"], tuple(e["nodes"])) for e in row.get("excuses", ())
    )
    return Finding(**{**row, **lists, "excuses": excuses})


def _result(row: Mapping[str, Any]) -> Result:
    return Result(
        checker=row["checker"],
        findings=tuple(map(_finding, row["findings"])),
        reasons=tuple(Reason(**r) for r in row["reasons"]),
        stats=row["stats"],
        decided=row.get("decided", {}),
    )
