"""Changes of metadata, as clients saw them: few rows, each an operation of one process.

Only these rows are read from the operations, whatever else a run op. An operation that never
completed is INFO, as everywhere: it may have happened, or happen at any later time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers._run.evidence import SAMPLE
from checkers._spark.spark_stages import per_history
from harness.history.faults_and_events import FaultInterval, faults_at
from harness.history.reader import History, batches
from harness.judge.verdict import Finding, Reason
from harness.operation import NONE, F, Type
from harness.text.plurals import how_often, quantity

DEMAND = "keeps-metadata"
NO_OTHER: Mapping[str, str] = {}  # demands by code
WANTED = (F.COMMIT, F.CREATE, F.DELETE, F.SEE, F.RESET, F.QUERY, F.LOCK, F.UNLOCK, F.JOIN, F.LEAVE)
ANSWERED = (F.SEE, F.QUERY, F.LOCK)  # their offset is in the answer
COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "offset")


@dataclass(frozen=True)
class MetadataOp:
    """One operation. Times in ns since the run's start; `ended` is None if it never op."""

    f: F
    process: int
    key: int
    begun: int
    ended: int | None
    type: Type
    offset: int
    value: int = NONE  # number of the topic, where a key has several


@dataclass(frozen=True)
class MetadataBreach:
    """A violated rule: which, when a process saw it, the key, and why; `by`: how far."""

    code: str
    t: int
    process: int
    key: int
    why: str
    by: int = 1
    value: int = NONE


@dataclass(frozen=True)
class MetadataOperations:
    """All operations, by key and in the order of their invocations."""

    of_key: Mapping[int, Sequence[MetadataOp]]
    names: Mapping[str, Any]
    faults: tuple[FaultInterval, ...]
    whole: bool = True  # no recorded operation is missing

    def of(self, *kinds: F) -> Mapping[int, Sequence[MetadataOp]]:
        """Return the keys that have operations of these kinds, and only these operations."""
        mine = {key: [op for op in row if op.f in kinds] for key, row in self.of_key.items()}
        return {key: row for key, row in mine.items() if row}

    def name(self, key: int) -> str:
        keys = self.names.get("keys", ())
        return str(keys[key]) if 0 <= key < len(keys) else f"key {key}"

    def judged(
        self,
        breaches: Sequence[MetadataBreach],
        meanings: Mapping[str, str],
        demands: Mapping[str, str] = NO_OTHER,
    ) -> tuple[list[Finding], list[Reason]]:
        """Return a finding for each code with breaches. Where an operation may be missing, it may
        be the change that explains a breach, so that breaches are a reason."""
        if breaches and not self.whole:
            first = breaches[0]
            what = quantity(len(breaches), "contradiction")
            why = (
                f"{what} may come from gaps in the record; first: {self.name(first.key)}: "
                f"{first.why}; run it again"
            )
            return [], [Reason("OPERATIONS_UNRECORDED", why)]
        findings = (
            self._finding(code, breaches, meaning, demands.get(code, DEMAND))
            for code, meaning in meanings.items()
        )
        return [finding for some in findings for finding in some], []

    def _finding(
        self, code: str, breaches: Iterable[MetadataBreach], meaning: str, demand: str
    ) -> Iterator[Finding]:
        """Yield the finding of a code that has breaches. `meaning` has a field for their number."""
        mine = sorted((b for b in breaches if b.code == code), key=lambda b: (b.t, b.key))
        if not mine:
            return
        times = how_often(len(mine))
        faults = {number for breach in mine for number in self._faults(breach.t)}
        evidence = tuple(self._row(breach) for breach in mine[:SAMPLE])
        message = f"{meaning.format(times=times)}; first: {self.name(mine[0].key)}: {mine[0].why}"
        spans = tuple((breach.t, breach.t) for breach in mine)
        yield Finding(
            code, len(mine), message, demand, evidence, tuple(sorted(faults)), spans=spans
        )

    def _row(self, breach: MetadataBreach) -> Mapping[str, Any]:
        process = str(self.names.get("processes", {}).get(str(breach.process), breach.process))
        at_s = round(breach.t / 1e9, 3)
        row = {"what": self.name(breach.key), "seen_s": at_s, "by": process, "why": breach.why}
        return row if breach.value == NONE else {**row, "value": breach.value}

    def _faults(self, t: int) -> tuple[int, ...]:
        """Return the faults in force at a moment, else the last one before it."""
        now = faults_at(self.faults, t)
        before = [f for f in self.faults if f.begin is not None and f.begin <= t]
        return now or tuple(f.id for f in before[-1:])


@per_history
def metadata_changes(history: History) -> MetadataOperations:
    """Return the changes of metadata of a history."""
    begun: dict[int, Mapping[str, Any]] = {}
    ended: dict[int, Mapping[str, Any]] = {}
    for path in history.files["ops"]:
        for row in _rows(path):
            (begun if row["type"] == Type.INVOKE else ended)[row["op"]] = row
    of_key: dict[int, list[MetadataOp]] = {}
    for op, row in begun.items():
        of_key.setdefault(row["key"], []).append(_operation(row, ended.get(op)))
    ordered = {
        key: tuple(sorted(row, key=lambda op: (op.begun, op.process)))
        for key, row in sorted(of_key.items())
    }
    return MetadataOperations(ordered, history.names, history.faults, "ops" not in history.gaps)


def unread_at_end(
    history: History, of_key: Mapping[Any, Sequence[MetadataOp]], f: F, what: str
) -> list[Reason]:
    """Return a reason if something was changed and not read in the final phase. A read may have an
    early timestamp, where clocks may be off; it counts if nothing was changed after it."""
    since = history.phases.get("drain")
    early = max(map(history.spread_ns, history.writers), default=0)
    blind = [
        key for key, row in of_key.items() if since is None or not _was_read(row, f, since - early)
    ]
    if not blind:
        return []
    why = f"{len(blind)} of {len(of_key)} {what} were not looked at in the final phase"
    return [Reason("NO_FINAL_LOOK", f"{why}; let the run finish, or raise recover_within_s")]


def _was_read(row: Sequence[MetadataOp], f: F, since: int) -> bool:
    """Whether a read that began at `since` or later, after the last change, was answered."""
    reads = takewhile(lambda op: op.f is f and op.begun >= since, reversed(row))
    return any(op.type is Type.OK for op in reads)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    wanted = pa.array([int(f) for f in WANTED], pa.int8())
    for batch in batches(path, COLUMNS):
        yield from batch.filter(pc.is_in(batch["f"], value_set=wanted)).to_pylist()


def _operation(begun: Mapping[str, Any], ended: Mapping[str, Any] | None) -> MetadataOp:
    f = F(begun["f"])
    offset = begun["offset"]
    if f in ANSWERED:
        offset = ended["offset"] if ended else None
    return MetadataOp(
        f,
        begun["process"],
        begun["key"],
        begun["t"],
        ended["t"] if ended else None,
        Type(ended["type"]) if ended else Type.INFO,
        NONE if offset is None else offset,
        NONE if begun["value"] is None else begun["value"],
    )
