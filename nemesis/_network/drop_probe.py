"""Does each link do what its rules say? Asked of the world, by datagrams between the agents.

A cut link is seen when none of its probes arrives and the receiver's own rule counted all of them:
silence alone might be a broken prober, a counter alone might be other traffic's. An open link is
seen when all of its probes arrive. A lossy link is seen when the number that arrives out of 200
lies in the central interval that holds 99.9 % of the binomial distribution, shared out among the
links measured together so that a sound fault of many links is not called partial by chance; and
when its rule counted a drop. Of a small loss 200 probes may well all arrive, as they would without
any: then as many more are sent as it takes for that to be next to impossible.

Packets of one link arrive in the order they were sent, so when a later *fence* probe has arrived,
every earlier probe has arrived too or never will. Nothing waits for a guessed time. Only where some
overtake others by the rules in force, they are waited for as long as one may be late.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil, exp, lgamma, log

from harness.contracts import Bed, Effect, Link, Scene
from harness.contracts.cluster_view import Overseen
from nemesis._runner.waiting import NS, reached

PROBES = 10  # on a link that is open or cut
LOSS_PROBES = 200  # on a link that loses some, at least
SPARED = 5e-5  # the chance that such a link loses none of its probes, at most
VOLLEY = 40  # lossy probes at a time: a datagram socket's buffer holds some 250
PATIENCE_S = 1.0
LOOKS = 3
CONFIDENCE = 0.999
FULL_S = 1.0  # what waits for a narrow link, at most: in seconds of its rate
LEAST_FULL_BYTES = 16_384  # ... but never less


@dataclass(frozen=True)
class Sighting:
    """What became of a link's probes; `drop` is what the rules in force want."""

    link: Link
    drop: float
    sent: int
    arrived: int
    counted: int  # drops that the receiver's rule counted meanwhile, of whatever traffic
    narrow: bool = False  # it may lose what it has no room for

    @property
    def open(self) -> bool:
        """Whether all that is sent must arrive."""
        return self.drop <= 0 and not self.narrow

    def as_laid(self, among: int = 1) -> bool:
        """Whether the link does what its rules say, when `among` links are judged together."""
        if self.drop >= 1:
            return self.arrived == 0 and self.counted >= self.sent
        if self.drop <= 0:
            return self.arrived == self.sent
        chance = (1 - CONFIDENCE) / among
        return self.counted > 0 and plausible(self.arrived, self.sent, 1 - self.drop, chance)


def loss_probes(drop: float) -> int:
    """How many it takes to see such a loss."""
    return max(LOSS_PROBES, ceil(log(SPARED) / log(1 - drop)))


@cache
def plausible(seen: int, of: int, p: float, chance: float) -> bool:
    """Whether `seen` lies in the central interval that a binomial misses with this chance."""
    below, above = _tails(of, p)
    return below[seen] > chance / 2 and above[of - seen] > chance / 2


@cache
def _tails(of: int, p: float) -> tuple[Sequence[float], Sequence[float]]:
    """The chances of at most so many, and of at most so many missing."""
    chances = [_binomial(k, of, p) for k in range(of + 1)]
    return tuple(accumulate(chances)), tuple(accumulate(reversed(chances)))


def _binomial(k: int, n: int, p: float) -> float:
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return exp(ways + k * log(p) + (n - k) * log(1 - p))


async def sight(scene: Scene, links: Iterable[Link]) -> tuple[Sighting, ...]:
    """Probe the links; all receivers at once."""
    if isinstance(scene.bed.hosts, Overseen):
        return tuple(_seen(scene, scene.bed.hosts, link) for link in sorted(set(links)))
    by_sink: dict[str, list[str]] = {}
    for source, sink in sorted(set(links)):
        by_sink.setdefault(sink, []).append(source)
    found = await asyncio.gather(
        *(_steady(scene, sink, sources) for sink, sources in by_sink.items())
    )
    return tuple(sighting for sightings in found for sighting in sightings)


def _seen(scene: Scene, hosts: Overseen, link: Link) -> Sighting:
    """In a world that is ours alone all probes come and go in the same instant. Of the thousands
    of looks in a campaign some are odd by chance, so an odd one is taken again."""
    drop = scene.links.effect(link).drop
    count = loss_probes(drop) if 0 < drop < 1 else PROBES
    for _ in range(LOOKS):
        sighting = Sighting(link, drop, count, *hosts.packets(*link, count))
        if sighting.as_laid():
            break
    return sighting


async def _steady(scene: Scene, sink: str, sources: list[str]) -> list[Sighting]:
    """Sightings during which no other fault replaced the receiver's rules, if that can be had."""
    for _ in range(5):
        version = scene.links.version(sink)
        receiver = _Receiver(scene, sink, sources)
        sightings = await receiver.plain() + await receiver.lossy()
        if version == scene.links.version(sink):
            break
    return sightings


class _Receiver:
    """One node that probes are sent to, and the nodes that send them."""

    def __init__(self, scene: Scene, sink: str, sources: list[str]) -> None:
        self.bed: Bed = scene.bed
        self.sink = sink
        self.address = self.bed.node(sink).address
        self.agent = self.bed.agents[sink]
        self.wanted = {source: scene.links.effect((source, sink)) for source in sources}
        self.drop = {source: effect.drop for source, effect in self.wanted.items()}
        self.serial = scene.random.getrandbits(48)  # tokens of no other round

    async def plain(self) -> list[Sighting]:
        """Links that are open or cut: a few probes on each."""
        sources = [source for source, drop in self.drop.items() if drop in (0.0, 1.0)]
        if not sources:
            return []
        before = await self.agent.dropped()
        await asyncio.gather(*(self._send(source, "plain", PROBES) for source in sources))
        seen: list[Sighting] = []

        async def settled() -> bool:
            after = await self.agent.dropped() if 1.0 in self.drop.values() else before
            seen[:] = [await self._look(source, before, after) for source in sources]
            return all(s.as_laid() or (s.narrow and s.drop <= 0) for s in seen)

        patience_s = max(patience(self.wanted[source]) for source in sources)
        await reached(self.bed, settled, self.bed.now_ns() + patience_s * NS)
        return seen

    async def _look(
        self, source: str, before: Mapping[str, int], after: Mapping[str, int]
    ) -> Sighting:
        address = self.bed.node(source).address
        counted = after.get(address, 0) - before.get(address, 0)
        arrived = await self.agent.probed(self._token(source, "plain"))
        link, wanted = (source, self.sink), self.wanted[source]
        return Sighting(link, wanted.drop, PROBES, arrived, counted, wanted.narrow)

    async def lossy(self) -> list[Sighting]:
        """Links that lose some: volleys, each with its fence."""
        return [await self._lossy(source) for source, drop in self.drop.items() if 0.0 < drop < 1.0]

    async def _lossy(self, source: str) -> Sighting:
        address = self.bed.node(source).address
        before = (await self.agent.dropped()).get(address, 0)
        count = loss_probes(self.drop[source])
        for sent in range(0, count, VOLLEY):
            await self._send(source, "loss", min(VOLLEY, count - sent))
            await self._fence(source, f"fence{sent}")
        counted = (await self.agent.dropped()).get(address, 0) - before
        arrived = await self.agent.probed(self._token(source, "loss"))
        return Sighting((source, self.sink), self.drop[source], count, arrived, counted)

    async def _fence(self, source: str, name: str) -> None:
        async def passed() -> bool:
            await self._send(source, name, 10)
            return await self.agent.probed(self._token(source, name)) > 0

        effect = self.wanted[source]
        await reached(self.bed, passed, self.bed.now_ns() + patience(effect) * NS)
        if effect.reorder:
            await self.bed.sleep(effect.delay_s + effect.jitter_s)

    async def _send(self, source: str, name: str, count: int) -> None:
        await self.bed.agents[source].probe(self.address, self._token(source, name), count)

    def _token(self, source: str, name: str) -> str:
        return f"{source}>{self.sink}/{self.serial:x}/{name}"


def patience(effect: Effect) -> float:
    """How many seconds a probe may take on such a link, once somebody looks for it."""
    rates = [rate for rate in (effect.bytes_per_s, effect.node_bytes_per_s) if rate]
    waits_s = sum(max(FULL_S, LEAST_FULL_BYTES / rate) for rate in rates)
    return PATIENCE_S + effect.delay_s + effect.jitter_s + waits_s
