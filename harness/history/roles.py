"""The roles of nodes over time, from the nodes' own events.

A broker logs an event when its role, its SyncStateSet or an epoch changes; a controller when it
elected a master, when a heartbeat expired and when its own Raft state changed. From these come
spans of roles for each node and the size of each SyncStateSet over time. Two masters at once are
two overlapping spans: nothing is corrected.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.history.faults_and_events import ClusterEvent, FaultInterval

ENDS = ("stop", "exit", "fatal")  # after these a node has no role until it starts again


@dataclass(frozen=True)
class RoleSpan:
    """One node in one role; `epoch` is the master's epoch, or the controller's term."""

    node: str
    role: str
    epoch: int
    begin: int
    end: int


@dataclass(frozen=True)
class SetChange:
    """From `t` on, the SyncStateSet of this broker set has these members."""

    t: int
    set: str
    members: tuple[int, ...]
    epoch: int


def role_spans(
    events: Iterable[ClusterEvent], faults: Iterable[FaultInterval], end: int
) -> tuple[RoleSpan, ...]:
    """Return every stretch of every node in a role, by node and time."""
    kills = _kills(faults)
    # a broker that takes part in elections itself (brokerName) has events `role` as well
    some = [
        event
        for event in events
        if event.kind in ("role", "raft", "start", *ENDS)
        and not (event.kind == "raft" and "brokerName" in event.fields)
    ]
    parts: dict[str, set[str]] = {}  # of each node: the brokers of a container, else itself
    for event in some:
        parts.setdefault(event.node, set()).add(_inner(event))
    logged = {
        (node, inner): [e for e in some if e.node == node and _inner(e) in ("", inner)]
        for node, names in parts.items()
        for inner in (names - {""} or names)
    }
    return tuple(
        span
        for node, inner in sorted(logged)
        for span in _spans_of(node, logged[node, inner], kills, end)
    )


def has_role(event: ClusterEvent) -> bool:
    """Whether the node has a role by this event: it leads, or follows a known leader."""
    if event.kind == "role":
        return event.fields.get("role") in ("master", "slave")
    if event.kind == "raft" and "brokerName" not in event.fields:
        return _role(event) == "leader" or bool(event.fields.get("leader"))
    return False


def _inner(event: ClusterEvent) -> str:
    """Return which broker of a container logged the event; empty if the node did."""
    return str(event.fields.get("inner", ""))


def set_changes_of(events: Iterable[ClusterEvent]) -> tuple[SetChange, ...]:
    """Return each change of each SyncStateSet, as the controllers decided it, else as brokers
    logged it."""
    changes = [e for e in events if e.kind in ("set", "election") and _members(e) is not None]
    decided = [e for e in changes if e.fields.get("brokerName")]
    sizes: dict[str, SetChange] = {}
    steps: list[SetChange] = []
    for event in decided or changes:
        name = str(event.fields.get("brokerName") or "")
        epoch = int(event.fields.get("setEpoch") or event.fields.get("epoch") or 0)
        size = SetChange(event.t, name, _members(event) or (), epoch)
        before = sizes.get(name)
        if before is None or before.members != size.members:
            sizes[name] = size
            steps.append(size)
    return tuple(steps)


def election_count(events: Iterable[ClusterEvent]) -> int:
    """Return the number of elections that made a master, each counted once, though several
    controllers log it."""
    logged = (event.fields for event in events if event.kind == "election")
    made = [fields for fields in logged if fields.get("masterId") is not None]
    return len({(str(fields.get("brokerName", "")), fields.get("epoch")) for fields in made})


def set_change_count(events: Iterable[ClusterEvent]) -> int:
    """Return the number of changes of SyncStateSets other than by elections: each counted once, as
    the controllers decided it, else as brokers logged it. Where changes have no number, the master
    alone logs them, and each counts."""
    logged = [event for event in events if event.kind == "set"]
    decided = [event for event in logged if event.fields.get("brokerName")]
    changed = decided or [event for event in logged if event.fields.get("why") != "election"]
    return len(
        {
            (str(event.fields.get("brokerName", "")), event.fields.get("setEpoch", (event.t,)))
            for event in changed
        }
    )


def catch_up_times(events: Iterable[ClusterEvent]) -> Sequence[float]:
    """Return how long each pair needed from ASYNC, in which its slave copies, to SYNC, in ns.

    It is infinite if the pair was not there at the end of the run. A pair that lost its slave or
    its master meanwhile is left out, and a hold that failed ends nothing.
    """
    since: dict[str, int] = {}
    took: list[float] = []
    for event in sorted(events, key=lambda event: event.t):
        if event.kind != "machine":
            continue
        pair, state = str(event.fields.get("brokerName", "")), event.fields.get("state")
        if state == "ASYNC":
            since.setdefault(pair, event.t)
        elif state in ("SYNC", "SINGLE") and (began := since.pop(pair, None)) is not None:
            took += [event.t - began] if state == "SYNC" else []
    return [*took, *(math.inf for _ in since)]


def hold_times(events: Iterable[ClusterEvent]) -> Sequence[int]:
    """Return how long each master held all sends until it served them again, in ns; holds that
    ended with the process are left out."""
    since: dict[tuple[str, str], int] = {}
    took = []
    for event in sorted(events, key=lambda event: event.t):
        who = event.node, _inner(event)
        if event.kind == "held":
            since[who] = event.t
        elif event.kind == "released" and who in since:
            took.append(event.t - since.pop(who))
        elif event.kind in ("start", *ENDS):
            since.pop(who, None)
    return took


def _spans_of(
    node: str, logged: Sequence[ClusterEvent], kills: Mapping[str, Sequence[int]], end: int
) -> Iterable[RoleSpan]:
    role, epoch, since = "", 0, 0
    for event in logged:
        for killed in kills.get(node, ()):
            if role and since < killed <= event.t:
                yield RoleSpan(node, role, epoch, since, killed)
                role = ""
        now = _role(event)
        if (now, _epoch(event)) == (role, epoch):
            continue
        if role:
            yield RoleSpan(node, role, epoch, since, event.t)
        role, epoch, since = now, _epoch(event), event.t
    last = min((k for k in kills.get(node, ()) if k > since), default=end)
    if role:
        yield RoleSpan(node, role, epoch, since, max(since, last))


def _role(event: ClusterEvent) -> str:
    """Return the role after this event; empty if the node has none."""
    if event.kind == "role":
        return str(event.fields.get("role") or "")
    return str(event.fields.get("state") or "") if event.kind == "raft" else ""


def _epoch(event: ClusterEvent) -> int:
    value = event.fields.get("epoch", event.fields.get("term", 0))
    return value if isinstance(value, int) else 0


def _members(event: ClusterEvent) -> tuple[int, ...] | None:
    members = event.fields.get("set")
    if not isinstance(members, list):
        return None
    return tuple(sorted(m for m in members if isinstance(m, int)))


def _kills(faults: Iterable[FaultInterval]) -> Mapping[str, Sequence[int]]:
    """Return when each node was killed by the nemesis, or lost power."""
    killed: dict[str, list[int]] = {}
    for fault in faults:
        if fault.ends and not fault.rolling and fault.applied is not None:
            for node in fault.names:
                killed.setdefault(node, []).append(fault.applied)
    return {node: sorted(times) for node, times in killed.items()}
