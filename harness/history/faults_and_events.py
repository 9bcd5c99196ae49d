"""Fault intervals and server-side events, read from a history's small tables.

Checkers ask which windows a run had; reports draw them. A fault is *in force* from `applied` to
`heal`: before that it is being put in place, after that it is being undone, and only `observed`
and `healed` say that somebody looked. Stretches of load without any fault are *quiet*: before the
first, between two, after the last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from harness.contracts.faults import LOST_COPIES as LOST_COPIES
from harness.contracts.faults import Destroys, Effects, Ends
from harness.judge.effects import effects_of
from harness.text.parsing import json_of


@dataclass(frozen=True)
class FaultInterval:
    """One fault as it was carried out; times in ns since the run's start, None where absent."""

    id: int
    kind: str
    params: Mapping[str, Any] = field(default_factory=dict)
    selector: str = ""
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    planned: int | None = None  # after the load began
    planned_for: int | None = None
    begin: int | None = None
    applied: int | None = None
    observed: int | None = None
    heal: int | None = None
    healed: int | None = None
    state: str = "planned"
    observation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes it hit, in order, once each; those it was aimed at, as long as nobody knows."""
        return tuple(dict.fromkeys(n for group in self.targets.values() for n in group))

    @property
    def destroyed(self) -> tuple[str, ...]:
        """The nodes from whose disks it took what had been synced."""
        destroys = self.effects.destroys
        if destroys is Destroys.NONE:
            return ()
        told = (self.observation.get(when) or {} for when in ("effect", "healing"))
        copies = [seen[LOST_COPIES] for seen in told if LOST_COPIES in seen]
        if copies or destroys is Destroys.OBSERVED:
            return tuple(sorted({name for names in copies for name in names}))
        return self.names

    @property
    def effects(self) -> Effects:
        """What its kind declares."""
        return effects_of(self.kind)

    @property
    def ends(self) -> bool:
        """It ends the processes of its targets, if only to start them again at once."""
        return self.effects.ends is not Ends.NOT

    @property
    def in_turn(self) -> bool:
        """Its victims are hit one after the other, each at a moment of its own."""
        return self.params.get("order") == "rolling"

    @property
    def silences(self) -> bool:
        """Its targets say and hear nothing from its apply to its heal."""
        return self.effects.silences and not self.in_turn

    @property
    def stuck(self) -> str:
        """Why undoing it failed, so that it may be there still; nothing when it did not."""
        healing = self.observation.get("healing")
        return str(healing.get("error", "")) if isinstance(healing, Mapping) else ""

    @property
    def words(self) -> str:
        """`partition (isolate) on broker-1`."""
        shape = self.params.get("shape")
        what = f"{self.kind} ({shape})" if shape else self.kind
        return f"{what} on {', '.join(self.names)}" if self.names else what


@dataclass(frozen=True)
class Event:
    """Something a node or the runner said about the cluster."""

    t: int
    node: str
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """A stretch of the run, `[begin, end)` in ns."""

    begin: int
    end: int

    @property
    def length_s(self) -> float:
        return (self.end - self.begin) / 1e9


def fault_intervals(table: pa.Table) -> tuple[FaultInterval, ...]:
    """The last row of each id, in order of ids."""
    rows = {row["id"]: row for row in table.to_pylist()}
    return tuple(_interval(rows[number]) for number in sorted(rows))


def events(table: pa.Table) -> tuple[Event, ...]:
    """All events in time order; at equal times by node, and what one node told as it told it.

    Time may stand still while a node tells several things: a simulated process works in no time,
    and real logs count microseconds. Then only the order of its lines says what came last.
    """
    rows = [
        Event(row["t"], row["node"] or "", row["kind"] or "", _object(row["fields"]))
        for row in table.to_pylist()
    ]
    return tuple(sorted(rows, key=lambda e: (e.t, e.node)))


def in_force(fault: FaultInterval, end: int) -> Window | None:
    """From applied to heal, or to `end` when it was never healed; None if never applied."""
    if fault.applied is None:
        return None
    return Window(fault.applied, max(fault.applied, fault.heal if fault.heal is not None else end))


def overlap(one: Window, other: Window | None) -> int:
    """How long two windows are open at the same time, in ns."""
    return max(0, min(one.end, other.end) - max(one.begin, other.begin)) if other else 0


def quiet(faults: Iterable[FaultInterval], load: Window) -> tuple[Window, ...]:
    """The load's stretches between faults, the first and last of them at its ends.

    Always one more than there are disjoint fault stretches; an end may be empty.
    """
    stretches: list[Window] = []
    at = load.begin
    for busy in merged(_touched(fault, load) for fault in faults if fault.begin is not None):
        stretches.append(Window(at, max(at, busy.begin)))
        at = max(at, busy.end)
    return (*stretches, Window(at, max(at, load.end)))


def faults_at(faults: Iterable[FaultInterval], t: int) -> tuple[int, ...]:
    """Ids of the faults that touch the world at `t`: from begin to healed."""
    return tuple(
        fault.id
        for fault in faults
        if fault.begin is not None
        and fault.begin <= t
        and (t <= fault.healed if fault.healed is not None else True)
    )


def _touched(fault: FaultInterval, load: Window) -> Window:
    begin = fault.begin if fault.begin is not None else load.begin
    ended = fault.heal if fault.heal is not None else fault.healed
    return Window(begin, max(begin, ended if ended is not None else load.end))


def merged(windows: Iterable[Window]) -> Sequence[Window]:
    """Return the windows in order of time, those that meet or overlap as one."""
    found: list[Window] = []
    for window in sorted(windows, key=lambda w: (w.begin, w.end)):
        if found and window.begin <= found[-1].end:
            found[-1] = Window(found[-1].begin, max(found[-1].end, window.end))
        else:
            found.append(window)
    return found


def _interval(row: Mapping[str, Any]) -> FaultInterval:
    targets = {
        str(role): tuple(str(n) for n in (names if isinstance(names, list) else [names]))
        for role, names in _object(row["targets"]).items()
    }
    times = ("planned", "planned_for", "begin", "applied", "observed", "heal", "healed")
    return FaultInterval(
        id=row["id"],
        kind=row["kind"] or "",
        params=_object(row["params"]),
        selector=row["selector"] or "",
        targets=targets,
        state=row["state"] or "planned",
        observation=_object(row["observation"]),
        **{name: row[name] for name in times},
    )


def _object(text: str | None) -> Mapping[str, Any]:
    """A JSON object; anything else is kept as {"value": ...}, for a reader must not stumble."""
    if not text:
        return {}
    try:
        value = json_of(text)
    except ValueError:
        return {"value": text}
    return value if isinstance(value, dict) else {"value": value}
