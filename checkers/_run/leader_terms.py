"""What event logs tell of masters: who was elected when, by whom of which set, who was shown to
clients, and during which stretches of the run a set had to have another master, or no reason to.
Pure.

A stretch is time in which the same faults, or none, were in force: from the moment at which one was
begun or seen healed to the next. Only stretches longer than the patience say anything, since a
cluster may still be busy with what was before: the trial's own `recover_within_s`, in which it
claims to be back after a fault.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.history.faults_and_events import Event, FaultInterval, Window
from harness.history.roles import ENDS

RESTLESS = frozenset({"closed", "expired", "returned", "scan"})  # what makes controllers elect
# a process began or ended, as it or the runner says: a disk or a node without descriptors may have
# refused the process's own words
LIVES = frozenset({"start", *ENDS})


@dataclass(frozen=True)
class Standing:
    """A set as it was last told of: its last master, its SyncStateSet, and which node has which
    id."""

    master: int | None = None
    members: tuple[int, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The master's node; empty: there is none, or nobody knows it."""
        return self.nodes.get(self.master, "") if self.master is not None else ""


@dataclass(frozen=True)
class Incident:
    """Something that must not be: when, told by whom, in words, and of which broker set."""

    t: int
    node: str
    why: str
    set: str = ""


def standings(told: Sequence[Event], before: int) -> dict[str, Standing]:
    """Each set as it was told of until then. Each set counts its brokers from 1."""
    sets: dict[str, Standing] = {}
    nodes: dict[str, dict[int, str]] = defaultdict(dict)
    for event in told:
        fields, name = event.fields, str(event.fields.get("brokerName", ""))
        if event.kind == "role" and "brokerId" in fields:
            nodes[name][int(fields["brokerId"])] = event.node
        if event.t >= before or not name:
            continue
        if event.kind == "election":
            winner = fields.get("masterId")
            members = tuple(int(i) for i in fields.get("set") or () if i is not None)
            if winner is None and name in sets:  # who was master before is still to be replaced
                winner, members = sets[name].master, members or sets[name].members
            sets[name] = Standing(None if winner is None else int(winner), members)
        elif event.kind == "set" and name in sets:
            members = tuple(int(i) for i in fields.get("set") or () if i is not None)
            sets[name] = Standing(sets[name].master, members)
    return {name: Standing(s.master, s.members, nodes[name]) for name, s in sets.items()}


def set_of_node(told: Sequence[Event]) -> dict[str, str]:
    """The broker set of each broker that told of its role."""
    roles = (event for event in told if event.kind == "role" and "brokerName" in event.fields)
    return {event.node: str(event.fields["brokerName"]) for event in roles}


def stretches(faults: Sequence[FaultInterval], end: int) -> Iterator[tuple[Window, frozenset[int]]]:
    """The run up to `end` in pieces, with the ids of the faults that touch each."""
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
        yield Window(begin, until), frozenset(number for _, _, number in there)


def headless(
    told: Sequence[Event],
    faults: Sequence[FaultInterval],
    roles: Mapping[str, str],
    patience: int,
    end: int,
) -> Iterator[Incident]:
    """Sets that got no new master in time, although nothing was in the way: the old one silent, a
    member of its set and most controllers untouched, and no other fault in force.

    An election of nobody, or of somebody silent, makes no master. Where another silent one was
    elected before anybody could know, and is the whole set now, nobody may be elected any more.
    """
    by_id = {fault.id: fault for fault in faults}
    controllers = {node for node, role in roles.items() if role == "controller"}
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
        for name, standing in standings(told, window.begin).items():
            if standing.name not in silent or not _living(standing, silent):
                continue
            winners = _winners(told, name, window.begin, until)
            if any(standing.nodes.get(number, "") not in {"", *silent} for number in winners):
                continue
            later = standings(told, until + 1)[name]
            if _living(later, silent) or standing.master in winners:
                who, took_s = standing.name, patience / 1e9
                why = f"{name} had no master but {who}, which was silent, after {took_s:g} s"
                yield Incident(until, who, why, name)


def _living(standing: Standing, silent: set[str]) -> set[str]:
    """Members of the set that may be elected."""
    return {standing.nodes.get(number, "") for number in standing.members} - {"", *silent}


def _silences(fault: FaultInterval, window: Window) -> bool:
    """It keeps its targets silent all the time."""
    heal = window.end if fault.heal is None else fault.heal
    return (
        fault.silences
        and fault.state == "installed"
        and fault.applied is not None
        and heal >= window.end
    )


def _winners(told: Sequence[Event], name: str, begin: int, end: int) -> set[int]:
    """Whom this set elected in that time, by their ids; an election may elect nobody."""
    ids = {
        event.fields.get("masterId")
        for event in told
        if event.kind == "election"
        and event.fields.get("brokerName") == name
        and begin <= event.t <= end
    }
    return {int(number) for number in ids if number is not None}


def needless(
    told: Sequence[Event], faults: Sequence[FaultInterval], load: Window, patience: int
) -> Iterator[Incident]:
    """Elections that controllers held although nothing was wrong, nor had been for long."""
    for window, ids in stretches(faults, load.end):
        if ids:
            continue
        calm_from = max(load.begin, window.begin + (patience if window.begin else 0))
        inside = [event for event in told if calm_from <= event.t < window.end]
        if any(event.kind in LIVES for event in inside):
            continue
        for event in inside:
            trigger = event.fields.get("trigger")
            if event.kind == "election" and trigger in RESTLESS:
                epoch, name = event.fields.get("epoch"), event.fields.get("brokerName")
                why = f"{name} got epoch {epoch} (trigger: {trigger}) while nothing was wrong"
                yield Incident(event.t, event.node, why, str(name or ""))


def outside(told: Sequence[Event]) -> Iterator[Incident]:
    """Masters that were not members of the SyncStateSet, where only members may be elected."""
    for event in told:
        fields = event.fields
        if event.kind != "election" or fields.get("unclean", True):
            continue
        winner, before = fields.get("masterId"), fields.get("previousSet") or ()
        if winner is not None and before and winner not in before:
            name, epoch = fields.get("brokerName"), fields.get("epoch")
            why = f"broker {winner} got epoch {epoch} of {name}, whose set was {list(before)}"
            yield Incident(event.t, event.node, why, str(name or ""))


def went_back(told: Sequence[Event]) -> Iterator[Incident]:
    """Nameservers that showed an older master after a newer one, in one life."""
    newest: dict[tuple[str, str], int] = {}
    for event in told:
        who = (event.node, str(event.fields.get("brokerName", "")))
        if event.kind in LIVES:
            newest = {key: epoch for key, epoch in newest.items() if key[0] != event.node}
        elif event.kind == "route":
            epoch = int(event.fields["stateVersion"])
            if epoch < newest.get(who, epoch):
                why = f"{event.node} shows {who[1]} with epoch {epoch} again, after {newest[who]}"
                yield Incident(event.t, event.node, why, who[1])
            newest[who] = max(epoch, newest.get(who, epoch))
