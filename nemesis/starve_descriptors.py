"""Limit the file descriptors of processes: no more files and connections, or only a few.

The limit of each running process is lowered to what it has open (prlimit): from then on `accept`,
`open` and `socket` fail with EMFILE, and what it closes it may open again. One that ends of it is
started again when the limit is taken away.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import ANY_BUT_INTEGRITY, Effects, FaultPlugin, Param, PlannedFault, Scene
from nemesis._process.rlimits import Limited
from nemesis._process.victims import TARGETS, check


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target and some room by lot; `targets` restrict whom it may hit."""
    return random.choice(targets or TARGETS), {"room": random.choice((0.0, 1.0, 4.0))}


def fault(planned: PlannedFault, scene: Scene) -> Limited:
    victims = scene.aim(planned.target, spare=scene.held)
    return Limited(scene, victims, "descriptors", int(planned.params["room"]))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that accepts no connection is missed, and another one may be elected
    effects=Effects(may_break=ANY_BUT_INTEGRITY, excuses_exit=True),
    needs=frozenset({"signal", "restart", "limits"}),
    params={"room": Param(0.0, "how many more it may open", unit="files", high=1e6)},
    drawn=drawn,
    check=check,
)
