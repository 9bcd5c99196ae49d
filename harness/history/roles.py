"""Who was what, when: the cluster's story put together from its nodes' own events.

A broker writes an event when its role, the set or an epoch changes; a controller when it elected,
when a heartbeat expired and when its own Raft state changed. From these come spans of roles for
each node and the size of each SyncStateSet over time. Two masters at once are two overlapping
spans: nothing is tidied away.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.history.faults_and_events import Event, FaultInterval

ENDS = ("stop", "exit", "fatal")  # after these a node plays no part until it starts again


@dataclass(frozen=True)
class Span:
    """One node in one role; `epoch` is the master's epoch, or the controller's term."""

    node: str
    role: str
    epoch: int
    begin: int
    end: int


@dataclass(frozen=True)
class SetSize:
    """From `t` on, the SyncStateSet of this broker set has these members."""

    t: int
    set: str
    members: tuple[int, ...]
    epoch: int


def spans(events: Iterable[Event], faults: Iterable[FaultInterval], end: int) -> tuple[Span, ...]:
    """Every stretch of every node in a role, by node and time."""
    kills = _kills(faults)
    told: dict[str, list[Event]] = {}
    for event in events:
        if event.kind in ("role", "raft", "start", *ENDS):
            told.setdefault(event.node, []).append(event)
    return tuple(span for node in sorted(told) for span in _spans_of(node, told[node], kills, end))


def set_sizes(events: Iterable[Event]) -> tuple[SetSize, ...]:
    """Each change of each SyncStateSet, as the controllers decided it, else as brokers told it."""
    changes = [e for e in events if e.kind in ("set", "election") and _members(e) is not None]
    decided = [e for e in changes if e.fields.get("brokerName")]
    sizes: dict[str, SetSize] = {}
    steps: list[SetSize] = []
    for event in decided or changes:
        name = str(event.fields.get("brokerName") or "")
        epoch = int(event.fields.get("setEpoch") or event.fields.get("epoch") or 0)
        size = SetSize(event.t, name, _members(event) or (), epoch)
        before = sizes.get(name)
        if before is None or before.members != size.members:
            sizes[name] = size
            steps.append(size)
    return tuple(steps)


def elections(events: Iterable[Event]) -> int:
    """Those that made a master: each once, however many controllers tell of it."""
    told = (event.fields for event in events if event.kind == "election")
    made = [fields for fields in told if fields.get("masterId") is not None]
    return len({(str(fields.get("brokerName", "")), fields.get("epoch")) for fields in made})


def set_changes(events: Iterable[Event]) -> int:
    """Those of a SyncStateSet but by an election: each once, as the controllers decided it, else as
    brokers told it."""
    told = [event.fields for event in events if event.kind == "set"]
    decided = [fields for fields in told if fields.get("brokerName")]
    changed = decided or [fields for fields in told if fields.get("why") != "election"]
    return len({(str(fields.get("brokerName", "")), fields.get("setEpoch")) for fields in changed})


def _spans_of(
    node: str, told: Sequence[Event], kills: Mapping[str, Sequence[int]], end: int
) -> Iterable[Span]:
    role, epoch, since = "", 0, 0
    for event in told:
        for killed in kills.get(node, ()):
            if role and since < killed <= event.t:
                yield Span(node, role, epoch, since, killed)
                role = ""
        now = _role(event)
        if (now, _epoch(event)) == (role, epoch):
            continue
        if role:
            yield Span(node, role, epoch, since, event.t)
        role, epoch, since = now, _epoch(event), event.t
    last = min((k for k in kills.get(node, ()) if k > since), default=end)
    if role:
        yield Span(node, role, epoch, since, max(since, last))


def _role(event: Event) -> str:
    """The role after this event; empty when the node plays no part."""
    if event.kind == "role":
        return str(event.fields.get("role") or "")
    return str(event.fields.get("state") or "") if event.kind == "raft" else ""


def _epoch(event: Event) -> int:
    value = event.fields.get("epoch", event.fields.get("term", 0))
    return value if isinstance(value, int) else 0


def _members(event: Event) -> tuple[int, ...] | None:
    members = event.fields.get("set")
    if not isinstance(members, list):
        return None
    return tuple(sorted(m for m in members if isinstance(m, int)))


def _kills(faults: Iterable[FaultInterval]) -> Mapping[str, Sequence[int]]:
    """When each node was killed by the nemesis, or lost power."""
    killed: dict[str, list[int]] = {}
    for fault in faults:
        if fault.ends and not fault.in_turn and fault.applied is not None:
            for node in fault.names:
                killed.setdefault(node, []).append(fault.applied)
    return {node: sorted(times) for node, times in killed.items()}
