"""Kill a node, and remove the data that its disk had not synced, as a power cut would.

The machine keeps running, so peers learn of the death at once and connections are closed; `power`
stops the whole machine silently. Of unsynced data the disk keeps nothing, everything, or a part
that may end in the middle of a record; with `keeps = "nothing"` always nothing. Healing starts the
node again on what is left.

On real hosts there are two ways. `by = "calls"`: the system call interposer of disk faults records
every change below the folder of the node's data before it is made, and reverts it. `by = "disk"`:
the folder is a file system of its own, whose disk loses power while the process is stopped, and is
mounted again; it loses what was written through mapped memory, too, and slows nothing down. If no
victim had unsynced data, `calls` was an ordinary kill, and is `partial`; a disk did lose power,
which is observed by a write that it refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

from harness.contracts import (
    ALL_DEMANDS,
    BadRequest,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    OwnDiskAgent,
    Param,
    PlannedFault,
    ProcessEnd,
    UnsyncedAgent,
)
from nemesis._process.offline_change import OfflineChange
from nemesis._process.victims import check, draw, process_of

NOTHING = "nothing"
AUTO, CALLS, DISK = "auto", "calls", "disk"
OWN_DISK = "own-disk"  # of what hosts can


def fault(planned: PlannedFault, scene: FaultContext) -> "UnsyncedLoss":
    victims = scene.resolve(planned.target, spare=scene.claimed)
    keeps_nothing = planned.params["keeps"] == NOTHING
    wanted = planned.params["by"]
    if wanted != CALLS and keeps_nothing and all(map(partial(_has_disk, scene), victims)):
        return DiskLoss(scene, victims)
    return UnsyncedLoss(scene, victims, keeps_nothing)


def _has_disk(scene: FaultContext, node: Node) -> bool:
    return hasattr(scene.bed.agents[node.name], "cut_disk")


def check_params(planned: PlannedFault) -> None:
    """Raise BadRequest if a disk is to keep a part."""
    check(planned)
    if planned.params["by"] == DISK and planned.params["keeps"] != NOTHING:
        raise BadRequest(
            'by = "disk" loses everything that the disk has not: say keeps = "nothing", too'
        )


def needs_of(planned: PlannedFault, can: frozenset[str]) -> frozenset[str]:
    by, keeps = planned.params["by"], planned.params["keeps"]
    if by == DISK or (by == AUTO and keeps == NOTHING and OWN_DISK in can):
        return NEEDS - {"unsynced"} | {OWN_DISK}
    return NEEDS


NEEDS = frozenset({"unsynced", "restart", "signal"})


PLUGIN = FaultPlugin(
    fault=fault,
    # a part of an unsynced record may be left, and be read as a valid one
    effects=FaultEffects(
        may_break=ALL_DEMANDS, ends=ProcessEnd.KILLED, silences=True, forgets=True
    ),
    needs=NEEDS,
    needs_of=needs_of,
    params={
        "keeps": Param("part", "what the disk keeps of unsynced data", among=("part", NOTHING)),
        "by": Param(
            AUTO,
            "what takes the data away: the system call interposer, or the disk, which can only keep"
            " nothing; auto: the disk where the hosts can cut its power",
            among=(AUTO, CALLS, DISK),
        ),
    },
    verify_examples=(
        ("all broker", {"keeps": NOTHING, "by": CALLS}),
        ("all broker", {"keeps": NOTHING, "by": DISK}),
    ),
    draw=draw,
    check=check_params,
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


class DiskLoss(UnsyncedLoss):
    """Nodes killed at the moment at which their disks lost power."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims, keeps_nothing=True)

    def _agent(self, node: str) -> OwnDiskAgent:
        return cast(OwnDiskAgent, self._bed.agents[node])

    async def _end(self, node: str) -> None:
        await self._agent(node).cut_disk(process_of(self._bed, node))

    async def _change(self, node: str) -> Mapping[str, Any]:
        return {**asdict(await self._agent(node).restore_disk()), "by": DISK}

    async def _begin_again(self, node: str) -> None:
        await self._agent(node).restore_disk()  # if applying was interrupted
        await super()._begin_again(node)

    async def observe(self) -> Observation:
        changes = self.changes.values()
        size, names = (sum(each[key] for each in changes) for key in ("lost_bytes", "lost_names"))
        measured = (
            f"{size:,} bytes and {names} changes of names had not reached the disk, and are gone"
        )
        if not size and not names:
            measured = "the disks lost power; everything that was written had reached them"
        return await self._observe_changes(measured)

    async def observe_healed(self) -> Observation:
        """Observe that the processes run, and that their disks can be written to."""
        seen = await super().observe_healed()
        why = {node: await self._agent(node).why_disk_fails() for node in self._ran}
        broken = {node: each for node, each in why.items() if each}
        state = "partial" if broken and seen.state == "installed" else seen.state
        return replace(seen, state=state, evidence={**seen.evidence, "broken_disks": broken})


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
