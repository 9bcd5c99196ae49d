"""The evidence: what the history says about the few messages that a finding shows.

Counting needs no rows, so the survey keeps none. Only when something is wrong are the files read
again, once, for the stories of the sampled messages, and for when the lost ones were acknowledged.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import OFFSET_BITS, Ints, Members, among
from checkers._messages.message_census import SAMPLE, Survey
from checkers._spark.spark_stages import Batches, Unit, arrays, chosen, collected, once, units_of
from harness.history.faults_and_events import FaultInterval, faults_at
from harness.history.reader import History
from harness.operation import F, Type, producer_of, sequence_of
from harness.run.broker_sets import sets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = ("t", "process", "type", "f", "key", "value", "offset", "epoch", "node", "attempts")
LOOKED_AT = ("type", "f", "value")  # to tell which rows are shown
ROWS_OF_ONE = 200  # a message delivered more often than that tells nothing new
LINES = pa.schema([("line", pa.string())])


@dataclass(frozen=True)
class LostAcks:
    """When the lost messages were acknowledged; times in ns."""

    first: int = 0
    last: int = 0
    by_fault: Mapping[int, int] = field(default_factory=dict)  # acknowledged while it lasted


@dataclass(frozen=True)
class Witness:
    """Rows of the history by message, and what an evidence row needs to name things."""

    rows: Mapping[int, Sequence[Mapping[str, int]]]
    lost: LostAcks
    earliest_lost: tuple[int, ...]  # values, in the order of their acknowledgement
    faults: tuple[FaultInterval, ...]
    names: Mapping[str, Any]

    def told(self, value: int) -> dict[str, Any]:
        """One message's story, flat: who sent it, how that ended, and who saw it where."""
        rows = self.rows.get(value, ())
        row: dict[str, Any] = {
            "value": value,
            "producer": producer_of(value),
            "sequence": sequence_of(value),
        }
        if rows:
            row["queue"] = self.key(next((r["key"] for r in rows if r["key"] >= 0), -1))
        return row | self._sent(rows) | self._seen(rows)

    def key(self, number: int) -> str:
        return _named(self.names.get("keys", ()), number)

    def node(self, number: int) -> str:
        return _named(self.names.get("nodes", ()), number)

    def process(self, number: int) -> str:
        return str(self.names.get("processes", {}).get(str(number), f"process {number}"))

    def faults_at(self, t: int) -> tuple[int, ...]:
        return faults_at(self.faults, t)

    def _sent(self, rows: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for row in (r for r in rows if r["f"] == F.SEND):
            if row["type"] == Type.INVOKE:
                told["sent_s"] = seconds(row["t"])
                continue
            told |= {"outcome": Type(row["type"]).name.lower(), "attempts": row["attempts"]}
            if row["type"] == Type.OK:
                told |= {"acked_s": seconds(row["t"]), "offset": row["offset"]}
                told |= {"node": self.node(row["node"]), "epoch": row["epoch"]}
                told["faults"] = " ".join(str(number) for number in self.faults_at(row["t"]))
        return told

    def _seen(self, rows: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        seen = [r for r in rows if r["f"] in (F.POLL, F.READ) and r["type"] == Type.OK]
        if not seen:
            return {}
        places = sorted({(r["key"], r["offset"]) for r in seen})
        return {
            "seen_s": seconds(seen[0]["t"]),
            "seen_by": self.process(seen[0]["process"]),
            "seen_at": ", ".join(f"{self.key(key)}@{offset}" for key, offset in places),
            "times_seen": len(seen),
        }


def witness(history: History, found: Survey, spark: "SparkSession | None") -> Witness:
    """The stories of everything that the survey sampled: read once, however many ask."""
    return once(history, "witness", lambda: _witness(history, found, spark))


def _witness(history: History, found: Survey, spark: "SparkSession | None") -> Witness:
    faults = history.faults
    spans = [(f.id, f.begin, f.healed) for f in faults if f.begin is not None]
    wanted = np.array(sorted({v for some in found.samples.values() for v in some}), np.int64)
    units = units_of(history, "ops")
    scan = scan_with(wanted, found.lost, spans)
    table = collected(spark, units, scan, LINES)
    lines = [json.loads(line) for line in sorted(table.column("line").to_pylist())]
    return gathered(lines, faults, history.names)


def scan_with(
    wanted: Ints, lost: Members, spans: Sequence[tuple[int, int, int | None]]
) -> Callable[[Unit], Batches]:
    def scan(unit: Unit) -> Batches:
        for rows in chosen(unit[1], LOOKED_AT, SHOWN, lambda rows: _about(rows, wanted, lost)):
            lines = lines_of(rows, wanted, lost, spans)
            yield pa.record_batch([[json.dumps(line) for line in lines]], schema=LINES)

    return scan


def _about(rows: Mapping[str, Ints], wanted: Ints, lost: Members) -> Ints:
    """Rows of wanted messages, and acknowledgements of lost ones."""
    acks = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] == F.SEND))
    about = among(rows["value"], wanted)
    return np.union1d(about, acks[lost.holds(rows["value"][acks])])


def lines_of(
    rows: Mapping[str, Ints],
    wanted: Ints,
    lost: Members,
    spans: Sequence[tuple[int, int, int | None]],
) -> list[dict[str, Any]]:
    """What these rows say."""
    lines: list[dict[str, Any]] = []
    acks = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] == F.SEND))
    acks = acks[lost.holds(rows["value"][acks])]
    if len(acks):
        t = rows["t"][acks]
        inside = {f: int(((t >= a) & (t <= (b or t.max()))).sum()) for f, a, b in spans}
        earliest = acks[np.argsort(t, kind="stable")[:SAMPLE]]
        lines.append({"lost": [int(t.min()), int(t.max())], "inside": list(inside.items())})
        lines += [{"first": _row(rows, at)} for at in earliest.tolist()]
    return lines + [{"row": _row(rows, at)} for at in among(rows["value"], wanted).tolist()]


def _row(rows: Mapping[str, Ints], at: int) -> dict[str, int]:
    return {name: int(array[at]) for name, array in rows.items()}


def gathered(
    lines: Iterable[Mapping[str, Any]], faults: tuple[FaultInterval, ...], names: Mapping[str, Any]
) -> Witness:
    rows: dict[int, list[Mapping[str, int]]] = {}
    spans: list[list[int]] = []
    first: list[Mapping[str, int]] = []
    by_fault: Counter[int] = Counter()
    for line in lines:
        if "lost" in line:
            spans.append(line["lost"])
            by_fault.update(dict(map(tuple, line["inside"])))
        elif "first" in line:
            first.append(line["first"])
        else:
            rows.setdefault(line["row"]["value"], []).append(line["row"])
    earliest = sorted(first, key=lambda row: (row["t"], row["value"]))[:SAMPLE]
    for row in earliest:
        rows.setdefault(row["value"], [row])
    return Witness(
        rows={value: sorted(some, key=_order)[:ROWS_OF_ONE] for value, some in rows.items()},
        lost=LostAcks(
            min((span[0] for span in spans), default=0),
            max((span[1] for span in spans), default=0),
            {number: count for number, count in sorted(by_fault.items()) if count},
        ),
        earliest_lost=tuple(row["value"] for row in earliest),
        faults=faults,
        names=names,
    )


class OpRow(NamedTuple):
    """One row of the history, about some message or some offset of a queue."""

    t: int
    type: int
    f: int
    key: int
    value: int
    offset: int
    epoch: int
    arg: int

    @property
    def place(self) -> tuple[int, int]:
        return self.key, self.offset


def rows_of(
    history: History,
    spark: "SparkSession | None",
    values: Sequence[int] = (),
    places: Sequence[tuple[int, int]] = (),
) -> list[OpRow]:
    """Return the rows about some messages, and about what clients were told to be at some places
    (key and offset), in order of time."""
    of_value = np.array(sorted(set(values)), np.int64)
    of_place = np.array(sorted({key << OFFSET_BITS | offset for key, offset in places}), np.int64)

    def scan(unit: Unit) -> Batches:
        for rows in arrays(unit[1], OpRow._fields):
            place = (rows["key"] << OFFSET_BITS) | rows["offset"]
            known = (rows["key"] >= 0) & (rows["offset"] >= 0) & (rows["value"] >= 0)
            at = among(np.where(known, place, -1), of_place)
            at = np.union1d(at, among(rows["value"], of_value))
            if len(at):
                table = np.stack([rows[name][at] for name in OpRow._fields], 1).tolist()
                yield pa.record_batch([[json.dumps(table)]], schema=LINES)

    if not len(of_value) and not len(of_place):
        return []
    table = collected(spark, units_of(history, "ops"), scan, LINES)
    return sorted(OpRow(*r) for line in table.column("line").to_pylist() for r in json.loads(line))


def grouped(rows: Iterable[OpRow], of: Callable[[OpRow], Any]) -> dict[Any, list[OpRow]]:
    """Return rows by something of theirs."""
    found: dict[Any, list[OpRow]] = {}
    for row in rows:
        found.setdefault(of(row), []).append(row)
    return found


def turn(rows: Iterable[OpRow], what: Callable[[OpRow], Any]) -> tuple[int, int] | None:
    """Return the times of the first row that says something and of the first that contradicts it:
    from the earliest to the latest operation that a contradiction needs. None says nothing."""
    first: OpRow | None = None
    for row in rows:
        if what(row) is None:
            continue
        first = first or row
        if what(row) != what(first):
            return first.t, row.t
    return None


def dated(
    names: Mapping[str, Any], spans: Iterable[tuple[Iterable[int], tuple[int, int] | None]]
) -> dict[str, Any]:
    """Return the times of a finding's rows, each with the broker set of the keys that it is about,
    as a `Finding` has them; rows without times are left out."""
    of_key = sets_of(names, range(len(names.get("keys", ()))))
    known = [(keys, span) for keys, span in spans if span]
    sets = [{of_key[key] for key in keys if 0 <= key < len(of_key)} for keys, _ in known]
    return {
        "spans": tuple(span for _, span in known),
        "broker_sets": tuple(some.pop() if len(some) == 1 else "" for some in sets),
    }


def is_told(row: OpRow, committed: Collection[int] = ()) -> bool:
    """Whether it tells for certain what stands at an offset. `committed`: messages of unknown
    outcome that were seen."""
    certain = row.type == Type.OK or (row.type == Type.INFO and row.value in committed)
    return certain and row.value >= 0 and row.key >= 0 and row.offset >= 0


def _order(row: Mapping[str, int]) -> tuple[int, ...]:
    return (row["t"], *(row[name] for name in SHOWN))


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else "?"


def seconds(t: int) -> float:
    return round(t / 1e9, 6)
