"""What happened around a story: the faults with whom they hit, and what the nodes told: elections,
changes of the SyncStateSet, logs that were cut, crashes. In plain sentences, each with its moment.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.explain.words import Step
from harness.history.faults_and_events import Event, FaultInterval, events
from harness.history.reader import History

NAMED = 3  # nodes of one part that are told by name

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
        return ", ".join(sorted(self.name(number) for number in numbers)) or "no broker"


# ------------------------------------------------------------------------------------- the faults


def faults_told(history: History, among: Container[int] | None = None) -> Iterator[Step]:
    """The faults, or some of them by their ids."""
    for fault in history.faults:
        if among is not None and fault.id not in among:
            continue
        if fault.applied is None:
            if fault.begin is not None:
                yield Step(fault.begin, 1, f"fault {fault.id}: {fault.kind} has no target", 1)
            continue
        doubt = f" ({fault.state})" if fault.state != "installed" else ""
        yield Step(fault.applied, 1, f"fault {fault.id}: {_what(fault)}{doubt}", 4)
        if fault.heal is not None:
            yield Step(fault.heal, 1, f"fault {fault.id} ends: {_ended(fault)}", 2)


def _what(fault: FaultInterval) -> str:
    """`partition (isolate) of broker-2 (master)`, and from whom."""
    who = "; ".join(_several(names, role) for role, names in fault.targets.items() if names)
    params = fault.params
    shape = params.get("shape", "")
    others = f", from {params['from']}" if params.get("from") else ""
    way = f", {params['direction']}" if shape == "one-way" else ""
    share = f" of {params['probability']:.0%}" if "probability" in params else ""
    return f"{fault.kind}{f' ({shape}{way}{others})' if shape else ''}{share}, {who or 'no target'}"


def _several(names: Sequence[str], role: str) -> str:
    """`broker-1, broker-2 (slave)`, or how many, when they are many."""
    if len(names) > NAMED:
        return f"{len(names)} nodes ({role})"
    return f"{', '.join(names)}{f' ({role})' if role not in names[0] else ''}"


def _ended(fault: FaultInterval) -> str:
    many = len(fault.names) > NAMED
    names = f"{len(fault.names)} nodes" if many else ", ".join(fault.names)
    if fault.ends:
        return f"{names} started again"
    return f"{names} resumed" if fault.effects.suspends else "healed"


# ------------------------------------------------------------------------------------ the cluster

Words = Callable[[Event, Cast], tuple[str, int]]  # a sentence and its weight
NOTHING = ("", 0)
KILLED = -9  # by a fault, which is told


def _elected(event: Event, cast: Cast) -> tuple[str, int]:
    told = event.fields
    chosen = cast.name(told["masterId"]) if told["masterId"] else "no broker"
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


def cluster_told(history: History, cast: Cast, began: int, broker_set: str = "") -> Iterator[Step]:
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
            yield Step(event.t, 1, words, weight)
        seen = {words} if event.kind in ("set", "election") else seen | {words}


def _nothing(event: Event, cast: Cast) -> tuple[str, int]:
    return NOTHING
