"""Fault intervals and server-side events, read from a history's small tables.

Checkers and reports use the time windows of a run. A fault is *in force* from `applied` to `heal`:
before that it is being applied, after that it is being undone, and only `observed` and `healed` are
observations. Stretches of load without any fault are *quiet*: before the first, between two, after
the last.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from harness.contracts.faults import LOST_COPIES as LOST_COPIES
from harness.contracts.faults import DataLoss, FaultEffects, ProcessEnd
from harness.judge.effects import effects_of
from harness.text.parsing import parse_json


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

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The nodes it hit, in order, once each; until that is known, its targets."""
        return tuple(dict.fromkeys(n for group in self.targets.values() for n in group))

    @cached_property
    def destroyed_on(self) -> tuple[str, ...]:
        """The nodes whose disks lost synced data."""
        destroys = self.effects.destroys
        if destroys is DataLoss.NONE:
            return ()
        evidence = (self.observation.get(when) or {} for when in ("effect", "healing"))
        copies = [seen[LOST_COPIES] for seen in evidence if LOST_COPIES in seen]
        if copies or destroys is DataLoss.OBSERVED:
            return tuple(sorted({name for names in copies for name in names}))
        return self.names

    @cached_property
    def effects(self) -> FaultEffects:
        """What its kind declares."""
        return effects_of(self.kind)

    @property
    def ends(self) -> bool:
        """Whether it ends the processes of its targets, if only to restart them at once."""
        return self.effects.ends is not ProcessEnd.NONE

    @property
    def rolling(self) -> bool:
        """Whether its targets are hit one after the other, each at a moment of its own."""
        return self.params.get("order") == "rolling"

    @property
    def silences(self) -> bool:
        """Whether its targets send and receive nothing from its apply to its heal."""
        return self.effects.silences and not self.rolling

    @property
    def heal_error(self) -> str:
        """Why healing it failed, so that it may still be in effect; empty if it did not fail."""
        healing = self.observation.get("healing")
        return str(healing.get("error", "")) if isinstance(healing, Mapping) else ""

    @property
    def label(self) -> str:
        """A short text: `partition (isolate) on broker-1`."""
        shape = self.params.get("shape")
        what = f"{self.kind} ({shape})" if shape else self.kind
        return f"{what} on {', '.join(self.names)}" if self.names else what


@dataclass(frozen=True)
class ClusterEvent:
    """An event of the cluster that a node or the runner logged."""

    t: int
    node: str
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TimeWindow:
    """A stretch of the run, `[begin, end)` in ns."""

    begin: int
    end: int

    @property
    def length_s(self) -> float:
        return (self.end - self.begin) / 1e9


def fault_intervals(table: pa.Table) -> tuple[FaultInterval, ...]:
    """Return the last row of each id, in order of ids."""
    rows = {row["id"]: row for row in table.to_pylist()}
    return tuple(_interval(rows[number]) for number in sorted(rows))


def events(table: pa.Table) -> tuple[ClusterEvent, ...]:
    """Return all events in time order; at equal times by node, and those of one node as logged.

    Several events of a node may have the same time: a simulated process works in no time, and real
    logs count microseconds. Then only the order of the lines says which came last.
    """
    rows = [
        ClusterEvent(row["t"], row["node"] or "", row["kind"] or "", _object(row["fields"]))
        for row in table.to_pylist()
    ]
    return tuple(sorted(rows, key=lambda e: (e.t, e.node)))


def in_force(fault: FaultInterval, end: int) -> TimeWindow | None:
    """Return the window from applied to heal, or to `end` if it was never healed; None if never
    applied."""
    if fault.applied is None:
        return None
    return TimeWindow(
        fault.applied, max(fault.applied, fault.heal if fault.heal is not None else end)
    )


def quiet_windows(faults: Iterable[FaultInterval], load: TimeWindow) -> tuple[TimeWindow, ...]:
    """Return the load's stretches between faults, the first and last of them at its ends.

    There is always one more than there are disjoint fault stretches; an end may be empty.
    """
    stretches: list[TimeWindow] = []
    at = load.begin
    for busy in merge_windows(
        _active_window(fault, load) for fault in faults if fault.begin is not None
    ):
        stretches.append(TimeWindow(at, max(at, busy.begin)))
        at = max(at, busy.end)
    return (*stretches, TimeWindow(at, max(at, load.end)))


def faults_at(faults: Iterable[FaultInterval], *moments: int) -> tuple[int, ...]:
    """Return the ids of the faults that are in the world at any of these moments: from begin to
    healed."""
    found: list[int] = []
    for fault in faults:
        begin = math.inf if fault.begin is None else fault.begin
        healed = math.inf if fault.healed is None else fault.healed
        if any(begin <= t <= healed for t in moments):
            found.append(fault.id)
    return tuple(found)


def _active_window(fault: FaultInterval, load: TimeWindow) -> TimeWindow:
    begin = fault.begin if fault.begin is not None else load.begin
    ended = fault.heal if fault.heal is not None else fault.healed
    return TimeWindow(begin, max(begin, ended if ended is not None else load.end))


def merge_windows(windows: Iterable[TimeWindow]) -> Sequence[TimeWindow]:
    """Return the windows in order of time, with adjacent and overlapping ones merged."""
    merged: list[TimeWindow] = []
    for window in sorted(windows, key=lambda w: (w.begin, w.end)):
        if merged and window.begin <= merged[-1].end:
            merged[-1] = TimeWindow(merged[-1].begin, max(merged[-1].end, window.end))
        else:
            merged.append(window)
    return merged


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
    """Return a JSON object; anything else as {"value": ...}, so that no reader fails."""
    if not text:
        return {}
    try:
        value = parse_json(text)
    except ValueError:
        return {"value": text}
    return value if isinstance(value, dict) else {"value": value}
