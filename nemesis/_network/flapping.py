"""Links that are cut, open, and cut again, until the fault is healed.

The first cut lasts until it was observed like any other. Every later one is looked at while it
lasts; how many came, and how many of those were seen, is told with the healing. Where it broke off,
or fewer than half were seen, the fault was not kept up. The links are the same each time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.contracts import Effect, Link, Node, Observation, Scene
from harness.errors import in_words
from nemesis._network.drop_probe import sight
from nemesis._network.link_fault import LinkFault


class Flapping(LinkFault):
    """A fault of links that comes and goes."""

    def __init__(
        self,
        scene: Scene,
        targets: Sequence[Node],
        effects: Mapping[Link, Effect],
        on_s: float,
        off_s: float,
    ) -> None:
        super().__init__(scene, targets, effects)
        self._bed, self._links = scene.bed, scene.links
        self._on_s, self._off_s = on_s, off_s
        self._seen_first = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._came, self._looked, self._seen, self._error = 1, 0, 0, ""

    async def __aenter__(self) -> "Flapping":
        await super().__aenter__()
        self._work = asyncio.create_task(self._flap())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._work:
            self._work.cancel()
            (ended,) = await asyncio.gather(self._work, return_exceptions=True)
            self._error = in_words(ended) if isinstance(ended, Exception) else ""
        await super().__aexit__(*exc)

    async def observe(self) -> Observation:
        try:
            first = await super().observe()
        finally:
            self._seen_first.set()
        self._looked += 1
        self._seen += first.state == "installed"
        return first

    async def observe_healed(self) -> Observation:
        healed = await super().observe_healed()
        flaps = {"came": self._came, "looked_at": self._looked, "seen": self._seen}
        return replace(healed, evidence={**healed.evidence, **flaps})

    @property
    def broke_off(self) -> str:
        if not self._error and 2 * self._seen < self._looked:
            return f"it was seen {self._seen} of {self._looked} times"
        return self._error

    async def _flap(self) -> None:
        await self._seen_first.wait()
        await self._bed.sleep(self._on_s)
        while True:
            await self._links.lift(self)
            await self._bed.sleep(self._off_s)
            await self._links.lay(self, self.effects)
            self._came += 1
            began_ns = self._bed.now_ns()
            sightings = await sight(self._scene, self.effects)
            self._looked += 1
            self._seen += all(sighting.as_laid() for sighting in sightings)
            took_s = (self._bed.now_ns() - began_ns) / 1e9
            await self._bed.sleep(max(0.0, self._on_s - took_s))
