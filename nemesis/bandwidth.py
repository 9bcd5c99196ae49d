"""Limit the bandwidth of links to a number of bytes a second.

By default each link on which `target` receives from another node of the cluster carries
`bytes_per_s`. Packets that arrive faster are queued, and dropped if more than a second's worth is
queued already. With `per = "node"` all these links share that one rate, as behind a slow network
card. `direction = "both"` also limits what it sends. Clients are spared unless `clients = true`.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Link,
    LinkEffect,
    Param,
    PlannedFault,
)
from harness.errors import BadRequest
from nemesis._network.latency_probe import (
    HEADERS_BYTES,
    LinkMeasurement,
    by_sink,
    measure_links,
    throughput,
)
from nemesis._network.link_fault import (
    DIRECTIONS,
    TARGETS,
    impossible_reason,
    links_text,
    select_links,
)
from nemesis._network.shaping import PacedFault
from nemesis._process import victims as _processes
from nemesis._runner.capabilities import why_unable_to_pace

TOLERANCE = 1.1  # a narrow link carries at most this many times its rate
PROBE_S = 0.4  # size of the probe, in seconds of the rate
MIN_PROBES, MAX_PROBES = 20, 400  # datagrams
MAX_DATAGRAM_BYTES = 1200


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if target is empty, or sent packets should share a rate."""
    _processes.check(planned, example="one slave")
    if planned.params["per"] == "node" and planned.params["direction"] != "in":
        raise BadRequest(
            "bandwidth per node limits what the target receives; omit `direction`, or use per ="
            " 'link'",
            "params.direction",
        )


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and parameters."""
    per = random.choice(("link", "node"))
    return random.choice(targets or TARGETS), {
        "bytes_per_s": random.choice((20_000.0, 200_000.0, 1_000_000.0)),
        "per": per,
        "direction": "in" if per == "node" else random.choice(("in", "both")),
    }


def fault(planned: PlannedFault, scene: FaultContext) -> "Bandwidth":
    victims, links = select_links(planned, scene)
    per_node = planned.params["per"] == "node"
    rate = planned.params["bytes_per_s"]
    effect = LinkEffect(node_bytes_per_s=rate) if per_node else LinkEffect(bytes_per_s=rate)
    return Bandwidth(scene, victims, dict.fromkeys(links, effect), rate, per_node)


PLUGIN = FaultPlugin(
    fault=fault,
    # a slow node may be replaced by one that lacks what it acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links", "bandwidth"}),
    params={
        "bytes_per_s": Param(1e6, "what a link carries", unit="bytes/s", low=10_000, high=10e6),
        "per": Param(
            "link",
            "link: each link has this rate; node: all links into a node share it",
            among=("link", "node"),
        ),
        "from": Param("", "senders whose packets are limited", unit="selector"),
        "direction": Param("in", "limited packets, seen from the target", among=DIRECTIONS),
        "clients": Param(False, "packets from and to clients are limited too"),
    },
    verify_examples=(
        ("one server", {"bytes_per_s": 200_000.0}),
        ("one server", {"bytes_per_s": 500_000.0, "per": "node"}),
    ),
    draw=draw,
    check=check,
    impossible_reason=impossible_reason,
    unsupported_reason=why_unable_to_pace,
)


class Bandwidth(PacedFault):
    """Links with a limited rate, each or together."""

    def __init__(
        self,
        scene: FaultContext,
        targets: Sequence[Any],
        effects: Mapping[Link, LinkEffect],
        rate: float,
        per_node: bool,
    ) -> None:
        super().__init__(scene, targets, effects)
        self._rate = rate
        self._groups = [*by_sink(list(effects))] if per_node else [[link] for link in effects]

    async def measure(self) -> Sequence[LinkMeasurement]:
        links, rate = list(self.effects), self._lowest_rate()
        size_bytes, share = probe_bytes(rate), max(len(group) for group in self._groups)
        count = max(MIN_PROBES, probe_count(rate)) // share + 1
        return await measure_links(self.scene, links, self.baselines_ns, count, size_bytes)

    def odd(self, measured: Sequence[LinkMeasurement], healed: bool) -> Sequence[LinkMeasurement]:
        return [
            each
            for group in self._grouped(measured)
            if not self._is_hidden(group, healed)
            if not (self._wide(group) if healed else self._narrow(group))
            for each in group
        ]

    def hidden(
        self, measured: Sequence[LinkMeasurement], healed: bool
    ) -> Sequence[LinkMeasurement]:
        groups = self._grouped(measured)
        return [each for group in groups if self._is_hidden(group, healed) for each in group]

    def _is_hidden(self, group: Sequence[LinkMeasurement], healed: bool) -> bool:
        """Return whether the rate cannot be observed. One open link shows a shared rate."""
        lower = not healed and _wanted(group) < self._rate
        return lower or all(each.is_cut for each in group)

    def figures(self, measured: Sequence[LinkMeasurement]) -> tuple[Mapping[str, Any], str]:
        rates = sorted(throughput(group) for group in self._grouped(measured))
        words = f"{rates[-1]:,.0f} bytes/s at most on {links_text(len(measured))}" if rates else ""
        return {"bytes_per_s": [round(rate) for rate in (*rates[:1], *rates[-1:])]}, words

    def _lowest_rate(self) -> float:
        """Return the lowest rate in force on any of the links, at most this fault's own.

        A probe at this rate does not clog a link that another fault limits further.
        """
        wanted = [self.scene.links.effect(link) for link in self.effects]
        rates = (rate for one in wanted for rate in (one.bytes_per_s, one.node_bytes_per_s) if rate)
        return min([self._rate, *rates])

    def _grouped(self, measured: Sequence[LinkMeasurement]) -> list[list[LinkMeasurement]]:
        by_link = {each.link: each for each in measured}
        return [[by_link[link] for link in group] for group in self._groups]

    def _narrow(self, group: Sequence[LinkMeasurement]) -> bool:
        """Return whether something got through, but not more than the rules in force allow."""
        return 0 < throughput(group) <= TOLERANCE * _wanted(group)

    def _wide(self, group: Sequence[LinkMeasurement]) -> bool:
        """Return whether more gets through than the fault allowed, or another fault limits it."""
        if _wanted(group) <= self._rate:
            return self._narrow(group)
        return throughput(group) > TOLERANCE * self._rate


def _wanted(group: Sequence[LinkMeasurement]) -> float:
    """Return the bytes a second that these links together may carry, by the rules in force."""
    shared = [each.wanted.node_bytes_per_s for each in group if each.wanted.node_bytes_per_s]
    alone = [each.wanted.bytes_per_s or float("inf") for each in group]
    together = max(shared) if len(shared) == len(group) else float("inf")
    return min(sum(alone), together)


def probe_bytes(rate: float) -> int:
    """Return the size of a datagram, such that MIN_PROBES take PROBE_S."""
    return int(min(max(rate * PROBE_S / MIN_PROBES, 64), MAX_DATAGRAM_BYTES))


def probe_count(rate: float) -> int:
    """Return the number of datagrams that take PROBE_S."""
    count = rate * PROBE_S / (probe_bytes(rate) + HEADERS_BYTES)
    return int(min(max(count, MIN_PROBES), MAX_PROBES))
