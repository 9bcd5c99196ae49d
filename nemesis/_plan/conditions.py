"""Conditions that a plan may wait for besides the clock: `after` and `until`.

    after = "1000 acks within 9 s"   this many more sends were acknowledged since the previous fault
                                     of the plan was applied, or this much time has passed since
    after = "event truncate within 5 s"
                                     a node wrote such a line into its event log
    after = "master changes within 20 s"
                                     the cluster's state differs from when the previous fault
                                     resolved its target: some broker set has a master of a higher
                                     epoch; also `controller-leader changes`, `set shrinks` (fewer
                                     members in the SyncStateSets), `master is gone` (from a set)
    after = "sends are held within 20 s"
                                     a master holds all sends until its slave has caught up
    after = "previous is healed within 30 s"
                                     the previous fault is over, whether it succeeded or not
    after = "cluster is whole within 60 s"
                                     all earlier faults are over, and every set is complete again
    until = "another-master"         some broker set has a master with a higher epoch than when
                                     the fault began; or any of those four changes of state
    until = "next"                   the next fault of the plan has been applied
    until = "event election"         a node wrote such a line since the fault was applied
    until = "another-master + 2 s"   the same, and this much longer

A condition on an event may name the event's fields, the node that reports it, and a delay:

    event raft state=leader by controller but fault-0 + 0.0005 s within 5 s

It counts events from the fault's own time on, and not before the previous fault of the plan was
applied. The selector `teller` then means the node that reported the event. A fault whose condition
is not met in time is not injected, because the plan was written for another course of events; only
a condition on acknowledgements gives up waiting and lets the fault begin.

Every condition has an end: `within` bounds those of `after`, the fault's `for_s` those of `until`.

A plan keeps conditions as text, which is what is saved and renumbered. `Conditions.of` parses both
of a fault; the code that checks a plan or carries it out calls it once for each fault.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.contracts import PlannedFault
from harness.contracts.cluster_view import ClusterState, LoggedEvent
from harness.errors import BadRequest
from harness.plans import NEXT, PREVIOUS
from harness.text.parsing import parse_integer, parse_seconds

ANOTHER_MASTER, WHOLE, HELD = "another-master", "cluster is whole", "sends are held"


def another_master(before: ClusterState, now: ClusterState) -> bool:
    """Return whether some broker set has a master of a higher epoch than before."""
    return any(now.epochs.get(name, 0) > before.epochs.get(name, 0) for name in now.masters)


def _another_leader(before: ClusterState, now: ClusterState) -> bool:
    return now.controller_leader not in ("", before.controller_leader)


def _smaller_set(before: ClusterState, now: ClusterState) -> bool:
    return len(now.in_set) < len(before.in_set)


def _masterless(before: ClusterState, now: ClusterState) -> bool:
    return any(name not in now.masters for name in before.masters)


def _held(before: ClusterState, now: ClusterState) -> bool:
    return bool(now.holding)


def _whole(before: ClusterState, now: ClusterState) -> bool:
    return now.redundant


def _any_state(before: ClusterState, now: ClusterState) -> bool:
    return True


StateTest = Callable[[ClusterState, ClusterState], bool]  # the cluster before, and now
CHANGES: Mapping[str, StateTest] = {
    "master changes": another_master,
    "controller-leader changes": _another_leader,
    "set shrinks": _smaller_set,
    "master is gone": _masterless,
}
AFTER: Mapping[str, StateTest] = {
    **CHANGES,
    HELD: _held,
    PREVIOUS: _any_state,
    WHOLE: _whole,
}
UNTIL: Mapping[str, StateTest] = {ANOTHER_MASTER: another_master, **CHANGES}

_MORE = r"(?: \+ (?P<more>\d+(?:\.\d+)?) ?s)?"
_WITHIN = r" within (?P<within>\d+(?:\.\d+)?) ?s"
_WORD = re.compile(rf"(?P<word>[a-z -]+?){_MORE}")
_STATE = re.compile(rf"(?P<word>{'|'.join(AFTER)}){_MORE}{_WITHIN}")
_ACKS = re.compile(rf"(?P<count>\d[\d,]*) acks{_WITHIN}")
_SAYS = r"event (?P<kind>[a-z-]+)(?P<says>(?: \w+=\S+)*)(?: by (?P<by>[^+]+?))?"
_EVENT_AFTER = re.compile(_SAYS + _MORE + _WITHIN)
_EVENT_UNTIL = re.compile(_SAYS + _MORE)


@dataclass(frozen=True)
class AckCondition:
    """Wait for this many more acknowledgements, but not longer than this."""

    count: int
    within_s: float


@dataclass(frozen=True)
class StateCondition:
    """Wait for a state of the cluster or of the plan: a word of `AFTER`."""

    word: str
    more_s: float
    within_s: float

    def holds(self, before: ClusterState, now: ClusterState) -> bool:
        return AFTER[self.word](before, now)


@dataclass(frozen=True)
class EventCondition:
    """Wait for a line of a node's event log.

    fields  values that the event must have
    by      selector of the nodes whose events count
    """

    kind: str
    fields: tuple[tuple[str, str], ...] = ()
    by: str = ""
    more_s: float = 0.0
    within_s: float = 0.0

    def matches(self, event: LoggedEvent) -> bool:
        """Return whether kind and fields match, whichever node reported the event."""
        return event.kind == self.kind and all(
            name in event.fields and _plain(event.fields[name]) == value
            for name, value in self.fields
        )

    def __str__(self) -> str:
        fields = "".join(f" {name}={value}" for name, value in self.fields)
        return f"{self.kind}{fields}{self.by and f' by {self.by}'}"


@dataclass(frozen=True)
class EndCondition:
    """Wait for a word of `UNTIL` or an event, and `more_s` longer; by default for `for_s`."""

    word: str = ""
    more_s: float = 0.0
    event: EventCondition | None = None


@dataclass(frozen=True)
class Conditions:
    """What one fault of a plan waits for: to begin (`after`), and to be healed (`until`)."""

    after: AckCondition | EventCondition | StateCondition | None
    until: EndCondition

    @classmethod
    def of(cls, planned: PlannedFault) -> "Conditions":
        """Parse both conditions of a fault. Raises BadRequest if one is malformed."""
        return cls(parse_after(planned.after), parse_until(planned.until))

    @property
    def event(self) -> EventCondition | None:
        """The event that the fault waits for to begin, if any."""
        return self.after if isinstance(self.after, EventCondition) else None

    @property
    def need_events(self) -> bool:
        """Whether the beginning or the end waits for an event."""
        return bool(self.event or self.until.event)

    @property
    def waits_for_held_sends(self) -> bool:
        return isinstance(self.after, StateCondition) and self.after.word == HELD

    @property
    def waits_s(self) -> tuple[float, float]:
        """Minimum and maximum seconds between the fault's time and its beginning."""
        match self.after:
            case None:
                return 0.0, 0.0
            case AckCondition() as acks:
                return 0.0, acks.within_s
            case StateCondition() | EventCondition() as condition:
                return condition.more_s, condition.within_s + condition.more_s


def parse_after(text: str) -> AckCondition | EventCondition | StateCondition | None:
    """Parse `after`; None if it is empty. Raises BadRequest with examples if it is malformed."""
    words = " ".join(text.split())
    if not words:
        return None
    if match := _ACKS.fullmatch(words):
        return AckCondition(
            parse_integer(match["count"].replace(",", "")), parse_seconds(match["within"])
        )
    if match := _STATE.fullmatch(words):
        return StateCondition(
            match["word"], parse_seconds(match["more"] or "0"), parse_seconds(match["within"])
        )
    if match := _EVENT_AFTER.fullmatch(words):
        return _event(match, parse_seconds(match["within"]))
    raise BadRequest(
        "after must read like '1000 acks within 9 s' or 'event truncate within 5 s', or be one of"
        f" {', '.join(AFTER)}, as in 'master changes within 20 s', not {text!r}"
    )


def parse_until(text: str) -> EndCondition:
    """Parse `until`. Raises BadRequest with the known words if it is malformed."""
    words = " ".join(text.split())
    if not words:
        return EndCondition()
    if match := _EVENT_UNTIL.fullmatch(words):
        return EndCondition(more_s=parse_seconds(match["more"] or "0"), event=_event(match))
    match = _WORD.fullmatch(words)
    if not match or match["word"] not in (*UNTIL, NEXT):
        conditions = f"{ANOTHER_MASTER}, {NEXT}, {', '.join(CHANGES)} or 'event election'"
        raise BadRequest(f"until must be one of {conditions}, with or without ' + 2 s'")
    return EndCondition(match["word"], parse_seconds(match["more"] or "0"))


def _event(match: re.Match[str], within_s: float = 0.0) -> EventCondition:
    fields = tuple(tuple(part.split("=", 1)) for part in match["says"].split())
    more_s = parse_seconds(match["more"] or "0")
    return EventCondition(match["kind"], fields, match["by"] or "", more_s, within_s)


def _plain(value: Any) -> str:
    """Format a field as a plan writes it: strings as they are, the rest as JSON without spaces."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
