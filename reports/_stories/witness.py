"""The subject of a story: the requested finding, and the names in one of its witnesses.

Witnesses are flat rows of evidence with the same columns in each checker: `value` and `lower_value`
are messages, `queue` and `offset` a place, `op` an operation; objects name their operations in the
explanation, transactions as T12.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import BadRequest, UnknownName
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Verdict
from harness.text.parsing import abbreviate, is_number, parse_integer
from harness.trial import ISOLATION
from reports._stories.rows import Place, RowQuery, last_changes, missing_offsets

LAWS = {
    "no-loss": "an acknowledged message stays in the log",
    "at-least-once": "a stored message reaches every consumer group, once",
    "order-per-queue": "the messages of a producer stay in their order in each queue",
    "keeps-metadata": "topics, group offsets and locks outlive every failover",
    "integrity": "no message is made up or changed, and replicas hold the same",
    "linearizable": "one order of all operations, which respects real time, explains every answer",
    "recovers": "the cluster serves again in time once every fault is healed",
}
OPERATION = re.compile(r"\bop (\d+)")
TRANSACTION = re.compile(r"\bT(\d+)\b")
MAX_PLACES, MAX_CHANGES = 6, 10
IN_CYCLES = ("cycle", "transaction", "other")
GAPS = ("OFFSET_GAP",)  # in the log of one replica
NAMES: Mapping[str, type] = {
    "keys": list,
    "nodes": list,
    "values": list,
    "processes": dict,
    "initial": int,
}
BEGAN = "load_began_ns"
AT_ONE_OFFSET = ("OFFSET_CONFLICT", "REPLICAS_DIFFER")  # evidence on the messages at one offset


@dataclass(frozen=True)
class FindingWitness:
    """One witness of one finding; `number` counts from 1, and is 0 if the finding has no
    witness."""

    checker: str
    finding: Finding
    number: int

    @property
    def row(self) -> Mapping[str, Any]:
        return self.finding.evidence[self.number - 1] if self.number else {}

    @property
    def name(self) -> str:
        return f"{self.finding.code}:{self.number}" if self.number else self.finding.code

    @property
    def law(self) -> str:
        """The demand that the finding violates, and its meaning."""
        demand = self.finding.demand
        if not demand:
            return "no demand of the contract; it only informs"
        excused = ", which this trial's contract does not demand" * self.finding.permitted
        if some := self.finding.excused:
            excused = f"; {some:,} of {self.finding.count:,} are excused by unclaimed faults"
        demand = f"the isolation level {demand}" if demand in ISOLATION else demand
        return f"{demand}{f': {LAWS[demand]}' if demand in LAWS else ''}{excused}"


def open_history(run: RunDir) -> History:
    """Return the run's history. Raises BadRequest if its small files have values of wrong types."""
    history = History.open(run)
    for what, kind in NAMES.items():
        if not isinstance(history.names.get(what, kind()), kind):
            raise BadRequest(f"{run.path}/names.json: {what!r} {_wrong(history.names[what])}")
    began = history.state.get(BEGAN, 0)
    if not is_number(began):
        raise BadRequest(f"{run.path}/run.json: {BEGAN!r} {_wrong(began)}")
    return history


def _wrong(value: Any) -> str:
    return f"cannot be {abbreviate(str(value))!r}; restore the file from a copy"


def explainable(verdict: Verdict) -> list[tuple[str, Finding]]:
    """Return all findings: those that convict first, then those permitted or excused, then those
    that inform."""
    findings = [(result.checker, f) for result in verdict.checkers for f in result.findings]
    return sorted(findings, key=lambda pair: (not pair[1].demand, not pair[1].convicts))


def choose_witness(verdict: Verdict, text: str | None) -> FindingWitness | None:
    """Return the witness CODE or CODE:NUMBER of this verdict; without a text that of the first
    finding."""
    findings = explainable(verdict)
    if text is None:
        return _witness(findings[0], 1, text) if findings else None
    code, _, number = text.partition(":")
    code = code.strip().upper().replace("-", "_")
    if not findings:
        raise BadRequest(f"there is no {code} to explain: this run has no findings")
    of_code = [pair for pair in findings if pair[1].code == code]
    if not of_code:
        raise UnknownName("finding", code, {finding.code for _, finding in findings})
    if number and not number.isdecimal():
        raise BadRequest(
            f"{text!r} is not a finding; write {code}, or {code}:2 for its second witness"
        )
    return _numbered(of_code, parse_integer(number or "1"), text)


def _numbered(of_code: Sequence[tuple[str, Finding]], number: int, text: str) -> FindingWitness:
    """Return a witness by number, counted through all findings of one code."""
    left = number
    for pair in of_code:
        witnesses = len(pair[1].evidence)
        if 0 < left <= witnesses or (left == 1 and not witnesses):
            return _witness(pair, left, text)
        left -= witnesses
    total = sum(len(finding.evidence) for _, finding in of_code)
    code = of_code[0][1].code
    raise BadRequest(f"{code} has witnesses 1 to {total} in this run, not {number}")


def _witness(pair: tuple[str, Finding], number: int, text: str | None) -> FindingWitness:
    checker, finding = pair
    return FindingWitness(checker, finding, number if finding.evidence else 0)


def row_query(witness: FindingWitness, history: History) -> RowQuery:
    """Return the messages, operations and places of a witness."""
    ops = witness_operations(witness, history)
    if _about_objects(witness.row) or _metadata(witness.row, history) is not None:
        return RowQuery(ops=ops)  # their values are not messages
    values = tuple(dict.fromkeys(_values(witness.row)))
    return RowQuery(values, ops, tuple(_places(witness, history)))


def witness_operations(witness: FindingWitness, history: History) -> tuple[int, ...]:
    """Return the operations of a witness; of a topic, a group or a lock, its last changes."""
    row = witness.row
    what = None if _about_objects(row) else _metadata(row, history)
    if what is not None:
        return last_changes(
            history, what, max(evidence_times_ns(row), default=0), MAX_CHANGES, row.get("value")
        )
    return tuple(dict.fromkeys(_operations(row)))


def _about_objects(row: Mapping[str, Any]) -> bool:
    return "key" in row or any(name in row for name in IN_CYCLES)


def _metadata(row: Mapping[str, Any], history: History) -> int | None:
    """Return the number of a topic, a group or a lock."""
    return number_of(history, "keys", row.get("what"))


def _places(witness: FindingWitness, history: History) -> Iterator[Place]:
    """Yield the offset that is wrong; the offsets between two that were adjacent; those that a
    replica lacks."""
    row = witness.row
    key = number_of(history, "keys", row.get("queue"))
    node = number_of(history, "nodes", row.get("node"))
    offset, after = row.get("offset"), row.get("after")
    if key is not None and node is not None and witness.finding.code in GAPS:
        yield from ((key, at) for at in missing_offsets(history, key, node, MAX_PLACES))
    if key is None or not isinstance(offset, int):
        return
    if witness.finding.code in AT_ONE_OFFSET:
        yield key, offset
    elif isinstance(after, int):
        skipped = range(after + 1, offset)[:MAX_PLACES]
        yield from ((key, number) for number in skipped or (offset,))


def _values(row: Mapping[str, Any]) -> Iterator[int]:
    for name, cell in row.items():
        if name.endswith("value") and isinstance(cell, int):
            yield cell


def _operations(row: Mapping[str, Any]) -> Iterator[int]:
    for name, cell in row.items():
        if isinstance(cell, int) and (name == "op" or name.endswith("_op")):
            yield cell
        if name in IN_CYCLES and isinstance(cell, str):
            yield from map(int, TRANSACTION.findall(cell))
        if name == "explanation" and isinstance(cell, str):
            yield from map(int, OPERATION.findall(cell))


def number_of(history: History, kind: str, name: Any) -> int | None:
    """Return a name's number in a dictionary of the history."""
    names = list(history.names.get(kind, ()))
    return names.index(name) if name in names else None


def evidence_times_ns(row: Mapping[str, Any]) -> list[int]:
    """Return the times in the evidence, in ns since the run's start."""
    return [
        round(cell * 1e9)
        for name, cell in row.items()
        if name.endswith("_s") and isinstance(cell, float)
    ]


def explainable_names(verdict: Verdict) -> list[str]:
    """Return the names of all witnesses: `LOST_ACKED:1 to :20 of 25`."""
    total: dict[str, list[int]] = {}
    for _, finding in explainable(verdict):
        seen = total.setdefault(finding.code, [0, 0])
        seen[0] += len(finding.evidence)
        seen[1] += finding.count
    return [
        f"{code}{f':1 to :{n}' if n > 1 else ''}{f' of {count:,}' if count > n > 0 else ''}"
        for code, (n, count) in total.items()
    ]
