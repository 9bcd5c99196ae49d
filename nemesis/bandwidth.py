"""Limit the bandwidth of links to a number of bytes a second.

By default each link by which `target` receives from another node of the cluster carries
`bytes_per_s`; what comes faster waits for its turn, and is lost when more than a second's worth
waits already. With `per = "node"` all these links share that one rate, as behind a slow network
card. `direction = "both"` narrows what it sends as much. Clients are spared unless
`clients = true`.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    Bed,
    Effect,
    Effects,
    FaultPlugin,
    Link,
    Param,
    PlannedFault,
    Scene,
)
from harness.errors import BadRequest
from nemesis._network.latency_probe import HEADERS_BYTES, Measured, by_sink, fly, per_s
from nemesis._network.link_fault import DIRECTIONS, chosen, counted, hopeless
from nemesis._network.shaping import PacedFault
from nemesis._runner.capabilities import unable_to_pace

TARGETS = ("master", "one slave", "minority", "minority broker", "all broker", "controller-leader")
SURE = 1.1  # of a rate: how many times as much nothing on a narrow link can be
PROBED_S = 0.4  # what is sent to see a rate, in seconds of it
LEAST, MOST = 20, 400  # datagrams
LARGEST_BYTES = 1200


def check(planned: PlannedFault) -> None:
    """BadRequest when nobody is named, or what is sent should share a rate."""
    if not planned.target:
        raise BadRequest("bandwidth needs a target, such as 'master' or 'one slave'", "target")
    if planned.params["per"] == "node" and planned.params["direction"] != "in":
        raise BadRequest(
            "bandwidth per node is of what the target receives; leave `direction` away, or use "
            "per = 'link'",
            "params.direction",
        )


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target and parameters by lot; `targets` restrict whom it may hit."""
    per = random.choice(("link", "node"))
    return random.choice(targets or TARGETS), {
        "bytes_per_s": random.choice((20_000.0, 200_000.0, 1_000_000.0)),
        "per": per,
        "direction": "in" if per == "node" else random.choice(("in", "both")),
    }


async def lacking(bed: Bed) -> str:
    """Why the nodes can not do it, if they can not."""
    return await unable_to_pace(bed)


def fault(planned: PlannedFault, scene: Scene) -> "Bandwidth":
    victims, links = chosen(planned, scene)
    per_node = planned.params["per"] == "node"
    rate = planned.params["bytes_per_s"]
    effect = Effect(node_bytes_per_s=rate) if per_node else Effect(bytes_per_s=rate)
    return Bandwidth(scene, victims, dict.fromkeys(links, effect), rate, per_node)


PLUGIN = FaultPlugin(
    fault=fault,
    # what comes late is missed: another node may be elected without what this one acknowledged
    effects=Effects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links", "bandwidth"}),
    params={
        "bytes_per_s": Param(1e6, "what a link carries", unit="bytes/s", low=10_000, high=10e6),
        "per": Param("link", "whether all links into a node share it", among=("link", "node")),
        "from": Param("", "whose packets have little room", unit="selector"),
        "direction": Param("in", "what is narrow, seen from the target", among=DIRECTIONS),
        "clients": Param(False, "what clients send and receive has little room too"),
    },
    shown=(
        ("one server", {"bytes_per_s": 200_000.0}),
        ("one server", {"bytes_per_s": 500_000.0, "per": "node"}),
    ),
    drawn=drawn,
    check=check,
    hopeless=hopeless,
    lacking=lacking,
)


class Bandwidth(PacedFault):
    """Links that are narrow, alone or together."""

    def __init__(
        self,
        scene: Scene,
        targets: Sequence[Any],
        effects: Mapping[Link, Effect],
        rate: float,
        per_node: bool,
    ) -> None:
        super().__init__(scene, targets, effects)
        self._rate = rate
        self._groups = [*by_sink(list(effects))] if per_node else [[link] for link in effects]

    async def measure(self) -> Sequence[Measured]:
        links, rate = list(self.effects), self._lowest_rate()
        size_bytes, share = probe_bytes(rate), max(len(group) for group in self._groups)
        count = max(LEAST, probes(rate)) // share + 1
        return await fly(self.scene, links, self.naturals_ns, count, size_bytes)

    def odd(self, measured: Sequence[Measured], healed: bool) -> Sequence[Measured]:
        return [
            each
            for group in self._grouped(measured)
            if not self._is_hidden(group, healed)
            if not (self._wide(group) if healed else self._narrow(group))
            for each in group
        ]

    def hidden(self, measured: Sequence[Measured], healed: bool) -> Sequence[Measured]:
        groups = self._grouped(measured)
        return [each for group in groups if self._is_hidden(group, healed) for each in group]

    def _is_hidden(self, group: Sequence[Measured], healed: bool) -> bool:
        """One open link shows the rate that it shares with others."""
        outdone = not healed and _wanted(group) < self._rate
        return outdone or all(each.hidden for each in group)

    def figures(self, measured: Sequence[Measured]) -> tuple[Mapping[str, Any], str]:
        rates = sorted(per_s(group) for group in self._grouped(measured))
        words = f"{rates[-1]:,.0f} bytes/s at most on {counted(len(measured))}" if rates else ""
        return {"bytes_per_s": [round(rate) for rate in (*rates[:1], *rates[-1:])]}, words

    def _lowest_rate(self) -> float:
        """In force on any of the links, be it another fault's, so that nothing is clogged by what
        looks at it; at most our own, which is known to be bearable."""
        wanted = [self.scene.links.effect(link) for link in self.effects]
        rates = (rate for one in wanted for rate in (one.bytes_per_s, one.node_bytes_per_s) if rate)
        return min([self._rate, *rates])

    def _grouped(self, measured: Sequence[Measured]) -> list[list[Measured]]:
        by_link = {each.link: each for each in measured}
        return [[by_link[link] for link in group] for group in self._groups]

    def _narrow(self, group: Sequence[Measured]) -> bool:
        """Something got through, and not more than the rules in force let through."""
        return 0 < per_s(group) <= SURE * _wanted(group)

    def _wide(self, group: Sequence[Measured]) -> bool:
        """More gets through than while it was narrow, unless another fault wants that."""
        if _wanted(group) <= self._rate:
            return self._narrow(group)
        return per_s(group) > SURE * self._rate


def _wanted(group: Sequence[Measured]) -> float:
    """Bytes a second that links measured together may carry, by the rules in force."""
    shared = [each.wanted.node_bytes_per_s for each in group if each.wanted.node_bytes_per_s]
    alone = [each.wanted.bytes_per_s or float("inf") for each in group]
    together = max(shared) if len(shared) == len(group) else float("inf")
    return min(sum(alone), together)


def probe_bytes(rate: float) -> int:
    """How large a datagram may be, so that enough of them make up the time of probing."""
    return int(min(max(rate * PROBED_S / LEAST, 64), LARGEST_BYTES))


def probes(rate: float) -> int:
    """How many of them."""
    return int(min(max(rate * PROBED_S / (probe_bytes(rate) + HEADERS_BYTES), LEAST), MOST))
