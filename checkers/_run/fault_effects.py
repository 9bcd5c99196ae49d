"""Which faults had no effect of their own, whoever saw them.

A link fault had one when at some moment some link was worse because of it.

Where faults overlap, some do nothing. A link that is cut already can not be cut again, nor be late
or narrow, and nobody misses packets from or to a machine that is dead, dark or paused. A fault all
of whose links were so from its apply to its heal tested nothing that the others did not. Each way
in which a link can be worse is asked for by itself: a delay may be uneven under a longer one. What
comes and goes hides nothing. Of two that were applied at one instant with the same effect, the
first counts.

Where all that somebody looked at was as worse faults had it, the faults table says so: such a
fault has failed to be seen, and it is known why.

A disk that misbehaves matters to a process that runs. Where all victims were dead, dark or paused
by other faults all the while, there was nobody to act on.

The faults table tells it exactly: which links each one laid, what it does to them, and when. One
sweep over the times of each link finds the moments at which a single fault was the worst.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from harness.history.faults_and_events import FaultInterval, Window, in_force

Link = tuple[str, str]  # names of the sending and the receiving node
DROP = "drop"
CUT = 1.0
LATE = ("delay_s", "jitter_s", "reorder")
SILENT = -1


@dataclass(frozen=True)
class Stay:
    """A fault on one link. `harms`: in which ways it is worse, and how much, the greater the worse.
    `fault`: its id, or SILENT for an end that says and hears nothing. `steady`: all the while."""

    begin: int
    end: int
    harms: Mapping[str, float]
    fault: int
    steady: bool = True

    def harm(self, way: str) -> float:
        """Nothing is late or narrow where nothing arrives."""
        return inf if self.harms.get(DROP) == CUT else self.harms.get(way, 0.0)


def idle_links(faults: Sequence[FaultInterval], end: int) -> frozenset[int]:
    """Ids of the installed link faults that had no effect of their own until the run's `end`."""
    laid: dict[Link, list[Stay]] = defaultdict(list)
    silent: dict[str, list[Stay]] = defaultdict(list)
    asked = set()
    for fault, window in _installed(faults, end):
        if fault.silences:
            for name in fault.names:
                silent[name].append(_stay(window, {DROP: CUT}, SILENT))
        elif links := tuple(links_of(fault)):
            asked.add(fault.id)
            steady = not fault.params.get("off_s")
            for link in links:
                laid[link].append(_stay(window, harms_of(fault), fault.id, steady))
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
        if fault.effects.spoils
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


def was_hidden(fault: FaultInterval) -> bool:
    """Whether it was not seen only because worse faults showed in its place, wherever it is."""
    told = fault.observation.get("effect")
    if fault.state != "failed" or not isinstance(told, Mapping):
        return False
    if links := told.get("links"):
        return told.get("links_hidden_by_others") == links and not told.get("odd")
    return bool(fault.names) and set(fault.names) <= set(told.get("hidden_by_worse", ()))


def links_of(fault: FaultInterval) -> Iterator[Link]:
    """The links that it laid, as its observation tells."""
    effect = fault.observation.get("effect")
    told = effect if isinstance(effect, Mapping) else {}
    for sink, sources in (told.get("cut") or told.get("paced") or {}).items():
        for source in sources:
            yield source, sink


def harms_of(fault: FaultInterval) -> Mapping[str, float]:
    """In which ways it makes its links worse, and how much."""
    if fault.kind == "delay":
        return {way: float(fault.params.get(way, 0.0)) for way in LATE}
    if fault.kind == "bandwidth":
        rate = float(fault.params.get("bytes_per_s", inf))
        return {f"narrow {fault.params.get('per', 'link')}": 1 / rate}
    return {DROP: float(fault.params.get("probability", CUT))}


def _stay(window: Window, harms: Mapping[str, float], fault: int, steady: bool = True) -> Stay:
    """Never of no length, for that has no end."""
    return Stay(window.begin, max(window.begin + 1, window.end), harms, fault, steady)


def _effective(laid: Mapping[Link, list[Stay]], silent: Mapping[str, list[Stay]]) -> Iterator[int]:
    for (source, sink), stays in laid.items():
        there = [*stays, *silent.get(source, ()), *silent.get(sink, ())]
        steady = [stay for stay in there if stay.steady]
        for way in sorted({way for stay in there for way in stay.harms}):
            yield from _worst(there, way)
            if len(steady) < len(there):  # and while the others are gone
                yield from _worst(steady, way)


def _worst(stays: Iterable[Stay], way: str) -> Iterator[int]:
    """Those that were the worst on a link for a moment, in one way."""
    moments: dict[int, tuple[list[Stay], list[Stay]]] = defaultdict(lambda: ([], []))
    for stay in stays:
        moments[stay.begin][0].append(stay)
        moments[stay.end][1].append(stay)
    active: list[Stay] = []
    for at in sorted(moments):
        begun, ended = moments[at]
        active = [stay for stay in active if stay not in ended] + begun
        if (found := _single(active, way)) is not None:
            yield found


def _single(active: Sequence[Stay], way: str) -> int | None:
    """The one that makes the difference now, if there is one."""
    worst = max((stay.harm(way) for stay in active), default=0.0)
    rivals = [stay for stay in active if stay.harm(way) == worst > 0]
    if not rivals or any(r.fault == SILENT or r.begin != rivals[0].begin for r in rivals):
        return None
    return min(rival.fault for rival in rivals)
