"""What a system claims to survive, and which faults of a run go beyond that.

`claims` maps a kind of fault to an extent: how many nodes of one replica group may be hit by faults
of that kind at one moment. A profile declares them; a trial may give its own, which take precedence
kind by kind. A fault is *unclaimed* if its kind is not claimed or the extent was exceeded, and only
if it was observed in effect: naming it in a plan means nothing. What an unclaimed fault may excuse
is decided row by row (`checkers._messages.excused_rows`) and, for findings without rows, by time.

A fault that took data from a node counts until the node has its data again, which is later than the
fault's end: until then there is one copy less, as while it was in force. The record shows it where
nodes log their roles and sets: the node has a role again, and its set has all its members.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from harness import registry
from harness.contracts.faults import DataLoss
from harness.errors import near_names
from harness.history.faults_and_events import ClusterEvent, FaultInterval, TimeWindow
from harness.history.reader import History
from harness.history.roles import SetChange, has_role, set_changes_of
from harness.run.broker_sets import broker_sets_in, broker_sets_of_nodes, replica_groups
from harness.trial import ANY_KIND, EXTENTS, Trial, merge_claims

__all__ = ["UnclaimedFault", "claims_in_force", "claims_text", "unclaimed_faults"]

End = TypeVar("End", int, None)

LOSS = "no-loss"
IN_STATE = "claims"  # of run.json: what was in force


@dataclass(frozen=True)
class UnclaimedFault:
    """A fault that was observed in effect and that the system does not claim to survive.

    hit    nodes that it was observed to have damaged
    until  when the cluster had recovered from it; the end of the record if that was not observed
    why    completes "..., which": "profile x does not claim to survive"
    whole  it hit all nodes of a group that keeps data, alone or with others active then
    sets   the broker sets that it hit, if it hit nothing else
    """

    fault: FaultInterval
    hit: frozenset[str]
    until: int
    why: str
    whole: bool = True
    sets: frozenset[str] = frozenset()

    @property
    def window(self) -> TimeWindow:
        """From applied to recovered."""
        begin = self.fault.applied if self.fault.applied is not None else self.begin
        return TimeWindow(begin, max(begin, self.until))

    @property
    def begin(self) -> int:
        return self.fault.begin or 0

    def may_break(self, demand: str) -> bool:
        return self.fault.effects.breaks(demand)

    def excuses(self, demand: str, span: tuple[int, int], group: str = "") -> bool:
        """Whether it explains damage with this time span of which the nodes are not known: what is
        lost may have been on any node of its group. `group`: its broker set, if known; a fault that
        hit only other sets does not explain it."""
        if not (self.may_break(demand) and self.overlaps(span)):
            return False
        if group and self.sets and group not in self.sets:
            return False
        in_time = self.fault.healed is None or span[0] <= self.fault.healed
        return demand != LOSS or (self.whole and in_time)

    def overlaps(self, span: tuple[int, int]) -> bool:
        """Whether the span touches the time from applied to recovered."""
        return self.window.begin <= span[1] and span[0] <= self.window.end

    def label(self, load_began: int) -> str:
        """Return `power on broker-1 at 5.0 s`, in seconds since the load began."""
        return f"{self.fault.label} at {(self.begin - load_began) / 1e9:.1f} s"


def claims_in_force(trial: Trial) -> dict[str, str]:
    """Return the trial's claims over those of its system's profile, by kind. Raises BadRequest if
    the system claims to survive a kind or an extent that does not exist."""
    theirs: Mapping[str, str] = {}
    if ANY_KIND not in trial.claims and trial.system in registry.names("system"):
        theirs = registry.system(trial.system).claims(trial)
        for known, given in ((registry.names("fault"), theirs), (EXTENTS, theirs.values())):
            for name in given:
                if name not in (*known, ANY_KIND):
                    why = f"claims {name!r}{near_names(name, known)}"
                    raise registry.refusal("system", trial.system, why)
    return merge_claims(theirs, trial.claims)


def claims_of(history: History, trial: Trial) -> Mapping[str, str]:
    """Return the claims that were in force in a run: as recorded, else of its trial."""
    recorded = history.state.get(IN_STATE)
    if isinstance(recorded, Mapping) and ANY_KIND not in trial.claims:
        claims = {kind: extent for kind, extent in recorded.items() if extent in EXTENTS}
        return merge_claims(claims, trial.claims)
    return claims_in_force(trial)


def claims_text(claims: Mapping[str, str]) -> str:
    """Return the claims as text: `kill, pause; power of one`."""
    extents: dict[str, list[str]] = {}
    for kind, extent in sorted(claims.items()):
        extents.setdefault(extent, []).append("any other" if kind == ANY_KIND else kind)
    parts = [", ".join(extents.get("all", ()))]
    parts += [f"{', '.join(extents[e])} of {e}" for e in ("minority", "one") if e in extents]
    return "; ".join(filter(None, parts)) or "nothing"


def unclaimed_faults(history: History, trial: Trial) -> tuple[UnclaimedFault, ...]:
    """Return the faults of a run that went beyond the claims, in order of their ids."""
    if "unclaimed" not in history.shared:
        history.shared["unclaimed"] = _find_unclaimed(history, trial)
    found: tuple[UnclaimedFault, ...] = history.shared["unclaimed"]
    return found


def _find_unclaimed(history: History, trial: Trial) -> tuple[UnclaimedFault, ...]:
    hit = {fault.id: damaged_nodes(fault) for fault in history.faults if in_effect(fault)}
    faults = [fault for fault in history.faults if hit.get(fault.id)]
    if not faults:
        return ()
    claims, groups = claims_of(history, trial), replica_groups(history.names)
    in_sets = broker_sets_of_nodes(history.names)
    ends = data_returned(faults, hit, history.events, in_sets)
    faults_until = [replace(fault, healed=ends.get(fault.id, fault.healed)) for fault in faults]
    why = exceeding_claims(faults_until, hit, claims, groups, trial.profile)
    if not why:
        return ()
    whole, last = _recoveries(history, trial)
    unclaimed = []
    for fault in (fault for fault in faults if fault.id in why):
        returned = ends.get(fault.id, 0)
        until = last if returned is None else max(whole(fault), returned)
        unclaimed.append(UnclaimedFault(fault, hit[fault.id], until, why[fault.id]))
    sets = frozenset(broker_sets_in(history.names))
    every = whole_group_faults(unclaimed, groups, sets)
    hitting = {
        one.fault.id: frozenset().union(
            *(in_sets.get(node) or {groups.get(node, "")} for node in one.hit)
        )
        for one in unclaimed
    }
    return tuple(
        replace(
            one,
            whole=one.fault.id in every,
            sets=of if (of := hitting[one.fault.id]) <= sets else frozenset(),
        )
        for one in unclaimed
    )


def whole_group_faults(
    unclaimed: Sequence[UnclaimedFault], groups: Mapping[str, str], keeping: Collection[str] = ()
) -> frozenset[int]:
    """Return the ids of the faults that at one moment together hit all nodes of a replica group.
    `keeping`: the groups that keep data, if known."""
    sizes = Counter(groups.values())
    fault_ids: set[int] = set()
    for last in unclaimed:
        there = [one for one in unclaimed if one.begin <= last.begin <= one.until]
        hit = {one.fault.id: one.hit for one in there}
        for group, nodes in _by_group([one.fault for one in there], hit, groups).items():
            if len(nodes) == sizes[group] and (not keeping or group in keeping):
                fault_ids |= {one.fault.id for one in there if one.hit & nodes}
    return frozenset(fault_ids)


def in_effect(fault: FaultInterval) -> bool:
    """Whether the fault was observed to do something."""
    return fault.state in ("installed", "partial") and fault.observed is not None


def damaged_nodes(fault: FaultInterval) -> frozenset[str]:
    """Return the nodes on which the fault was observed to do what may break a promise: those whose
    disk lost synced or unsynced data, else all that it hit."""
    effects = fault.effects
    names = frozenset(fault.names)
    if fault.state == "partial":
        names &= _observed_nodes(fault)
    if effects.destroys is not DataLoss.NONE:
        return names & frozenset(fault.destroyed_on)
    if effects.forgets:
        effect = fault.observation.get("effect")
        files = effect.get("files") if isinstance(effect, Mapping) else None
        if isinstance(files, Mapping):
            return frozenset(node for node in names if _lost_unsynced(files.get(node)))
    return names


def _observed_nodes(fault: FaultInterval) -> frozenset[str]:
    """Return the nodes at which a fault that hit only some of its targets was observed: those whose
    files it changed, else those whose process was gone."""
    effect = fault.observation.get("effect")
    effect = effect if isinstance(effect, Mapping) else {}
    files, processes = effect.get("files"), effect.get("processes")
    if isinstance(files, Mapping):
        return frozenset(files)
    if not isinstance(processes, Mapping):
        return frozenset()
    gone = ("exited", "absent")
    states = {node: seen.get("is") for node, seen in processes.items() if isinstance(seen, Mapping)}
    return frozenset(node for node, state in states.items() if state in gone)


def _lost_unsynced(seen: Any) -> bool:
    """Whether a node's disk lost unsynced data, or may have, unobserved."""
    if not isinstance(seen, Mapping):
        return False
    return any(seen.get(what) for what in ("lost_bytes", "lost_names", "lost_files", "unseen"))


def exceeding_claims(
    faults: Sequence[FaultInterval],
    hit: Mapping[int, frozenset[str]],
    claims: Mapping[str, str],
    groups: Mapping[str, str],
    profile: str = "",
) -> dict[int, str]:
    """Return the ids of the faults that went beyond the claims, and why, as in `UnclaimedFault`.

    `hit`: by id, the nodes that a fault damaged; `groups`: by node, its replica group.
    """
    who = f"profile {profile}" if profile else "the system"
    sizes = Counter(groups.values())
    reasons: dict[int, str] = {}
    by_kind: dict[str, list[FaultInterval]] = {}
    for fault in faults:
        by_kind.setdefault(fault.kind, []).append(fault)
    for last in faults:
        extent = claims.get(last.kind, claims.get(ANY_KIND, "none"))
        if extent == "none":
            reasons[last.id] = f"{who} does not claim to survive"
            continue
        if extent == "all":
            continue
        there = [f for f in by_kind[last.kind] if _was_active(last, f)]
        for group, nodes in _by_group(there, hit, groups).items():
            if len(nodes) > allowed_nodes(extent, sizes[group]):
                with_others = "" if len(there) == 1 else "with others "
                many = f"{with_others}hit {len(nodes)} of {sizes[group]} nodes of {group}"
                why = f"{many}, where {who} claims to survive {extent}"
                reasons |= {f.id: why for f in there if hit[f.id] & nodes}
    for number in destroyed_majorities(faults, groups):
        reasons[number] = "destroyed most copies of a replica group, which no system survives"
    return reasons


def allowed_nodes(extent: str, size: int) -> int:
    """Return how many of a replica group's nodes an extent covers."""
    return {"none": 0, "one": 1, "minority": (size - 1) // 2, "all": size}[extent]


def _by_group(
    faults: Sequence[FaultInterval],
    hit: Mapping[int, frozenset[str]],
    groups: Mapping[str, str],
) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in {node for fault in faults for node in hit[fault.id]}:
        if node in groups:
            found.setdefault(groups[node], set()).add(node)
    return found


def destroyed_majorities(
    faults: Sequence[FaultInterval], groups: Mapping[str, str]
) -> frozenset[int]:
    """Return the ids of the faults that together, at one moment, had destroyed the disks of most
    nodes of a replica group. No replication survives that, so no claim covers it."""
    destroying = [fault for fault in faults if fault.destroyed_on]
    lost = {fault.id: frozenset(fault.destroyed_on) for fault in destroying}
    sizes = Counter(groups.values())
    fault_ids: set[int] = set()
    for last in destroying:
        there = [fault for fault in destroying if _was_active(last, fault)]
        for group, nodes in _by_group(there, lost, groups).items():
            if 2 * len(nodes) > sizes[group]:
                fault_ids |= {fault.id for fault in there if lost[fault.id] & nodes}
    return frozenset(fault_ids)


def data_returned(
    faults: Sequence[FaultInterval],
    hit: Mapping[int, frozenset[str]],
    events: Sequence[ClusterEvent],
    sets: Mapping[str, Collection[str]],
) -> dict[int, int | None]:
    """Return when the nodes that faults took data from had it again, by the fault's id; None: that
    was not observed. Faults that took none, and those of nodes that log no roles, are left out.

    `hit`: by id, the nodes that a fault damaged; `sets`: by node, its broker sets.
    """
    steps = set_changes_of(events)
    full = _full_sizes(steps)
    roles: dict[str, list[int]] = {}
    for event in events:
        if has_role(event):
            roles.setdefault(event.node, []).append(event.t)
    found: dict[int, int | None] = {}
    for fault in faults:
        nodes = [node for node in hit[fault.id] if node in roles]
        if not nodes or fault.healed is None or not (fault.effects.forgets or fault.destroyed_on):
            continue
        ends: list[int | None] = [fault.healed]
        for node in nodes:
            began = next((t for t in roles[node] if t > (fault.applied or 0)), None)
            since = max(fault.healed, began or 0)
            ends.append(None if began is None else since)
            if began is not None:
                of = [name for name in sets.get(node, ()) if name in full]
                ends += [_whole_at(steps, name, full[name], since, None) for name in of]
        known = [end for end in ends if end is not None]
        found[fault.id] = max(known) if len(known) == len(ends) else None
    return found


def _was_active(last: FaultInterval, fault: FaultInterval) -> bool:
    """Whether the fault was active when the last one began; one that was not observed healed still
    is. `healed` may be later than the fault's end, see `data_returned`."""
    if last.begin is None or fault.begin is None:
        return fault is last
    return fault.begin <= last.begin and (fault.healed is None or last.begin <= fault.healed)


def _recoveries(history: History, trial: Trial) -> tuple[Callable[[FaultInterval], int], int]:
    """Return a function from a fault to the moment at which the cluster had recovered from it, and
    the end of the record."""
    logged = history.events
    steps = set_changes_of(logged)
    end = max((event.t for event in logged), default=0)
    end = max([end, *history.phases.values()])
    full = _full_sizes(steps)

    def whole(fault: FaultInterval) -> int:
        if fault.healed is None:
            return end
        if not full:
            return max(fault.healed, min(end, fault.healed + round(trial.recover_within_s * 1e9)))
        return max(_whole_at(steps, name, size, fault.healed, end) for name, size in full.items())

    return whole, end


def _full_sizes(steps: Sequence[SetChange]) -> dict[str, int]:
    """Return how many members each set had at most."""
    full: dict[str, int] = {}
    for step in steps:
        full[step.set] = max(full.get(step.set, 0), len(step.members))
    return full


def _whole_at(steps: Sequence[SetChange], name: str, size: int, since: int, end: End) -> int | End:
    """Return when this set had all its members, at or after `since`; `end` if it never had."""
    now = 0
    for step in (step for step in steps if step.set == name):
        if step.t > since and now >= size:
            return since
        now = len(step.members)
        if step.t > since and now >= size:
            return step.t
    return since if now >= size else end
