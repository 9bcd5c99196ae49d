"""Limit the file descriptors of processes: no more files and connections, or only a few.

The limit of each running process is lowered to the descriptors that it has open (prlimit): from
then on `accept`, `open` and `socket` fail with EMFILE, except in place of closed ones. A process
that exits because of it is started again when the limit is removed.
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


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and the room."""
    return random.choice(targets or TARGETS), {"room": random.choice((0.0, 1.0, 4.0))}


def fault(planned: PlannedFault, scene: FaultContext) -> ResourceLimit:
    victims = scene.resolve(planned.target, spare=scene.claimed)
    return ResourceLimit(scene, victims, "descriptors", int(planned.params["room"]))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that accepts no connections may be replaced by another one
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, excuses_exit=True),
    needs=frozenset({"signal", "restart", "limits"}),
    params={"room": Param(0.0, "descriptors that it may still open", unit="files", high=1e6)},
    draw=draw,
    check=check,
)
