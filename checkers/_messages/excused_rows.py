"""Which missing messages are excused, row by row: by faults that were observed in effect and that
the system does not claim to survive (`harness.judge.claims`).

A message that is gone is excused only if it was acknowledged (or, where its outcome is not known,
delivered) before such a fault was healed, and every node that held it then was damaged by that
fault, or by others that were in force at the same time. The record says which nodes held it: the
members of the SyncStateSet as the controllers decided it and as the acknowledging node saw it, at
any moment from the invocation to the acknowledgement, and that node itself; without such events,
all nodes of the replica group. What a replica still holds at the end was not destroyed, so it
convicts.

An unread message is excused if it is at the offset of one that is gone and excused, or at one that
held two messages, which is excused: its group had received the other message there.

Between two events nothing of this changes, so time is divided into pieces at them, and a row is
decided by its queue, its node and its pieces: few combinations, each decided once.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers._messages.message_rows import Ints, in_range, place_of
from checkers._messages.messages import Members, MessageCensus
from checkers._messages.queue_log import queue_log
from checkers._messages.witness import contradiction, group_by, is_certain, op_rows
from checkers._spark.spark_stages import (
    INT,
    Batches,
    Unit,
    arrays,
    collected,
    int_columns,
    per_history,
    row_type,
    units_of,
)
from harness.history.faults_and_events import ClusterEvent
from harness.history.reader import History
from harness.history.roles import set_changes_of
from harness.judge.claims import UnclaimedFault, unclaimed_faults
from harness.judge.verdict import Excuse
from harness.operation import F, Type
from harness.run.broker_sets import BROKER, broker_sets_in, replica_groups
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("t", "type", "f", "key", "value", "offset", "node")
NO_EXCUSE: tuple[int, ...] = ()

Faults = tuple[int, ...]  # ids of faults that together excuse something


class ExcuseCase(NamedTuple):
    """What decides whether a message is excused. `node`: -1 if it is not known; `first`, `last`:
    pieces of time."""

    key: int
    node: int
    first: int
    last: int


@dataclass(frozen=True)
class Holders:
    """Which nodes held what was acknowledged, and which faults may excuse that it is gone.

    edges    moments (ns) at which something of this changes, in order; piece 0 is before the first
    decided  by replica group, for each piece: members of its SyncStateSet; None: not known
    views    by node and replica group: the same, as the node itself saw it
    groups   by key, the replica group that stores its messages
    members  by replica group, all nodes of it
    faults   those that may excuse
    names    of nodes, by number
    """

    edges: tuple[int, ...]
    decided: Mapping[str, Sequence[frozenset[str] | None]]
    views: Mapping[tuple[str, str], Sequence[frozenset[str] | None]]
    groups: Sequence[str]
    members: Mapping[str, frozenset[str]]
    faults: tuple[UnclaimedFault, ...]
    names: Sequence[str]
    excuses: dict[tuple[str, ExcuseCase], Faults] = field(default_factory=dict)  # decided before

    def piece(self, t: int) -> int:
        """Return the number of the piece of time that a moment is in."""
        return bisect_right(self.edges, t)

    def holders(self, case: ExcuseCase) -> frozenset[str]:
        """Return all nodes that may have held such a message when it was acknowledged."""
        group = self.groups[case.key] if 0 <= case.key < len(self.groups) else ""
        name = self.names[case.node] if 0 <= case.node < len(self.names) else ""
        everyone = self.members.get(group, frozenset())
        found = {name} - {""}
        for piece in range(case.first, case.last + 1):
            sets = [self.decided.get(group, ())[piece : piece + 1]]
            sets += [self.views.get((name, group), ())[piece : piece + 1]]
            known = [members for some in sets for members in some if members is not None]
            found |= frozenset().union(*known) if known else everyone
        return frozenset(found)

    def excuse(self, demand: str, case: ExcuseCase) -> Faults:
        """Return the ids of the faults that together excuse such a message; if none do, it
        convicts."""
        if (demand, case) not in self.excuses:
            self.excuses[demand, case] = self._excuse(demand, case)
        return self.excuses[demand, case]

    def _excuse(self, demand: str, case: ExcuseCase) -> Faults:
        holders = self.holders(case)
        able = [u for u in self.faults if u.may_break(demand) and self._not_healed(u, case.last)]
        if not holders:
            return NO_EXCUSE
        for one in able:
            if holders <= one.hit:
                return (one.fault.id,)
        for one in able:
            together = [u for u in able if u.begin <= one.begin <= u.until and u.hit & holders]
            if holders <= frozenset().union(*(u.hit for u in together)):
                return tuple(sorted(u.fault.id for u in together))
        return NO_EXCUSE

    def _not_healed(self, one: UnclaimedFault, piece: int) -> bool:
        """Whether the fault was not healed yet in this piece; its healing is one of the edges."""
        healed = one.fault.healed
        return healed is None or piece <= self.edges.index(healed)


@per_history
def holders_of(history: History, trial: Trial) -> Holders | None:
    """Return what is known of a run's holders; None where nothing can be excused."""
    unclaimed = unclaimed_faults(history, trial)
    if not unclaimed:
        return None
    return holders_from(unclaimed, history.events, history.names)


def holders_from(
    unclaimed: tuple[UnclaimedFault, ...],
    happened: Sequence[ClusterEvent],
    names: Mapping[str, Any],
) -> Holders:
    """Return the holders over time, from the events of a run."""
    groups = replica_groups(names)
    members: dict[str, set[str]] = {}
    for node, group in groups.items():
        members.setdefault(group, set()).add(node)
    for group, dealt in broker_sets_in(names).items():  # a container is in several
        members.setdefault(group, set()).update(dealt.nodes)
    nodes = _nodes(happened)
    steps: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for step in set_changes_of(happened):
        some = steps.setdefault(_group(step.set, members), [])
        some.append((step.t, frozenset(nodes.get((step.set, m), "?") for m in step.members)))
    views = _views(happened, nodes, members)
    healed = {u.fault.healed for u in unclaimed if u.fault.healed is not None}
    times = {t for some in (*steps.values(), *views.values()) for t, _ in some}
    edges = tuple(sorted(healed | times))
    return Holders(
        edges,
        {group: _by_piece(some, edges) for group, some in steps.items()},
        {which: _by_piece(some, edges) for which, some in views.items()},
        _groups_of_keys(names),
        {group: frozenset(some) for group, some in members.items()},
        unclaimed,
        tuple(names.get("nodes", ())),
    )


def _nodes(happened: Iterable[ClusterEvent]) -> dict[tuple[str, int], str]:
    """Return the node of each broker id of each set, from the brokers' events."""
    return {
        (str(e.fields.get("brokerName", "")), int(e.fields["brokerId"])): e.node
        for e in happened
        if e.kind == "role" and isinstance(e.fields.get("brokerId"), int)
    }


def _views(
    happened: Sequence[ClusterEvent],
    nodes: Mapping[tuple[str, int], str],
    members: Mapping[str, set[str]],
) -> dict[tuple[str, str], list[tuple[int, frozenset[str]]]]:
    """Return each broker's own view of its SyncStateSet, over time, by its node and group."""
    set_of = {node: name for (name, _), node in nodes.items()}
    views: dict[tuple[str, str], list[tuple[int, frozenset[str]]]] = {}
    for event in happened:
        ids = event.fields.get("set")
        if event.kind == "set" and event.node in set_of and isinstance(ids, list):
            name = str(event.fields.get("inner") or set_of[event.node])
            some = frozenset(nodes.get((name, i), "?") for i in ids if isinstance(i, int))
            views.setdefault((event.node, _group(name, members)), []).append((event.t, some))
    return views


def _group(name: str, members: Mapping[str, set[str]]) -> str:
    """Return the replica group of a set; where sets have no names, that of the brokers."""
    return name if name in members else BROKER


def _groups_of_keys(names: Mapping[str, Any]) -> tuple[str, ...]:
    of = {key: name for name, dealt in broker_sets_in(names).items() for key in dealt.keys}
    return tuple(of.get(key, BROKER) for key in names.get("keys", ()))


def _by_piece(
    steps: Sequence[tuple[int, frozenset[str]]], edges: Sequence[int]
) -> tuple[frozenset[str] | None, ...]:
    """Return the members in each piece of time, from changes in order of time. Of changes at one
    moment the last one counts."""
    found: list[frozenset[str] | None] = [None]
    at, now = 0, None
    for edge in edges:
        while at < len(steps) and steps[at][0] <= edge:
            now, at = steps[at][1], at + 1
        found.append(now)
    return tuple(found)


# ------------------------------------------------------------------------------------- the rows


class CaseCount(NamedTuple):
    """A case, and how many lost messages have it."""

    key: int
    node: int
    first: int
    last: int
    messages: int


class MissingRow(NamedTuple):
    """A message, its case, and its place (-1: not known)."""

    value: int
    key: int
    node: int
    first: int
    last: int
    place: int

    @property
    def case(self) -> ExcuseCase:
        return ExcuseCase(self.key, self.node, self.first, self.last)


MISSING = pa.schema(
    [
        ("lost", pa.list_(row_type(CaseCount))),
        ("delivered", pa.list_(row_type(MissingRow))),  # gone, but never acknowledged
    ]
)


@dataclass(frozen=True)
class MissingRequest:
    """Messages whose cases to look for. `edges`: those of the holders."""

    lost: Members
    kept: Members
    gone: Members
    edges: Ints

    @classmethod
    def of(cls, census: MessageCensus, who: Holders) -> "MissingRequest":
        return cls(census.lost, census.kept, census.gone, np.array(who.edges, np.int64))

    def scan(self, unit: Unit) -> Batches:
        """Count the cases of a unit's lost messages, and list the rows of what else is gone."""
        lost = self.acknowledged(unit)
        cases, times = np.unique(lost[:, 1:5], axis=0, return_counts=True)
        counts = [(*case, n) for case, n in zip(cases.tolist(), times.tolist(), strict=True)]
        delivered = self._delivered(unit)
        if counts or delivered:
            yield pa.record_batch(
                [
                    [[CaseCount(*row)._asdict() for row in counts]],
                    [[MissingRow(*row)._asdict() for row in delivered]],
                ],
                schema=MISSING,
            )

    def acknowledged(self, unit: Unit) -> Ints:
        """Return a MissingRow for each lost message of this unit that no replica holds."""
        invoked, acked = [np.zeros((0, 2), np.int64)], [np.zeros((0, 6), np.int64)]
        for rows in arrays(unit[1], COLUMNS):
            at = np.flatnonzero((rows["f"] == F.SEND) & (rows["value"] >= 0))
            value = rows["value"][at]
            at = at[self.lost.holds(value) & ~self.kept.holds(value)]
            begun = at[rows["type"][at] == Type.INVOKE]
            invoked.append(np.stack([rows["value"][begun], self._pieces(rows["t"][begun])], 1))
            acked.append(self._missing_rows(rows, at[rows["type"][at] == Type.OK]))
        begins, ends = np.concatenate(invoked), np.concatenate(acked)
        begins = begins[np.argsort(begins[:, 0], kind="stable")]
        if len(begins) and len(ends):
            near = np.minimum(np.searchsorted(begins[:, 0], ends[:, 0]), len(begins) - 1)
            same = begins[near, 0] == ends[:, 0]
            ends[:, 3] = np.where(same, np.minimum(begins[near, 1], ends[:, 4]), ends[:, 4])
        return ends

    def _delivered(self, unit: Unit) -> list[list[int]]:
        """Return a MissingRow for each delivery of what is gone and was never acknowledged."""
        found: list[list[int]] = []
        for rows in arrays(unit[1], COLUMNS):
            at = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] != F.SEND))
            value = rows["value"][at]
            at = at[(value >= 0) & self.gone.holds(value) & ~self.lost.holds(value)]
            found += self._missing_rows(rows, at).tolist()
        return found

    def _pieces(self, t: Ints) -> Ints:
        found: Ints = np.searchsorted(self.edges, t, side="right")
        return found

    def _missing_rows(self, rows: Mapping[str, Ints], at: Ints) -> Ints:
        some = {name: rows[name][at] for name in ("value", "key", "node", "t", "offset")}
        place = np.where(in_range(some["offset"]), place_of(some["key"], some["offset"]), -1)
        piece = self._pieces(some["t"])
        found: Ints = np.stack([some["value"], some["key"], some["node"], piece, piece, place], 1)
        return found


@dataclass(frozen=True)
class ExcusedMessages:
    """Missing messages by the faults that excuse them.

    lost      how many acknowledged ones
    vanished  how many that were delivered, and whose outcome was unknown
    nodes     that had held what these faults excuse
    places    of those that vanished (those of lost ones are looked up when they are needed)
    """

    lost: Mapping[Faults, int] = field(default_factory=dict)
    vanished: Mapping[Faults, int] = field(default_factory=dict)
    nodes: Mapping[Faults, tuple[str, ...]] = field(default_factory=dict)
    places: Mapping[Faults, frozenset[int]] = field(default_factory=dict)

    @property
    def names(self) -> list[Faults]:
        """Return all that excuse something, in order."""
        return sorted({*self.lost, *self.vanished, *self.places})

    def excuses(self, counts: Mapping[Faults, int], held: bool = True) -> tuple[Excuse, ...]:
        """Return counts by faults as a finding has them. `held`: of messages that nodes held."""
        nodes = self.nodes if held else {}
        rows = sorted(counts.items())
        return tuple(Excuse(faults, n, nodes.get(faults, ())) for faults, n in rows if n)


@per_history
def excused_messages(
    history: History, trial: Trial, census: MessageCensus, spark: "SparkSession | None"
) -> ExcusedMessages:
    """Return which of the messages that are gone are excused."""
    who = holders_of(history, trial)
    if who is None or not (len(census.gone) or len(census.lost)):
        return ExcusedMessages()
    request = MissingRequest.of(census, who)
    table = collected(spark, units_of(history, "ops"), request.scan, MISSING)
    units = table.to_pylist()
    return excuses_by(
        who,
        [CaseCount(**row) for unit in units for row in unit["lost"]],
        [MissingRow(**row) for unit in units for row in unit["delivered"]],
    )


def excuses_by(
    who: Holders, lost: Iterable[CaseCount], delivered: Iterable[MissingRow]
) -> ExcusedMessages:
    """Return the excuses of all rows together."""
    excused: dict[str, Counter[Faults]] = {"lost": Counter(), "vanished": Counter()}
    nodes: dict[Faults, frozenset[str]] = {}
    places: dict[Faults, set[int]] = {}
    for *case_, n in lost:
        case = ExcuseCase(*case_)
        if faults := who.excuse("no-loss", case):
            excused["lost"][faults] += n
            nodes[faults] = nodes.get(faults, frozenset()) | who.holders(case)
    first: dict[int, MissingRow] = {}  # delivery of each message
    for row in delivered:
        first[row.value] = min(row, first.get(row.value, row), key=lambda r: (r.first, r))
    for row in first.values():
        if faults := who.excuse("integrity", row.case):
            excused["vanished"][faults] += 1
            nodes[faults] = nodes.get(faults, frozenset()) | who.holders(row.case)
            places.setdefault(faults, set()).add(row.place)
    return ExcusedMessages(
        excused["lost"],
        excused["vanished"],
        {faults: tuple(sorted(some)) for faults, some in nodes.items()},
        {faults: frozenset(some) for faults, some in places.items()},
    )


# ------------------------------------------------------------------------------- unread messages


PLACED = pa.schema([("faults", INT), ("place", INT)])
UNREAD = pa.schema([("group", INT), ("faults", INT), ("count", INT)])


@dataclass(frozen=True)
class PlacesRequest:
    """Asks for the places of excused lost messages, each with the number of its faults."""

    missing: MissingRequest
    who: Holders
    numbers: Mapping[Faults, int]

    def scan(self, unit: Unit) -> Batches:
        lost = self.missing.acknowledged(unit)
        cases, back = np.unique(lost[:, 1:5], axis=0, return_inverse=True)
        for number, case in enumerate(cases.tolist()):
            if faults := self.who.excuse("no-loss", ExcuseCase(*case)):
                place = lost[back.reshape(-1) == number, 5]
                place = place[place >= 0]
                columns = np.full(len(place), self.numbers[faults]), place
                yield pa.record_batch([pa.array(column) for column in columns], schema=PLACED)


@dataclass(frozen=True)
class UnreadRequest:
    """Asks how many unread messages of each group are at some places, by number of the faults.
    `places` is sorted; `faults` has the number of each."""

    groups: Mapping[int, Members]
    places: Ints
    faults: Ints

    def scan(self, unit: Unit) -> Batches:
        for rows in arrays(unit[1], COLUMNS):
            at = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] == F.SEND))
            at = at[in_range(rows["offset"][at])]
            place = place_of(rows["key"][at], rows["offset"][at])
            near = np.minimum(np.searchsorted(self.places, place), max(0, len(self.places) - 1))
            here = np.zeros(len(at), np.bool_)
            if len(self.places):
                here = self.places[near] == place
            for number, unread in self.groups.items():
                mine = here & unread.holds(rows["value"][at])
                ids, times = np.unique(self.faults[near[mine]], return_counts=True)
                columns = np.full(len(ids), number), ids, times
                yield pa.record_batch([pa.array(column) for column in columns], schema=UNREAD)


def unread_instead(
    history: History, trial: Trial, census: MessageCensus, spark: "SparkSession | None"
) -> dict[int, dict[Faults, int]]:
    """Return, by number of the consumer group, how many messages it did not receive because it had
    received others at their offsets, which are gone and excused."""
    excused, who = excused_messages(history, trial, census, spark), holders_of(history, trial)
    groups = {n: group.members for n, group in enumerate(census.groups) if group.unread}
    if who is None or not groups:
        return {}
    conflicts = _excused_conflicts(conflict_spans(history, trial, census, spark), who)
    if not (excused.lost or excused.vanished or conflicts):
        return {}
    units = units_of(history, "ops")
    both = {
        faults: excused.places.get(faults, frozenset()) | conflicts.get(faults, frozenset())
        for faults in {*excused.places, *conflicts}
    }
    excused = replace(excused, places=both)
    names = excused.names
    request = PlacesRequest(
        MissingRequest.of(census, who), who, {faults: number for number, faults in enumerate(names)}
    )
    placed = int_columns(collected(spark, units, request.scan, PLACED))
    faults, places = _by_place(zip(*(c.tolist() for c in placed), strict=True), request, both)
    table = collected(spark, units, UnreadRequest(groups, places, faults).scan, UNREAD)
    able = {u.fault.id for u in who.faults if u.may_break("at-least-once")}
    counts: dict[int, Counter[Faults]] = {}
    for number, index, n in zip(*(c.tolist() for c in int_columns(table)), strict=True):
        counter = counts.setdefault(number, Counter())
        if able.issuperset(names[index]):
            counter[names[index]] += n
    return {number: dict(counter) for number, counter in counts.items()}


def _by_place(
    lost: Iterable[tuple[int, ...]],
    request: PlacesRequest,
    others: Mapping[Faults, frozenset[int]],
) -> tuple[Ints, Ints]:
    """Return the places of all excused messages, sorted, after the number of each one's faults."""
    pairs = {(place, number) for number, place in lost}
    pairs |= {
        (place, request.numbers[faults])
        for faults, some in others.items()
        for place in some
        if place >= 0
    }
    both = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return both[:, 1], both[:, 0]


@per_history
def conflict_spans(
    history: History, trial: Trial, census: MessageCensus, spark: "SparkSession | None"
) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Return for each offset that held two messages when clients learned of the first and of the
    second; empty where nothing can be excused."""
    if not unclaimed_faults(history, trial):
        return {}
    committed = frozenset(census.late[0].tolist())
    rows = op_rows(history, spark, (), queue_log(history, spark).conflicts)
    gone = census.gone.holds(np.array([row.value for row in rows], np.int64))
    there = (r for r, is_gone in zip(rows, gone.tolist(), strict=True) if not is_gone)
    at = group_by((row for row in there if is_certain(row, committed)), lambda row: row.place)
    spans = {place: contradiction(some, lambda row: row.value) for place, some in at.items()}
    return {place: span for place, span in spans.items() if span}


def _excused_conflicts(
    spans: Mapping[tuple[int, int], tuple[int, int]], who: Holders
) -> dict[Faults, frozenset[int]]:
    """Return the places that held two messages, by the fault that excuses it."""
    found: dict[Faults, set[int]] = {}
    for (key, offset), span in spans.items():
        group = who.groups[key] if key < len(who.groups) else BROKER
        group = "" if group == BROKER else group  # it has no named broker set
        one = next((u for u in who.faults if u.excuses("order-per-queue", span, group)), None)
        if one is not None:
            place = int(place_of(np.array([key]), np.array([offset]))[0])
            found.setdefault((one.fault.id,), set()).add(place)
    return {faults: frozenset(some) for faults, some in found.items()}
