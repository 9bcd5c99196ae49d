"""Cut the power of whole machines, and restore it with what their disks had synced.

Nothing says goodbye: connections stay half open until somebody gives up on them, and of what was
not synced the disk keeps nothing, all of it, or a part that may end in the middle of a record.
Healing starts the node anew on what is left. Only simulated hosts can do this to a node.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import cast

from harness.contracts import (
    ALL_DEMANDS,
    Effects,
    Ends,
    FaultPlugin,
    Forgotten,
    Node,
    Observation,
    PlannedFault,
    Powered,
    Scene,
)
from nemesis._process.victims import check, drawn
from nemesis.kill import Kill


def fault(planned: PlannedFault, scene: Scene) -> "Power":
    return Power(scene, scene.aim(planned.target, spare=scene.held))


PLUGIN = FaultPlugin(
    fault=fault,
    # of a record that was not synced a part may be left, and be read as a sound one
    effects=Effects(may_break=ALL_DEMANDS, ends=Ends.KILLED, silences=True, forgets=True),
    needs=frozenset({"power", "restart"}),
    drawn=drawn,
    check=check,
)


class Power(Kill):
    """Machines dark, until it is left."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._lost: dict[str, Forgotten] = {}  # by node, what its disk lost

    async def _end(self, node: str) -> None:
        self._lost[node] = await self._agent(node).power(False)

    async def _begin_again(self, node: str) -> None:
        await self._agent(node).power(True)
        await super()._begin_again(node)

    async def observe(self) -> Observation:
        seen = await super().observe()
        files = {node: asdict(lost) for node, lost in self._lost.items()}
        return replace(seen, evidence={**seen.evidence, "files": files})

    def _agent(self, node: str) -> Powered:
        return cast(Powered, self._bed.agents[node])
