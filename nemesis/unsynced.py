"""Kill a node, and remove the data that its disk had not synced, as a power cut would.

The machine goes on, so others learn of the death at once and connections are closed; `power` takes
the whole machine, without a word. Of what was not synced the disk keeps nothing, all of it, or a
part that may end in the middle of a record. Healing starts the node anew on what is left.

On real hosts the node runs behind the gate of disk faults, which notes what is about to be changed
below the folder of its data, and puts it back. Where nothing was at stake on any victim it was
a kill like any other, and is `partial`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from harness.contracts import (
    ALL_DEMANDS,
    Effects,
    Ends,
    FaultPlugin,
    Forgetful,
    Node,
    Observation,
    PlannedFault,
    Scene,
)
from nemesis._process.offline_change import Stopped
from nemesis._process.victims import check, drawn


def fault(planned: PlannedFault, scene: Scene) -> "Unsynced":
    return Unsynced(scene, scene.aim(planned.target, spare=scene.held))


PLUGIN = FaultPlugin(
    fault=fault,
    # of a record that was not synced a part may be left, and be read as a sound one
    effects=Effects(may_break=ALL_DEMANDS, ends=Ends.KILLED, silences=True, forgets=True),
    needs=frozenset({"unsynced", "restart", "signal"}),
    shown=(("all broker", {}),),
    drawn=drawn,
    check=check,
)


class Unsynced(Stopped):
    """Nodes killed, whose disks have forgotten, until it is left."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._seed = scene.random.getrandbits(48)

    async def _change(self, node: str) -> Mapping[str, Any]:
        agent = cast(Forgetful, self._bed.agents[node])
        return asdict(await agent.forget_unsynced(self._seed + self._victims.index(node)))

    def _changed(self, node: str) -> bool:
        return True

    async def observe(self) -> Observation:
        seen = await self._told(words(tuple(self.changes.values())))
        at_stake = any(told["files"] or told["names"] for told in self.changes.values())
        return seen if at_stake or seen.state == "failed" else replace(seen, state="partial")


def words(changes: Sequence[Mapping[str, Any]]) -> str:
    """What was at stake on all victims together, what of it is lost, and what nobody saw."""
    size, files, names, lost_bytes, lost_names = (
        sum(told[what] for told in changes)
        for what in ("size_bytes", "files", "names", "lost_bytes", "lost_names")
    )
    parts = [f"{lost_bytes:,} of {size:,} bytes"] if files else []
    parts += [f"{lost_names} of {names} changes of names"] if names else []
    measured = f"{' and '.join(parts)} that no sync had covered are gone"
    if not parts:
        measured = "all that was written had been synced, so nothing was at stake"
    unseen = [one for told in changes for one in told["unseen"]]
    return f"{measured}; not followed: {', '.join(unseen)}" if unseen else measured
