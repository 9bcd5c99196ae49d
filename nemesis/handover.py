"""Hand the mastership over to another node, as an operator does before maintenance.

The fault uses the operator's command, and the cluster chooses the successor. No process exits and
no link is cut, so without other faults no send has to fail. Nothing is healed: the new master
stays. Only systems with such a command support it.
"""

from collections.abc import Mapping, Sequence
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
from harness.contracts.membership import HandoverSystem
from nemesis._process.victims import (
    MASTER,
    NothingToHit,
    check,
    draw,
    masters_of,
    may_be_master,
    why_no_master,
)
from nemesis._runner.waiting import NS, wait_until

LED_WITHIN_S = 5.0


def fault(planned: PlannedFault, scene: FaultContext) -> "HandoverFault":
    return HandoverFault(scene, scene.resolve(planned.target))


PLUGIN = FaultPlugin(
    fault=fault,
    effects=FaultEffects(may_break=frozenset()),  # an ordinary command, which breaks no demand
    needs=frozenset({"handover"}),
    verify_examples=((MASTER, {}),),
    draw=partial(draw, usual=(MASTER,)),
    check=check,
    impossible_reason=why_no_master,
    can_hit=may_be_master,
    campaign_targets=masters_of,
)


class HandoverFault:
    """Masterships handed over to other nodes."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        self.targets = scene.by_role(victims)
        self._scene = scene
        self._bed = scene.bed
        self._system = cast(HandoverSystem, scene.bed.system)
        self._victims = victims
        self._handed: dict[str, int] = {}  # broker set -> the epoch that was handed over
        self._was: dict[str, str] = {}  # broker set -> its master before

    async def __aenter__(self) -> "HandoverFault":
        before = await self._system.cluster_state(self._bed)
        names = {node.name for node in self._victims}
        mine = {group: name for group, name in before.masters.items() if name in names}
        refusals = []
        for group, master in mine.items():
            if why := await self._system.hand_over(self._bed, master):
                refusals.append(f"{master}: {why}")
            else:
                self._was[group], self._handed[group] = master, before.epochs.get(group, 0)
        self.targets = self._scene.by_role(
            [n for n in self._victims if n.name in self._was.values()]
        )
        if not self._handed:
            raise NothingToHit("; ".join(refusals) or "no node that it means is a master now")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """The new master stays."""

    async def observe(self) -> Observation:
        """Observe that another node leads each of the sets, in a higher epoch."""
        masters: dict[str, str] = {}

        async def all_led() -> bool:
            now = await self._system.cluster_state(self._bed)
            masters.update(
                (group, now.masters[group])
                for group, epoch in self._handed.items()
                if now.epochs.get(group, 0) > epoch and group in now.masters
            )
            return self._others(masters) == len(self._handed)

        await wait_until(self._bed, all_led, self._bed.now_ns() + LED_WITHIN_S * NS)
        good = self._others(masters)
        pairs = {group: [was, masters.get(group)] for group, was in self._was.items()}
        if good == len(self._handed):
            measured = ", ".join(f"{was} handed over to {now}" for was, now in pairs.values())
            return Observation("installed", {"masters": pairs}, measured)
        return Observation("partial" if good else "failed", {"masters": pairs})

    def _others(self, masters: Mapping[str, str]) -> int:
        return sum(masters.get(group, was) != was for group, was in self._was.items())

    async def observe_healed(self) -> Observation:
        return Observation("installed", {"masters": dict(self._was)})
