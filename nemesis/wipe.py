"""Kill a node and empty its disk, as if it were replaced by a new machine; healing starts it again.

Everything below the folder of its data is gone; its configuration stays, so it comes back with its
name and address and without a memory. Controllers are not aimed at unless they are named: one that
forgets its vote breaks what Raft promises, whoever wrote it.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import (
    ALL_DEMANDS,
    Destroys,
    Effects,
    Ends,
    FaultPlugin,
    Observation,
    PlannedFault,
    Scene,
)
from nemesis._process.offline_change import Destroying
from nemesis._process.victims import check

TARGETS = ("one slave", "one broker", "master", "minority broker")


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target by lot, a minority; `targets` restrict whom it may hit."""
    return random.choice(targets or TARGETS), {}


def fault(planned: PlannedFault, scene: Scene) -> "Wipe":
    return Wipe(scene, scene.aim(planned.target, spare=scene.held))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that has lost its data may vote a second time in one epoch
    effects=Effects(
        may_break=ALL_DEMANDS, ends=Ends.KILLED, silences=True, destroys=Destroys.TARGETS
    ),
    needs=frozenset({"signal", "restart", "files"}),
    shown=(("one slave", {}),),
    drawn=drawn,
    check=check,
)


class Wipe(Destroying):
    """Nodes dead and empty, until it is left."""

    async def _change(self, node: str) -> Mapping[str, Any]:
        return await self._damage(node, {"do": "wipe"})

    def _changed(self, node: str) -> bool:
        return bool(self.changes[node]["left"] == 0)

    async def observe(self) -> Observation:
        size = sum(said["bytes"] for said in self.changes.values())
        return await self._told(f"{size:,} bytes of data are gone")
