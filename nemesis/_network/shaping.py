"""What faults share that delay packets or limit their rate.

Such a fault measures its links before it is applied, to know what it adds (`latency_probe`). A link
that another fault has cut cannot be measured, and silence is not evidence of a delay: the fault was
not observed there, and its healing is observed when the other fault has released the link. Nor was
it observed where another fault delays more or limits the rate further.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.contracts import FaultContext, Link, LinkEffect, Node, Observation
from nemesis._network.drop_probe import ProbeResult, probe_links
from nemesis._network.latency_probe import LinkMeasurement, clock_offsets_ns, measure_baselines
from nemesis._network.link_fault import LinkFault, is_hidden_by
from nemesis._network.shapes import sources_by_sink
from nemesis._runner.waiting import NS, wait_until

TIMEOUT_S = 1.0
MIN_ATTEMPTS = 4  # where delays are random, so that single measurements may deviate
POLL_S = 0.05  # while a link is still cut


class PacedFault(LinkFault):
    """An injection of effects that delay packets."""

    evidence_key = "paced"

    def __init__(
        self, scene: FaultContext, targets: Sequence[Node], effects: Mapping[Link, LinkEffect]
    ) -> None:
        super().__init__(scene, targets, effects)
        self.scene = scene
        self.baselines_ns: Mapping[Link, float] = {}

    async def __aenter__(self) -> "PacedFault":
        self.baselines_ns = clock_offsets_ns(self.scene, list(self.effects))  # if measuring fails
        delay_s = min((effect.delay_s for effect in self.effects.values()), default=0.0)
        self.baselines_ns = await measure_baselines(self.scene, list(self.effects), delay_s)
        await super().__aenter__()
        return self

    async def observe(self) -> Observation:
        own = await self._measure_until_settled(healed=False)
        others = await probe_links(self.scene, self._watched() - self.effects.keys())
        return self._observation(own, [other for other in others if other.open], healed=False)

    async def observe_healed(self) -> Observation:
        while True:
            while any(self.scene.links.effect(link).drop >= 1 for link in self.effects):
                await self.scene.bed.sleep(POLL_S)
            own = await self._measure_until_settled(healed=True)
            if not self.hidden(own, healed=True):
                return self._observation(own, (), healed=True)

    # --------------------------------------------------------- implemented by the kinds of fault

    async def measure(self) -> Sequence[LinkMeasurement]:
        """Measure all links of the fault."""
        raise NotImplementedError

    def odd(self, measured: Sequence[LinkMeasurement], healed: bool) -> Sequence[LinkMeasurement]:
        """Return the links that do not do what the rules say; when healed, those still affected.

        Hidden links are left out.
        """
        raise NotImplementedError

    def hidden(
        self, measured: Sequence[LinkMeasurement], healed: bool
    ) -> Sequence[LinkMeasurement]:
        """Return the links on which the fault cannot be observed.

        Another fault cuts them or, while this one is in force, does more of the same.
        """
        return [
            each
            for each in measured
            if each.is_cut or (not healed and is_hidden_by(self.effects[each.link], each.wanted))
        ]

    def figures(self, measured: Sequence[LinkMeasurement]) -> tuple[Mapping[str, Any], str]:
        """Return what was measured, as evidence and as text."""
        raise NotImplementedError

    # --------------------------------------------------------------------------- inside

    async def _measure_until_settled(self, healed: bool) -> Sequence[LinkMeasurement]:
        """Measure repeatedly until each link was once as it should be, or until a timeout."""
        seen: list[LinkMeasurement] = []

        async def settled() -> bool:
            odd = {each.link for each in self.odd(seen, healed)} if seen else set(self.effects)
            good = {each.link: each for each in seen if each.link not in odd}
            seen[:] = [good.get(each.link, each) for each in await self.measure()]
            return not self.odd(seen, healed)

        await wait_until(self.scene.bed, settled, self.scene.bed.now_ns() + self._timeout_s() * NS)
        return seen

    def _timeout_s(self) -> float:
        uneven = [one.delay_s + one.jitter_s for one in self.effects.values() if one.jitter_s]
        return TIMEOUT_S + (MIN_ATTEMPTS - 1) * max(uneven, default=0.0)

    def _observation(
        self, own: Sequence[LinkMeasurement], others: Sequence[ProbeResult], healed: bool
    ) -> Observation:
        odd, hidden = self.odd(own, healed), self.hidden(own, healed)
        good = len(own) - len(odd) - len(hidden)
        closed = [other for other in others if not other.matches_rules()]
        figures, words = self.figures(own)
        links = [*(one.link for one in odd), *(other.link for other in closed)]
        evidence = {
            "links": len(own),
            "links_as_laid": good,
            "links_hidden_by_others": len(hidden),
            "probes": sum(measured.sent for measured in own),
            "arrived": sum(len(measured.flights) for measured in own),
            "open_links": len(others),
            "open_links_passing": len(others) - len(closed),
            "odd": [" to ".join(link) for link in links[:5]],
            **figures,
            **({} if healed else {self.evidence_key: sources_by_sink(self.effects)}),
        }
        everywhere = good > 0 and not odd and not closed
        return Observation.graded(everywhere, good, evidence, words)
