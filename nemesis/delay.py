"""Delay packets: by a fixed time, with jitter, or reordered.

By default all that `target` receives from every other node of the cluster arrives `delay_s` later,
and at most `jitter_s` more, each packet by lot; their order stays. With `reorder`, that share of
the packets is not late, and so overtakes those that are. `direction = "both"` delays as much what
it sends. Clients are spared unless `clients = true`.

The receiver holds packets back, whatever its kernel: no `tc netem` is needed, which many kernels
lack, and a sender is never slowed down by its own small queues.
"""

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    Bed,
    Effect,
    Effects,
    FaultPlugin,
    Node,
    Param,
    PlannedFault,
    Scene,
)
from harness.errors import BadRequest
from nemesis._network.latency_probe import COUNT, Measured, fly
from nemesis._network.link_fault import DIRECTIONS, chosen, counted, hopeless
from nemesis._network.shaping import PacedFault
from nemesis._runner.capabilities import unable_to_pace

TARGETS = ("master", "one slave", "minority", "minority broker", "all broker", "controller-leader")
SURE = 0.75  # of a delay: the way itself may have got that much quicker meanwhile
UNEVEN = 0.05  # of a jitter: how far packets must be apart, at least
MORE = 3  # times as many are sent where some overtake, or where their delays differ


def check(planned: PlannedFault) -> None:
    """BadRequest when nobody is named."""
    if not planned.target:
        raise BadRequest("delay needs a target, such as 'master' or 'one slave'", "target")


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Nothing is late of what comes after the fault, so something has to be on its way."""
    return float(planned.params["delay_s"] + planned.params["jitter_s"])


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target and parameters by lot; `targets` restrict whom it may hit."""
    delay_s = random.choice((0.01, 0.05, 0.2))
    return random.choice(targets or TARGETS), {
        "delay_s": delay_s,
        "jitter_s": random.choice((0.0, delay_s)),
        "reorder": random.choice((0.0, 0.25)),
        "direction": random.choice(("in", "both")),
    }


async def lacking(bed: Bed) -> str:
    """Why the nodes can not do it, if they can not."""
    return await unable_to_pace(bed)


def fault(planned: PlannedFault, scene: Scene) -> "Delay":
    victims, links = chosen(planned, scene)
    names = ("delay_s", "jitter_s", "reorder")
    effect = Effect(**{name: planned.params[name] for name in names})
    return Delay(scene, victims, dict.fromkeys(links, effect))


PLUGIN = FaultPlugin(
    fault=fault,
    # what comes late is missed: another node may be elected without what this one acknowledged
    effects=Effects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links", "delay"}),
    params={
        "delay_s": Param(0.1, "how much later packets arrive", unit="s", low=0.002, high=10.0),
        "jitter_s": Param(0.0, "at most so much more, by lot", unit="s", high=10.0),
        "reorder": Param(0.0, "share of packets that are not late", unit="of 1", high=0.9),
        "from": Param("", "whose packets are late", unit="selector"),
        "direction": Param("in", "what is late, seen from the target", among=DIRECTIONS),
        "clients": Param(False, "what clients send and receive is late too"),
    },
    shown=(
        ("one server", {"delay_s": 0.1, "direction": "both"}),
        ("one server", {"delay_s": 0.05, "jitter_s": 0.02, "reorder": 0.25}),
    ),
    drawn=drawn,
    check=check,
    takes_s=takes_s,
    hopeless=hopeless,
    lacking=lacking,
)


class Delay(PacedFault):
    """Links that are late."""

    async def measure(self) -> Sequence[Measured]:
        laid = [self.scene.links.effect(link) for link in self.effects]
        count = COUNT * MORE if any(one.reorder or one.jitter_s for one in laid) else COUNT
        return await fly(self.scene, list(self.effects), self.naturals_ns, count)

    def odd(self, measured: Sequence[Measured], healed: bool) -> Sequence[Measured]:
        hidden = self.hidden(measured, healed)
        return [
            each
            for each in measured
            if each not in hidden
            if not (in_time(each, self.effects[each.link]) if healed else is_late(each))
        ]

    def figures(self, measured: Sequence[Measured]) -> tuple[Mapping[str, Any], str]:
        late_ms = sorted(1e3 * late_s for each in measured for late_s in each.late_s)
        if not late_ms:
            return {"added_ms": []}, "nothing arrived"
        middle = median(late_ms)
        added_ms = [round(ms, 3) for ms in (late_ms[0], middle, late_ms[-1])]
        overtaken = sum(each.overtaken for each in measured)
        words = f"{middle:.0f} ms added on {counted(len(measured))}"
        words += f", {overtaken} of {len(late_ms)} packets overtaken" if overtaken else ""
        return {"added_ms": added_ms, "overtaken": overtaken}, words


def is_late(seen: Measured) -> bool:
    """Whether the link is as late as the rules in force say, and as unevenly."""
    wanted = seen.wanted
    late_s = [late_s for late_s in seen.late_s if late_s >= SURE * wanted.delay_s]
    if not late_s or max(late_s) - min(late_s) < UNEVEN * wanted.jitter_s:
        return False
    return seen.overtaken > 0 if wanted.reorder else len(late_s) == len(seen.flights)


def in_time(seen: Measured, was: Effect) -> bool:
    """Whether the link is no longer as late as it was, unless another fault wants that, or makes
    packets wait for their turn."""
    wanted, late_s = seen.wanted, seen.late_s
    if wanted.delay_s >= was.delay_s:
        return is_late(seen)
    quick_s = math.inf if wanted.narrow else (wanted.delay_s + was.delay_s) / 2
    return bool(late_s) and min(late_s) < quick_s
