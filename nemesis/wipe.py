"""Kill a node and empty its disk, as if it were replaced by a new machine; healing starts it again.

Everything below the folder of its data is deleted; its configuration stays, so it comes back with
its name and address but without its data. Controllers are hit only if they are named: a controller
that forgets its vote breaks Raft's guarantees in any implementation.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from harness.contracts import (
    ALL_DEMANDS,
    DataLoss,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Observation,
    PlannedFault,
    ProcessEnd,
)
from harness.contracts.membership import REJOIN
from nemesis._process.offline_change import DataDestruction
from nemesis._process.victims import check, draw

TARGETS = ("one slave", "one broker", "master", "minority broker")


def fault(planned: PlannedFault, scene: FaultContext) -> "Wipe":
    return Wipe(scene, scene.resolve(planned.target, spare=scene.claimed))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node without its data may vote a second time in one epoch
    effects=FaultEffects(
        may_break=ALL_DEMANDS, ends=ProcessEnd.KILLED, silences=True, destroys=DataLoss.TARGETS
    ),
    needs=frozenset({"signal", "restart", "files", REJOIN}),
    verify_examples=(("one slave", {}),),
    draw=partial(draw, usual=TARGETS),
    check=check,
)


class Wipe(DataDestruction):
    """Killed nodes with empty disks."""

    async def _change(self, node: str) -> Mapping[str, Any]:
        return await self._damage(node, {"do": "wipe"})

    def _changed(self, node: str) -> bool:
        return bool(self.changes[node]["left"] == 0)

    async def observe(self) -> Observation:
        size = sum(change["bytes"] for change in self.changes.values())
        return await self._observe_changes(f"{size:,} bytes of data are gone")
