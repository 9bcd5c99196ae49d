"""The story of a failing run: what happened to the message that convicts it, and around it.

A timeline in plain sentences, short enough to read at a glance: the faults with whom they hit,
elections, changes of the SyncStateSet, logs that were cut, and the first message that breaks a law:
sent, acknowledged, seen, and where it is in the end. Of a long run, what is far from that message
or tells little is left out first.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.history import History, batches
from harness.intervals import ENDING, Event, FaultInterval, events
from harness.operation import F, Type
from harness.verdict import Finding, Verdict

MOST = 22  # moments
LAWS = {
    "no-loss": "what is acknowledged stays in the log",
    "at-least-once": "what is acknowledged reaches every consumer group",
    "order-per-queue": "the messages of a producer stay in their order in each queue",
    "keeps-metadata": "topics, group offsets and locks outlive every failover",
    "integrity": "nothing is made up, changed, or different from one node to the other",
    "linearizable": "one order of all operations that respects real time explains every answer",
    "recovers": "when all faults are healed, the cluster serves again in time",
}
TIMES = ("acked_s", "at_s", "sent_s", "seen_s")  # in evidence
NAMED = 3  # nodes of one part that are told by name
SEEN_SHOWN = 2  # times that the message was read


@dataclass(frozen=True, order=True)
class Moment:
    """A sentence with its time, ns since the run's start. Less `weight` is left out first."""

    t: int
    words: str
    weight: int = field(compare=False)


def told(history: History, verdict: Verdict, most: int = MOST) -> list[str]:
    """The story, line by line."""
    began = int(history.state.get("load_began_ns", 0))
    cast = Cast.of(history)
    finding = verdict.first
    message = _message(history, finding)
    moments = [*faults_told(history), *cluster_told(history, cast, began), *message]
    shown = _shown(moments, round((when_s(finding) or 0.0) * 1e9), most)
    lines = [f"In seconds after the load began. {_before(history, cast, began)}"]
    lines += [f"{(moment.t - began) / 1e9:9.3f}  {moment.words}" for moment in shown]
    if len(shown) < len(moments):
        lines.append(f"           ({len(moments) - len(shown):,} moments that tell less left out)")
    return [*lines, *_end(history, verdict, finding)]


def _shown(moments: Sequence[Moment], about: int, most: int) -> list[Moment]:
    ranked = sorted(moments, key=lambda m: (-m.weight, abs(m.t - about), m))
    return sorted(ranked[:most])


def when_s(finding: Finding | None) -> float | None:
    """When the first thing happened that convicts, as far as is known; since the run's start."""
    rows = finding.evidence[:1] if finding else ()
    return next((float(row[key]) for row in rows for key in TIMES if row.get(key)), None)


# ------------------------------------------------------------------------------------- the cast


@dataclass(frozen=True)
class Cast:
    """Names of brokers by the numbers that controllers give them."""

    brokers: Mapping[int, str]

    @classmethod
    def of(cls, history: History) -> "Cast":
        roles = (event for event in events(history.read("events")) if event.kind == "role")
        claims: dict[int, set[str]] = {}
        for event in roles:
            claims.setdefault(int(event.fields["brokerId"]), set()).add(event.node)
        return cls({number: min(who) for number, who in claims.items() if len(who) == 1})

    def name(self, number: int) -> str:
        return self.brokers.get(number, f"the broker with id {number}")

    def names(self, numbers: Sequence[int]) -> str:
        return ", ".join(sorted(self.name(number) for number in numbers)) or "nobody"


# ------------------------------------------------------------------------------------- the faults


def faults_told(history: History, among: Container[int] | None = None) -> Iterator[Moment]:
    """The faults, or some of them by their ids."""
    for fault in history.faults:
        if among is not None and fault.id not in among:
            continue
        if fault.applied is None:
            if fault.begin is not None:
                yield Moment(fault.begin, f"fault {fault.id}: {fault.kind} hits nobody", 1)
            continue
        doubt = f" ({fault.state})" if fault.state != "installed" else ""
        yield Moment(fault.applied, f"fault {fault.id}: {_what(fault)}{doubt}", 4)
        if fault.heal is not None:
            yield Moment(fault.heal, f"fault {fault.id} ends: {_ended(fault)}", 2)


def _what(fault: FaultInterval) -> str:
    """`partition (isolate) of broker-2 (master)`, and from whom."""
    who = "; ".join(_several(names, role) for role, names in fault.targets.items() if names)
    params = fault.params
    shape = params.get("shape", "")
    others = f", from {params['from']}" if params.get("from") else ""
    way = f", {params['direction']}" if shape == "one-way" else ""
    share = f" of {params['probability']:.0%}" if "probability" in params else ""
    return f"{fault.kind}{f' ({shape}{way}{others})' if shape else ''}{share}, {who or 'nobody'}"


def _several(names: Sequence[str], role: str) -> str:
    """`broker-1, broker-2 (slave)`, or how many, when they are many."""
    if len(names) > NAMED:
        return f"{len(names)} nodes ({role})"
    return f"{', '.join(names)}{f' ({role})' if role not in names[0] else ''}"


def _ended(fault: FaultInterval) -> str:
    many = len(fault.names) > NAMED
    names = f"{len(fault.names)} nodes" if many else ", ".join(fault.names)
    if fault.kind in ENDING:
        return f"{names} started again"
    return f"{names} resumed" if fault.kind == "pause" else "healed"


# ------------------------------------------------------------------------------------ the cluster

Words = Callable[[Event, Cast], tuple[str, int]]  # a sentence and its weight
NOTHING = ("", 0)
KILLED = -9  # by a fault, which is told


def _elected(event: Event, cast: Cast) -> tuple[str, int]:
    told = event.fields
    chosen = cast.name(told["masterId"]) if told["masterId"] else "nobody"
    members = f", SyncStateSet {cast.names(told['set'])}" if "set" in told else ""
    what = f"{chosen} master of {told['brokerName']}: epoch {told['epoch']}{members}"
    return f"{event.node} elects {what}", 3


def _set(event: Event, cast: Cast) -> tuple[str, int]:
    if "brokerName" not in event.fields:
        return NOTHING  # the master's word for the same
    return f"{event.fields['brokerName']}: SyncStateSet {cast.names(event.fields['set'])}", 3


def _cut(event: Event, cast: Cast) -> tuple[str, int]:
    told = event.fields
    below = f", below the {told['confirm']:,} it had confirmed" if told.get("belowConfirm") else ""
    return f"{event.node} cuts its log from {told['before']:,} to {told['point']:,} bytes{below}", 3


def _raft(event: Event, cast: Cast) -> tuple[str, int]:
    if event.fields.get("state") != "leader":
        return NOTHING
    return f"{event.node} leads the controllers in term {event.fields['term']}", 2


def _recovered(event: Event, cast: Cast) -> tuple[str, int]:
    told = event.fields
    if "max" in told:
        return f"{event.node} finds {told['max']:,} bytes of log on its disk", 2
    if not told.get("cut"):
        return NOTHING
    return f"{event.node} finds the controllers' log up to entry {told['last']}, and torn there", 1


def _exited(event: Event, cast: Cast) -> tuple[str, int]:
    code = event.fields.get("code", 0)
    return NOTHING if code == KILLED else (f"{event.node} ends with exit code {code}", 3)


def _broken(event: Event, cast: Cast) -> tuple[str, int]:
    return f"{event.fields.get('law')} does not hold: {event.fields.get('why', '')}", 5


def _said(event: Event, cast: Cast) -> tuple[str, int]:
    return f"{event.node}: {event.kind}: {event.fields.get('why', '')}", 3


KINDS: Mapping[str, Words] = {
    "election": _elected,
    "set": _set,
    "truncate": _cut,
    "raft": _raft,
    "recover": _recovered,
    "exit": _exited,
    "fatal": _said,
    "halted": _said,
    "broken-law": _broken,
}


def cluster_told(
    history: History, cast: Cast, began: int, broker_set: str = ""
) -> Iterator[Moment]:
    """What the nodes told since the load began, each thing once; of one broker set, if asked. Not
    what they tell while they are taken down; a run that never came to that told all of it."""
    until = history.phases().get("collected", math.inf)
    seen: set[str] = set()
    laws: set[str] = set()
    for event in events(history.read("events")):
        if broker_set and event.fields.get("brokerName", broker_set) != broker_set:
            continue
        words, weight = KINDS.get(event.kind, _nothing)(event, cast)
        if (law := str(event.fields.get("law", ""))) in laws:
            continue  # it was broken before
        laws.update([law] * bool(law))
        if words and words not in seen and began <= event.t < until:
            yield Moment(event.t, words, weight)
        seen = {words} if event.kind in ("set", "election") else seen | {words}


def _nothing(event: Event, cast: Cast) -> tuple[str, int]:
    return NOTHING


def _before(history: History, cast: Cast, began: int) -> str:
    """How things stood when the load began."""
    masters: dict[str, str] = {}
    sets: dict[str, str] = {}
    leader = ""
    for event in (e for e in events(history.read("events")) if e.t < began):
        told = event.fields
        if event.kind == "election":
            masters[told["brokerName"]] = f"{cast.name(told['masterId'])} in epoch {told['epoch']}"
        if event.kind in ("election", "set") and "brokerName" in told and "set" in told:
            sets[told["brokerName"]] = f", SyncStateSet {cast.names(told['set'])}"
        if event.kind == "raft" and told.get("state") == "leader":
            leader = event.node
    stands = [f"{name} has the master {who}{sets.get(name, '')}" for name, who in masters.items()]
    return f"At first {'; '.join([*stands, *([f'{leader} leads'] if leader else [])])}."


# ------------------------------------------------------------------------------------ the message


def _message(history: History, finding: Finding | None) -> list[Moment]:
    """The life of the first message that convicts, if the finding names one."""
    value = _value(finding)
    if value is None:
        return []
    rows = sorted(_rows(history, value), key=lambda row: (row["t"], row["type"]))
    moments = [_sent(row, history) for row in rows if row["f"] == F.SEND]
    seen = [row for row in rows if row["f"] in (F.POLL, F.READ) and row["type"] == Type.OK]
    return [*moments, *(_seen(row, history) for row in seen[:SEEN_SHOWN])]


def _value(finding: Finding | None) -> int | None:
    rows = finding.evidence if finding else ()
    return next((int(row["value"]) for row in rows[:1] if "value" in row), None)


def _rows(history: History, value: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in history.files("ops"):
        for batch in batches(path):
            same = pc.equal(batch.column("value"), pa.scalar(value, pa.int64()))
            rows += batch.filter(same).to_pylist()
    return rows


def _sent(row: Mapping[str, Any], history: History) -> Moment:
    who = _process(history, row["process"])
    if row["type"] == Type.INVOKE:
        return Moment(row["t"], f"{who} sends the message to {_key(history, row['key'])}", 5)
    if row["type"] != Type.OK:
        how = "refused" if row["type"] == Type.FAIL else "left without an answer"
        return Moment(row["t"], f"the message is {how}", 5)
    node = history.names["nodes"][row["node"]]
    at = f"at offset {row['offset']:,} in epoch {row['epoch']}"
    return Moment(row["t"], f"{node} acknowledges the message {at}", 5)


def _seen(row: Mapping[str, Any], history: History) -> Moment:
    where = f"{_key(history, row['key'])} at offset {row['offset']:,}"
    return Moment(row["t"], f"{_process(history, row['process'])} reads it from {where}", 5)


def _process(history: History, number: int) -> str:
    return str(history.names.get("processes", {}).get(str(number), f"process {number}"))


def _key(history: History, number: int) -> str:
    return str(history.names["keys"][number])


def _end(history: History, verdict: Verdict, finding: Finding | None) -> Iterator[str]:
    value = _value(finding)
    if value is not None:
        replicas = history.read("replicas")
        holders = replicas.filter(pc.equal(replicas["value"], pa.scalar(value, pa.int64())))
        names = sorted({history.names["nodes"][node] for node in holders["node"].to_pylist()})
        logs = f"in the log of {', '.join(names)}" if names else "in no broker's log"
        yield f"   in the end the message is {logs}"
    law = LAWS.get(finding.demand, finding.demand) if finding else "a world comes to its end"
    yield f"The law: {law}."
    yield verdict.sentence
