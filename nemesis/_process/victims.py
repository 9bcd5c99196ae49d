"""What `kill` and `pause` share: whom the faults of processes aim at, and their hold on them.

A node whose process has ended by itself, as on a disk that fails it, is nobody's victim: there is
nothing to break there and nothing to mend, so it is not held. A fault that finds no other was never
in force.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import CLIENT, Bed, PlannedFault
from harness.errors import BadRequest, BedFailed

TARGETS = (
    "master",
    "one slave",
    "one broker",
    "majority broker",
    "controller-leader",
    "majority controller",
    "minority",
)


def check(planned: PlannedFault) -> None:
    """BadRequest when nobody is named."""
    if not planned.target:
        raise BadRequest(
            f"{planned.kind} needs a target, such as 'master' or 'one broker'", "target"
        )


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target by lot; `targets` restrict whom it may hit."""
    return random.choice(targets or TARGETS), {}


def among(targets: Mapping[str, Sequence[str]], hit: Collection[str]) -> dict[str, list[str]]:
    """An injection's targets, as far as they were hit."""
    parts = {part: [name for name in names if name in hit] for part, names in targets.items()}
    return {part: names for part, names in parts.items() if names}


class NeverInForce(BedFailed):
    """A fault changed nothing when it was applied, and holds nobody: nothing is to be healed."""


def process_of(bed: Bed, node: str) -> str:
    """The agent's name for the node's process: the system's, or on a client node the clients'."""
    is_client = bed.node(node).role == CLIENT
    return bed.clients().process if is_client else bed.system.process(node)


async def runs(bed: Bed, node: str) -> bool:
    """Whether the node's process is there, if only stopped; of one that can not be asked, it is."""
    try:
        state = await bed.agents[node].state(process_of(bed, node))
    except BedFailed:
        return True
    return state.state not in ("exited", "absent")


class Hold:
    """Nodes whose process belongs to one fault: from its entering until its healing was looked
    for, which it is even when undoing failed, so that no other fault touches them meanwhile. It may
    be let go twice."""

    def __init__(self, held: set[str], nodes: Sequence[str]) -> None:
        self._held, self._nodes = held, nodes
        self._mine: set[str] = set()

    def take(self) -> None:
        self._mine = set(self._nodes)
        self._held |= self._mine

    async def take_who_runs(self, bed: Bed) -> list[str]:
        """The nodes whose process is there; the others are not held. NeverInForce: there are
        none."""
        self.take()
        there = await asyncio.gather(*(runs(bed, node) for node in self._nodes))
        return self.keep([node for node, is_so in zip(self._nodes, there, strict=True) if is_so])

    def keep(self, nodes: Sequence[str]) -> list[str]:
        """Let go of all but these. NeverInForce: there are none."""
        others = self._mine - set(nodes)
        self._held -= others
        self._mine -= others
        if not nodes:
            raise NeverInForce(f"{', '.join(self._nodes)} did not run, so there was nothing to hit")
        return list(nodes)

    def let_go(self) -> None:
        """Only what is still ours: somebody else may have it by now."""
        self._held -= self._mine
        self._mine = set()
