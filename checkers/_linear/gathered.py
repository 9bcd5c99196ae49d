"""From a history's files to what is wrong with its objects: counts, and a few witnesses in words.

All keys of a bucket are judged at once (`buckets`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Ints
from checkers._linear import fifo, kinds, sets
from checkers._linear.batch import ABSENT
from checkers._linear.buckets import by_bucket
from checkers._linear.kinds import Kind
from checkers._linear.leases import without_leases
from checkers._linear.objects import COLUMNS, Objects, Rows, columns_of, objects, ours
from checkers._linear.wrongs import Wrongs, spoilt
from checkers._run.evidence import SAMPLE, rows_kept, seconds
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Evidence = dict[str, Any]
SPAN = "span"  # of evidence: from the first of its operations to the last, if any is known


@dataclass
class Found:
    """What is wrong, by kind and code, and how many keys of each kind there were."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    samples: dict[tuple[str, str], list[Evidence]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, list[int]] = field(default_factory=dict)
    unread: int = 0
    operations: int = 0


def gathered(history: History, spark: "SparkSession | None", *, ordered: bool = True) -> Found:
    """What is wrong with all objects of a history. `ordered`: queues are first in, first out."""
    run, most = history.run, rows_kept(history.faults)
    columns = (*COLUMNS, "arg")
    lines = by_bucket(history, spark, columns, _selected, lambda: _Judging(run, ordered, most).told)
    return _added_up(lines, most)


def _selected(batch: pa.RecordBatch, place: int) -> Rows:
    return ours(columns_of(batch, (*COLUMNS, "arg")))


class _Judging:
    """What one task knows while it judges one bucket after the other."""

    def __init__(self, run: RunDir, ordered: bool, most: int) -> None:
        self._most = most
        self._names: Sequence[str] = run.names().get("values", ())
        self._ordered = ordered
        self._began = run.load_began()

    def told(self, rows: Rows) -> dict[str, Any]:
        rows = without_leases(rows)
        return told(rows, self._names, ordered=self._ordered, most=self._most, began=self._began)


def told(
    rows: Rows,
    names: Sequence[str] = (),
    *,
    ordered: bool = True,
    most: int = SAMPLE,
    began: int = 0,
) -> dict[str, Any]:
    """What is wrong with the objects of some rows: numbers, and witnesses of the first of each, so
    many at `most`. `names`: of the values, when they have any. `began`: when the load did, from
    which the words of witnesses count."""
    table = objects(rows)
    verdicts = kinds.judge(table, ordered=ordered)
    counts: dict[tuple[Kind, str], list[Wrongs]] = {}
    for kind, wrong in verdicts.wrongs:
        counts.setdefault((kind, wrong.code), []).append(wrong)
    words = _Words(table, rows, [w for _, w in verdicts.wrongs], names, most, began)
    every = list(Kind)
    return {
        "operations": len(table.operations),
        "keys": {k: int((verdicts.kind == kinds.number(k)).sum()) for k in every},
        "unread": _unread(table, verdicts),
        "unknown": {
            k: table.keys[verdicts.unknown & (verdicts.kind == kinds.number(k))].tolist()
            for k in every
        },
        "wrong": [
            [kind, code, sum(len(w.key) for w in some), list(words.samples(some))]
            for (kind, code), some in counts.items()
        ],
    }


def _unread(table: Objects, verdicts: kinds.Verdicts) -> int:
    """How many hold something that was acknowledged, not seen, and not looked for afterwards."""
    operations = table.operations
    added = operations.of(F.ADD)
    reads = operations.of(F.LIST, F.COUNT)
    unread = np.setdiff1d(operations.key[added], operations.key[reads])
    sound = ~(verdicts.unknown | spoilt(len(table.keys), [wrong for _, wrong in verdicts.wrongs]))
    wholes = table.only((verdicts.kind == kinds.number(Kind.SET)) & sound)
    queues = table.only((verdicts.kind == kinds.number(Kind.QUEUE)) & sound)
    unsought = np.concatenate([sets.unsought(wholes), fifo.unsought(queues)])
    return len(np.union1d(unread, operations.key[unsought]))


def _shown(wrong: Wrongs, most: int) -> Ints:
    """The first rows, in the order of keys and operations."""
    return np.lexsort((wrong.ops[:, 0], wrong.key))[:most]


class _Words:
    """The operations of witnesses, as evidence says them."""

    def __init__(
        self,
        table: Objects,
        rows: Rows,
        found: Iterable[Wrongs],
        names: Sequence[str],
        most: int,
        began: int,
    ) -> None:
        self._table, self._names, self._most, self._began = table, names, most, began
        places = [wrong.ops[_shown(wrong, most)].ravel() for wrong in found]
        ops = table.operations.op[np.unique(np.concatenate([np.empty(0, np.int64), *places]))]
        mine = np.isin(rows["op"], ops)
        self._span: dict[int, tuple[int, int]] = {}
        for op, t, kind in zip(*(rows[n][mine].tolist() for n in ("op", "t", "type")), strict=True):
            first, last = self._span.get(op, (t, -1))
            ended = t if kind in (Type.OK, Type.FAIL) else -1
            self._span[op] = (min(first, t), max(last, ended))

    def samples(self, found: Iterable[Wrongs]) -> Iterator[Evidence]:
        for wrong in found:
            for at in _shown(wrong, self._most).tolist():
                yield self._row(wrong, at)

    def _row(self, wrong: Wrongs, at: int) -> Evidence:
        operations = self._table.operations
        places = [place for place in wrong.ops[at].tolist() if place >= 0]
        told: Evidence = {"key": int(self._table.keys[wrong.key[at]])}
        value, about = ABSENT, ""
        if places:
            value = int(operations.value[places[0]])
            told |= {"op": int(operations.op[places[0]])}
        if wrong.value is not None:
            value = int(wrong.value[at])
            about = f"element {self._value(value)}: "
        told |= {} if value == ABSENT else {"value": value}
        said = "; ".join(self._said(p) for p in dict.fromkeys(places))
        times = [t for p in places for t in self._span[int(operations.op[p])] if t >= 0]
        span = [min(times), max(times)] if times else []
        return told | {"explanation": f"{about}{said}", SPAN: span}

    def _said(self, place: int) -> str:
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


def _added_up(lines: Iterable[dict[str, Any]], most: int) -> Found:
    found = Found()
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
