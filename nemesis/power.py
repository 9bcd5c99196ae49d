"""Cut the power of whole machines, and give it back with the disk as the cut left it.

Nothing says goodbye: connections stay half open until somebody gives up on them, and of what was
not synced the disk keeps nothing, all of it, or a part that may end in the middle of a record.
Healing starts the node anew on what is left. Only simulated hosts can do this to a node.
"""

from collections.abc import Mapping
from typing import Any, cast

from harness.contracts import ALL_DEMANDS, Effects, Ends, PlannedFault, Powered, Scene
from nemesis._processes import check, drawn  # noqa: F401 - part of what a fault offers
from nemesis.kill import Kill

# of a record that was not synced a part may be left, and be read as a sound one
EFFECTS = Effects(may_break=ALL_DEMANDS, ends=Ends.KILLED, silences=True, forgets=True)
NEEDS = frozenset({"power", "restart"})
PARAMS: Mapping[str, Any] = {}


def fault(planned: PlannedFault, scene: Scene) -> "Power":
    return Power(scene, scene.aim(planned.target, spare=scene.held))


class Power(Kill):
    """Machines dark, until it is left."""

    async def _end(self, node: str) -> None:
        await self._switched(node, on=False)

    async def _begin_again(self, node: str) -> None:
        await self._switched(node, on=True)
        await super()._begin_again(node)

    async def _switched(self, node: str, on: bool) -> None:
        await cast(Powered, self._bed.agents[node]).power(on)
