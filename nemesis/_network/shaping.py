"""Faults that let packets through, but late or not many at a time: what they share.

Such a fault looks at its links before it is applied, to know what it adds (`latency_probe`). A
link that another fault has cut can not be measured, and silence is no evidence of a delay: the
fault was not seen there. Its healing is looked for when the other has let go of the link. Nor was
it seen where another delays more, or leaves less room.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.contracts import Effect, Link, Node, Observation, Scene
from nemesis._network.drop_probe import Sighting, sight
from nemesis._network.latency_probe import Measured, by_clocks, naturals
from nemesis._network.link_fault import LinkFault, outdone
from nemesis._runner.waiting import NS, reached

PATIENCE_S = 1.0
LOOKS = 4  # at least, where packets are late by lot: then chance has its part in each
LOOK_EVERY_S = 0.05  # whether a link is still cut


class PacedFault(LinkFault):
    """An injection of effects that take time."""

    told = "paced"

    def __init__(
        self, scene: Scene, targets: Sequence[Node], effects: Mapping[Link, Effect]
    ) -> None:
        super().__init__(scene, targets, effects)
        self.scene = scene
        self.naturals_ns: Mapping[Link, float] = {}

    async def __aenter__(self) -> "PacedFault":
        self.naturals_ns = by_clocks(self.scene, list(self.effects))  # if we come no further
        delay_s = min((effect.delay_s for effect in self.effects.values()), default=0.0)
        self.naturals_ns = await naturals(self.scene, list(self.effects), delay_s)
        await super().__aenter__()
        return self

    async def observe(self) -> Observation:
        own = await self._seen(healed=False)
        others = await sight(self.scene, self._watched() - self.effects.keys())
        return self._told(own, [other for other in others if other.open], healed=False)

    async def observe_healed(self) -> Observation:
        while True:
            while any(self.scene.links.effect(link).drop >= 1 for link in self.effects):
                await self.scene.bed.sleep(LOOK_EVERY_S)
            own = await self._seen(healed=True)
            if not self.hidden(own, healed=True):
                return self._told(own, (), healed=True)

    # ------------------------------------------------------------- for the kinds to fill in

    async def measure(self) -> Sequence[Measured]:
        """All own links."""
        raise NotImplementedError

    def odd(self, measured: Sequence[Measured], healed: bool) -> Sequence[Measured]:
        """Those not hidden that are not as the rules in force say or, healed, are as they were."""
        raise NotImplementedError

    def hidden(self, measured: Sequence[Measured], healed: bool) -> Sequence[Measured]:
        """Those of which nothing can be seen, since another fault cuts them; nor, while this one is
        in force, where others do more of the same."""
        return [
            each
            for each in measured
            if each.hidden or (not healed and outdone(self.effects[each.link], each.wanted))
        ]

    def figures(self, measured: Sequence[Measured]) -> tuple[Mapping[str, Any], str]:
        """What was measured, as evidence and in words."""
        raise NotImplementedError

    # --------------------------------------------------------------------------- inside

    async def _seen(self, healed: bool) -> Sequence[Measured]:
        """Several looks, until each link was seen to be as it should be."""
        seen: list[Measured] = []

        async def settled() -> bool:
            odd = {each.link for each in self.odd(seen, healed)} if seen else set(self.effects)
            good = {each.link: each for each in seen if each.link not in odd}
            seen[:] = [good.get(each.link, each) for each in await self.measure()]
            return not self.odd(seen, healed)

        await reached(self.scene.bed, settled, self.scene.bed.now_ns() + self._patience_s() * NS)
        return seen

    def _patience_s(self) -> float:
        uneven = [one.delay_s + one.jitter_s for one in self.effects.values() if one.jitter_s]
        return PATIENCE_S + (LOOKS - 1) * max(uneven, default=0.0)

    def _told(
        self, own: Sequence[Measured], others: Sequence[Sighting], healed: bool
    ) -> Observation:
        odd, hidden = self.odd(own, healed), self.hidden(own, healed)
        good = len(own) - len(odd) - len(hidden)
        closed = [other for other in others if not other.as_laid()]
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
            **({} if healed else {self.told: self._by_sink()}),
        }
        if good and not odd and not closed:
            return Observation("installed", evidence, words)
        return Observation("partial" if good else "failed", evidence, words)
