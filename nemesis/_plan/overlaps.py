"""Find faults that repeat another fault of the plan while that lasts. Pure.

Two faults of one kind with the same parameters, on the same nodes at the same time, are one fault
that heals too early, or the second has no effect. The same holds for two partitions that cut the
same links, for any two faults that hold a process, because a process belongs to one fault at a
time, and for any two that change the version of a node. Only certain overlaps are found: roles,
random choices and conditions are not known beforehand.
"""

from collections.abc import Sequence

from harness import registry
from harness.contracts import Node, PlannedFault
from harness.contracts.membership import CONSENSUS, CONTAINERS, VERSIONS, ZONES
from nemesis._plan import targets as _targets

# faults that need these do not hold processes, or each only for a moment of their time
SHARING = frozenset({"links", "disk", VERSIONS, CONSENSUS, CONTAINERS, ZONES})


def first_overlap(plan: Sequence[PlannedFault], number: int, nodes: Sequence[Node]) -> int | None:
    """Return the first earlier fault that breaks the same thing while this one lasts."""
    fault = plan[number]
    for other, earlier in enumerate(plan[:number]):
        if _meet(earlier, fault) and (
            _hit_again(earlier, fault, nodes) or _cut_again(earlier, fault, nodes)
        ):
            return other
    return None


def hold_processes(*faults: PlannedFault) -> bool:
    """Return whether each of the faults holds processes."""
    return all(SHARING.isdisjoint(registry.fault(fault.kind).needs) for fault in faults)


def change_versions(*faults: PlannedFault) -> bool:
    """Return whether each of the faults brings nodes to another version."""
    return all(VERSIONS in registry.fault(fault.kind).needs for fault in faults)


def _hit_again(one: PlannedFault, other: PlannedFault, nodes: Sequence[Node]) -> bool:
    """Return whether both do the same to a node, hold its process, or change its version."""
    same = one.kind == other.kind and one.params == other.params
    clash = same or hold_processes(one, other) or change_versions(one, other)
    return clash and not _victims(one, nodes).isdisjoint(_victims(other, nodes))


def _cut_again(one: PlannedFault, other: PlannedFault, nodes: Sequence[Node]) -> bool:
    """Return whether both certainly cut the same links, however they are written."""
    cuts = [registry.fault(fault.kind).always_cuts(fault, nodes) for fault in (one, other)]
    return bool(cuts[0]) and cuts[0] == cuts[1]


def _meet(one: PlannedFault, other: PlannedFault) -> bool:
    """Return whether both certainly last at the same time."""
    first, second = (one, other) if one.at_s <= other.at_s else (other, one)
    if one.after or other.after or first.until:
        return False
    return second.at_s < first.at_s + first.for_s - 1e-9


def _victims(fault: PlannedFault, nodes: Sequence[Node]) -> set[str]:
    """Return the names of the nodes that a fault hits at any time; empty if that depends on it."""
    params = registry.fault(fault.kind).params
    named = [str(fault.params[name]) for name, param in params.items() if param.unit == "selector"]
    selectors = [selector for selector in (fault.target, *named) if selector]
    if not all(_targets.is_fixed(selector, nodes) for selector in selectors):
        return set()
    return {node.name for s in selectors[:1] for node in _targets.fixed_nodes(s, nodes)}
