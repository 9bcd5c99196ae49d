"""Kill a node, and lose what its disk was given and had not synced, as a power cut would.

The machine goes on, so others learn of the death at once and connections are closed; `power` takes
the whole machine, without a word. Of what was not synced the disk keeps nothing, all of it, or a
part that may end in the middle of a record. Healing starts the node anew on what is left. Only
simulated hosts can do this: elsewhere the kernel keeps what a process wrote. Where no victim had
anything at stake it was a kill like any other, and is `partial`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from harness.contracts import Observation, PlannedFault, Powered
from harness.scene import Scene
from nemesis._processes import check, drawn  # noqa: F401 - part of what a fault offers
from nemesis._stopped import Stopped

NEEDS = frozenset({"power", "restart", "signal"})
PARAMS: Mapping[str, Any] = {}
SHOWN: Sequence[tuple[str, Mapping[str, Any]]] = (("one broker", {}),)


def fault(planned: PlannedFault, scene: Scene) -> "Unsynced":
    return Unsynced(scene, scene.aim(planned.target, spare=scene.held))


class Unsynced(Stopped):
    """Nodes killed, whose disks have forgotten, until it is left."""

    async def _change(self, node: str) -> Mapping[str, Any]:
        at_stake = await cast(Powered, self._bed.agents[node]).forget_unsynced()
        return {"at_stake": at_stake}

    def _changed(self, node: str) -> bool:
        return True

    async def observe(self) -> Observation:
        at_stake = sum(said["at_stake"] for said in self.changes.values())
        seen = await self._told(f"{at_stake} changes that no sync had covered were at stake")
        return seen if at_stake or seen.state == "failed" else replace(seen, state="partial")
