"""Zones that are apart: links from zone to zone are late for the whole trial.

It is done as the fault `delay` does it, and seen like one, before the system starts. But nobody
heals it: it is in every merge of rules from then on, and what faults do comes on top (`rules`).
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from harness.contracts import Bed, Effect, Observation, Scene
from harness.errors import BedFailed
from nemesis._network.rules import Fabric
from nemesis._runner.capabilities import unable_to_pace
from nemesis.delay import Delay

LOOKS = 3  # a machine that has much to do may lose a probe


async def set_apart(bed: Bed) -> Mapping[str, Any]:
    """From now on zones are apart; what was seen of it. BedFailed: these nodes can not do it, or it
    was not seen."""
    if why := await unable_to_pace(bed):
        raise BedFailed(f"zones cannot be set apart: {why}; leave zone_latency out")
    observation = await _seen(bed)
    if observation.state != "installed":
        odd = ", ".join(observation.evidence["odd"])
        raise BedFailed(f"zones were not seen apart: {odd or 'nothing arrived'}; try it again")
    return {"measured": observation.measured, **observation.evidence}


async def _seen(bed: Bed) -> Observation:
    scene = Scene(
        bed,
        Fabric(bed.nodes, bed.agents),
        aim=lambda selector, spare=(): (),
        part=lambda node: node.role,
        held=set(),
        random=Random(0),
    )
    effects = {
        link: Effect(delay_s=far.delay_s, jitter_s=far.jitter_s)
        for link, far in bed.distances.items()
    }
    between = Delay(scene, (), effects)
    await between.__aenter__()
    observation = await between.observe()
    for _ in range(LOOKS - 1):
        if observation.state != "installed":
            observation = await between.observe()
    return observation
