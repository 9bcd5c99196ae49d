"""Targets of the faults of processes (`kill`, `pause` ...), and how faults hold them.

A process belongs to one fault at a time. A node whose process has exited by itself, for example on
a failed disk, is not a target: there is nothing to break or to heal, so it is not held. A fault
that finds no running process was never in force.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import CLIENT, FaultContext, Node, PlannedFault, ProcessState, TestBed
from harness.errors import BadRequest, BedFailed
from nemesis._plan import targets as _targets

MASTER = "master"
TARGETS = (
    MASTER,
    "one slave",
    "one broker",
    "majority broker",
    "controller-leader",
    "majority controller",
    "minority",
)


def check(planned: PlannedFault, example: str = "one broker") -> None:
    """Raise BadRequest if target is empty."""
    if not planned.target:
        raise BadRequest(
            f"{planned.kind} needs a target, such as 'master' or {example!r}", "target"
        )


def draw(
    random: Random, targets: Sequence[str], usual: Sequence[str] = TARGETS
) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, else a usual one."""
    return random.choice(targets or usual), {}


def may_be_master(target: str, nodes: Sequence[Node]) -> bool:
    """Return whether the target may mean a master."""
    masters = _targets.possible_names(MASTER, nodes)
    return not masters.isdisjoint(_targets.possible_names(target, nodes))


def masters_of(targets: Sequence[str]) -> Sequence[str]:
    """Return those of a swarm's targets that mean the master."""
    return [target for target in targets if target == MASTER]


def why_no_master(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why the target can never be a master, as far as the words tell, or ''."""
    if may_be_master(planned.target, nodes):
        return ""
    return f"cannot hit {planned.target!r}: no node that it means can be a master; target 'master'"


def hit_targets(targets: Mapping[str, Sequence[str]], hit: Collection[str]) -> dict[str, list[str]]:
    """Return those of an injection's targets that were hit."""
    parts = {part: [name for name in names if name in hit] for part, names in targets.items()}
    return {part: names for part, names in parts.items() if names}


class NothingToHit(BedFailed):
    """A fault changed nothing when it was applied, and holds no node: nothing is to be healed."""


def process_of(bed: TestBed, node: str) -> str:
    """Return the agent's name for the node's process: the system's, or the clients' on theirs."""
    is_client = bed.node(node).role == CLIENT
    return bed.clients().process if is_client else bed.system.process(node)


async def is_alive(bed: TestBed, node: str) -> bool:
    """Return whether the node's process exists, even if stopped; True if that is unknown."""
    try:
        state = await bed.agents[node].state(process_of(bed, node))
    except BedFailed:
        return True
    return state.state not in ("exited", "absent")


class ProcessHold:
    """Nodes whose processes belong to one fault.

    A fault holds them from its beginning until its healing was observed, even if undoing failed, so
    that no other fault touches them meanwhile. They may be released twice.
    """

    def __init__(self, held: set[str], nodes: Sequence[str]) -> None:
        self._held, self._nodes = held, nodes
        self._mine: set[str] = set()

    def take(self) -> None:
        self._mine = set(self._nodes)
        self._held |= self._mine

    async def take_running(self, bed: TestBed) -> list[str]:
        """Hold the nodes whose process exists; return them. Raises NothingToHit if none does."""
        self.take()
        alive = await asyncio.gather(*(is_alive(bed, node) for node in self._nodes))
        return self.keep([node for node, is_so in zip(self._nodes, alive, strict=True) if is_so])

    def keep(self, nodes: Sequence[str]) -> list[str]:
        """Release all but these nodes. Raises NothingToHit if there are none."""
        others = self._mine - set(nodes)
        self._held -= others
        self._mine -= others
        if not nodes:
            raise NothingToHit(f"{', '.join(self._nodes)} did not run, so there was nothing to hit")
        return list(nodes)

    def release(self) -> None:
        """Release the nodes that this fault still holds."""
        self._held -= self._mine
        self._mine = set()


class ProcessFault:
    """A fault of its victims' processes, which it holds."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        self.targets = scene.by_role(victims)
        self._bed = scene.bed
        self._victims = [node.name for node in victims]
        self._hold = ProcessHold(scene.claimed, self._victims)

    async def _take_running(self) -> list[str]:
        """Hold the victims whose process exists; only they are hit. Raises NothingToHit if none
        does."""
        running = await self._hold.take_running(self._bed)
        self.targets = hit_targets(self.targets, running)
        return running

    async def _state(self, node: str) -> ProcessState:
        return await self._bed.agents[node].state(process_of(self._bed, node))

    async def _signal(self, node: str, number: int) -> None:
        await self._bed.agents[node].signal(process_of(self._bed, node), number)
