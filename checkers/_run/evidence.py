"""Rows of evidence: how many a finding has, and their times."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.history.faults_and_events import FaultInterval, faults_at
from harness.history.reader import History
from harness.judge.claims import in_effect
from harness.judge.verdict import Finding, Reason
from harness.run.broker_sets import set_name_by_key

UNRECORDED = "OPERATIONS_UNRECORDED"
OP_ROWS, FAULT_ROWS = frozenset({"ops"}), frozenset({"faults"})  # tables of a history
SAMPLE = 20  # rows of evidence that a finding may show
MAX_DATED = 5000  # rows that have times, where a fault may excuse them; others convict


def rows_kept(faults: Sequence[FaultInterval]) -> int:
    """Return how many rows of a finding are kept: more than are shown where a fault was observed
    in effect, which may excuse them."""
    return MAX_DATED if any(map(in_effect, faults)) else SAMPLE


def without_gaps(
    findings: Sequence[Finding], history: History, rests_on: Mapping[str, frozenset[str]]
) -> tuple[list[Finding], list[Reason]]:
    """Return the findings that no missing row can explain, and a reason for each other one.

    rests_on: by code, the tables that have to be complete; no entry: none
    """
    doubtful = [f for f in findings if history.gaps & rests_on.get(f.code, frozenset())]
    why = "but the recording has gaps that may explain it; run it again"
    reasons = [Reason(UNRECORDED, f"{finding.message}, {why}") for finding in doubtful]
    return [finding for finding in findings if finding not in doubtful], reasons


def span_fields(
    names: Mapping[str, Any], spans: Iterable[tuple[Iterable[int], tuple[int, int] | None]]
) -> dict[str, Any]:
    """Return the fields `spans` and `broker_sets` of a Finding: the times of its rows, each with
    the broker set of the keys that it is about. Rows without times are left out."""
    of_key = set_name_by_key(names, range(len(names.get("keys", ()))))
    known = [(keys, span) for keys, span in spans if span]
    sets = [{of_key[key] for key in keys if 0 <= key < len(of_key)} for keys, _ in known]
    return {
        "spans": tuple(span for _, span in known),
        "broker_sets": tuple(some.pop() if len(some) == 1 else "" for some in sets),
    }


def finding_at(
    moments: Sequence[int],
    faults: Sequence[FaultInterval],
    code: str,
    count: int,
    message: str,
    demand: str,
    rows: Sequence[Mapping[str, Any]],
    broker_sets: Iterable[str],
) -> Finding:
    """Return a finding of what happened at these moments, with the faults that were in force."""
    return Finding(
        code,
        count,
        message,
        demand,
        tuple(rows),
        faults_at(faults, *moments),
        spans=tuple((t, t) for t in moments),
        broker_sets=tuple(broker_sets),
    )


def name_of(names: Mapping[str, Any], kind: str, number: int) -> str:
    """Return the name of a key (`keys`) or node (`nodes`); `?` if names.json has none."""
    known = names.get(kind, ())
    return str(known[number]) if 0 <= number < len(known) else "?"


def seconds(t: int, digits: int = 6) -> float:
    """Return a time in ns as seconds."""
    return round(t / 1e9, digits)
