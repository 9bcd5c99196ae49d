"""What happened around a story: faults with their targets, and events of the nodes (elections,
changes of the SyncStateSet, truncated logs, crashes), each as a sentence with its time."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.reader import History
from reports._stories.moments import Moment

MAX_NAMED = 3  # nodes of one role that are named

# ------------------------------------------------------------------------------------- the cast


@dataclass(frozen=True)
class BrokerNames:
    """Names of brokers by the numbers that controllers give them."""

    brokers: Mapping[int, str]

    @classmethod
    def of(cls, history: History) -> "BrokerNames":
        roles = (event for event in history.events if event.kind == "role")
        claims: dict[int, set[str]] = {}
        for event in roles:
            claims.setdefault(int(event.fields["brokerId"]), set()).add(event.node)
        return cls({number: min(who) for number, who in claims.items() if len(who) == 1})

    def name(self, number: int) -> str:
        return self.brokers.get(number, f"the broker with id {number}")

    def names(self, numbers: Sequence[int]) -> str:
        return ", ".join(sorted(self.name(number) for number in numbers)) or "no broker"

    def sync_state_set(self, fields: Mapping[str, Any]) -> str:
        """Return the SyncStateSet of an event after a comma; empty if it has none."""
        return f", SyncStateSet {self.names(fields['set'])}" if "set" in fields else ""


class BrokerSetMaster(NamedTuple):
    """The master of a broker set, and its SyncStateSet after a comma."""

    master: str
    epoch: int
    members: str = ""


def broker_sets_before(
    recorded: Iterable[ClusterEvent], brokers: BrokerNames, t: int
) -> Mapping[str, BrokerSetMaster]:
    """Return the state of each broker set that has a master, from the events before a time."""
    masters: dict[str, BrokerSetMaster] = {}
    members: dict[str, str] = {}
    for event in recorded:
        fields = event.fields
        if event.t >= t or event.kind not in ("election", "set") or "brokerName" not in fields:
            continue
        name = fields["brokerName"]
        members[name] = brokers.sync_state_set(fields) or members.get(name, "")
        if event.kind == "election" and fields.get("masterId"):
            masters[name] = BrokerSetMaster(brokers.name(fields["masterId"]), fields["epoch"])
    return {name: state._replace(members=members[name]) for name, state in masters.items()}


# ------------------------------------------------------------------------------------- the faults


def fault_moments(history: History, among: Container[int] | None = None) -> Iterator[Moment]:
    """Yield the faults, or those with these ids."""
    for fault in history.faults:
        if among is not None and fault.id not in among:
            continue
        if fault.applied is None:
            if fault.begin is not None:
                yield Moment(fault.begin, 1, f"fault {fault.id}: {fault.kind} has no target", 1)
            continue
        doubt = f" ({fault.state})" if fault.state != "installed" else ""
        yield Moment(fault.applied, 1, f"fault {fault.id}: {_what(fault)}{doubt}", 4)
        if fault.heal is not None:
            yield Moment(fault.heal, 1, f"fault {fault.id} ends: {_ended(fault)}", 2)


def _what(fault: FaultInterval) -> str:
    """Return a fault as text: `partition (isolate), broker-2 (master)`."""
    who = "; ".join(_several(names, role) for role, names in fault.targets.items() if names)
    params = fault.params
    shape = params.get("shape", "")
    others = f", from {params['from']}" if params.get("from") else ""
    way = f", {params['direction']}" if shape == "one-way" else ""
    share = f" of {params['probability']:.0%}" if "probability" in params else ""
    return f"{fault.kind}{f' ({shape}{way}{others})' if shape else ''}{share}, {who or 'no target'}"


def _several(names: Sequence[str], role: str) -> str:
    """Return names with their role, or their number if there are many."""
    if len(names) > MAX_NAMED:
        return f"{len(names)} nodes ({role})"
    return f"{', '.join(names)}{f' ({role})' if role not in names[0] else ''}"


def _ended(fault: FaultInterval) -> str:
    many = len(fault.names) > MAX_NAMED
    names = f"{len(fault.names)} nodes" if many else ", ".join(fault.names)
    if fault.ends:
        return f"{names} started again"
    return f"{names} resumed" if fault.effects.suspends else "healed"


# ------------------------------------------------------------------------------------ the cluster

EventText = Callable[[ClusterEvent, BrokerNames], tuple[str, int]]  # a sentence and its weight
NO_TEXT = ("", 0)
KILLED = -9  # by a fault, which has a moment of its own


def _elected(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    fields = event.fields
    chosen = brokers.name(fields["masterId"]) if fields["masterId"] else "no broker"
    if chosen == event.node:
        return f"{chosen} becomes master of {fields['brokerName']} in epoch {fields['epoch']}", 3
    what = f"{chosen} master of {fields['brokerName']}: epoch {fields['epoch']}"
    return f"{event.node} elects {what}{brokers.sync_state_set(fields)}", 3


def _set(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    if "brokerName" not in event.fields:
        return NO_TEXT  # the master's report of the same change
    return f"{event.fields['brokerName']}: SyncStateSet {brokers.names(event.fields['set'])}", 3


def _cut(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    fields = event.fields
    below = (
        f", below the {fields['confirm']:,} it had confirmed" if fields.get("belowConfirm") else ""
    )
    return (
        f"{event.node} cuts its log from {fields['before']:,} to {fields['point']:,} bytes{below}",
        3,
    )


def _raft(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    if event.fields.get("state") != "leader" or "brokerName" in event.fields:
        return NO_TEXT  # a broker's own election has an event `role`, too
    return f"{event.node} leads the controllers in term {event.fields['term']}", 2


def _recovered(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    fields = event.fields
    if "max" in fields:
        return f"{event.node} finds {fields['max']:,} bytes of log on its disk", 2
    if not fields.get("cut"):
        return NO_TEXT
    return (
        f"{event.node} finds the controllers' log up to entry {fields['last']}, and torn there",
        1,
    )


def _exited(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    code = event.fields.get("code", 0)
    return NO_TEXT if code == KILLED else (f"{event.node} ends with exit code {code}", 3)


def _broken(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    return f"{event.fields.get('law')} does not hold: {event.fields.get('why', '')}", 5


def _fatal(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    return f"{event.node}: {event.kind}: {event.fields.get('why', '')}", 3


KINDS: Mapping[str, EventText] = {
    "election": _elected,
    "set": _set,
    "truncate": _cut,
    "raft": _raft,
    "recover": _recovered,
    "exit": _exited,
    "fatal": _fatal,
    "halted": _fatal,
    "broken-law": _broken,
}


def cluster_moments(
    history: History, brokers: BrokerNames, began: int, broker_set: str = ""
) -> Iterator[Moment]:
    """Yield the nodes' events since the load began, each change once; optionally of one broker set.
    Events of the shutdown are left out; a run without a shutdown has none."""
    until = history.phases.get("collected", math.inf)
    seen: set[str] = set()
    laws: set[str] = set()
    for event in history.events:
        if broker_set and event.fields.get("brokerName", broker_set) != broker_set:
            continue
        words, weight = KINDS.get(event.kind, _no_text)(event, brokers)
        if (law := str(event.fields.get("law", ""))) in laws:
            continue  # reported before
        laws.update([law] * bool(law))
        if words and words not in seen and began <= event.t < until:
            yield Moment(event.t, 1, words, weight)
        seen = {words} if event.kind in ("set", "election") else seen | {words}


def _no_text(event: ClusterEvent, brokers: BrokerNames) -> tuple[str, int]:
    return NO_TEXT
