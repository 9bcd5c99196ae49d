"""The census of a history's messages: what became of each, and what may be concluded from that.

The notes of the final phase say who read to the end of what (`census_scope`). In a run of Seatrial
a *final reader* has no state and reads each queue from its first message to its last; each consumer
group reads to the end of its queues. An imported history has no such reader: there, a consumer that
received an offset of a queue had everything below it to read. One Spark job then classifies all
messages (`messages`). Where some are missing, a second pass over the history decides whether they
are lost, and the job runs again with what it found.

In a run of Seatrial, a message that every replica holds where it was acknowledged is not lost
(`held_by_all`). In an imported history, an acknowledged message that was never seen below an offset
that was received is lost, with three exceptions that need rows of many processes (`recheck`):

    taken      another message was seen at its offset: not lost, but two messages at one offset
    passed     how far a queue was read counts by the lowest offset that was ever reported for each
               message; a higher one may be an error, which must not make others lost
    committed  a transaction is all or nothing: if one part of it was seen, the others are there,
               although they were not acknowledged
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._messages.message_rows import (
    MAX_GROUPS,
    MAX_OFFSETS,
    OFFSET_BITS,
    Ints,
    OpColumns,
    in_range,
    key_of,
    offset_of,
    place_of,
)
from checkers._messages.messages import (
    CensusScope,
    Members,
    MessageCensus,
    MessageClass,
    census_of,
)
from checkers._messages.one_reading import one_reading
from checkers._run.evidence import SAMPLE, rows_kept
from checkers._spark.spark_stages import (
    INT,
    INTS,
    Batches,
    Unit,
    arrays,
    collected,
    per_history,
    units_of,
)
from harness.history.notes import GAVE_UP, MEMBER, OPEN_OPERATIONS, PASSED
from harness.history.reader import CORRUPTED, DRAINED, NOT_DRAINED, History, Note
from harness.operation import F, Type
from harness.run.broker_sets import broker_sets_in, data_nodes, replica_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@per_history
def message_census(history: History, spark: "SparkSession | None") -> MessageCensus:
    """Return the census of a history. Where messages are missing, a second pass may narrow
    what is concluded from that."""
    scope = census_scope(history)
    both = one_reading(history, spark, scope)
    census = both.census if both else census_of(history, spark, scope)
    narrower = scope
    if scope.passed:
        narrower = _recheck_imported(history, spark, census)
    elif scope.replicas and len(census.missed[0]):
        replicas = replica_counts(history.names)
        held = held_by_all(units_of(history, "replicas"), spark, census.missed, replicas)
        narrower = replace(scope, skipped=Members.of(held)) if len(held) else scope
    return census if narrower is scope else census_of(history, spark, narrower)


# --------------------------------------------------------------- what the final phase read


@dataclass(frozen=True)
class ReaderNote:
    """A reader's note: the group that it is in, or a queue, where it began there, and whether it
    read to the end."""

    process: int
    group: str | None
    key: int = -1
    first: int = 0
    to_end: bool = False

    @classmethod
    def of(cls, note: Note) -> "ReaderNote":
        word, _, text = note.text.partition(" ")
        values = json.loads(text)
        return cls(
            -1 if note.process is None else note.process,
            values.get("group"),
            values.get("key", -1),
            values.get("from", 0),
            word == DRAINED,
        )


def census_scope(history: History) -> CensusScope:
    """Return what the notes of the final phase say. In a history with gaps nothing was read to its
    end: rows that are missing may be missing from the record only."""
    texts = [note for word in (DRAINED, NOT_DRAINED, MEMBER) for note in history.notes[word]]
    complete = history.complete
    notes = [ReaderNote.of(note) for note in texts]
    names = tuple(sorted({note.group for note in notes if note.group is not None}))
    number = {name: index for index, name in enumerate(names[:MAX_GROUPS])}
    ended = [note for note in notes if note.to_end and complete]
    required: dict[int, int] = {}
    for note in ended:
        if note.group in number:
            required[note.key] = required.get(note.key, 0) | 1 << number[note.group]
    alone = [note for note in ended if note.group is None]
    return CensusScope(
        drained=frozenset(note.key for note in alone),
        passed=_passed(history) if complete else {},
        required=required,
        groups=_members(history, notes, number),
        imported="imported" in history.state,
        until=history.phases.get("drain") if given_up(history, OPEN_OPERATIONS) else None,
        spoiled=frozenset(_spoiled(history)),
        deleted=_deleted(history, alone),
        sample=SAMPLE,
        group_names=names,
        replicas=complete and _all_replicas(history),
        rows=rows_kept(history.faults),
    )


def given_up(history: History, part: str) -> tuple[str, ...]:
    """Return the runner's notes that it gave up on this part of the trial."""
    notes = history.notes[GAVE_UP.split()[0]]
    return tuple(note.text for note in notes if note.text.startswith(f"{GAVE_UP} {part}"))


def _spoiled(history: History) -> Iterator[int]:
    """Yield the places at which a reader received a body that differs from what was sent."""
    for note in history.notes[CORRUPTED]:
        values = json.loads(note.text.partition(" ")[2])
        if "key" in values and "offset" in values:
            known = 0 <= values["offset"] < MAX_OFFSETS - 1
            yield values["key"] << OFFSET_BITS | (values["offset"] + 1 if known else 0)


def _deleted(history: History, drained: Sequence[ReaderNote]) -> dict[int, int]:
    """Return where each queue began for the final reader, if its nodes deleted something: every
    queue of the node's broker set, as its segments hold messages of all of them."""
    nodes = {event.node for event in history.events if event.kind == "deleted"}
    if not nodes:
        return {}
    names = history.names
    sets = broker_sets_in(names).values()
    elsewhere = {key for of in sets if not nodes & set(of.nodes) for key in of.keys}
    keys = names.get("keys", ())
    return {
        note.key: note.first for note in drained if note.first and keys[note.key] not in elsewhere
    }


def _members(
    history: History, notes: Sequence[ReaderNote], number: Mapping[str, int]
) -> dict[int, int]:
    """Return the group of each process. A note of a process also holds for its earlier
    incarnations, whose smaller numbers have the same remainder."""
    ours = "imported" not in history.state
    every = (ours and len(history.names.get("processes", {}))) or 1 << 31
    return {
        process: number[note.group]
        for note in notes
        if note.group is not None and note.group in number
        for process in range(note.process % every, note.process + 1, every)
    }


def _passed(history: History) -> dict[int, int]:
    """Return how far each queue of an imported history was read."""
    notes = [json.loads(note.text.partition(" ")[2]) for note in history.notes[PASSED]]
    return {values["key"]: values["to"] for values in notes}


def _all_replicas(history: History) -> bool:
    """Whether every broker's log was read at the end."""
    nodes, roles = history.names.get("nodes", []), history.names.get("roles", {})
    holders = data_nodes(roles)
    brokers = {index for index, name in enumerate(nodes) if name in holders}
    found: set[int] = set()
    for rows in arrays(history.files["replicas"], ("node",), afar=True):  # read by the driver
        found |= set(np.unique(rows["node"]).tolist())
    return bool(brokers) and brokers <= found


# ------------------------------------------------- the second pass over an imported history

COLUMNS = ("op", "type", "f", "key", "value", "offset", "mop")
FINDINGS = pa.schema(
    [
        ("taken", INTS),  # places
        ("tops", INTS),  # the place of the highest offset of each key that was read for certain
        ("values", INTS),  # of an uncertain place ...
        ("places", INTS),  # ... and a place that was reported for each
        ("committed", INTS),  # values
    ]
)


@dataclass(frozen=True)
class Recheck:
    """What the second pass over an imported history found.

    taken      places of missing messages at which others were seen
    passed     key -> how far it was read
    committed  the other parts of transactions of which one was seen
    """

    taken: Ints
    passed: dict[int, int]
    committed: Ints


@dataclass(frozen=True)
class RecheckRequest:
    """What the second pass has to look for.

    missed  places of missing messages
    unsure  values whose place is not certain
    late    values of unknown outcome that were seen, sorted
    """

    missed: Ints
    unsure: Members
    late: Ints

    def scan(self, unit: Unit) -> Batches:
        parts = TransactionParts()
        for columns in arrays(unit[1], COLUMNS):
            rows = OpColumns(columns)
            rows = rows.where((rows.key >= 0) & (rows.value >= 0))
            parts.add(rows)
            read = (rows.type == Type.OK) & (rows.f != F.SEND) & in_range(rows.offset)
            unsure = self.unsure.holds(rows.value)
            seen = place_of(rows.key[read], rows.offset[read])
            reported = rows.where((rows.type == Type.OK) & in_range(rows.offset) & unsure)
            found = (
                np.unique(seen[np.isin(seen, self.missed)]),
                _tops(rows.where(read & ~unsure)),
                reported.value,
                place_of(reported.key, reported.offset),
                np.zeros(0, np.int64),
            )
            yield pa.record_batch([[column] for column in found], schema=FINDINGS)
        yield pa.record_batch([[[]]] * 4 + [[parts.committed(self.late)]], schema=FINDINGS)


@dataclass
class TransactionParts:
    """Sends in transactions of unknown outcome: their operations and values."""

    _op: list[Ints] = field(default_factory=lambda: [np.zeros(0, np.int64)])
    _value: list[Ints] = field(default_factory=lambda: [np.zeros(0, np.int64)])

    def add(self, rows: OpColumns) -> None:
        parts = rows.where((rows.f == F.SEND) & (rows.type == Type.INFO) & (rows.mop >= 0))
        self._op.append(parts.op)
        self._value.append(parts.value)

    def committed(self, late: Ints) -> Ints:
        """Return the values that were not seen although another part of their transaction was."""
        op, value = np.concatenate(self._op), np.concatenate(self._value)
        seen = np.isin(value, late)
        others: Ints = value[~seen & np.isin(op, op[seen])]
        return others


def _tops(rows: OpColumns) -> Ints:
    """Return the place with the highest offset of each key."""
    places = np.sort(place_of(rows.key, rows.offset))
    last: Ints = places[np.flatnonzero(np.diff(key_of(places), append=-1))]
    return last


def recheck(units: list[Unit], spark: "SparkSession | None", request: RecheckRequest) -> Recheck:
    """Run the second pass over an imported history."""
    table = collected(spark, units, request.scan, FINDINGS)
    taken, tops, values, places, committed = (
        column.combine_chunks().flatten().to_numpy() for column in table.columns
    )
    order = np.lexsort((places, values))
    _, first = np.unique(values[order], return_index=True)
    certain = np.concatenate([tops, places[order][first]])
    passed: dict[int, int] = {}
    for key, offset in zip(key_of(certain).tolist(), offset_of(certain).tolist(), strict=True):
        passed[key] = max(offset + 1, passed.get(key, 0))
    return Recheck(np.unique(taken), passed, np.unique(committed))


def _recheck_imported(
    history: History, spark: "SparkSession | None", census: MessageCensus
) -> CensusScope:
    """Return what may be concluded after the second pass: which messages are not lost, as others
    were seen at their offsets, and how far queues were read for certain."""
    scope, late = census.scope, census.late[0]
    parts = census.counts[MessageClass.PART] and len(late)
    if not census.counts[MessageClass.LOST] and not parts:
        return scope
    value, place = census.missed
    request = RecheckRequest(place, census.unsure, late)
    found = recheck(units_of(history, "ops"), spark, request)
    passed = {key: min(to, found.passed.get(key, 0)) for key, to in scope.passed.items()}
    displaced = value[np.isin(place, found.taken)]
    if not len(displaced) and not len(found.committed) and passed == scope.passed:
        return scope
    return replace(
        scope,
        passed=passed,
        displaced=Members.of(displaced),
        committed=Members.of(found.committed),
    )


# ---------------------------------------------------------- the second pass over a run of Seatrial

HELD = pa.schema([("value", INT), ("place", INT), ("node", INT)])


@dataclass(frozen=True)
class HeldRequest:
    """Values, sorted, and the place at which each is looked for in the replicas' logs."""

    values: Ints
    places: Ints

    def scan(self, unit: Unit) -> Batches:
        for rows in arrays(unit[1], ("node", "value", "key", "offset")):
            place = place_of(rows["key"], rows["offset"])
            at = np.minimum(np.searchsorted(self.values, rows["value"]), len(self.values) - 1)
            here = (self.values[at] == rows["value"]) & (self.places[at] == place)
            here &= rows["key"] >= 0
            columns = rows["value"][here], place[here], rows["node"][here]
            yield pa.record_batch([pa.array(column) for column in columns], schema=HELD)


def held_by_all(
    units: list[Unit],
    spark: "SparkSession | None",
    missed: tuple[Ints, Ints],
    replicas: Sequence[int],
) -> Ints:
    """Return those of some values that each replica holds at its place. `missed`: values and
    places; `replicas`: how many must hold a message, by key."""
    order = np.argsort(missed[0], kind="stable")
    request = HeldRequest(missed[0][order], missed[1][order])
    table = collected(spark, units, request.scan, HELD)
    rows = np.unique(np.stack([column.to_numpy() for column in table.columns]), axis=1)
    held, first, nodes = np.unique(rows[0], return_index=True, return_counts=True)
    keys = np.minimum(key_of(rows[1][first]), len(replicas) - 1)
    all_held: Ints = held[nodes >= np.asarray(replicas, np.int64)[keys]]
    return all_held
