"""The evidence: what the history says about the few messages that a finding shows.

Counting needs no rows, so the census keeps none. Only when something is wrong are the files read
again, once, for the stories of the messages that findings show, and for the times at which the lost
ones were acknowledged.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from checkers._messages.message_rows import OFFSET_BITS, Ints, among, in_range
from checkers._messages.messages import Members, MessageCensus, MessageClass
from checkers._messages.one_reading import one_reading
from checkers._run.evidence import SAMPLE, name_of, seconds
from checkers._spark.spark_stages import (
    INT,
    Batches,
    Unit,
    chosen,
    collected,
    per_history,
    row_type,
    units_of,
)
from harness.history.faults_and_events import FaultInterval, faults_at
from harness.history.reader import History
from harness.operation import F, Type, producer_of, sequence_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

K = TypeVar("K", bound=Hashable)

EXAMINED = ("type", "f", "value")  # columns that select the rows of a story
PLACE = ("key", "offset", "value")  # ... and those that say what is at some places
MAX_ROWS = 200  # of a message; further deliveries add nothing


class StoryRow(NamedTuple):
    """One row of the history about a message; the order is that of its story."""

    t: int
    process: int
    type: int
    f: int
    key: int
    value: int
    offset: int
    epoch: int
    node: int
    attempts: int


class OpRow(NamedTuple):
    """One row of the history about a message or an offset of a queue."""

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


class FaultCount(NamedTuple):
    """How many lost messages were acknowledged during a fault."""

    fault: int
    messages: int


FINDINGS = pa.schema(
    [
        ("rows", pa.list_(row_type(StoryRow))),
        ("first", INT),  # the times of the first and the last acknowledgement of a lost message
        ("last", INT),
        ("during", pa.list_(row_type(FaultCount))),
        ("earliest", pa.list_(row_type(StoryRow))),  # the first such acknowledgements
        ("placed", pa.list_(row_type(OpRow))),  # rows that say what is at some places
    ]
)


@dataclass(frozen=True)
class WitnessRequest:
    """What to look for.

    values  messages, sorted, whose rows are needed
    places  sorted; the rows that say what is there are needed, too
    lost    messages whose acknowledgements are dated
    faults  those that began
    sample  how many of the first acknowledgements are kept
    """

    values: Ints
    places: Ints  # key << OFFSET_BITS | offset
    lost: Members
    faults: Sequence[FaultInterval]
    sample: int

    def scan(self, unit: Unit) -> Batches:
        examined = {*EXAMINED, *(PLACE if len(self.places) else ())}
        columns = {*StoryRow._fields, *OpRow._fields}
        for rows in chosen(unit[1], sorted(examined), sorted(columns), self._about):
            found = {"rows": _rows(StoryRow, rows, among(rows["value"], self.values))}
            found["placed"] = _rows(OpRow, rows, _placed(rows, self.places))
            yield pa.RecordBatch.from_pylist([found | self._lost_acks(rows)], schema=FINDINGS)

    def _about(self, rows: Mapping[str, Ints]) -> Ints:
        """Return the rows of requested messages, and the acknowledgements of lost ones."""
        wanted = np.union1d(self._acks(rows), among(rows["value"], self.values))
        return np.union1d(wanted, _placed(rows, self.places)) if len(self.places) else wanted

    def _acks(self, rows: Mapping[str, Ints]) -> Ints:
        at = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] == F.SEND))
        acks: Ints = at[self.lost.holds(rows["value"][at])]
        return acks

    def _lost_acks(self, rows: Mapping[str, Ints]) -> dict[str, Any]:
        acks = self._acks(rows)
        if not len(acks):
            return {}
        t = rows["t"][acks]
        last = int(t.max())
        during = [
            {
                "fault": f.id,
                "messages": int(((t >= (f.begin or 0)) & (t <= (f.healed or last))).sum()),
            }
            for f in self.faults
        ]
        earliest = acks[np.argsort(t, kind="stable")[: self.sample]]
        times = {"first": int(t.min()), "last": last}
        return {**times, "during": during, "earliest": _rows(StoryRow, rows, earliest)}


def _rows(kind: type[Any], rows: Mapping[str, Ints], at: Ints) -> list[dict[str, int]]:
    columns = (rows[name][at].tolist() for name in kind._fields)
    return [dict(zip(kind._fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _placed(rows: Mapping[str, Ints], places: Ints) -> Ints:
    """Return the rows that say what is at some places, which are sorted."""
    key, offset, value = rows["key"].astype(np.int64), rows["offset"], rows["value"]
    at = among((key << OFFSET_BITS) | offset, places)
    return at[(key[at] >= 0) & in_range(offset[at]) & (value[at] >= 0)]


@dataclass(frozen=True)
class LostAcks:
    """When the lost messages were acknowledged; times in ns."""

    first: int = 0
    last: int = 0
    by_fault: Mapping[int, int] = field(default_factory=dict)  # acknowledged during it


@dataclass(frozen=True)
class Witness:
    """The stories of messages, and when lost messages were acknowledged.

    shown     the stories that the findings of a class of messages show, as evidence
    unread    by number of the consumer group, those of messages that it did not receive
    stories   by value: who sent it, how that ended, and who received it where
    places    by value: the first place that a row names
    earliest  values of lost messages, in the order of their acknowledgement
    placed    by key and offset of some places: the rows that say what is there, in order of time
    """

    shown: Mapping[MessageClass, tuple[dict[str, Any], ...]]
    unread: Sequence[tuple[dict[str, Any], ...]]
    stories: Mapping[int, dict[str, Any]]
    places: Mapping[int, tuple[int, int]]
    lost: LostAcks
    earliest: tuple[int, ...]
    placed: Mapping[tuple[int, int], Sequence[OpRow]]
    faults: tuple[FaultInterval, ...]


@per_history
def witness(history: History, census: MessageCensus, spark: "SparkSession | None") -> Witness:
    """Return the stories of all messages that findings show."""
    faults = [fault for fault in history.faults if fault.begin is not None]
    wanted = {value for some in census.shown.values() for value in some}
    wanted |= {v for group in census.groups for v in group.examples}
    both = one_reading(history, spark, census.scope)  # then the log's conflicts are known, too
    placed: dict[tuple[int, int], list[OpRow]]
    placed = {at: [] for at in (both.log.conflicts[:SAMPLE] if both else ())}
    values, places = np.array(sorted(wanted), np.int64), _numbers_of(placed)
    request = WitnessRequest(values, places, census.lost, faults, SAMPLE)
    found = collected(spark, units_of(history, "ops"), request.scan, FINDINGS).to_pylist()
    rows: dict[int, list[StoryRow]] = {}
    earliest: list[StoryRow] = []
    during: Counter[int] = Counter()
    for piece in found:
        for row in piece["rows"] or ():
            rows.setdefault(row["value"], []).append(StoryRow(**row))
        earliest += [StoryRow(**row) for row in piece["earliest"] or ()]
        during.update({row["fault"]: row["messages"] for row in piece["during"] or ()})
        for at in (OpRow(**row) for row in piece["placed"] or ()):
            placed[at.place].append(at)
    earliest = sorted(earliest, key=lambda row: (row.t, row.value, row))[:SAMPLE]
    for first in earliest:
        rows.setdefault(first.value, [first])
    ordered = {value: sorted(some)[:MAX_ROWS] for value, some in rows.items()}
    dated = [piece for piece in found if piece["first"] is not None]
    stories = {
        value: _story(value, ordered.get(value, ()), history.names, history.faults)
        for value in {*wanted, *ordered}
    }
    return Witness(
        shown={name: tuple(stories[v] for v in some) for name, some in census.shown.items()},
        unread=[tuple(stories[v] for v in group.examples) for group in census.groups],
        stories=stories,
        places={
            value: next((row.key, row.offset) for row in some if row.offset >= 0)
            for value, some in ordered.items()
            if any(row.offset >= 0 for row in some)
        },
        lost=LostAcks(
            min((piece["first"] for piece in dated), default=0),
            max((piece["last"] for piece in dated), default=0),
            {number: count for number, count in sorted(during.items()) if count},
        ),
        earliest=tuple(row.value for row in earliest),
        placed={place: sorted(some) for place, some in placed.items()},
        faults=history.faults,
    )


def _story(
    value: int,
    rows: Sequence[StoryRow],
    names: Mapping[str, Any],
    faults: Sequence[FaultInterval],
) -> dict[str, Any]:
    """Return one message's story as a flat row of evidence: who sent it, how that ended, and who
    received it."""
    queue = next((row.key for row in rows if row.key >= 0), -1)
    story: dict[str, Any] = {"value": value}
    story |= {"producer": producer_of(value), "sequence": sequence_of(value)}
    story |= {"queue": name_of(names, "keys", queue)} if rows else {}
    for row in rows:
        if row.f == F.SEND and row.type == Type.INVOKE:
            story["sent_s"] = seconds(row.t)
        elif row.f == F.SEND:
            story |= {"outcome": Type(row.type).name.lower(), "attempts": row.attempts}
        if row.f == F.SEND and row.type == Type.OK:
            story |= {"acked_s": seconds(row.t), "offset": row.offset}
            story |= {"node": name_of(names, "nodes", row.node), "epoch": row.epoch}
            story["faults"] = " ".join(map(str, faults_at(faults, row.t)))
    seen = [row for row in rows if row.f in (F.POLL, F.READ) and row.type == Type.OK]
    if seen:
        first = seen[0].process
        places = sorted({(row.key, row.offset) for row in seen})
        queues = [name_of(names, "keys", key) for key, _ in places]
        story |= {
            "seen_s": seconds(seen[0].t),
            "seen_by": str(names.get("processes", {}).get(str(first), f"process {first}")),
            "seen_at": ", ".join(f"{q}@{at[1]}" for q, at in zip(queues, places, strict=True)),
            "times_seen": len(seen),
        }
    return story


# ------------------------------------------------------------------- rows of messages and offsets


OP_ROWS = pa.schema([(name, INT) for name in OpRow._fields])


@dataclass(frozen=True)
class OpRowRequest:
    """Messages and places whose rows to look for; both sorted."""

    values: Ints
    places: Ints  # key << OFFSET_BITS | offset

    def scan(self, unit: Unit) -> Batches:
        for rows in chosen(unit[1], PLACE, OpRow._fields, self._about):
            yield pa.record_batch([rows[name] for name in OpRow._fields], schema=OP_ROWS)

    def _about(self, rows: Mapping[str, Ints]) -> Ints:
        return np.union1d(_placed(rows, self.places), among(rows["value"], self.values))


def op_rows(
    history: History,
    spark: "SparkSession | None",
    values: Sequence[int] = (),
    places: Sequence[tuple[int, int]] = (),
) -> list[OpRow]:
    """Return the rows about some messages, and those that say what is at some places (key and
    offset), in order of time."""
    if not values and not places:
        return []
    request = OpRowRequest(
        np.array(sorted(set(values)), np.int64),
        _numbers_of(places),
    )
    table = collected(spark, units_of(history, "ops"), request.scan, OP_ROWS)
    columns = (column.to_pylist() for column in table.columns)
    return sorted(OpRow(*row) for row in zip(*columns, strict=True))


def _numbers_of(places: Iterable[tuple[int, int]]) -> Ints:
    return np.array(sorted({key << OFFSET_BITS | offset for key, offset in places}), np.int64)


def group_by(rows: Iterable[OpRow], key: Callable[[OpRow], K]) -> dict[K, list[OpRow]]:
    """Return rows by some property."""
    found: dict[K, list[OpRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def contradiction(rows: Iterable[OpRow], claim: Callable[[OpRow], Any]) -> tuple[int, int] | None:
    """Return the times of the first row with a claim and of the first row that contradicts it. The
    claim of a row may be None."""
    first: OpRow | None = None
    for row in rows:
        if claim(row) is None:
            continue
        first = first or row
        if claim(row) != claim(first):
            return first.t, row.t
    return None


def place_changes(
    rows: Mapping[int, Sequence[OpRow]], values: Iterable[int]
) -> list[tuple[set[int], tuple[int, int] | None]]:
    """Return for each message its queues, and when it was first known to be at one place, and when
    at another. `rows`: by value."""
    found = [rows.get(value, ()) for value in values]
    return [
        ({row.key for row in some}, contradiction(some, lambda row: row.place)) for some in found
    ]


def is_certain(row: OpRow, committed: Collection[int] = ()) -> bool:
    """Whether a row says for certain what is at an offset. `committed`: messages of unknown outcome
    that were seen."""
    certain = row.type == Type.OK or (row.type == Type.INFO and row.value in committed)
    return certain and row.value >= 0 and row.key >= 0 and row.offset >= 0
