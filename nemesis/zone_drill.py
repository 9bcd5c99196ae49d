"""Have all masters leave a zone, as an operator does before a room is switched off, and come back.

The fault uses the operator's commands. The masters in the zone hand over to nodes elsewhere, one
after the other, and none is elected in the zone before healing returns it. No process exits and no
link is cut, so without other faults no send has to fail. Healing moves no master: the system may
prefer one in the zone, or not. Only systems with such commands support this fault.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from harness.contracts import (
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    PlannedFault,
)
from harness.contracts.membership import ZONES, ZonedSystem
from harness.errors import BedFailed
from nemesis._plan import targets as _targets
from nemesis._process.victims import NothingToHit, check, draw
from nemesis._runner.waiting import NS, wait_until

TARGET = "one zone"
EMPTY_WITHIN_S = 10.0


def can_hit(target: str, nodes: Sequence[Node]) -> bool:
    """Return whether the target may mean nodes of one zone that can be masters."""
    masters = _targets.possible_names("master", nodes)
    zones = {n.zone for n in nodes if n.name in _targets.possible_names(target, nodes) & masters}
    return bool(zones - {""})


def campaign_targets(targets: Sequence[str]) -> Sequence[str]:
    """Return those of a swarm's targets that mean a zone."""
    return [target for target in targets if target == TARGET or target.startswith("zone-")]


def impossible_reason(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why the target can never be a zone with masters, as far as the words tell, or ''."""
    if can_hit(planned.target, nodes):
        return ""
    return (
        f"cannot hit {planned.target!r}: it means no zone that a master may be in; set zones, and "
        "target 'zone-a' or 'one zone'"
    )


def fault(planned: PlannedFault, scene: FaultContext) -> "ZoneDrillFault":
    return ZoneDrillFault(scene, scene.resolve(planned.target))


PLUGIN = FaultPlugin(
    fault=fault,
    effects=FaultEffects(may_break=frozenset()),  # an ordinary command, which breaks no demand
    needs=frozenset({ZONES}),
    draw=partial(draw, usual=(TARGET,)),
    check=partial(check, example=TARGET),
    impossible_reason=impossible_reason,
    can_hit=can_hit,
    campaign_targets=campaign_targets,
)


class ZoneDrillFault:
    """A zone without masters."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        self.targets: Mapping[str, Sequence[str]] = scene.by_role(victims)
        self._bed = scene.bed
        self._system = cast(ZonedSystem, scene.bed.system)
        self._zones = sorted({node.zone for node in victims} - {""})
        self._there: dict[str, str] = {}  # broker set -> its master in the zone before
        self._left = ""

    async def __aenter__(self) -> "ZoneDrillFault":
        self._there = await self._masters_there()
        reasons = []
        for zone in self._zones:
            try:
                reasons.append(await self._system.drill_zone(self._bed, zone))
            except BedFailed as e:
                with suppress(BedFailed):
                    await self._return()  # a request without an answer may have been carried out
                raise NothingToHit(f"zone {zone}: {e}") from e
        self._left = "; ".join(filter(None, reasons))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._return()

    async def observe(self) -> Observation:
        """Observe that no broker set has its master in the zone."""
        left: dict[str, str] = {}

        async def empty() -> bool:
            left.clear()
            left.update(await self._masters_there())
            return not left

        await wait_until(self._bed, empty, self._bed.now_ns() + EMPTY_WITHIN_S * NS)
        evidence = {"zones": self._zones, "before": self._there, "left": dict(left)}
        if left:
            moved = self._there.keys() - left.keys()
            return Observation("partial" if moved else "failed", evidence, self._left)
        measured = f"{len(self._there)} masters left {', '.join(self._zones)}"
        return Observation("installed", evidence, measured)

    async def observe_healed(self) -> Observation:
        """The zone was returned, or healing has failed; where masters are then is free."""
        return Observation("installed", {"zones": self._zones})

    async def _masters_there(self) -> dict[str, str]:
        now = await self._system.cluster_state(self._bed)
        here = {name: self._bed.node(master).zone for name, master in now.masters.items()}
        return {name: now.masters[name] for name, zone in here.items() if zone in self._zones}

    async def _return(self) -> None:
        for zone in self._zones:
            await self._system.return_zone(self._bed, zone)
