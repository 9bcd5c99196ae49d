"""Drop a share of the packets that nodes receive.

By default 80 % of what `target` receives from every other node of the cluster, as in the published
RocketMQ trials; answers on the way back are not touched, so a request and its answer together get
through once in five. `direction = "both"` loses as much of what it sends: once in twenty-five.
Clients are spared unless `clients = true`.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    Effect,
    Effects,
    FaultPlugin,
    Param,
    PlannedFault,
    Scene,
)
from harness.errors import BadRequest
from nemesis._network.link_fault import DIRECTIONS, LinkFault, chosen, hopeless

TARGETS = ("master", "one slave", "minority", "minority broker", "all broker", "controller-leader")


def check(planned: PlannedFault) -> None:
    """BadRequest when nobody is named."""
    if not planned.target:
        raise BadRequest("loss needs a target, such as 'master' or 'minority broker'", "target")


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target and parameters by lot; `targets` restrict whom it may hit."""
    probability = random.choice((0.2, 0.5, 0.8))
    direction = random.choice(("in", "both"))
    return random.choice(targets or TARGETS), {"probability": probability, "direction": direction}


def fault(planned: PlannedFault, scene: Scene) -> LinkFault:
    victims, links = chosen(planned, scene)
    return LinkFault(scene, victims, dict.fromkeys(links, Effect(planned.params["probability"])))


PLUGIN = FaultPlugin(
    fault=fault,
    # what gets lost is missed: another node may be elected without what this one acknowledged
    effects=Effects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links", "loss"}),
    params={
        "probability": Param(0.8, "share of packets lost", unit="of 1", low=0.01, high=0.99),
        "from": Param("", "whose packets are lost", unit="selector"),
        "direction": Param("in", "what is lost, seen from the target", among=DIRECTIONS),
        "clients": Param(False, "what clients send and receive is lost too"),
    },
    drawn=drawn,
    check=check,
    hopeless=hopeless,
)
