"""Delay packets: by a fixed time, with jitter, or reordered.

By default all packets that `target` receives from every other node of the cluster arrive `delay_s`
later, plus a random time of at most `jitter_s`; their order stays. With `reorder`, that share of
the packets is not delayed and so overtakes the others. `direction = "both"` also delays the packets
that it sends. Clients are spared unless `clients = true`.

The receiver holds packets back, on any kernel: this does not need `tc netem`, which many kernels
lack, and small queues do not slow down the sender.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from statistics import median
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    LinkEffect,
    Node,
    Param,
    PlannedFault,
    TestBed,
)
from harness.errors import BedFailed
from nemesis._network.latency_probe import COUNT, LinkMeasurement, measure_links
from nemesis._network.link_fault import (
    DIRECTIONS,
    TARGETS,
    impossible_reason,
    links_text,
    select_links,
)
from nemesis._network.link_rules import LinkRules
from nemesis._network.shaping import PacedFault
from nemesis._process.victims import check
from nemesis._runner.capabilities import why_unable_to_pace

MIN_SHARE = 0.75  # of a delay must be measured: the path may have become faster meanwhile
MIN_SPREAD = 0.05  # of a jitter: minimum difference between two delays
MORE = 3  # times as many probes where packets overtake each other, or delays differ


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Return the longest delay: only packets that arrive before the end are delayed."""
    return float(planned.params["delay_s"] + planned.params["jitter_s"])


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and parameters."""
    delay_s = random.choice((0.01, 0.05, 0.2))
    return random.choice(targets or TARGETS), {
        "delay_s": delay_s,
        "jitter_s": random.choice((0.0, delay_s)),
        "reorder": random.choice((0.0, 0.25)),
        "direction": random.choice(("in", "both")),
    }


def fault(planned: PlannedFault, scene: FaultContext) -> "Delay":
    victims, links = select_links(planned, scene)
    names = ("delay_s", "jitter_s", "reorder")
    effect = LinkEffect(**{name: planned.params[name] for name in names})
    return Delay(scene, victims, dict.fromkeys(links, effect))


PLUGIN = FaultPlugin(
    fault=fault,
    # a delayed node may be replaced by one that lacks what it acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links", "delay"}),
    params={
        "delay_s": Param(0.1, "how much later packets arrive", unit="s", low=0.002, high=10.0),
        "jitter_s": Param(0.0, "random additional delay, at most", unit="s", high=10.0),
        "reorder": Param(0.0, "share of packets that are not delayed", unit="of 1", high=0.9),
        "from": Param("", "senders whose packets are delayed", unit="selector"),
        "direction": Param("in", "delayed packets, seen from the target", among=DIRECTIONS),
        "clients": Param(False, "packets from and to clients are delayed too"),
    },
    verify_examples=(
        ("one server", {"delay_s": 0.1, "direction": "both"}),
        ("one server", {"delay_s": 0.05, "jitter_s": 0.02, "reorder": 0.25}),
    ),
    draw=draw,
    check=partial(check, example="one slave"),
    takes_s=takes_s,
    impossible_reason=impossible_reason,
    unsupported_reason=why_unable_to_pace,
)


class Delay(PacedFault):
    """Delayed links."""

    async def measure(self) -> Sequence[LinkMeasurement]:
        laid = [self.scene.links.effect(link) for link in self.effects]
        count = COUNT * MORE if any(one.reorder or one.jitter_s for one in laid) else COUNT
        return await measure_links(self.scene, list(self.effects), self.baselines_ns, count)

    def odd(self, measured: Sequence[LinkMeasurement], healed: bool) -> Sequence[LinkMeasurement]:
        hidden = self.hidden(measured, healed)
        return [
            each
            for each in measured
            if each not in hidden
            if not (in_time(each, self.effects[each.link]) if healed else is_late(each))
        ]

    def figures(self, measured: Sequence[LinkMeasurement]) -> tuple[Mapping[str, Any], str]:
        late_ms = sorted(1e3 * added_s for each in measured for added_s in each.added_s)
        if not late_ms:
            return {"added_ms": []}, "nothing arrived"
        middle = median(late_ms)
        added_ms = [round(ms, 3) for ms in (late_ms[0], middle, late_ms[-1])]
        overtaken = sum(each.overtaken for each in measured)
        words = f"{middle:.0f} ms added on {links_text(len(measured))}"
        words += f", {overtaken} of {len(late_ms)} packets overtaken" if overtaken else ""
        return {"added_ms": added_ms, "overtaken": overtaken}, words


def is_late(seen: LinkMeasurement) -> bool:
    """Return whether the link is delayed as the rules in force say, and as unevenly."""
    wanted = seen.wanted
    late_s = [added_s for added_s in seen.added_s if added_s >= MIN_SHARE * wanted.delay_s]
    if not late_s or max(late_s) - min(late_s) < MIN_SPREAD * wanted.jitter_s:
        return False
    return seen.overtaken > 0 if wanted.reorder else len(late_s) == len(seen.flights)


def in_time(seen: LinkMeasurement, was: LinkEffect) -> bool:
    """Return whether the link is no longer delayed as it was.

    It may be if another fault delays it as much, or makes packets wait for a narrow link.
    """
    wanted, late_s = seen.wanted, seen.added_s
    if wanted.delay_s >= was.delay_s:
        return is_late(seen)
    quick_s = math.inf if wanted.narrow else (wanted.delay_s + was.delay_s) / 2
    return bool(late_s) and min(late_s) < quick_s


# --------------------------------------------------------------------------- distances of zones

ZONE_ATTEMPTS = 3  # a busy machine may lose a probe


async def delay_zones(bed: TestBed) -> Mapping[str, Any]:
    """Delay the links between zones for the whole trial; return the evidence.

    The delays are observed like those of a fault, before the system starts, but never healed: they
    are part of all link rules, and faults add to them (`link_rules`). Raises BedFailed if the nodes
    cannot delay packets, or the delays were not observed.
    """
    if why := await why_unable_to_pace(bed):
        raise BedFailed(f"zone_latency cannot be applied: {why}; leave zone_latency out")
    scene = FaultContext(
        bed,
        LinkRules(bed.nodes, bed.agents),
        resolve=lambda selector, spare=(): (),
        role_now=lambda node: node.role,
        claimed=set(),
        random=Random(0),
    )
    effects = {
        link: LinkEffect(delay_s=distance.delay_s, jitter_s=distance.jitter_s)
        for link, distance in bed.distances.items()
    }
    between = Delay(scene, (), effects)
    await between.__aenter__()
    observation = await between.observe()
    for _ in range(ZONE_ATTEMPTS - 1):
        if observation.state != "installed":
            observation = await between.observe()
    if observation.state != "installed":
        odd = ", ".join(observation.evidence["odd"])
        raise BedFailed(
            f"the latency between zones was not observed: {odd or 'nothing arrived'}; try again"
        )
    return {"measured": observation.measured, **observation.evidence}
