"""Which missing messages are excused, row by row: by faults that were observed in effect and that
the system does not claim to survive (`harness.judge.claims`).

A message that is gone is excused only if it was acknowledged (or, where its outcome is not known,
delivered) before such a fault was healed, and every node that held it then was damaged by that
fault, or by others that were in force together with it. Who held it is taken from the record: the
SyncStateSet as the controllers decided it and as the acknowledging node saw it, at any moment from
the invocation to the acknowledgement, and that node itself; without such events, all nodes of the
replica group. What some replica still holds at the end was not taken by damage, so it convicts.

An unread message is excused where it stands at the offset of one that is gone and excused, or where
two messages had been, which is excused: its group had been given the other one there.

Between two events nothing of this changes, so time is cut into pieces at them, and a row is decided
by its queue, its node and its pieces: few combinations, each decided once.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import Ints, Members
from checkers._messages.message_census import Survey
from checkers._messages.messages import in_range, place_of
from checkers._messages.queue_log import logbook
from checkers._messages.witness import grouped, is_told, rows_of, turn
from checkers._spark.spark_stages import Batches, Unit, arrays, collected, once, units_of
from harness.history.faults_and_events import Event, events
from harness.history.reader import History
from harness.history.roles import set_sizes
from harness.judge.claims import Unclaimed, unclaimed_faults
from harness.judge.verdict import Excuse
from harness.operation import F, Type
from harness.run.broker_sets import dealt_sets, replica_groups
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = pa.schema([("line", pa.string())])
COLUMNS = ("t", "type", "f", "key", "value", "offset", "node")
NO_EXCUSE: tuple[int, ...] = ()

Case = tuple[int, int, int, int]  # key, node (-1: not known), first and last piece of time


@dataclass(frozen=True)
class Holders:
    """Who held what was acknowledged, and which faults may excuse that it is gone.

    edges    moments (ns) at which something of this changes, in order; piece 0 is before the first
    decided  by replica group, for each piece: members of its SyncStateSet; None: not known
    views    by node: the same, as the node itself saw it
    groups   by key, the replica group that its messages are kept by
    members  by replica group, all nodes of it
    faults   those that may excuse
    names    of nodes, by number
    """

    edges: tuple[int, ...]
    decided: Mapping[str, Sequence[frozenset[str] | None]]
    views: Mapping[str, Sequence[frozenset[str] | None]]
    groups: Sequence[str]
    members: Mapping[str, frozenset[str]]
    faults: tuple[Unclaimed, ...]
    names: Sequence[str]
    known: dict[tuple[str, Case], tuple[int, ...]] = field(default_factory=dict)

    def piece(self, t: int) -> int:
        """Return the number of the piece of time that a moment is in."""
        return bisect_right(self.edges, t)

    def pieces(self, t: Ints) -> Ints:
        found: Ints = np.searchsorted(np.array(self.edges, np.int64), t, side="right")
        return found

    def holders(self, case: Case) -> frozenset[str]:
        """Return all nodes that may have held such a message when it was acknowledged."""
        key, node, first, last = case
        group = self.groups[key] if 0 <= key < len(self.groups) else ""
        name = self.names[node] if 0 <= node < len(self.names) else ""
        everyone = self.members.get(group, frozenset())
        found = {name} - {""}
        for piece in range(first, last + 1):
            sets = [self.decided.get(group, ())[piece : piece + 1]]
            sets += [self.views.get(name, ())[piece : piece + 1]]
            said = [members for some in sets for members in some if members is not None]
            found |= frozenset().union(*said) if said else everyone
        return frozenset(found)

    def excuse(self, demand: str, case: Case) -> tuple[int, ...]:
        """Return the ids of the faults that together excuse such a message; none: it convicts."""
        if (demand, case) not in self.known:
            self.known[demand, case] = self._excuse(demand, case)
        return self.known[demand, case]

    def _excuse(self, demand: str, case: Case) -> tuple[int, ...]:
        holders, last = self.holders(case), case[3]
        able = [u for u in self.faults if u.may_break(demand) and self._not_healed(u, last)]
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

    def _not_healed(self, one: Unclaimed, piece: int) -> bool:
        """Whether the fault was not healed yet in this piece, which is cut where it was."""
        healed = one.fault.healed
        return healed is None or piece <= self.edges.index(healed)


def holders_of(history: History, trial: Trial) -> Holders | None:
    """Return what is known of a run's holders; None where nothing can be excused."""
    return once(history, "holders", lambda: _holders(history, trial))


def _holders(history: History, trial: Trial) -> Holders | None:
    unclaimed = unclaimed_faults(history, trial)
    return built(unclaimed, events(history.read("events")), history.names) if unclaimed else None


def built(
    unclaimed: tuple[Unclaimed, ...], told: Sequence[Event], names: Mapping[str, Any]
) -> Holders:
    """Return the timeline of holders that events tell of."""
    groups = replica_groups(names)
    members: dict[str, set[str]] = {}
    for node, group in groups.items():
        members.setdefault(group, set()).add(node)
    nodes = _nodes(told)
    steps: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for step in set_sizes(told):
        some = steps.setdefault(_group(step.set, members), [])
        some.append((step.t, frozenset(nodes.get((step.set, m), "?") for m in step.members)))
    views = _views(told, nodes)
    healed = {u.fault.healed for u in unclaimed if u.fault.healed is not None}
    times = {t for some in (*steps.values(), *views.values()) for t, _ in some}
    edges = tuple(sorted(healed | times))
    return Holders(
        edges,
        {group: _by_piece(some, edges) for group, some in steps.items()},
        {node: _by_piece(some, edges) for node, some in views.items()},
        _groups_of_keys(names),
        {group: frozenset(some) for group, some in members.items()},
        unclaimed,
        tuple(names.get("nodes", ())),
    )


def _nodes(told: Iterable[Event]) -> dict[tuple[str, int], str]:
    """Return the node of each broker id of each set, as brokers told it."""
    return {
        (str(e.fields.get("brokerName", "")), int(e.fields["brokerId"])): e.node
        for e in told
        if e.kind == "role" and isinstance(e.fields.get("brokerId"), int)
    }


def _views(
    told: Sequence[Event], nodes: Mapping[tuple[str, int], str]
) -> dict[str, list[tuple[int, frozenset[str]]]]:
    """Return each broker's own view of its SyncStateSet, over time."""
    set_of = {node: name for (name, _), node in nodes.items()}
    views: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for event in told:
        ids = event.fields.get("set")
        if event.kind == "set" and event.node in set_of and isinstance(ids, list):
            name = set_of[event.node]
            some = frozenset(nodes.get((name, i), "?") for i in ids if isinstance(i, int))
            views.setdefault(event.node, []).append((event.t, some))
    return views


def _group(name: str, members: Mapping[str, set[str]]) -> str:
    """Return the replica group of a set; where sets have no names of their own, the brokers'."""
    return name if name in members else "broker"


def _groups_of_keys(names: Mapping[str, Any]) -> tuple[str, ...]:
    of = {key: name for name, dealt in dealt_sets(names).items() for key in dealt.keys}
    return tuple(of.get(key, "broker") for key in names.get("keys", ()))


def _by_piece(
    steps: Sequence[tuple[int, frozenset[str]]], edges: Sequence[int]
) -> tuple[frozenset[str] | None, ...]:
    """Return what holds in each piece of time: steps in order, the last of equal times last."""
    found: list[frozenset[str] | None] = [None]
    at, now = 0, None
    for edge in edges:
        while at < len(steps) and steps[at][0] <= edge:
            now, at = steps[at][1], at + 1
        found.append(now)
    return tuple(found)


# ------------------------------------------------------------------------------------- the rows

Faults = tuple[int, ...]  # ids of those that together excuse something


@dataclass(frozen=True)
class Excused:
    """Missing messages by the faults that excuse them.

    lost      how many acknowledged ones
    vanished  how many that were delivered, and whose outcome nobody knew
    nodes     that had held what these faults excuse
    places    of the latter (the former are looked up when somebody needs them)
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


def excused(history: History, trial: Trial, found: Survey, spark: "SparkSession | None") -> Excused:
    """Return which of the messages that are gone are excused: decided once, whoever asks."""
    return once(history, "excused", lambda: _excused(history, trial, found, spark))


def _excused(
    history: History, trial: Trial, found: Survey, spark: "SparkSession | None"
) -> Excused:
    who = holders_of(history, trial)
    if who is None or not (len(found.gone) or len(found.lost)):
        return Excused()
    step = scan_with(found, who.pieces)
    return decided(_lines(history, spark, step), who)


def _lines(
    history: History, spark: "SparkSession | None", step: Callable[[Unit], Batches]
) -> list[Any]:
    table = collected(spark, units_of(history, "ops"), step, LINES)
    return [json.loads(line) for line in table.column("line").to_pylist()]


def _line(what: Any) -> pa.RecordBatch:
    return pa.record_batch([[json.dumps(what)]], schema=LINES)


def scan_with(found: Survey, pieces: Callable[[Ints], Ints]) -> Callable[[Unit], Batches]:
    """Return a step that counts what a writer's messages that are lost have in common, and tells
    each row of what else is gone."""
    lost, gone, kept = found.lost, found.gone, found.kept

    def scan(unit: Unit) -> Batches:
        acks = acknowledged(unit, lost, kept, pieces)
        cases, times = np.unique(acks[:, 1:5], axis=0, return_counts=True)
        rows = [(*case, n) for case, n in zip(cases.tolist(), times.tolist(), strict=True)]
        others = _others(unit, lost, gone, pieces)
        if rows or others:
            yield _line({"lost": rows, "others": others})

    return scan


def acknowledged(unit: Unit, lost: Members, kept: Members, pieces: Callable[[Ints], Ints]) -> Ints:
    """Return a row for each lost message of this unit that no replica holds: value, then its case
    (key, node, first and last piece of time), then its place."""
    invoked, acked = [np.zeros((0, 2), np.int64)], [np.zeros((0, 6), np.int64)]
    for rows in arrays(unit[1], COLUMNS):
        at = np.flatnonzero((rows["f"] == F.SEND) & (rows["value"] >= 0))
        value = rows["value"][at]
        at = at[lost.holds(value) & ~kept.holds(value)]
        begun = at[rows["type"][at] == Type.INVOKE]
        invoked.append(np.stack([rows["value"][begun], pieces(rows["t"][begun])], 1))
        acked.append(_placed(rows, at[rows["type"][at] == Type.OK], pieces))
    begins, ends = np.concatenate(invoked), np.concatenate(acked)
    begins = begins[np.argsort(begins[:, 0], kind="stable")]
    if len(begins) and len(ends):
        near = np.minimum(np.searchsorted(begins[:, 0], ends[:, 0]), len(begins) - 1)
        same = begins[near, 0] == ends[:, 0]
        ends[:, 3] = np.where(same, np.minimum(begins[near, 1], ends[:, 4]), ends[:, 4])
    return ends


def _placed(rows: Mapping[str, Ints], at: Ints, pieces: Callable[[Ints], Ints]) -> Ints:
    """Return value, key, node, piece of time (twice) and place of some rows; -1: no place."""
    some = {name: rows[name][at] for name in ("value", "key", "node", "t", "offset")}
    place = np.where(in_range(some["offset"]), place_of(some["key"], some["offset"]), -1)
    piece = pieces(some["t"])
    found: Ints = np.stack([some["value"], some["key"], some["node"], piece, piece, place], 1)
    return found


def _others(
    unit: Unit, lost: Members, gone: Members, pieces: Callable[[Ints], Ints]
) -> list[list[int]]:
    """Return who was given what is gone though it was never acknowledged, as `_placed` has it."""
    found: list[list[int]] = []
    for rows in arrays(unit[1], COLUMNS):
        at = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] != F.SEND))
        value = rows["value"][at]
        at = at[(value >= 0) & gone.holds(value) & ~lost.holds(value)]
        found += _placed(rows, at, pieces).tolist()
    return found


def decided(lines: Iterable[Mapping[str, Any]], who: Holders) -> Excused:
    """Return the excuses of all rows together."""
    lost: Counter[Faults] = Counter()
    vanished: Counter[Faults] = Counter()
    nodes: dict[Faults, frozenset[str]] = {}
    places: dict[Faults, set[int]] = {}
    given: dict[int, list[int]] = {}
    for line in lines:
        for *case, n in line["lost"]:
            if faults := who.excuse("no-loss", (case[0], case[1], case[2], case[3])):
                lost[faults] += n
                nodes[faults] = nodes.get(faults, frozenset()) | who.holders(
                    (case[0], case[1], case[2], case[3])
                )
        for row in line["others"]:  # the first who was given it
            given[row[0]] = min(row, given.get(row[0], row), key=lambda r: (r[3], r))
    for _, key, node, first, last, place in given.values():
        if faults := who.excuse("integrity", (key, node, first, last)):
            vanished[faults] += 1
            nodes[faults] = nodes.get(faults, frozenset()) | who.holders((key, node, first, last))
            places.setdefault(faults, set()).add(place)
    told = {faults: tuple(sorted(some)) for faults, some in nodes.items()}
    return Excused(lost, vanished, told, {f: frozenset(some) for f, some in places.items()})


# ------------------------------------------------------------------------------- what follows


def unread_instead(
    history: History, trial: Trial, found: Survey, spark: "SparkSession | None"
) -> dict[int, dict[Faults, int]]:
    """Return, by number of the consumer group, how many messages it was never given because it had
    been given others at their offsets, which are gone and excused."""
    known, who = excused(history, trial, found, spark), holders_of(history, trial)
    if who is None or not found.unread:
        return {}
    conflicts = _excused_conflicts(conflict_spans(history, trial, found, spark), who)
    if not (known.lost or known.vanished or conflicts):
        return {}
    known = replace(known, places=_both(known.places, conflicts))
    faults, values = _excused_places(history, found, who, known, spark)
    order = np.argsort(values, kind="stable")
    faults_at, values = faults[order], values[order]
    groups = dict(found.unread)

    def scan(unit: Unit) -> Batches:
        for rows in arrays(unit[1], COLUMNS):
            at = np.flatnonzero((rows["type"] == Type.OK) & (rows["f"] == F.SEND))
            at = at[in_range(rows["offset"][at])]
            place = place_of(rows["key"][at], rows["offset"][at])
            near = np.minimum(np.searchsorted(values, place), max(0, len(values) - 1))
            here = (values[near] == place) if len(values) else np.zeros(len(at), np.bool_)
            for number, unread in groups.items():
                mine = here & unread.holds(rows["value"][at])
                ids, times = np.unique(faults_at[near[mine]], return_counts=True)
                if len(ids):
                    yield _line([number, ids.tolist(), times.tolist()])

    names = known.names
    counts: dict[int, Counter[Faults]] = {}
    for number, ids, times in _lines(history, spark, scan):
        for index, n in zip(ids, times, strict=True):
            counts.setdefault(number, Counter())[names[index]] += n
    able = {u.fault.id for u in who.faults if u.may_break("at-least-once")}
    return {
        number: {faults: n for faults, n in some.items() if able.issuperset(faults)}
        for number, some in counts.items()
    }


def conflict_spans(
    history: History, trial: Trial, found: Survey, spark: "SparkSession | None"
) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Return for each offset that held two messages when clients were told of the first and of the
    second; empty where nothing can be excused."""
    return once(history, "conflict-spans", lambda: _conflict_spans(history, trial, found, spark))


def _conflict_spans(
    history: History, trial: Trial, found: Survey, spark: "SparkSession | None"
) -> dict[tuple[int, int], tuple[int, int]]:
    if not unclaimed_faults(history, trial):
        return {}
    committed = frozenset(found.late[0].tolist())
    rows = rows_of(history, spark, (), logbook(history, spark).conflicts)
    gone = found.gone.holds(np.array([row.value for row in rows], np.int64))
    told = (r for r, is_gone in zip(rows, gone.tolist(), strict=True) if not is_gone)
    at = grouped((row for row in told if is_told(row, committed)), lambda row: row.place)
    turns = {place: turn(some, lambda row: row.value) for place, some in at.items()}
    return {place: span for place, span in turns.items() if span}


def _excused_conflicts(
    spans: Mapping[tuple[int, int], tuple[int, int]], who: Holders
) -> dict[Faults, frozenset[int]]:
    """Return the places that held two messages, by the fault that excuses it."""
    found: dict[Faults, set[int]] = {}
    for (key, offset), span in spans.items():
        group = who.groups[key] if key < len(who.groups) else "broker"
        group = "" if group == "broker" else group  # it is in no set that is named
        one = next((u for u in who.faults if u.excuses("order-per-queue", span, group)), None)
        if one is not None:
            place = int(place_of(np.array([key]), np.array([offset]))[0])
            found.setdefault((one.fault.id,), set()).add(place)
    return {faults: frozenset(some) for faults, some in found.items()}


def _both(
    some: Mapping[Faults, frozenset[int]], others: Mapping[Faults, frozenset[int]]
) -> dict[Faults, frozenset[int]]:
    return {f: some.get(f, frozenset()) | others.get(f, frozenset()) for f in {*some, *others}}


def _excused_places(
    history: History, found: Survey, who: Holders, known: Excused, spark: "SparkSession | None"
) -> tuple[Ints, Ints]:
    """Return the places of all messages that are excused, and of each the faults, by number."""
    names = known.names
    lost, kept = found.lost, found.kept

    def scan(unit: Unit) -> Batches:
        acks = acknowledged(unit, lost, kept, who.pieces)
        cases, back = np.unique(acks[:, 1:5], axis=0, return_inverse=True)
        for number, (key, node, first, last) in enumerate(cases.tolist()):
            if faults := who.excuse("no-loss", (key, node, first, last)):
                place = acks[back.reshape(-1) == number, 5]
                yield _line([names.index(faults), place[place >= 0].tolist()])

    pairs = [(number, place) for number, some in _lines(history, spark, scan) for place in some]
    pairs += [
        (names.index(faults), place)
        for faults, some in known.places.items()
        for place in some
        if place >= 0
    ]
    both = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
