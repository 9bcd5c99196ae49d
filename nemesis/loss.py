"""Drop a share of the packets that nodes receive.

By default it drops 80 % of the packets that `target` receives from every other node of the cluster,
as in the published RocketMQ trials; answers on the way back are not affected, so one in five
requests is answered. `direction = "both"` also drops that share of what it sends: one in
twenty-five. Clients are spared unless `clients = true`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    LinkEffect,
    Param,
    PlannedFault,
)
from nemesis._network.link_fault import (
    DIRECTIONS,
    TARGETS,
    LinkFault,
    impossible_reason,
    select_links,
)
from nemesis._process.victims import check


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and parameters."""
    probability = random.choice((0.2, 0.5, 0.8))
    direction = random.choice(("in", "both"))
    return random.choice(targets or TARGETS), {"probability": probability, "direction": direction}


def fault(planned: PlannedFault, scene: FaultContext) -> LinkFault:
    victims, links = select_links(planned, scene)
    return LinkFault(
        scene, victims, dict.fromkeys(links, LinkEffect(planned.params["probability"]))
    )


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that is not heard may be replaced by one that lacks what it acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links", "loss"}),
    params={
        "probability": Param(0.8, "share of packets lost", unit="of 1", low=0.01, high=0.99),
        "from": Param("", "senders whose packets are lost", unit="selector"),
        "direction": Param("in", "lost packets, seen from the target", among=DIRECTIONS),
        "clients": Param(False, "packets from and to clients are lost too"),
    },
    draw=draw,
    check=partial(check, example="minority broker"),
    impossible_reason=impossible_reason,
)
