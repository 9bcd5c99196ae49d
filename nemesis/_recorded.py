"""A plan that hits the recorded victims again, wherever they stand now.

A replay resolves its selectors anew. One *as recorded* aims by name at the nodes that the record
says were hit, and cuts the links that it says were cut.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from harness.contracts import PlannedFault
from nemesis._plan import Plan


def as_recorded(plan: Plan, rows: Iterable[Mapping[str, Any]]) -> Plan:
    """The plan with its selectors replaced by names; `rows` of the faults table, in time order.

    A fault that hit nobody keeps its selector.
    """
    last = {row["id"]: row for row in rows}
    return tuple(
        _hit_again(fault, last[number]) if number in last else fault
        for number, fault in enumerate(plan)
    )


def _hit_again(fault: PlannedFault, row: Mapping[str, Any]) -> PlannedFault:
    targets = json.loads(row["targets"] or "{}")
    names = ", ".join(name for names in targets.values() for name in names)
    if not names:
        return fault
    effect = json.loads(row["observation"] or "{}").get("effect", {})
    cut = effect.get("cut") or effect.get("paced", {})
    if fault.kind == "partition" and cut:
        return replace(fault, target=names, params={**fault.params, "shape": "links", "cut": cut})
    if "from" in fault.params and cut:
        ends = sorted({*cut, *(source for sources in cut.values() for source in sources)})
        others = ", ".join(name for name in ends if name not in names.split(", "))
        return replace(fault, target=names, params={**fault.params, "from": others})
    return replace(fault, target=names)
