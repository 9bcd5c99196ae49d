"""What event logs say of masters: elections, SyncStateSets, routes shown to clients, and in which
stretches of a run a set had to replace its master, or had no reason to. Pure.

A stretch is time in which the same faults, or none, were in force: from the moment at which one
began or was observed healed to the next such moment. Only stretches longer than the patience count,
since a cluster may still be busy with what was before: the trial's own `recover_within_s`, the time
in which it claims to recover from a fault.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.history.faults_and_events import ClusterEvent, FaultInterval, TimeWindow
from harness.history.roles import ENDS
from harness.run.broker_sets import CONTROLLER, voting_nodes

TRIGGERS = frozenset({"closed", "expired", "returned", "scan"})  # of elections by controllers
# a process began or ended, according to itself or to the runner: a full disk or a node without
# descriptors may have prevented the process's own event
PROCESS_EVENTS = frozenset({"start", *ENDS})


@dataclass(frozen=True)
class SetSnapshot:
    """The last known state of a broker set: its master, its SyncStateSet, and its nodes by id."""

    master: int | None = None
    members: tuple[int, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The master's node; empty if there is none, or it is not known."""
        return self.nodes.get(self.master, "") if self.master is not None else ""


@dataclass(frozen=True)
class Incident:
    """Something that must not happen: when, on which node, why, and in which broker set."""

    t: int
    node: str
    why: str
    set: str = ""


def set_states(event_log: Sequence[ClusterEvent], before: int) -> dict[str, SetSnapshot]:
    """Return the state of each set before a moment. Each set numbers its brokers from 1."""
    sets: dict[str, SetSnapshot] = {}
    nodes: dict[str, dict[int, str]] = defaultdict(dict)
    for event in event_log:
        fields, name = event.fields, str(event.fields.get("brokerName", ""))
        if event.kind == "role" and "brokerId" in fields:
            nodes[name][int(fields["brokerId"])] = event.node
        if event.t >= before or not name:
            continue
        if event.kind == "election":
            winner = fields.get("masterId")
            members = tuple(int(i) for i in fields.get("set") or () if i is not None)
            if winner is None and name in sets:  # the old master still has to be replaced
                winner, members = sets[name].master, members or sets[name].members
            sets[name] = SetSnapshot(None if winner is None else int(winner), members)
        elif event.kind == "set" and name in sets:
            members = tuple(int(i) for i in fields.get("set") or () if i is not None)
            sets[name] = SetSnapshot(sets[name].master, members)
    return {name: SetSnapshot(s.master, s.members, nodes[name]) for name, s in sets.items()}


def set_of_node(event_log: Sequence[ClusterEvent]) -> dict[str, str]:
    """Return the broker set of each node with a broker, from the events of its roles; nodes with
    brokers of several sets are left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for event in event_log:
        if event.kind == "role" and "brokerName" in event.fields:
            found[event.node].add(str(event.fields["brokerName"]))
    return {node: next(iter(sets)) for node, sets in found.items() if len(sets) == 1}


def stretches(
    faults: Sequence[FaultInterval], end: int
) -> Iterator[tuple[TimeWindow, frozenset[int]]]:
    """Yield the run up to `end` in stretches, with the ids of the faults in force in each."""
    begun = [
        (f.begin, end if f.healed is None else f.healed, f.id)
        for f in faults
        if f.begin is not None
    ]
    coming = sorted(begun, reverse=True)
    turns = {t for f in faults for t in (f.begin, f.applied, f.heal, f.healed) if t is not None}
    edges = sorted({0, end, *(t for t in turns if 0 < t < end)})
    there: list[tuple[int, int, int]] = []
    for begin, until in pairwise(edges):
        while coming and coming[-1][0] < until:
            there.append(coming.pop())
        there = [span for span in there if span[1] > begin]
        yield TimeWindow(begin, until), frozenset(number for _, _, number in there)


def headless(
    event_log: Sequence[ClusterEvent],
    faults: Sequence[FaultInterval],
    roles: Mapping[str, str],
    patience: int,
    end: int,
) -> Iterator[Incident]:
    """Yield sets that got no new master in time although an election was possible: the old master
    silent, a member of its set and most controllers untouched, and no other fault in force.

    An election without a winner, or of a silent broker, makes no master. If another silent broker
    was elected before its silence was known, and is the only member now, no broker is eligible.
    """
    by_id = {fault.id: fault for fault in faults}
    controllers = voting_nodes(roles)
    brokers_vote = CONTROLLER not in roles.values()
    for window, ids in stretches(faults, end):
        inside = [by_id[number] for number in ids]
        silent = {node for fault in inside for node in fault.names}
        if (
            not silent
            or window.end - window.begin <= patience
            or not all(_silences(fault, window) for fault in inside)
            or 2 * len(controllers - silent) <= len(controllers)
        ):
            continue
        until = window.begin + patience
        states = set_states(event_log, window.begin)
        for name, state in states.items():
            living = _living(state, silent)
            if state.name not in silent or not living:
                continue
            # the brokers of each set vote for themselves
            if brokers_vote and len(states) > 1 and 2 * len(living) <= len(state.members):
                continue
            winners = _winners(event_log, name, window.begin, until)
            if any(state.nodes.get(number, "") not in {"", *silent} for number in winners):
                continue
            later = set_states(event_log, until + 1)[name]
            if _living(later, silent) or state.master in winners:
                who, took_s = state.name, patience / 1e9
                why = f"{name} had no master but {who}, which was silent, after {took_s:g} s"
                yield Incident(until, who, why, name)


def _living(state: SetSnapshot, silent: set[str]) -> set[str]:
    """Return the members of the set that may be elected."""
    return {state.nodes.get(number, "") for number in state.members} - {"", *silent}


def _silences(fault: FaultInterval, window: TimeWindow) -> bool:
    """Whether a fault keeps its targets silent in the whole window."""
    heal = window.end if fault.heal is None else fault.heal
    return (
        fault.silences
        and fault.state == "installed"
        and fault.applied is not None
        and heal >= window.end
    )


def _winners(event_log: Sequence[ClusterEvent], name: str, begin: int, end: int) -> set[int]:
    """Return the ids of the brokers that a set elected in that time; an election may have no
    winner."""
    ids = {
        event.fields.get("masterId")
        for event in event_log
        if event.kind == "election"
        and event.fields.get("brokerName") == name
        and begin <= event.t <= end
    }
    return {int(number) for number in ids if number is not None}


def needless(
    event_log: Sequence[ClusterEvent],
    faults: Sequence[FaultInterval],
    load: TimeWindow,
    patience: int,
) -> Iterator[Incident]:
    """Yield elections that controllers held although no fault was in force, nor shortly before."""
    for window, ids in stretches(faults, load.end):
        if ids:
            continue
        calm_from = max(load.begin, window.begin + (patience if window.begin else 0))
        inside = [event for event in event_log if calm_from <= event.t < window.end]
        if any(event.kind in PROCESS_EVENTS for event in inside):
            continue
        for event in inside:
            trigger = event.fields.get("trigger")
            if event.kind == "election" and trigger in TRIGGERS:
                epoch, name = event.fields.get("epoch"), event.fields.get("brokerName")
                why = f"{name} got epoch {epoch} (trigger: {trigger}) while nothing was wrong"
                yield Incident(event.t, event.node, why, str(name or ""))


def outside(event_log: Sequence[ClusterEvent]) -> Iterator[Incident]:
    """Yield masters that were not members of the SyncStateSet where only members are eligible."""
    for event in event_log:
        fields = event.fields
        if event.kind != "election" or fields.get("unclean", True):
            continue
        winner, before = fields.get("masterId"), fields.get("previousSet") or ()
        if winner is not None and before and winner not in before:
            name, epoch = fields.get("brokerName"), fields.get("epoch")
            why = f"broker {winner} got epoch {epoch} of {name}, whose set was {list(before)}"
            yield Incident(event.t, event.node, why, str(name or ""))


def went_back(event_log: Sequence[ClusterEvent]) -> Iterator[Incident]:
    """Yield nameservers that showed an older master after a newer one, since their start."""
    newest: dict[tuple[str, str], int] = {}
    for event in event_log:
        who = (event.node, str(event.fields.get("brokerName", "")))
        if event.kind in PROCESS_EVENTS:
            newest = {key: epoch for key, epoch in newest.items() if key[0] != event.node}
        elif event.kind == "route":
            epoch = int(event.fields["stateVersion"])
            if epoch < newest.get(who, epoch):
                why = f"{event.node} shows {who[1]} with epoch {epoch} again, after {newest[who]}"
                yield Incident(event.t, event.node, why, who[1])
            newest[who] = max(epoch, newest.get(who, epoch))
