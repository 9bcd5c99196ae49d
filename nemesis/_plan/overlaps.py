"""Faults that break again what is broken already. Pure.

Two faults of one kind with the same parameters, on the same nodes at the same time, are one fault
that heals too early, or two of which the second finds nothing to break. So are two partitions that
cut the same links, and any two that take hold of a process, for that belongs to one fault at a
time. Only what is sure is told: who plays a
part, who is drawn by lot, and what waits for a condition is not known beforehand.
"""

from collections.abc import Sequence

from harness import registry
from harness.contracts import Node, PlannedFault
from nemesis._plan import targets as _targets

SHARING = frozenset({"links", "disk"})  # who needs these leaves processes to others


def overlapped(plan: Sequence[PlannedFault], number: int, nodes: Sequence[Node]) -> int | None:
    """The first fault before this one that breaks the same thing while it lasts."""
    fault = plan[number]
    for other, earlier in enumerate(plan[:number]):
        if _meet(earlier, fault) and (
            _hit_again(earlier, fault, nodes) or _cut_again(earlier, fault, nodes)
        ):
            return other
    return None


def hold(*faults: PlannedFault) -> bool:
    """Whether each of them takes hold of processes."""
    return all(SHARING.isdisjoint(registry.fault(fault.kind).needs) for fault in faults)


def _hit_again(one: PlannedFault, other: PlannedFault, nodes: Sequence[Node]) -> bool:
    """Both do the same to a node, or take hold of its process."""
    same = one.kind == other.kind and one.params == other.params
    return (same or hold(one, other)) and not _victims(one, nodes).isdisjoint(
        _victims(other, nodes)
    )


def _cut_again(one: PlannedFault, other: PlannedFault, nodes: Sequence[Node]) -> bool:
    """Both cut the same links, in whatever words."""
    cuts = [registry.fault(fault.kind).surely_cut(fault, nodes) for fault in (one, other)]
    return bool(cuts[0]) and cuts[0] == cuts[1]


def _meet(one: PlannedFault, other: PlannedFault) -> bool:
    """Both surely last at the same time."""
    first, second = (one, other) if one.at_s <= other.at_s else (other, one)
    if one.after or other.after or first.until:
        return False
    return second.at_s < first.at_s + first.for_s - 1e-9


def _victims(fault: PlannedFault, nodes: Sequence[Node]) -> set[str]:
    """Names of those that it hits, whatever the moment; nobody when that depends on it."""
    params = registry.fault(fault.kind).params
    named = [str(fault.params[name]) for name, param in params.items() if param.unit == "selector"]
    selectors = [selector for selector in (fault.target, *named) if selector]
    if not all(_targets.lasts(selector, nodes) for selector in selectors):
        return set()
    return {node.name for s in selectors[:1] for node in _targets.always(s, nodes)}
