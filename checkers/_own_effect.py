"""Which faults had no effect of their own, whoever saw them.

A link fault had one when at some moment some link was worse because of it.

Where faults overlap, some do nothing. A link that is cut already can not be cut again, and nobody
misses packets from or to a machine that is dead, dark or paused. A fault all of whose links were so
from its apply to its heal tested nothing that the others did not. Of two that were applied at one
instant with the same effect, the first counts.

A disk that misbehaves matters to a process that runs. Where all victims were dead, dark or paused
by other faults all the while, there was nobody to act on.

The faults table tells it exactly: which links each one laid, what share they lose, and when. One
sweep over the times of each link finds the moments at which a single fault was the worst.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.intervals import SPOILING, FaultInterval, Window, in_force

Link = tuple[str, str]  # names of the sending and the receiving node
CUT = 1.0
SILENT = -1


@dataclass(frozen=True)
class Stay:
    """A fault on one link. `fault`: its id, or SILENT for an end that says and hears nothing."""

    begin: int
    end: int
    drop: float
    fault: int


def idle_links(faults: Sequence[FaultInterval], end: int) -> frozenset[int]:
    """Ids of the installed link faults that had no effect of their own until the run's `end`."""
    laid: dict[Link, list[Stay]] = defaultdict(list)
    silent: dict[str, list[Stay]] = defaultdict(list)
    asked = set()
    for fault, window in _installed(faults, end):
        if fault.silences:
            for name in fault.names:
                silent[name].append(_stay(window, CUT, SILENT))
        elif links := tuple(links_of(fault)):
            asked.add(fault.id)
            for link in links:
                laid[link].append(_stay(window, drop_of(fault), fault.id))
    return frozenset(asked - set(_effective(laid, silent)))


def idle_disks(faults: Sequence[FaultInterval], end: int) -> frozenset[int]:
    """Ids of the installed faults of disks that met no process until the run's `end`."""
    silent: dict[str, list[Window]] = defaultdict(list)
    for fault, window in _installed(faults, end):
        if fault.silences:
            for name in fault.names:
                silent[name].append(window)
    return frozenset(
        fault.id
        for fault, window in _installed(faults, end)
        if fault.kind in SPOILING
        and fault.names
        and all(_covered(window, silent[name]) for name in fault.names)
    )


def _installed(faults: Iterable[FaultInterval], end: int) -> Iterator[tuple[FaultInterval, Window]]:
    for fault in faults:
        window = in_force(fault, end)
        if window is not None and fault.state == "installed":
            yield fault, window


def _covered(window: Window, by: Iterable[Window]) -> bool:
    """Whether these leave no moment of it."""
    at = window.begin
    for other in sorted(by, key=lambda each: each.begin):
        if other.begin <= at:
            at = max(at, other.end)
    return at >= max(window.end, window.begin + 1)


def links_of(fault: FaultInterval) -> Iterator[Link]:
    """The links that it laid, as its observation tells."""
    effect = fault.observation.get("effect")
    cut = effect.get("cut") if isinstance(effect, Mapping) else None
    for sink, sources in (cut or {}).items():
        for source in sources:
            yield source, sink


def drop_of(fault: FaultInterval) -> float:
    return float(fault.params.get("probability", CUT))


def _stay(window: Window, drop: float, fault: int) -> Stay:
    """Never of no length, for that has no end."""
    return Stay(window.begin, max(window.begin + 1, window.end), drop, fault)


def _effective(laid: Mapping[Link, list[Stay]], silent: Mapping[str, list[Stay]]) -> Iterator[int]:
    for (source, sink), stays in laid.items():
        yield from _worst([*stays, *silent.get(source, ()), *silent.get(sink, ())])


def _worst(stays: Iterable[Stay]) -> Iterator[int]:
    """Those that were the worst on a link for a moment."""
    moments: dict[int, tuple[list[Stay], list[Stay]]] = defaultdict(lambda: ([], []))
    for stay in stays:
        moments[stay.begin][0].append(stay)
        moments[stay.end][1].append(stay)
    active: list[Stay] = []
    for at in sorted(moments):
        begun, ended = moments[at]
        active = [stay for stay in active if stay not in ended] + begun
        if (found := _single(active)) is not None:
            yield found


def _single(active: Sequence[Stay]) -> int | None:
    """The one that makes the difference now, if there is one."""
    worst = max((stay.drop for stay in active), default=0.0)
    rivals = [stay for stay in active if stay.drop == worst]
    if not rivals or any(r.fault == SILENT or r.begin != rivals[0].begin for r in rivals):
        return None
    return min(rival.fault for rival in rivals)
