"""Change the membership: remove nodes from their group, and add them again as new members.

An operator's command removes a victim from its group, its process stops, and its data is deleted,
as when a machine is decommissioned. Healing starts it again, empty, and adds it. Only systems with
changeable membership support this, and only nodes in such roles are hit: Flotilla's controllers and
brokers.

A controller is removed while it runs, and stops then. A broker stops first, is removed then, and
comes back as a new member; with `disk = "kept"` on its old disk, like a machine that was taken out
of service for a while. A broker is not removed while it is the only member of its SyncStateSet,
because no operator removes the only copy. (A broker that loses its disk but stays a member is
`wipe`.)
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from signal import SIGTERM
from typing import Any, cast

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    CLIENT,
    DataLoss,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
    ProcessEnd,
)
from harness.contracts.membership import MemberSystem
from nemesis._plan import targets as _targets
from nemesis._process.offline_change import DataDestruction
from nemesis._process.victims import check, draw
from nemesis._runner.waiting import NS, gather_all, wait_until
from nemesis.restart import CLEAN_WITHIN_S

TARGETS = ("controller-leader", "one controller", "controller but controller-leader")
ENROLLED_WITHIN_S = 15.0
POLL_S = 0.05

DISKS = (EMPTY, KEPT) = ("empty", "kept")


def can_hit(target: str, nodes: Sequence[Node]) -> bool:
    """Return whether the target may mean a member of a group."""
    return not impossible_reason(PlannedFault("membership", 0.0, 0.0, target), nodes)


def campaign_targets(targets: Sequence[str]) -> Sequence[str]:
    """Return those of a swarm's targets that mean controllers; brokers only leave on request."""
    return [target for target in targets if "controller" in target]


def impossible_reason(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why the target is never a member of a group, as far as the words tell, or ''."""
    roles = {node.name: node.role for node in nodes}
    for term in planned.target.split(","):
        meant = {roles[name] for name in _targets.possible_names(term, nodes)}
        if meant and meant <= {_targets.NAMESERVER, CLIENT}:
            return (
                f"cannot hit {term.strip()!r}: a {' or a '.join(sorted(meant))} is not a"
                " member of a group or a set; target controllers or brokers"
            )
    return ""


def fault(planned: PlannedFault, scene: FaultContext) -> "Membership":
    members = cast(MemberSystem, scene.bed.system).members
    victims = scene.resolve(planned.target, spare=scene.claimed)
    hit = [node for node in victims if node.role in members]
    return Membership(scene, hit, planned.params["disk"] == KEPT)


PLUGIN = FaultPlugin(
    fault=fault,
    # a new member lacks what the old one acknowledged
    effects=FaultEffects(
        may_break=ANY_BUT_INTEGRITY,
        ends=ProcessEnd.TERMINATED,
        silences=True,
        destroys=DataLoss.OBSERVED,
    ),
    needs=frozenset({"signal", "restart", "files", "members"}),
    params={"disk": Param(EMPTY, "brokers: the disk with which they come back", among=DISKS)},
    verify_examples=(("controller-leader", {}), ("one slave", {}), ("one slave", {"disk": KEPT})),
    draw=partial(draw, usual=TARGETS),
    check=check,
    impossible_reason=impossible_reason,
    can_hit=can_hit,
    campaign_targets=campaign_targets,
)


class Membership(DataDestruction):
    """Removed and stopped members."""

    gone_within_s = CLEAN_WITHIN_S

    def __init__(self, scene: FaultContext, victims: Sequence[Node], kept: bool) -> None:
        super().__init__(scene, victims)
        self._system = cast(MemberSystem, scene.bed.system)
        first = self._system.stopped_first
        self._stopped_first = {node.name for node in victims if node.role in first}
        self._keeping = self._stopped_first if kept else set()
        self._dismissed: set[str] = set()
        self._turn = asyncio.Lock()  # each sees the SyncStateSet after the previous removal

    async def _end(self, node: str) -> None:
        if node not in self._stopped_first:
            await self._dismiss(node)
        await self._signal(node, SIGTERM)

    async def _change(self, node: str) -> Mapping[str, Any]:
        if node in self._stopped_first:
            await self._dismiss(node)
        if node in self._keeping:
            return {"kept": True}
        return await self._damage(node, {"do": "wipe"})

    async def _dismiss(self, node: str) -> None:
        async with self._turn:
            self._dismissed.add(node)
            await self._system.remove_member(self._bed, node)

    def _changed(self, node: str) -> bool:
        return node in self._keeping or bool(self.changes[node]["left"] == 0)

    async def _begin_again(self, node: str) -> None:
        await self._system.start_new_member(self._bed, node)

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        for node in sorted(self._dismissed):  # one change after the other, as Raft requires
            await self._system.add_member(self._bed, node)

    async def observe(self) -> Observation:
        left = [n for n in self._victims if not await self._system.is_member(self._bed, n)]
        seen = await self._observe_changes(
            f"{len(left)} of {len(self._victims)} are no longer members"
        )
        state = seen.state if len(left) == len(self._victims) else "partial" if left else "failed"
        return replace(seen, state=state)

    def _lost_copies(self) -> list[str]:
        return sorted(self._stopped_first & self._touched)

    async def observe_healed(self) -> Observation:
        deadline_ns = self._bed.now_ns() + ENROLLED_WITHIN_S * NS
        try:
            await gather_all(*(self._wait_enrolled(node, deadline_ns) for node in self._ran))
            back = [n for n in self._ran if await self._system.is_member(self._bed, n)]
        finally:
            seen = await super().observe_healed()
        if len(back) == len(self._ran):
            return seen
        return Observation("failed", {**seen.evidence, "members": back})

    async def _wait_enrolled(self, node: str, deadline_ns: float) -> None:
        async def enrolled() -> bool:
            return await self._system.is_member(self._bed, node)

        await wait_until(self._bed, enrolled, deadline_ns, POLL_S)
