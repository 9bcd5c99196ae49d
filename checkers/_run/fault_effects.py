"""Faults that had no effect of their own, although they were observed.

A link fault had an effect of its own if at some moment some link was worse because of it.

Overlapping faults may hide each other. A link that is cut already cannot be cut again, be late or
narrow; and no packets are missing from or to a machine that is dead, paused or without network. A
fault all of whose links were in such a state from its apply to its heal tested nothing that the
other faults did not. Each way in which a link can be worse is checked by itself: a delay may add
jitter under a longer delay. Effects that come and go hide nothing. Of two faults that were applied
at one instant with the same effect, the first counts.

If worse faults explain everything that a probe saw, the faults table says so: such a fault was not
observed, for a known reason.

A faulty disk has an effect only on a running process. If all targets were dead, paused or without
network because of other faults the whole time, there was none.

The faults table has the exact links of each fault, what the fault does to them, and when. One sweep
over the times of each link finds the moments at which a single fault was the worst.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from harness.history.faults_and_events import FaultInterval, TimeWindow, in_force

Link = tuple[str, str]  # names of the sending and the receiving node
DROP = "drop"
CUT = 1.0
LATE = ("delay_s", "jitter_s", "reorder")
SILENT = -1


@dataclass(frozen=True, eq=False)
class LinkImpairment:
    """A fault on one link. `harms`: by way, how much worse the link is. `fault`: its id, or SILENT
    if an end of the link neither sends nor receives. `steady`: without interruption."""

    begin: int
    end: int
    harms: Mapping[str, float]
    fault: int
    steady: bool = True

    def harm(self, way: str) -> float:
        """Return the harm in one way. A link that is cut is worst in all ways."""
        return inf if self.harms.get(DROP) == CUT else self.harms.get(way, 0.0)


def idle_links(faults: Sequence[FaultInterval], end: int) -> frozenset[int]:
    """Return the ids of installed link faults without an effect of their own."""
    laid: dict[Link, list[LinkImpairment]] = defaultdict(list)
    silent: dict[str, list[LinkImpairment]] = defaultdict(list)
    asked = set()
    for fault, window in _installed(faults, end):
        if fault.silences:
            for name in fault.names:
                silent[name].append(_link_fault(window, {DROP: CUT}, SILENT))
        elif links := tuple(links_of(fault)):
            asked.add(fault.id)
            steady = not fault.params.get("off_s")
            for link in links:
                laid[link].append(_link_fault(window, harms_of(fault), fault.id, steady))
    return frozenset(asked - set(_effective(laid, silent)))


def idle_disks(faults: Sequence[FaultInterval], end: int) -> frozenset[int]:
    """Return the ids of installed disk faults that met no process until the run's `end`."""
    silent: dict[str, list[TimeWindow]] = defaultdict(list)
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


def _installed(
    faults: Iterable[FaultInterval], end: int
) -> Iterator[tuple[FaultInterval, TimeWindow]]:
    for fault in faults:
        window = in_force(fault, end)
        if window is not None and fault.state == "installed":
            yield fault, window


def _covered(window: TimeWindow, by: Iterable[TimeWindow]) -> bool:
    """Whether these windows cover a window."""
    at = window.begin
    for other in sorted(by, key=lambda each: each.begin):
        if other.begin <= at:
            at = max(at, other.end)
    return at >= max(window.end, window.begin + 1)


def was_hidden(fault: FaultInterval) -> bool:
    """Whether a fault was not observed only because worse faults hid it on all its links."""
    observed = fault.observation.get("effect")
    if fault.state != "failed" or not isinstance(observed, Mapping):
        return False
    if links := observed.get("links"):
        return observed.get("links_hidden_by_others") == links and not observed.get("odd")
    return bool(fault.names) and set(fault.names) <= set(observed.get("hidden_by_worse", ()))


def links_of(fault: FaultInterval) -> Iterator[Link]:
    """Yield the links that a fault changed, from its observation."""
    effect = fault.observation.get("effect")
    observed = effect if isinstance(effect, Mapping) else {}
    for sink, sources in (observed.get("cut") or observed.get("paced") or {}).items():
        for source in sources:
            yield source, sink


def harms_of(fault: FaultInterval) -> Mapping[str, float]:
    """Return in which ways a fault makes its links worse, and how much."""
    if fault.kind == "delay":
        return {way: float(fault.params.get(way, 0.0)) for way in LATE}
    if fault.kind == "bandwidth":
        rate = float(fault.params.get("bytes_per_s", inf))
        return {f"narrow {fault.params.get('per', 'link')}": 1 / rate}
    return {DROP: float(fault.params.get("probability", CUT))}


def _link_fault(
    window: TimeWindow, harms: Mapping[str, float], fault: int, steady: bool = True
) -> LinkImpairment:
    """Return a link fault of at least 1 ns, so that its end is after its begin."""
    return LinkImpairment(window.begin, max(window.begin + 1, window.end), harms, fault, steady)


def _effective(
    laid: Mapping[Link, list[LinkImpairment]], silent: Mapping[str, list[LinkImpairment]]
) -> Iterator[int]:
    for (source, sink), link_faults in laid.items():
        there = [*link_faults, *silent.get(source, ()), *silent.get(sink, ())]
        steady = [link_fault for link_fault in there if link_fault.steady]
        for way in sorted({way for link_fault in there for way in link_fault.harms}):
            yield from _worst(there, way)
            if len(steady) < len(there):  # and while the others are gone
                yield from _worst(steady, way)


def _worst(link_faults: Iterable[LinkImpairment], way: str) -> Iterator[int]:
    """Yield the faults that were the worst on a link for a moment, in one way."""
    moments: dict[int, tuple[list[LinkImpairment], list[LinkImpairment]]] = defaultdict(
        lambda: ([], [])
    )
    harms: dict[LinkImpairment, float] = {}
    for link_fault in link_faults:
        harms[link_fault] = link_fault.harm(way)
        moments[link_fault.begin][0].append(link_fault)
        moments[link_fault.end][1].append(link_fault)
    active: list[LinkImpairment] = []
    for at in sorted(moments):
        begun, ended = moments[at]
        active = [link_fault for link_fault in active if link_fault not in ended] + begun
        if (found := _single(active, harms)) is not None:
            yield found


def _single(active: Sequence[LinkImpairment], harms: Mapping[LinkImpairment, float]) -> int | None:
    """Return the fault that makes the difference now, if there is one."""
    worst = max(map(harms.__getitem__, active), default=0.0)
    rivals = [link_fault for link_fault in active if harms[link_fault] == worst > 0]
    if not rivals or any(r.fault == SILENT or r.begin != rivals[0].begin for r in rivals):
        return None
    return min(rival.fault for rival in rivals)
