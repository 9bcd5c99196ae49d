"""Kill a node, and remove the data that its disk had not synced, as a power cut would.

The machine keeps running, so peers learn of the death at once and connections are closed; `power`
stops the whole machine silently. Of unsynced data the disk keeps nothing, everything, or a part
that may end in the middle of a record; with `keeps = "nothing"` always nothing. Healing starts the
node again on what is left.

On real hosts the system call interposer of disk faults records every change below the folder of the
node's data before it is made, and reverts it. If no victim had unsynced data it was an ordinary
kill, and is `partial`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from harness.contracts import (
    ALL_DEMANDS,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
    ProcessEnd,
    UnsyncedAgent,
)
from nemesis._process.offline_change import OfflineChange
from nemesis._process.victims import check, draw

NOTHING = "nothing"


def fault(planned: PlannedFault, scene: FaultContext) -> "UnsyncedLoss":
    victims = scene.resolve(planned.target, spare=scene.claimed)
    return UnsyncedLoss(scene, victims, planned.params["keeps"] == NOTHING)


PLUGIN = FaultPlugin(
    fault=fault,
    # a part of an unsynced record may be left, and be read as a valid one
    effects=FaultEffects(
        may_break=ALL_DEMANDS, ends=ProcessEnd.KILLED, silences=True, forgets=True
    ),
    needs=frozenset({"unsynced", "restart", "signal"}),
    params={
        "keeps": Param("part", "what the disk keeps of unsynced data", among=("part", NOTHING)),
    },
    verify_examples=(("all broker", {"keeps": NOTHING}),),
    draw=draw,
    check=check,
)


class UnsyncedLoss(OfflineChange):
    """Killed nodes whose disks lost unsynced data."""

    def __init__(
        self, scene: FaultContext, victims: Sequence[Node], keeps_nothing: bool = False
    ) -> None:
        super().__init__(scene, victims)
        self._keeps_nothing = keeps_nothing
        self._seed = scene.random.getrandbits(48)

    async def _change(self, node: str) -> Mapping[str, Any]:
        agent = cast(UnsyncedAgent, self._bed.agents[node])
        seed = None if self._keeps_nothing else self._seed + self._victims.index(node)
        return asdict(await agent.drop_unsynced(seed))

    def _changed(self, node: str) -> bool:
        return True

    async def observe(self) -> Observation:
        seen = await self._observe_changes(describe_losses(tuple(self.changes.values())))
        at_stake = any(change["files"] or change["names"] for change in self.changes.values())
        return seen if at_stake or seen.state == "failed" else replace(seen, state="partial")


def describe_losses(changes: Sequence[Mapping[str, Any]]) -> str:
    """Describe the unsynced data of all victims, what of it is lost, and what was not recorded."""
    size, files, names, lost_bytes, lost_names = (
        sum(change[key] for change in changes)
        for key in ("size_bytes", "files", "names", "lost_bytes", "lost_names")
    )
    parts = [f"{lost_bytes:,} of {size:,} bytes"] if files else []
    parts += [f"{lost_names} of {names} changes of names"] if names else []
    measured = f"{' and '.join(parts)} that no sync had covered are gone"
    if not parts:
        measured = "all that was written had been synced, so nothing was at stake"
    unseen = [path for change in changes for path in change["unseen"]]
    return f"{measured}; not followed: {', '.join(unseen)}" if unseen else measured
