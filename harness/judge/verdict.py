"""Verdicts: what checkers found, what the contract permits of it, and the sum.

A finding is *permitted* only if the trial's contract does not demand the property. Rows of it are
*excused* one by one, by faults that were observed in effect and that the system does not claim to
survive; a run whose only findings are excused is *unknown*. invalid > unknown > valid, and a
crashed or timed-out checker is unknown: it does not hide other results. `verdict.json` has no time
stamps of its own, so checking twice gives the same bytes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.history.notes import CORRUPTED
from harness.operation import SENDS, F
from harness.text.parsing import read_json

SCHEMA_VERSION = 1
MOMENTS = ("acked_s", "at_s", "sent_s", "seen_s")  # columns of evidence, seconds since run start


class Judgement(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Excuse:
    """Rows of a finding that some unclaimed faults explain together: those that only these nodes
    held."""

    faults: tuple[int, ...]
    rows: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something that a checker convicts of, or (with `permitted`) reports.

    code      stable: LOST_ACKED
    count     exact
    message   a plain sentence with the count in it
    demand    the demand of the contract it violates: no-loss ...; empty: it only informs
    evidence  capped rows, each a flat mapping of names to numbers and strings. Columns named
              `at_s`, `sent_s`, `acked_s` or `seen_s` are times, in seconds since the run's start as
              everywhere in a history; reports show them since the beginning of the load
    faults    ids of the fault intervals it falls in
    permitted the contract does not demand it
    excuses   which of its rows are excused, and by what
    spans     begin and end (ns) of each counted thing, if known: what has no rows of its own is
              excused by time. Not stored
    broker_sets  of each span, in their order, if known. Not stored
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
        """The number of rows that do not convict."""
        return sum(excuse.rows for excuse in self.excuses)

    @property
    def first_moment_s(self) -> float | None:
        """The time of the first witness, in seconds since the run's start; None if unknown."""
        row = self.evidence[0] if self.evidence else {}
        return next((float(row[key]) for key in MOMENTS if row.get(key)), None)

    @property
    def convicts(self) -> bool:
        """Whether a row of it violates what the contract demands, without an excuse."""
        return bool(self.demand) and not self.permitted and self.excused < self.count


@dataclass(frozen=True)
class Reason:
    """Why a run proves nothing: a stable code and what to do about it."""

    code: str
    message: str


@dataclass(frozen=True)
class Result:
    """One checker's result. `stats` are numbers for the report; `reasons` make it unknown;
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
    """All checkers' results and their sum. `events`: rows of history judged, by table."""

    verdict: Judgement
    sentence: str
    reasons: tuple[Reason, ...]
    checkers: tuple[Result, ...]
    schema_version: int = SCHEMA_VERSION
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def convicting(self) -> tuple[str, ...]:
        """Codes of the findings that the contract forbids, each once."""
        return tuple(dict.fromkeys(f.code for f in self.convicting_findings))

    @property
    def first_finding(self) -> Finding | None:
        """The first finding that the contract forbids."""
        return next(iter(self.convicting_findings), None)

    @property
    def convicting_findings(self) -> tuple[Finding, ...]:
        """The findings that the contract forbids, the most important first."""
        findings = by_importance(f for result in self.checkers for f in result.findings)
        return tuple(f for f in findings if f.convicts)

    def stats(self, checker: str) -> Mapping[str, Any]:
        """Return the numbers of a checker; empty if it did not run."""
        return next((r.stats for r in self.checkers if r.checker == checker), {})

    @property
    def acknowledged(self) -> int | None:
        """The number of acknowledged messages, whatever kind of send they are of; None if no
        checker counted them."""
        counts = self.stats("coverage").get("operations", {})
        sent = {f: counts.get(f.name.lower(), {}).get("ok", 0) for f in SENDS}
        plain = self.stats("loss").get("acknowledged", sent[F.SEND] if any(sent.values()) else None)
        special = sum(sent.values()) - sent[F.SEND]
        return plain + special if plain is not None else special or None

    def to_json(self) -> str:
        """Return it as JSON, sorted and indented, so that equal verdicts are equal bytes."""
        fields = asdict(self)
        for row, result in zip(fields["checkers"], self.checkers, strict=True):
            row["verdict"] = result.judgement
            for finding in row["findings"]:
                del finding["spans"], finding["broker_sets"]
        return json.dumps(fields, indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Verdict":
        """Read a stored verdict. Raises ValueError if the file is not one."""
        fields = read_json(path)
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


def worst_judgement(results: Iterable[Result]) -> Judgement:
    """Return the worst judgement: invalid > unknown > valid."""
    judgements = {result.judgement for result in results}
    for worst in (Judgement.INVALID, Judgement.UNKNOWN):
        if worst in judgements:
            return worst
    return Judgement.VALID


def _finding(row: Mapping[str, Any]) -> Finding:
    """Return a stored finding; older ones have no excuses."""
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
