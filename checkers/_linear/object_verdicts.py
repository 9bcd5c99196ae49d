"""From a history's files to the violations of its objects: counts, and a few witnesses as text.

All keys of a bucket are judged at once (`buckets`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Ints
from checkers._linear import fifo, object_kinds, sets
from checkers._linear.batch import ABSENT
from checkers._linear.buckets import map_buckets
from checkers._linear.leases import without_leases
from checkers._linear.object_kinds import ObjectKind
from checkers._linear.objects import COLUMNS, Objects, Rows, columns_of, encode_objects, object_rows
from checkers._linear.violations import Violations, keys_with_violations
from checkers._run.evidence import SAMPLE, rows_kept, seconds
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Evidence = dict[str, Any]
SPAN = "span"  # a column of evidence: from the first of its operations to the last, if known


@dataclass
class ObjectFindings:
    """Violations by kind and code, and the number of keys of each kind."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    samples: dict[tuple[str, str], list[Evidence]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, list[int]] = field(default_factory=dict)
    unread: int = 0
    operations: int = 0


def judge_objects(
    history: History, spark: "SparkSession | None", *, ordered: bool = True
) -> ObjectFindings:
    """Return the violations of all objects of a history. `ordered`: queues are first in, first
    out."""
    run, most = history.run, rows_kept(history.faults)
    columns = (*COLUMNS, "arg")
    lines = map_buckets(
        history, spark, columns, _select_rows, lambda: _ObjectJudge(run, ordered, most).judge_bucket
    )
    return _merge(lines, most)


def _select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    return object_rows(columns_of(batch, (*COLUMNS, "arg")))


class _ObjectJudge:
    """State of one task that judges one bucket after another."""

    def __init__(self, run: RunDir, ordered: bool, most: int) -> None:
        self._most = most
        self._names: Sequence[str] = run.names().get("values", ())
        self._ordered = ordered
        self._began = run.load_began()

    def judge_bucket(self, rows: Rows) -> dict[str, Any]:
        rows = without_leases(rows)
        return bucket_verdicts(
            rows, self._names, ordered=self._ordered, samples=self._most, began=self._began
        )


def bucket_verdicts(
    rows: Rows,
    names: Sequence[str] = (),
    *,
    ordered: bool = True,
    samples: int = SAMPLE,
    began: int = 0,
) -> dict[str, Any]:
    """Return the violations in some rows: counts, and up to `samples` witnesses of each kind and
    code. `names`: texts of values, if they have any. `began`: the start of the load, from which
    times count."""
    table = encode_objects(rows)
    verdicts = object_kinds.judge_by_kind(table, ordered=ordered)
    counts: dict[tuple[ObjectKind, str], list[Violations]] = {}
    for kind, wrong in verdicts.violations:
        counts.setdefault((kind, wrong.code), []).append(wrong)
    words = _EvidenceWriter(table, rows, [w for _, w in verdicts.violations], names, samples, began)
    every = list(ObjectKind)
    return {
        "operations": len(table.operations),
        "keys": {k: int((verdicts.kind == object_kinds.kind_number(k)).sum()) for k in every},
        "unread": _unread(table, verdicts),
        "unknown": {
            k: table.keys[
                verdicts.unknown & (verdicts.kind == object_kinds.kind_number(k))
            ].tolist()
            for k in every
        },
        "wrong": [
            [kind, code, sum(len(w.key) for w in some), list(words.samples(some))]
            for (kind, code), some in counts.items()
        ],
    }


def _unread(table: Objects, verdicts: object_kinds.KindVerdicts) -> int:
    """Return the number of keys with an acknowledged element that no read could have shown."""
    operations = table.operations
    added = operations.of(F.ADD)
    reads = operations.of(F.LIST, F.COUNT)
    unread = np.setdiff1d(operations.key[added], operations.key[reads])
    sound = ~(
        verdicts.unknown
        | keys_with_violations(len(table.keys), [wrong for _, wrong in verdicts.violations])
    )
    wholes = table.only((verdicts.kind == object_kinds.kind_number(ObjectKind.SET)) & sound)
    queues = table.only((verdicts.kind == object_kinds.kind_number(ObjectKind.QUEUE)) & sound)
    unsought = np.concatenate([sets.unverified_elements(wholes), fifo.unverified_elements(queues)])
    return len(np.union1d(unread, operations.key[unsought]))


def _first_rows(wrong: Violations, most: int) -> Ints:
    """Return the first rows, in the order of keys and operations."""
    return np.lexsort((wrong.ops[:, 0], wrong.key))[:most]


class _EvidenceWriter:
    """Writes the operations of witnesses as evidence."""

    def __init__(
        self,
        table: Objects,
        rows: Rows,
        found: Iterable[Violations],
        names: Sequence[str],
        most: int,
        began: int,
    ) -> None:
        self._table, self._names, self._most, self._began = table, names, most, began
        places = [wrong.ops[_first_rows(wrong, most)].ravel() for wrong in found]
        ops = table.operations.op[np.unique(np.concatenate([np.empty(0, np.int64), *places]))]
        mine = np.isin(rows["op"], ops)
        self._span: dict[int, tuple[int, int]] = {}
        for op, t, kind in zip(*(rows[n][mine].tolist() for n in ("op", "t", "type")), strict=True):
            first, last = self._span.get(op, (t, -1))
            ended = t if kind in (Type.OK, Type.FAIL) else -1
            self._span[op] = (min(first, t), max(last, ended))

    def samples(self, found: Iterable[Violations]) -> Iterator[Evidence]:
        for wrong in found:
            for at in _first_rows(wrong, self._most).tolist():
                yield self._row(wrong, at)

    def _row(self, wrong: Violations, at: int) -> Evidence:
        operations = self._table.operations
        places = [place for place in wrong.ops[at].tolist() if place >= 0]
        evidence: Evidence = {"key": int(self._table.keys[wrong.key[at]])}
        value, about = ABSENT, ""
        if places:
            value = int(operations.value[places[0]])
            evidence |= {"op": int(operations.op[places[0]])}
        if wrong.value is not None:
            value = int(wrong.value[at])
            about = f"element {self._value(value)}: "
        evidence |= {} if value == ABSENT else {"value": value}
        description = "; ".join(self._describe(p) for p in dict.fromkeys(places))
        times = [t for p in places for t in self._span[int(operations.op[p])] if t >= 0]
        span = [min(times), max(times)] if times else []
        evidence |= {"at_s": round(span[1] / 1e9, 6)} if span else {}
        return evidence | {"explanation": f"{about}{description}", SPAN: span}

    def _describe(self, place: int) -> str:
        o = self._table.operations
        f, op, process = F(int(o.f[place])), int(o.op[place]), int(o.process[place])
        begin, end = self._span[op]
        until = f"to {seconds(end - self._began)} s" if end >= 0 else "on, outcome unknown"
        when = f"from {seconds(begin - self._began)} s {until}"
        return f"{f.name.lower()}{self._what(place, f)} (process {process}, op {op}, {when})"

    def _what(self, place: int, f: F) -> str:
        o, parts = self._table.operations, self._table.elements
        if f is F.LIST:
            return f" of {int((parts.list == place).sum())} elements"
        value, offset = int(o.value[place]), int(o.offset[place])
        if value == ABSENT and f is F.DEQUEUE and self._span[int(o.op[place])][1] >= 0:
            return ' "empty"'
        number = "" if value == ABSENT else f" {self._value(value)}"
        extra = "token" if f is F.ACQUIRE else "at offset"
        return number + ("" if offset == ABSENT else f", {extra} {offset}")

    def _value(self, value: int) -> str:
        return self._names[value] if 0 <= value < len(self._names) else str(value)


def _merge(lines: Iterable[dict[str, Any]], most: int) -> ObjectFindings:
    found = ObjectFindings()
    for line in lines:
        found.operations += line["operations"]
        found.unread += line["unread"]
        for kind, count in line["keys"].items():
            found.keys[kind] = found.keys.get(kind, 0) + count
        for kind, keys in line["unknown"].items():
            found.unknown.setdefault(kind, []).extend(keys)
        for kind, code, count, samples in line["wrong"]:
            name = (kind, code)
            found.counts[name] = found.counts.get(name, 0) + count
            found.samples.setdefault(name, []).extend(samples)
    for rows in found.samples.values():
        rows.sort(key=lambda row: (row["key"], row.get("op", -1)))
        del rows[most:]
    return found
