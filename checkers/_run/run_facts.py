"""The facts of a run as one value: its faults, phases, events and the timeline of its operations.

Coverage, recovery and availability are pure functions of `RunFacts`. The windows and marks that
they need are defined here, so that one pass over the operations serves all three.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from checkers._run.fault_effects import idle_disks, idle_links
from checkers._run.timeline import NO_SET, Ints, TimelineQuery, measure
from checkers._run.timeline_query import Timeline
from checkers._spark.spark_stages import per_history
from harness.history.faults_and_events import (
    ClusterEvent,
    FaultInterval,
    TimeWindow,
    in_force,
    quiet_windows,
)
from harness.history.notes import FULL, GONE, SKIPPED
from harness.history.reader import History
from harness.history.roles import SetChange, set_changes_of
from harness.judge.verdict import Reason
from harness.plans import planned_kinds
from harness.run.broker_sets import FAILS_OVER, BrokerSetData, broker_sets_in, data_nodes
from harness.trial import Trial

IN_FAULTS, QUIET = 0, 1  # numbers of the spans

FINE_NS = 10_000_000
MAX_FINE_BINS = 60_000
MAX_BINS = 600
NICE_BINS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


@dataclass(frozen=True)
class Outline:
    """What the small tables of a run contain. Times are ns since the run's start."""

    trial: Trial
    phases: Mapping[str, int]
    load: TimeWindow | None  # None: the load never began
    end: int  # no row of a small table is later
    faults: tuple[FaultInterval, ...] = ()
    planned: tuple[str, ...] = ()  # kinds of the planned faults, in the plan's order
    events: tuple[ClusterEvent, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    set_of_key: tuple[int, ...] = ()
    sets: tuple[str, ...] = ("",)  # names of the broker sets; a single one may have none
    dealt: Mapping[str, BrokerSetData] = field(
        default_factory=dict
    )  # nodes and keys of each, where known
    interrupted: bool = False
    gaps: frozenset[str] = frozenset()  # tables of which recorded rows may be missing
    cut_short: tuple[
        Reason, ...
    ] = ()  # what the test environment lost, so that the run ended early
    fails_over: bool = True  # whether the cluster elects another master when one is gone
    skipped: int = 0  # arrivals of the load when every slot of their client was taken

    @cached_property
    def applied(self) -> tuple[FaultInterval, ...]:
        """Faults that were applied, in the order of windows and marks."""
        return tuple(fault for fault in self.faults if fault.applied is not None)

    @cached_property
    def force(self) -> tuple[TimeWindow, ...]:
        windows = (in_force(fault, self.end) for fault in self.applied)
        return tuple(window for window in windows if window is not None)

    @cached_property
    def _force_bounds(self) -> tuple[Ints, Ints]:
        """The begins and ends of the windows in `force`."""
        return (
            np.array([window.begin for window in self.force], np.int64),
            np.array([window.end for window in self.force], np.int64),
        )

    def overlapping(self, window: TimeWindow, least_ns: float) -> list[FaultInterval]:
        """Return the applied faults that were in force for at least this time of a window."""
        begins, ends = self._force_bounds
        shared = np.minimum(ends, window.end) - np.maximum(begins, window.begin)
        return [self.applied[at] for at in np.flatnonzero(np.maximum(shared, 0) >= least_ns)]

    @cached_property
    def events_by_set(self) -> Mapping[str, Sequence[ClusterEvent]]:
        """The events of each broker set, and with them those of no set."""
        return {
            name: [event for event in self.events if event.fields.get("brokerName", name) == name]
            for name in self.dealt
        }

    @cached_property
    def _masters_by_set(self) -> Mapping[str, tuple[Sequence[int], Sequence[str]]]:
        """Of each broker set, from which moment on which node called itself its master; an empty
        name: no node did."""
        found: dict[str, tuple[list[int], list[str]]] = {}
        for event in self.events:
            if event.kind == "role" and (name := event.fields.get("brokerName")):
                times, nodes = found.setdefault(str(name), ([], []))
                leads = event.fields.get("role") == "master"
                if leads or (nodes and nodes[-1] == event.node):
                    times.append(event.t)
                    nodes.append(event.node if leads else "")
        return found

    def master_of(self, name: str, at: int) -> str:
        """Return the node that was the master of a broker set at a moment, as nodes logged it;
        empty if there was none, or it is not known."""
        times, nodes = self._masters_by_set.get(name, ((), ()))
        number = bisect_right(times, at)
        return nodes[number - 1] if number else ""

    @cached_property
    def quiet(self) -> tuple[TimeWindow, ...]:
        return quiet_windows(self.faults, self.load) if self.load else ()

    @cached_property
    def set_sizes(self) -> tuple[SetChange, ...]:
        """Each change of each SyncStateSet, from the cluster's events."""
        return set_changes_of(self.events)

    @cached_property
    def idle(self) -> frozenset[int]:
        """Ids of the faults that had no effect of their own."""
        return idle_links(self.faults, self.end) | idle_disks(self.faults, self.end)

    @cached_property
    def lost(self) -> tuple[ClusterEvent, ...]:
        """Nodes that the test environment lost, or whose disk was full."""
        return tuple(event for event in self.events if event.kind in (GONE, FULL))

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The begin of each fault, in order."""
        return tuple(sorted(fault.begin for fault in self.faults if fault.begin is not None))

    @cached_property
    def killings(self) -> Mapping[str, tuple[TimeWindow, ...]]:
        """By node, the time from the begin of a fault that ends its process to its healing."""
        found: dict[str, list[TimeWindow]] = {}
        for fault in self.faults:
            if fault.ends and fault.begin is not None:
                window = TimeWindow(fault.begin, self.end if fault.healed is None else fault.healed)
                for node in fault.names:
                    found.setdefault(node, []).append(window)
        return {node: tuple(windows) for node, windows in found.items()}

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Numbers of the applied faults, by id."""
        return {fault.id: number for number, fault in enumerate(self.applied)}

    @property
    def healed(self) -> int | None:
        """When the last fault was observed healed; None if one of them was not."""
        begun = [fault for fault in self.faults if fault.begin is not None]
        times = [fault.healed for fault in begun if fault.healed is not None]
        if len(times) < len(begun):
            return None
        if times:
            return max(times)
        return self.phases.get("healed", self.load.begin if self.load else None)

    @property
    def alone_since(self) -> int | None:
        """The moment from which the cluster had to recover: when the last fault was observed
        healed, else when the runner had undone all of them. None: it did not, or could not."""
        if self.healed is not None:
            return self.healed
        return None if any(fault.heal_error for fault in self.faults) else self.phases.get("healed")

    def query(self) -> TimelineQuery:
        """Return the query of the timeline. Windows: faults in force, then quiet stretches, then
        the time to recover; spans: all of the first, all of the second. Marks: each fault applied,
        then all healed."""
        alone = self.end if self.alone_since is None else self.alone_since
        recovery = alone, alone + round(self.trial.recover_within_s * 1e9)
        windows = (*self.force, *self.quiet)
        return TimelineQuery(
            bin_ns=bin_ns(self.end),
            fine_ns=max(FINE_NS, self.end // MAX_FINE_BINS),
            windows=(*((w.begin, w.end) for w in windows), recovery),
            spans=(range(len(self.force)), range(len(self.force), len(windows))),
            marks=(
                *(fault.applied for fault in self.applied if fault.applied is not None),
                alone,
            ),
            set_of_key=self.set_of_key,
        )


@dataclass(frozen=True)
class RunFacts:
    """The outline of a run, and the timeline of its operations."""

    outline: Outline
    timeline: Timeline

    def force_number(self, fault: FaultInterval) -> int | None:
        """Return the number of this fault's window and mark; None if it was never applied."""
        return self.outline.numbers.get(fault.id)

    def quiet_number(self, stretch: int) -> int:
        return len(self.outline.force) + stretch

    @property
    def recovery_number(self) -> int:
        return len(self.outline.force) + len(self.outline.quiet)

    @property
    def healed_mark(self) -> int:
        return len(self.outline.applied)


@per_history
def facts(history: History, trial: Trial, spark: Any) -> RunFacts:
    """Return the facts of a stored run: one Spark job."""
    known = outline(history, trial)
    query = known.query()
    return RunFacts(known, Timeline(measure(history, query, spark), query))


def outline(history: History, trial: Trial) -> Outline:
    """Return the outline of a stored run."""
    faults = history.faults
    event_log = history.events
    phases = dict(history.phases)
    end = _end(faults, event_log, phases)
    sets, set_of_key = broker_sets(history.names, event_log)
    return Outline(
        trial=trial,
        phases=phases,
        load=_load(phases, end, history.state.get("load_ended_ns")),
        end=end,
        faults=faults,
        planned=planned_kinds(history.run.plan_text()),
        events=event_log,
        roles=history.names.get("roles", {}),
        set_of_key=set_of_key,
        sets=sets,
        dealt=broker_sets_in(history.names),
        interrupted=bool(history.interrupted),
        gaps=history.gaps,
        cut_short=history.cut_short,
        fails_over=_fails_over(history.state.get("healthy")),
        skipped=_skipped(history),
    )


def _fails_over(healthy: Any) -> bool:
    return not isinstance(healthy, Mapping) or healthy.get(FAILS_OVER) is not False


def _skipped(history: History) -> int:
    """Return the sum of the last count of each process."""
    counts = {note.process: note.text.partition(" ")[2] for note in history.notes[SKIPPED]}
    return sum(int(count) for count in counts.values() if count.isdecimal())


def broker_sets(
    names: Mapping[str, Any], event_log: Sequence[ClusterEvent]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names of the broker sets and, if there are several, the number of each key's set.

    If a run's names do not contain them, the controllers' events name the sets, and all keys are
    judged together.
    """
    dealt = broker_sets_in(names)
    if not dealt:
        return tuple(sorted({step.set for step in set_changes_of(event_log)})) or ("",), ()
    sets = tuple(dealt)
    if len(sets) == 1:
        return sets, ()
    of_key = {key: number for number, name in enumerate(sets) for key in dealt[name].keys}
    return sets, tuple(of_key.get(key, NO_SET) for key in names.get("keys", ()))


def full_set_at(outline: Outline, name: str, since: int) -> int | None:
    """Return when this broker set's SyncStateSet was full, at or after `since`, by its events."""
    steps = [s for s in outline.set_sizes if s.set == name or not name or not s.set]
    sizes = [(s.t, len(s.members)) for s in steps]
    if not sizes:
        return None
    full = _full_size(outline, name, max(size for _, size in sizes))
    now = [size for t, size in sizes if t <= since]
    if now and now[-1] >= full:
        return since
    return next((t for t, size in sizes if t > since and size >= full), None)


def _full_size(outline: Outline, name: str, greatest: int) -> int:
    """Return how many members this set has when it is full. If the run's names do not say so, it
    is the set's share of the brokers, or its greatest size in the events."""
    if name in outline.dealt:
        return outline.dealt[name].full
    brokers = len(data_nodes(outline.roles))
    return max(brokers // max(1, len(outline.sets)), greatest)


def latest(moments: Iterable[int | None]) -> int | None:
    """Return the last moment; None if one of them is None, or there is none."""
    times = list(moments)
    known = [t for t in times if t is not None]
    return max(known) if known and len(known) == len(times) else None


def bin_ns(end: int) -> int:
    """Return the smallest round bin width that needs no more than `MAX_BINS` bins."""
    for width_s in NICE_BINS_S:
        if end <= width_s * 1e9 * MAX_BINS:
            return int(width_s * 1e9)
    return end // MAX_BINS


def _load(phases: Mapping[str, int], end: int, ended: Any) -> TimeWindow | None:
    """Return the window from the load's mark to its end, which is before the drain's mark."""
    if "load" not in phases:
        return None
    stops = [phases[p] for p in ("drain", "interrupted", "collected", "ended") if p in phases]
    stops += [ended] if isinstance(ended, int) else []
    return TimeWindow(phases["load"], max(phases["load"], min(stops, default=end)))


def _end(
    faults: Sequence[FaultInterval], event_log: Sequence[ClusterEvent], phases: Mapping[str, int]
) -> int:
    times = [*phases.values(), *(event.t for event in event_log)]
    for fault in faults:
        known = (fault.begin, fault.applied, fault.observed, fault.heal, fault.healed)
        times += [t for t in known if t is not None]
    return max(times, default=0) + 1
