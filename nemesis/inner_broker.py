"""Remove a broker from a running container, and add it again, as an operator does.

A victim's process has several brokers. One of them leaves it: a slave, or with `broker = "master"`
a master, which leaves its set without one where masters are configured. The process goes on, and so
do its other brokers. Healing adds the broker again, with the store that it had.

With `mistakes = true` the operator first tries two additions that must be refused: a broker with
the store of one that is there, and the removed broker with a port that is in use. Only systems with
such containers support this fault.
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
    Param,
    PlannedFault,
)
from harness.contracts.membership import CONTAINERS, ContainerSystem
from harness.errors import BedFailed
from harness.run.broker_sets import CONTAINER
from nemesis._plan import targets as _targets
from nemesis._process.victims import NothingToHit, check, draw, hit_targets, process_of
from nemesis._runner.waiting import NS, wait_until

TARGET = "one container"
WHICH = (SLAVE, MASTER) = ("slave", "master")
SERVES_WITHIN_S = 30.0  # another fault may have stopped the process
ADDED_WITHIN_S = 20.0
POLL_S = 0.1


def can_hit(target: str, nodes: Sequence[Node]) -> bool:
    """Return whether the target may mean a container."""
    containers = {node.name for node in nodes if node.role == CONTAINER}
    return not containers.isdisjoint(_targets.possible_names(target, nodes))


def campaign_targets(targets: Sequence[str]) -> Sequence[str]:
    """Return none of a swarm's targets: brokers leave their containers on request."""
    return ()


def impossible_reason(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why the target can never be a container, as far as the words tell, or ''."""
    if can_hit(planned.target, nodes):
        return ""
    return f"cannot hit {planned.target!r}: no node that it means is a container"


def fault(planned: PlannedFault, scene: FaultContext) -> "InnerFault":
    victims = [node for node in scene.resolve(planned.target) if node.role == CONTAINER]
    return InnerFault(scene, victims, planned.params["broker"], planned.params["mistakes"])


PLUGIN = FaultPlugin(
    fault=fault,
    effects=FaultEffects(may_break=frozenset()),  # an ordinary command; the store stays
    needs=frozenset({CONTAINERS}),
    params={
        "broker": Param(SLAVE, "which broker of the container leaves", among=WHICH),
        "mistakes": Param(False, "additions that must be refused are tried first"),
    },
    draw=partial(draw, usual=(TARGET,)),
    check=check,
    impossible_reason=impossible_reason,
    can_hit=can_hit,
    campaign_targets=campaign_targets,
)


class InnerFault:
    """Brokers that have left their containers."""

    def __init__(
        self, scene: FaultContext, victims: Sequence[Node], which: str, mistakes: bool
    ) -> None:
        self.targets: Mapping[str, Sequence[str]] = scene.by_role(victims)
        self._bed = scene.bed
        self._system = cast(ContainerSystem, scene.bed.system)
        self._victims, self._which, self._mistakes = victims, which, mistakes
        self._left: dict[str, str] = {}  # node -> the broker that left it

    async def __aenter__(self) -> "InnerFault":
        try:
            for node in [victim.name for victim in self._victims]:
                if not await self._runs(node):
                    continue
                broker = await self._system.inner_broker(self._bed, node, self._which)
                if broker:
                    self._left[node] = broker  # also if no answer comes
                    await self._system.remove_inner(self._bed, node, broker)
        finally:
            self.targets = hit_targets(self.targets, self._left)
        if not self._left:
            raise NothingToHit(f"no container that it means has a {self._which}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        for node, broker in self._left.items():
            await self._add(node, broker)

    async def _add(self, node: str, broker: str) -> None:
        """Add the broker; try again for a while, because another fault may have stopped the
        process."""
        deadline_ns = self._bed.now_ns() + ADDED_WITHIN_S * NS
        while True:
            try:
                return await self._system.add_inner(self._bed, node, broker, self._mistakes)
            except BedFailed:
                if self._bed.now_ns() >= deadline_ns:
                    raise
            await self._bed.sleep(POLL_S)

    async def _runs(self, node: str) -> bool:
        return (await self._bed.agents[node].state(process_of(self._bed, node))).state == "running"

    async def observe(self) -> Observation:
        """Observe that the brokers do not answer any more."""
        gone = [node for node, b in self._left.items() if not await self._serves(node, b)]
        evidence = {"brokers": dict(self._left)}
        measured = ", ".join(f"{broker} left {node}" for node, broker in self._left.items())
        return Observation.graded(len(gone) == len(self._left), gone, evidence, measured)

    async def observe_healed(self) -> Observation:
        """Observe that they answer again."""

        async def all_serve() -> bool:
            return all([await self._serves(node, b) for node, b in self._left.items()])

        await wait_until(self._bed, all_serve, self._bed.now_ns() + SERVES_WITHIN_S * NS)
        return Observation.graded(await all_serve(), False, {"brokers": dict(self._left)})

    async def _serves(self, node: str, broker: str) -> bool:
        return await self._system.serves_inner(self._bed, node, broker)
