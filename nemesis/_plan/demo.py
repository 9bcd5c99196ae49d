"""A plan that shows every fault, one after the other, each on a cluster that is whole again.

A fault's file says what is to be shown of it (`shown`: target and parameters, and for how many
seconds if it needs longer than others); of one that does not, something is drawn that hits a single
slave if it can.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from harness import registry
from harness.contracts import FaultPlugin, Node, PlannedFault
from harness.errors import BadRequest
from nemesis._plan import targets as _targets
from nemesis._plan.kinds import alias_of, completed
from nemesis._plan.toml import Plan
from nemesis._runner import conditions as _conditions

GENTLE = "one slave"
FIRST_S = 1.0
WHOLE_WITHIN_S = 60.0


Way = tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], float]


class Shown(NamedTuple):
    """The plan; and the kinds that can not be shown here, with the reason."""

    plan: Plan
    lacking: Mapping[str, str]


def shown(
    names: Sequence[str], nodes: Sequence[Node], can: frozenset[str], hosts: str, for_s: float
) -> Shown:
    """These kinds of faults, each lasting so long. UnknownName for one that nobody knows."""
    plan: list[PlannedFault] = []
    lacking = {}
    for kind in filter(None, dict.fromkeys(alias_of(name).kind for name in names)):
        plugin = registry.fault(kind)
        if missing := plugin.needs - can:
            lacking[kind] = f"{hosts} hosts lack: {', '.join(sorted(missing))}"
            continue
        for target, params, *longer_s in _ways(kind, plugin, nodes):
            after = f"{_conditions.WHOLE} within {WHOLE_WITHIN_S:g} s" if plan else ""
            lasts_s = max([for_s, *longer_s])
            fault = PlannedFault(kind, FIRST_S, lasts_s, target, params, after)
            plan.append(completed(fault, plugin))
    return Shown(tuple(plan), lacking)


def _ways(kind: str, plugin: FaultPlugin, nodes: Sequence[Node]) -> Iterator[Way]:
    if plugin.shown:
        yield from plugin.shown
        return
    for targets in ((GENTLE,), ()):
        target, params = plugin.drawn(Random(f"{kind}/shown"), targets)
        if not targets or _makes_sense(kind, plugin, target, params, nodes):
            yield target, params
            return


def _makes_sense(
    kind: str, plugin: FaultPlugin, target: str, params: Mapping[str, Any], nodes: Sequence[Node]
) -> bool:
    try:
        plugin.check(completed(PlannedFault(kind, 0.0, 1.0, target, params), plugin))
        _targets.check(target, nodes)
    except BadRequest:
        return False
    return True
