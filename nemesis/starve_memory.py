"""Limit the memory of processes to little more than they use.

The limit of each running process's address space is lowered to its current size and a little more
(prlimit): an allocation beyond that fails with ENOMEM, which a process may or may not survive. One
that exits because of it is started again when the limit is removed. Other processes are not
affected.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Param,
    PlannedFault,
)
from nemesis._process.rlimits import ResourceLimit
from nemesis._process.victims import TARGETS, check

MB = 1_000_000


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and the room."""
    return random.choice(targets or TARGETS), {"room_mb": random.choice((1.0, 8.0, 32.0))}


def fault(planned: PlannedFault, scene: FaultContext) -> ResourceLimit:
    victims = scene.resolve(planned.target, spare=scene.claimed)
    return ResourceLimit(scene, victims, "memory", round(planned.params["room_mb"] * MB))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node without memory may exit, and another one be elected
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, excuses_exit=True),
    needs=frozenset({"signal", "restart", "limits"}),
    params={"room_mb": Param(8.0, "memory that it may still allocate", unit="MB", high=1e6)},
    draw=draw,
    check=check,
)
