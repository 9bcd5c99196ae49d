"""Hand the mastership over to another node, as an operator does before maintenance.

The cluster is asked by the command that an operator has for it, and picks the successor itself. No
process ends and no link is cut: where nothing else is wrong, no send has to fail. Nothing has to be
healed, the new master stays. Only systems that offer such a command can do it.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

from harness.contracts import Effects, FaultPlugin, Node, Observation, PlannedFault, Scene
from harness.contracts.membership import HandsOver
from nemesis._plan import targets as _targets
from nemesis._process.victims import NeverInForce, check
from nemesis._runner.waiting import NS, reached

TARGET = "master"
LED_WITHIN_S = 5.0


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """The master, unless `targets` name others."""
    return random.choice(targets or (TARGET,)), {}


def suits(target: str, nodes: Sequence[Node]) -> bool:
    """Whether it can mean a master."""
    return not _targets.possible(target, nodes).isdisjoint(_targets.possible(TARGET, nodes))


def usual(targets: Sequence[str]) -> Sequence[str]:
    """Those of a swarm's own targets that are for it: the master itself."""
    return [target for target in targets if target == TARGET]


def hopeless(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Why none of the nodes it means can be a master, where the words alone say it."""
    if suits(planned.target, nodes):
        return ""
    return f"cannot hit {planned.target!r}: no node that it means can be a master; target 'master'"


def fault(planned: PlannedFault, scene: Scene) -> "Handover":
    return Handover(scene, scene.aim(planned.target))


PLUGIN = FaultPlugin(
    fault=fault,
    effects=Effects(may_break=frozenset()),  # an ordinary command, after which everything holds
    needs=frozenset({"handover"}),
    shown=((TARGET, {}),),
    drawn=drawn,
    check=check,
    hopeless=hopeless,
    suits=suits,
    usual=usual,
)


class Handover:
    """Masterships given to other nodes."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        self.targets = scene.parts(victims)
        self._scene = scene
        self._bed = scene.bed
        self._system = cast(HandsOver, scene.bed.system)
        self._victims = victims
        self._handed: dict[str, int] = {}  # broker set -> the epoch that was handed over
        self._was: dict[str, str] = {}  # broker set -> its master before

    async def __aenter__(self) -> "Handover":
        before = await self._system.standing(self._bed)
        names = {node.name for node in self._victims}
        mine = {group: name for group, name in before.masters.items() if name in names}
        refusals = []
        for group, master in mine.items():
            if why := await self._system.hand_over(self._bed, master):
                refusals.append(f"{master}: {why}")
            else:
                self._was[group], self._handed[group] = master, before.epochs.get(group, 0)
        self.targets = self._scene.parts([n for n in self._victims if n.name in self._was.values()])
        if not self._handed:
            raise NeverInForce("; ".join(refusals) or "no node that it means is a master now")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """The new master stays."""

    async def observe(self) -> Observation:
        """Whether another node leads each of the sets, in a higher epoch."""
        masters: dict[str, str] = {}

        async def all_led() -> bool:
            now = await self._system.standing(self._bed)
            masters.update(
                (group, now.masters[group])
                for group, epoch in self._handed.items()
                if now.epochs.get(group, 0) > epoch and group in now.masters
            )
            return self._others(masters) == len(self._handed)

        await reached(self._bed, all_led, self._bed.now_ns() + LED_WITHIN_S * NS)
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
