"""Cut the power of whole machines, and restore it with what their disks had synced.

No connection is closed: they stay half open until the peers give up, and of unsynced data the disk
keeps nothing, everything, or a part that may end in the middle of a record. Healing starts the node
again on what is left. Only simulated hosts support this.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import cast

from harness.contracts import (
    ALL_DEMANDS,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    PlannedFault,
    PowerAgent,
    ProcessEnd,
    UnsyncedReport,
)
from nemesis._process.victims import check, draw
from nemesis.kill import Kill


def fault(planned: PlannedFault, scene: FaultContext) -> "Power":
    return Power(scene, scene.resolve(planned.target, spare=scene.claimed))


PLUGIN = FaultPlugin(
    fault=fault,
    # a part of an unsynced record may be left, and be read as a valid one
    effects=FaultEffects(
        may_break=ALL_DEMANDS, ends=ProcessEnd.KILLED, silences=True, forgets=True
    ),
    needs=frozenset({"power", "restart"}),
    draw=draw,
    check=check,
)


class Power(Kill):
    """Machines without power."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._lost: dict[str, UnsyncedReport] = {}  # by node

    async def _end(self, node: str) -> None:
        self._lost[node] = await self._agent(node).power(False)

    async def _begin_again(self, node: str) -> None:
        await self._agent(node).power(True)
        await super()._begin_again(node)

    async def observe(self) -> Observation:
        seen = await super().observe()
        files = {node: asdict(lost) for node, lost in self._lost.items()}
        return replace(seen, evidence={**seen.evidence, "files": files})

    def _agent(self, node: str) -> PowerAgent:
        return cast(PowerAgent, self._bed.agents[node])
