"""Conditions that a plan may wait for besides the clock: `after` and `until`.

    after = "1000 acks within 9 s"   so many more sends were acknowledged since the previous fault
                                     of the plan was applied, or so much time has passed since
    after = "event truncate within 5 s"
                                     a node wrote such a line into its event log
    after = "master changes within 20 s"
                                     the cluster stands otherwise than when the previous fault was
                                     aimed: some broker set has a master of a higher epoch; also
                                     `controller-leader changes`, `set shrinks` (fewer are in the
                                     SyncStateSets), `master is gone` (a set has none)
    after = "previous is healed within 30 s"
                                     the previous fault is over, whatever became of it
    after = "cluster is whole within 60 s"
                                     all earlier faults are, and every set is complete again
    until = "another-master"         some broker set has a master with a higher epoch than when
                                     the fault began; or any of those four ways to stand otherwise
    until = "next"                   the next fault of the plan has been applied
    until = "event election"         a node wrote such a line since the fault was applied
    until = "another-master + 2 s"   the same, and so much longer

What an event says may be asked for, and who tells it, and how long ago it must be:

    event raft state=leader by controller but fault-0 + 0.0005 s within 5 s

It counts from the fault's own moment on, and not before the previous fault of the plan was applied.
The fault then knows who told it: the selector `teller`. One that waits for something that does not
come does not happen at all, since it would hit another story than the one it was written for; only
acknowledgements are not insisted upon.

Every condition has an end: `within` bounds those of `after`, the fault's `for_s` those of `until`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.contracts import PlannedFault
from harness.contracts.cluster_view import Standing, Told
from harness.errors import BadRequest
from harness.plans import NEXT, PREVIOUS
from harness.text.parsing import seconds, whole

ANOTHER_MASTER, WHOLE = "another-master", "cluster is whole"


def another_master(before: Standing, now: Standing) -> bool:
    """Whether some broker set has a master of a higher epoch than before."""
    return any(now.epochs.get(name, 0) > before.epochs.get(name, 0) for name in now.masters)


def _another_leader(before: Standing, now: Standing) -> bool:
    return now.controller_leader not in ("", before.controller_leader)


def _smaller_set(before: Standing, now: Standing) -> bool:
    return len(now.in_set) < len(before.in_set)


def _masterless(before: Standing, now: Standing) -> bool:
    return any(name not in now.masters for name in before.masters)


def _whole(before: Standing, now: Standing) -> bool:
    return now.redundant


def _anyhow(before: Standing, now: Standing) -> bool:
    return True


Stands = Callable[[Standing, Standing], bool]  # before, and now
CHANGES: Mapping[str, Stands] = {
    "master changes": another_master,
    "controller-leader changes": _another_leader,
    "set shrinks": _smaller_set,
    "master is gone": _masterless,
}
AFTER: Mapping[str, Stands] = {**CHANGES, PREVIOUS: _anyhow, WHOLE: _whole}
UNTIL: Mapping[str, Stands] = {ANOTHER_MASTER: another_master, **CHANGES}

_MORE = r"(?: \+ (?P<more>\d+(?:\.\d+)?) ?s)?"
_WITHIN = r" within (?P<within>\d+(?:\.\d+)?) ?s"
_WORD = re.compile(rf"(?P<word>[a-z -]+?){_MORE}")
_STATE = re.compile(rf"(?P<word>{'|'.join(AFTER)}){_MORE}{_WITHIN}")
_ACKS = re.compile(rf"(?P<count>\d[\d,]*) acks{_WITHIN}")
_SAYS = r"event (?P<kind>[a-z-]+)(?P<says>(?: \w+=\S+)*)(?: by (?P<by>[^+]+?))?"
_EVENT_AFTER = re.compile(_SAYS + _MORE + _WITHIN)
_EVENT_UNTIL = re.compile(_SAYS + _MORE)


@dataclass(frozen=True)
class Acks:
    """So many more acknowledgements, but not longer than this."""

    count: int
    within_s: float


@dataclass(frozen=True)
class State:
    """How the cluster stands, or the plan: a word of `AFTER`."""

    word: str
    more_s: float
    within_s: float

    def holds(self, before: Standing, now: Standing) -> bool:
        return AFTER[self.word](before, now)


@dataclass(frozen=True)
class Event:
    """A line of a node's event log. `says`: what its fields must be; `by`: a selector."""

    kind: str
    says: tuple[tuple[str, str], ...] = ()
    by: str = ""
    more_s: float = 0.0
    within_s: float = 0.0

    def fits(self, told: Told) -> bool:
        """Whether this is the line, whoever told it."""
        return told.kind == self.kind and all(
            name in told.fields and _plain(told.fields[name]) == value for name, value in self.says
        )

    def __str__(self) -> str:
        says = "".join(f" {name}={value}" for name, value in self.says)
        return f"{self.kind}{says}{self.by and f' by {self.by}'}"


@dataclass(frozen=True)
class Until:
    """A word of `UNTIL` or an event, and how much longer; without: the fault's whole time."""

    word: str = ""
    more_s: float = 0.0
    event: Event | None = None


def after(text: str) -> Acks | Event | State | None:
    """The condition that `after` states, if any. BadRequest says how to write one."""
    words = " ".join(text.split())
    if not words:
        return None
    if match := _ACKS.fullmatch(words):
        return Acks(whole(match["count"].replace(",", "")), seconds(match["within"]))
    if match := _STATE.fullmatch(words):
        return State(match["word"], seconds(match["more"] or "0"), seconds(match["within"]))
    if match := _EVENT_AFTER.fullmatch(words):
        return _event(match, seconds(match["within"]))
    raise BadRequest(
        "after must read like '1000 acks within 9 s' or 'event truncate within 5 s', or say one of"
        f" {', '.join(AFTER)}, as in 'master changes within 20 s', not {text!r}"
    )


def waits_s(planned: PlannedFault) -> tuple[float, float]:
    """How long it waits for its condition and after it, at least and at most."""
    match after(planned.after):
        case None:
            return 0.0, 0.0
        case Acks() as acks:
            return 0.0, acks.within_s
        case State() | Event() as condition:
            return condition.more_s, condition.within_s + condition.more_s


def until(text: str) -> Until:
    """The condition that `until` states. BadRequest says how to write one."""
    words = " ".join(text.split())
    if not words:
        return Until()
    if match := _EVENT_UNTIL.fullmatch(words):
        return Until(more_s=seconds(match["more"] or "0"), event=_event(match))
    match = _WORD.fullmatch(words)
    if not match or match["word"] not in (*UNTIL, NEXT):
        known = f"{ANOTHER_MASTER}, {NEXT}, {', '.join(CHANGES)} or 'event election'"
        raise BadRequest(f"until must be one of {known}, with or without ' + 2 s'")
    return Until(match["word"], seconds(match["more"] or "0"))


def event_of(text: str) -> Event | None:
    """The event that `after` waits for, if any."""
    condition = after(text)
    return condition if isinstance(condition, Event) else None


def listens(planned: PlannedFault) -> bool:
    """Whether the fault, or its end, waits for an event."""
    return bool(event_of(planned.after) or until(planned.until).event)


def _event(match: re.Match[str], within_s: float = 0.0) -> Event:
    says = tuple(tuple(part.split("=", 1)) for part in match["says"].split())
    return Event(match["kind"], says, match["by"] or "", seconds(match["more"] or "0"), within_s)


def _plain(value: Any) -> str:
    """A field as a plan writes it: words as they are, the rest as JSON without spaces."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
