"""Changes of metadata, as clients saw them: few rows, of which each is an operation of one process.

Only these rows are read from the operations, whatever else a run did. What never completed is
INFO, as everywhere: nobody knows whether it happened, or when it will.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers._spark.spark_stages import once
from harness.history.faults_and_events import FaultInterval, faults_at
from harness.history.reader import History, batches
from harness.judge.verdict import Finding, Reason
from harness.operation import NONE, F, Type

DEMAND = "keeps-metadata"
NO_OTHER: Mapping[str, str] = {}  # demands by code
SAMPLE = 20
WANTED = (F.COMMIT, F.CREATE, F.DELETE, F.SEE, F.RESET, F.QUERY, F.LOCK, F.UNLOCK, F.JOIN, F.LEAVE)
ANSWERED = (F.SEE, F.QUERY, F.LOCK)  # their offset is what they were told
COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "offset")


@dataclass(frozen=True)
class Did:
    """One operation. Times in ns since the run's start; `ended` of one that never did: None."""

    f: F
    process: int
    key: int
    begun: int
    ended: int | None
    type: Type
    offset: int
    value: int = NONE  # of a topic: which of those that have this key


@dataclass(frozen=True)
class Breach:
    """A law that was broken: which, when somebody saw it, of what, in words; `by`: how far."""

    code: str
    t: int
    process: int
    key: int
    why: str
    by: int = 1
    value: int = NONE


@dataclass(frozen=True)
class Changes:
    """Every operation, by key and in the order of the invocations."""

    of_key: Mapping[int, Sequence[Did]]
    names: Mapping[str, Any]
    faults: tuple[FaultInterval, ...]
    whole: bool = True  # no operation that was recorded is missing

    def of(self, *kinds: F) -> Mapping[int, Sequence[Did]]:
        """The keys that had such operations, with these alone."""
        mine = {key: [did for did in row if did.f in kinds] for key, row in self.of_key.items()}
        return {key: row for key, row in mine.items() if row}

    def name(self, key: int) -> str:
        keys = self.names.get("keys", ())
        return str(keys[key]) if 0 <= key < len(keys) else f"key {key}"

    def judged(
        self,
        breaches: Sequence[Breach],
        meanings: Mapping[str, str],
        demands: Mapping[str, str] = NO_OTHER,
    ) -> tuple[list[Finding], list[Reason]]:
        """A finding for each code that was breached. Where an operation may be missing, the change
        that explains a breach may be the one, so that they are a reason."""
        if breaches and not self.whole:
            first = breaches[0]
            what = "1 contradiction" if len(breaches) == 1 else f"{len(breaches):,} contradictions"
            why = (
                f"{what} may come from gaps in the record; first: {self.name(first.key)}: "
                f"{first.why}; run it again"
            )
            return [], [Reason("OPERATIONS_UNRECORDED", why)]
        told = (
            self._finding(code, breaches, meaning, demands.get(code, DEMAND))
            for code, meaning in meanings.items()
        )
        return [finding for some in told for finding in some], []

    def _finding(
        self, code: str, breaches: Iterable[Breach], meaning: str, demand: str
    ) -> Iterator[Finding]:
        """Of this code, if there is any such breach. `meaning`: with a place for their number."""
        mine = sorted((b for b in breaches if b.code == code), key=lambda b: (b.t, b.key))
        if not mine:
            return
        times = "once" if len(mine) == 1 else f"{len(mine):,} times"
        faults = {number for breach in mine for number in self._faults(breach.t)}
        evidence = tuple(self._told(breach) for breach in mine[:SAMPLE])
        message = f"{meaning.format(times=times)}; first: {self.name(mine[0].key)}: {mine[0].why}"
        spans = tuple((breach.t, breach.t) for breach in mine)
        yield Finding(
            code, len(mine), message, demand, evidence, tuple(sorted(faults)), spans=spans
        )

    def _told(self, breach: Breach) -> Mapping[str, Any]:
        who = str(self.names.get("processes", {}).get(str(breach.process), breach.process))
        at_s = round(breach.t / 1e9, 3)
        told = {"what": self.name(breach.key), "seen_s": at_s, "by": who, "why": breach.why}
        return told if breach.value == NONE else {**told, "value": breach.value}

    def _faults(self, t: int) -> tuple[int, ...]:
        """Those in force when it was seen, else the last one before."""
        now = faults_at(self.faults, t)
        before = [f for f in self.faults if f.begin is not None and f.begin <= t]
        return now or tuple(f.id for f in before[-1:])


def changes(history: History) -> Changes:
    """Read once, however many ask."""
    found: Changes = once(history, "changes", lambda: _changes(history))
    return found


def unseen(history: History, of_key: Mapping[Any, Sequence[Did]], f: F, what: str) -> list[Reason]:
    """A reason when something was changed, and not looked at in the final phase. A look may be
    stamped early, where clocks may be off; then it counts if nothing was changed after it."""
    since = history.phases().get("drain")
    early = max(map(history.spread_ns, history.writers("ops")), default=0)
    blind = [
        key for key, row in of_key.items() if since is None or not _looked_at(row, f, since - early)
    ]
    if not blind:
        return []
    why = f"{len(blind)} of {len(of_key)} {what} were not looked at in the final phase"
    return [Reason("NO_FINAL_LOOK", f"{why}; let the run finish, or raise recover_within_s")]


def _looked_at(row: Sequence[Did], f: F, since: int) -> bool:
    """Is there an answer to a look that began then or later, after the last change?"""
    looks = takewhile(lambda did: did.f is f and did.begun >= since, reversed(row))
    return any(did.type is Type.OK for did in looks)


def _changes(history: History) -> Changes:
    begun: dict[int, Mapping[str, Any]] = {}
    ended: dict[int, Mapping[str, Any]] = {}
    for path in history.files("ops"):
        for row in _rows(path):
            (begun if row["type"] == Type.INVOKE else ended)[row["op"]] = row
    of_key: dict[int, list[Did]] = {}
    for op, row in begun.items():
        of_key.setdefault(row["key"], []).append(_did(row, ended.get(op)))
    ordered = {
        key: tuple(sorted(row, key=lambda did: (did.begun, did.process)))
        for key, row in sorted(of_key.items())
    }
    return Changes(ordered, history.names, history.faults, "ops" not in history.gaps)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    wanted = pa.array([int(f) for f in WANTED], pa.int8())
    for batch in batches(path, COLUMNS):
        yield from batch.filter(pc.is_in(batch["f"], value_set=wanted)).to_pylist()


def _did(begun: Mapping[str, Any], ended: Mapping[str, Any] | None) -> Did:
    f = F(begun["f"])
    offset = begun["offset"]
    if f in ANSWERED:
        offset = ended["offset"] if ended else None
    return Did(
        f,
        begun["process"],
        begun["key"],
        begun["t"],
        ended["t"] if ended else None,
        Type(ended["type"]) if ended else Type.INFO,
        NONE if offset is None else offset,
        NONE if begun["value"] is None else begun["value"],
    )
