"""Watchers of a key receive its changes: each once, in order, and nothing that is older than what
they have seen.

Every change of a key has a version, 1, 2, 3 ..., which the answers to writers, watchers and readers
contain. A version has one value, a value one version (`VERSION_CONFLICT`), and each value was
written (`EVENT_UNWRITTEN`).

*Every event is promised* (etcd, NATS): a watch after version 6 that delivers 8 has left out 7
(`EVENT_MISSED`), if 7 certainly exists: its write was acknowledged, or another client saw it. A
version that comes again is `EVENT_TWICE`, one that comes after a later one `EVENT_OUT_OF_ORDER`,
one from before the version that the watch continues from `EVENT_STALE`. *Only the newest value is
promised* (ZooKeeper): whatever is left out, versions never go back (`EVENT_STALE`).

A read of the watcher itself is never older than what it received or read before (`EVENT_STALE`);
where events may come *early* (NATS: from a server that is ahead of the leader), than what it read.
An event may be older than such a read: watches lag behind, and promise no more than their order.

In the final phase nothing is written. A watcher that has not received the newest version by then,
and to which several calls brought nothing, has missed it, and so has each watcher if what was
acknowledged is gone. If the calls failed, it is not known (`WATCH_UNFINISHED`).
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from checkers._linear.buckets import Rows, map_buckets, rows_of
from checkers._run.evidence import SAMPLE, name_of, rows_kept, seconds
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import NONE, F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALWAYS, DELIVERY, ORDER = "linearizable", "at-least-once", "order-per-queue"
COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "arg", "offset", "pos")
KINDS = (F.PUT, F.GET, F.WATCH)
SILENT_CALLS = 3  # of a watch that has not brought what certainly exists

MISSED, TWICE, DISORDER, STALE, UNWRITTEN, CONFLICT = (
    "EVENT_MISSED",
    "EVENT_TWICE",
    "EVENT_OUT_OF_ORDER",
    "EVENT_STALE",
    "EVENT_UNWRITTEN",
    "VERSION_CONFLICT",
)
MEANINGS: Mapping[str, tuple[str, str, str, str]] = {  # demand, one, many, and what is wrong
    MISSED: (DELIVERY, "event", "events", "that a watcher should have received did not come"),
    TWICE: (DELIVERY, "event", "events", "came to the same watcher again"),
    DISORDER: (ORDER, "event", "events", "came to a watcher after a later one"),
    STALE: (
        *(ALWAYS, "event or read", "events or reads"),
        "showed a watcher an older version than it had seen",
    ),
    UNWRITTEN: (ALWAYS, "value", "values", "came to clients, and no write can have written it"),
    CONFLICT: (ALWAYS, "version", "versions", "of a key had two values, or a value two versions"),
}
FROM_GAPS = (MISSED, UNWRITTEN)  # what a missing row may explain


class Event(NamedTuple):
    """A value that a client saw."""

    t: int
    version: int
    value: int


@dataclass
class KeyOperation:
    """An operation on a key that is watched. `version`: of the answer; of a watch, the one that it
    continues from."""

    f: F
    op: int
    process: int
    begun: int = 0
    ended: int = 0
    type: Type = Type.INFO
    version: int = NONE
    value: int = NONE
    newest: bool = False
    early: bool = False
    events: list[tuple[int, Event]] = field(default_factory=list)  # with their positions


class Breach(NamedTuple):
    """A broken rule: when, by which process and operation, of which version and value, and why."""

    code: str
    t: int
    process: int
    op: int
    version: int
    value: int
    why: str


@dataclass
class KeyVerdict:
    breaches: list[Breach] = field(default_factory=list)
    events: int = 0
    reads: int = 0
    watchers: int = 0
    unfinished: int = 0  # watchers of which it is not known whether they would have caught up


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    drained = history.phases.get("drain", NONE)
    most = rows_kept(history.faults)
    lines = map_buckets(history, spark, COLUMNS, _select_rows, lambda: _BucketJudge(drained, most))
    keys = [key for line in lines for key in line["keys"]]
    stats = {name: sum(key[name] for key in keys) for name in ("events", "reads", "watchers")}
    found = list(_findings(lines, history))
    certain = [each for each in found if history.complete or each.code not in FROM_GAPS]
    doubtful = sum(each.count for each in found if each not in certain)
    reasons = tuple(_reasons(stats["events"], sum(key["unfinished"] for key in keys), doubtful))
    if not certain and not reasons:
        watchers, events = (
            quantity(stats["watchers"], "watcher"),
            quantity(stats["events"], "event"),
        )
        stats["proved"] = f"{watchers} received {events} in order, and missed none that is promised"
    decided = dict.fromkeys((ALWAYS, DELIVERY, ORDER), stats["events"])
    return Result("watches", tuple(certain), reasons, stats, decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {
            "EVENT_MISSED",
            "EVENT_OUT_OF_ORDER",
            "EVENT_STALE",
            "EVENT_TWICE",
            "EVENT_UNWRITTEN",
            "VERSION_CONFLICT",
        }
    ),
    decides=frozenset({"at-least-once", "linearizable", "order-per-queue"}),
    reasons=frozenset({"NO_EVENTS", "OPERATIONS_UNRECORDED", "WATCH_UNFINISHED"}),
    standstill=frozenset({"WATCH_UNFINISHED"}),
    needs_clocks=False,
)


def _findings(lines: Sequence[Mapping[str, Any]], history: History) -> Iterator[Finding]:
    for code, (demand, one, many, what) in MEANINGS.items():
        count = sum(line["counts"].get(code, 0) for line in lines)
        if count:
            some = [row for line in lines for row in line["samples"].get(code, ())]
            some.sort(key=lambda row: (row[1], row[0]))
            rows = tuple(_row(history, key, Breach(code, *row)) for key, *row in some[:SAMPLE])
            spans = tuple((t, t) for _, t, *_ in some)
            message = f"{quantity(count, one, many)} {what}; first: {rows[0]['explanation']}"
            yield Finding(code, count, message, demand, rows, spans=spans)


def _row(history: History, key: int, breach: Breach) -> dict[str, Any]:
    process = str(breach.process)
    row = {
        "key": name_of(history.names, "keys", key),
        "version": breach.version,
        "value": breach.value,
        "by": str(history.names.get("processes", {}).get(process, f"process {process}")),
        "op": breach.op,
        "seen_s": seconds(breach.t),
        "explanation": breach.why,
    }
    return {name: value for name, value in row.items() if value != NONE}


def _reasons(events: int, unfinished: int, doubtful: int) -> Iterator[Reason]:
    if not events:
        yield Reason("NO_EVENTS", "no watcher received an event, so nothing is proven")
    if unfinished:
        yield Reason(
            "WATCH_UNFINISHED",
            f"{quantity(unfinished, 'watcher')} had not received the newest version when the run "
            "ended, and got no answers; the cluster did not recover, or recover_within_s is short",
        )
    if doubtful:
        yield Reason(
            "OPERATIONS_UNRECORDED",
            f"{quantity(doubtful, 'contradiction')} may come from gaps in the record; run it again",
        )


# ------------------------------------------------------------------------------------ one bucket


def _select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    return rows_of(batch, COLUMNS, KINDS)


class _BucketJudge:
    """Judges the keys of one bucket after another."""

    def __init__(self, drained: int, most: int) -> None:
        self._drained, self._most = drained, most

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        counts: dict[str, int] = {}
        samples: dict[str, list[Any]] = {}
        keys = []
        for key, operations in operations_of(
            zip(*(rows[name].tolist() for name in COLUMNS), strict=True)
        ):
            verdict = judge_key(operations, self._drained)
            for code, *rest in verdict.breaches:
                counts[code] = counts.get(code, 0) + 1
                samples.setdefault(code, []).append([key, *rest])
            keys.append(
                {name: value for name, value in vars(verdict).items() if name != "breaches"}
            )
        first = {
            code: sorted(some, key=lambda row: (row[1], row[0]))[: self._most]
            for code, some in samples.items()
        }
        return {"keys": keys, "counts": counts, "samples": first}


def operations_of(
    rows: Iterable[tuple[int, ...]],
) -> Iterator[tuple[int, list[KeyOperation]]]:
    """Yield each key that is watched and its operations, in the order of their invocations."""
    keys: dict[int, dict[int, KeyOperation]] = {}
    for t, process, op, kind, f, key, value, arg, offset, pos in rows:
        of_key = keys.setdefault(key, {})
        mine = of_key.get(op) or of_key.setdefault(op, KeyOperation(F(f), op, process))
        if pos >= 0 and kind == Type.OK:
            mine.events.append((pos, Event(t, offset, value)))
        elif kind == Type.INVOKE:
            mine.begun = t
            mine.version, mine.value = max(mine.version, offset), max(mine.value, value)
        else:
            mine.ended, mine.type = t, Type(kind)
            if f == F.WATCH:
                mine.newest, mine.early = arg in (1, 3), arg in (2, 3)
            else:
                mine.version, mine.value = offset, max(mine.value, value)
    for key, operations in sorted(keys.items()):
        if any(each.f is F.WATCH for each in operations.values()):
            for each in operations.values():
                each.events.sort()
            yield key, sorted(operations.values(), key=lambda each: (each.begun, each.op))


# --------------------------------------------------------------------------------------- one key


def judge_key(operations: Sequence[KeyOperation], drained: int) -> KeyVerdict:
    """Judge one key. `drained`: when the final phase began, NONE if it did not."""
    verdict = KeyVerdict()
    known = _known(operations, verdict.breaches)
    watchers: dict[int, list[KeyOperation]] = {}
    for each in operations:
        verdict.events += len(each.events)
        verdict.reads += each.f is F.GET and each.type is Type.OK
        if each.f is not F.PUT:
            watchers.setdefault(each.process, []).append(each)
    verdict.watchers = len(watchers)
    for process, mine in watchers.items():
        watcher = _Watcher(process, known, verdict.breaches)
        for each in mine:
            watcher.take(each)
        watcher.find_gaps()
        if drained != NONE and mine[-1].begun >= drained:
            verdict.unfinished += watcher.is_unfinished(mine, drained)
    return verdict


def _known(operations: Sequence[KeyOperation], breaches: list[Breach]) -> dict[int, Event]:
    """Return what certainly exists: version -> when it was first known, and its value. Add what
    contradicts it to the breaches, each once."""
    writes = {each.value: each for each in operations if each.f is F.PUT}
    known: dict[int, Event] = {}
    versions: dict[int, int] = {}
    convicted: set[tuple[str, int]] = set()

    def convict(code: str, about: int, by: KeyOperation, event: Event, why: str) -> None:
        if (code, about) not in convicted:
            convicted.add((code, about))
            breaches.append(Breach(code, event.t, by.process, by.op, *event[1:], why))

    for by, event in sorted(_witnesses(operations), key=lambda pair: pair[1]):
        _, version, value = event
        write = writes.get(value)
        if write is None or write.type is Type.FAIL:
            why = f"version {version} has a value that "
            why += "a write had that failed" if write else "was never written"
            convict(UNWRITTEN, value, by, event, why)
            continue
        first = known.setdefault(version, event)
        if first.value != value:
            convict(CONFLICT, version, by, event, f"version {version} also had value {first.value}")
        elif (other := versions.setdefault(value, version)) != version:
            convict(CONFLICT, version, by, event, f"this value was version {other}, too")
    return known


def _witnesses(operations: Iterable[KeyOperation]) -> Iterator[tuple[KeyOperation, Event]]:
    """Yield the versions in the answers to writers, readers and watchers."""
    for each in operations:
        if each.f is not F.WATCH and each.type is Type.OK and each.version > 0:
            yield each, Event(each.ended, each.version, each.value)
        yield from ((each, event) for _, event in each.events)


class _Watcher:
    """What one process has seen of the key."""

    def __init__(self, process: int, known: Mapping[int, Event], breaches: list[Breach]) -> None:
        self._process, self._known, self._breaches = process, known, breaches
        self._received: dict[int, int] = {}  # version -> operation
        self._newest = False
        self._top = 0  # a read that shows an older version than this is stale
        self._reached = 0  # the greatest that it received, or continued from
        self._covered: list[tuple[int, int, int, int]] = []  # after, up to, when, operation

    def take(self, each: KeyOperation) -> None:
        """Take the next operation of the process."""
        if each.f is F.GET:
            if each.type is Type.OK:
                if each.version < self._top:
                    event = Event(each.ended, each.version, each.value)
                    self._convict(STALE, each, event, f"it read {event.version} after {self._top}")
                self._top = max(self._top, each.version)
            return
        self._newest = each.newest or (self._newest and not each.events)
        self._reached = max(self._reached, each.version)
        last = each.version
        for _, event in each.events:
            if each.newest:
                self._take_newest(each, event)
            else:
                self._take_next(each, event, last)
            last = max(last, event.version)
            self._received.setdefault(event.version, each.op)
            self._reached = max(self._reached, last)
            if not each.early:
                self._top = max(self._top, last)
        if last > each.version and not each.newest:
            self._covered.append((each.version, last, each.ended or each.events[-1][1].t, each.op))

    def _take_newest(self, each: KeyOperation, event: Event) -> None:
        if event.version < self._top:
            why = f"version {event.version} came after it had seen {self._top}"
            self._convict(STALE, each, event, why)

    def _take_next(self, each: KeyOperation, event: Event, last: int) -> None:
        version = event.version
        if version in self._received:
            self._convict(TWICE, each, event, f"version {version} came again")
        elif version > each.version or self._left_out(version):
            if version < last:
                why = f"version {version} came after {last}"
                self._convict(DISORDER, each, event, why)
        else:
            why = f"version {version} came, and the watch continues from {each.version}"
            self._convict(STALE, each, event, why)

    def _left_out(self, version: int) -> bool:
        """Whether a watch has passed over this version."""
        return any(after < version <= until for after, until, _, _ in self._covered)

    def _convict(self, code: str, each: KeyOperation, event: Event, why: str) -> None:
        self._breaches.append(
            Breach(code, event.t, self._process, each.op, event.version, event.value, why)
        )

    def find_gaps(self) -> None:
        """Find what watches passed over, and what never came later."""
        versions = sorted(self._known)
        for after, until, t, op in self._covered:
            for version in versions[bisect(versions, after) : bisect(versions, until)]:
                if version not in self._received:
                    self._received[version] = op  # it counts once
                    value = self._known[version].value
                    why = f"{until} was received, and {version} before it never was"
                    self._breaches.append(Breach(MISSED, t, self._process, op, version, value, why))

    def is_unfinished(self, mine: Sequence[KeyOperation], drained: int) -> bool:
        """Find what never came although nothing was written any more; return whether it is not
        known what would have come."""
        ahead = sorted(version for version in self._known if version > self._reached)
        if not ahead:
            return False
        since = max(drained, self._known[ahead[-1]].t)
        silent = [
            each
            for each in mine
            if each.f is F.WATCH and each.type is Type.OK and not each.events and each.begun > since
        ]
        if len(silent) < SILENT_CALLS:
            return True
        for version in ahead[-1:] if self._newest else ahead:
            why = f"{len(silent)} calls in the final phase brought nothing after {self._reached}"
            event, last = self._known[version], silent[-1]
            self._breaches.append(
                Breach(MISSED, event.t, self._process, last.op, version, event.value, why)
            )
        return False
