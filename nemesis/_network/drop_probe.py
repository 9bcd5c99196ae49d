"""Drop probe: checks that each link drops what its rules say, with datagrams between the agents.

A cut link is confirmed if none of its probes arrives and the receiver's own rule counted all of
them: silence alone could be a broken probe, and the counter alone could be other traffic. An open
link is confirmed if all of its probes arrive. A lossy link is confirmed if the number that arrives
out of 200 lies in the central interval that holds 99.9 % of the binomial distribution (divided
among the links probed together, so that a fault of many links is not called partial by chance), and
if its rule counted a drop. With a small loss, 200 probes may all arrive; then as many are sent as
are needed to make that practically impossible. A lossy link that deviates is probed again, at most
twice, because some deviate by chance.

Packets of one link arrive in the order they were sent, so when a later *fence* probe has arrived,
every earlier probe has arrived or never will; no timeout is guessed. Only where the rules in force
let packets overtake each other, the probe waits for as long as a packet may be late.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil, exp, lgamma, log

from harness.contracts import FaultContext, Link, LinkEffect, TestBed
from harness.contracts.cluster_view import Omniscient
from nemesis._network.shapes import sources_by_sink
from nemesis._runner.waiting import NS, wait_until

PROBES = 10  # on a link that is open or cut
LOSS_PROBES = 200  # minimum, on a lossy link
MAX_ALL_ARRIVE = 5e-5  # probability that a lossy link loses none of its probes
VOLLEY = 40  # lossy probes at a time: a datagram socket's buffer holds about 250
TIMEOUT_S = 1.0
ATTEMPTS = 3
CONFIDENCE = 0.999
MAX_QUEUE_S = 1.0  # of a narrow link, in seconds of its rate
MIN_FULL_BYTES = 16_384  # the queue holds at least this


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The result of a link's probes; `drop` is the share that the rules in force drop."""

    link: Link
    drop: float
    sent: int
    arrived: int
    counted: int  # drops that the receiver's rule counted meanwhile, of any traffic
    narrow: bool = False  # its rate is limited, so it may drop what exceeds the queue

    @property
    def open(self) -> bool:
        """Whether all probes must arrive."""
        return self.drop <= 0 and not self.narrow

    def matches_rules(self, links: int = 1) -> bool:
        """Return whether the link does what its rules say, if `links` are judged together."""
        if self.drop >= 1:
            return self.arrived == 0 and self.counted >= self.sent
        if self.drop <= 0:
            return self.arrived == self.sent
        chance = (1 - CONFIDENCE) / links
        return self.counted > 0 and is_plausible(self.arrived, self.sent, 1 - self.drop, chance)


def loss_probe_count(drop: float) -> int:
    """Return the number of probes that confirms such a loss."""
    return max(LOSS_PROBES, ceil(log(MAX_ALL_ARRIVE) / log(1 - drop)))


@cache
def is_plausible(seen: int, of: int, p: float, chance: float) -> bool:
    """Return whether `seen` lies in the central interval that a binomial misses with `chance`."""
    below, above = _tails(of, p)
    return below[seen] > chance / 2 and above[of - seen] > chance / 2


@cache
def _tails(of: int, p: float) -> tuple[Sequence[float], Sequence[float]]:
    """Return the probabilities of at most k arrivals, and of at most k losses."""
    chances = [_binomial(k, of, p) for k in range(of + 1)]
    return tuple(accumulate(chances)), tuple(accumulate(reversed(chances)))


def _binomial(k: int, n: int, p: float) -> float:
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return exp(ways + k * log(p) + (n - k) * log(1 - p))


async def probe_links(scene: FaultContext, links: Iterable[Link]) -> tuple[ProbeResult, ...]:
    """Probe the links; all receivers at the same time."""
    if world := scene.bed.omniscient:
        return tuple(_simulate(scene, world, link) for link in sorted(set(links)))
    by_sink = sources_by_sink(await _existing(scene.bed, set(links)))
    groups = await asyncio.gather(
        *(_probe_undisturbed(scene, sink, sources) for sink, sources in by_sink.items())
    )
    return tuple(result for group in groups for result in group)


async def _existing(bed: TestBed, links: set[Link]) -> set[Link]:
    """Return the links without those of nodes that have no network now, on which nothing can be
    seen: attached containers that are down."""
    nodes = sorted({node for link in links for node in link})
    lacks = await asyncio.gather(*(bed.agents[node].lacks("network") for node in nodes))
    down = {node for node, why in zip(nodes, lacks, strict=True) if why}
    return {link for link in links if down.isdisjoint(link)}


def _simulate(scene: FaultContext, hosts: Omniscient, link: Link) -> ProbeResult:
    """Probe a link of a simulated world, which takes no time."""
    drop = scene.links.effect(link).drop
    count = loss_probe_count(drop) if 0 < drop < 1 else PROBES
    for _ in range(ATTEMPTS):
        result = ProbeResult(link, drop, count, *hosts.packets(*link, count))
        if result.matches_rules():
            break
    return result


async def _probe_undisturbed(
    scene: FaultContext, sink: str, sources: list[str]
) -> list[ProbeResult]:
    """Probe while no other fault replaces the receiver's rules; give up after five attempts."""
    for _ in range(5):
        version = scene.links.version(sink)
        receiver = _Receiver(scene, sink, sources)
        results = await receiver.probe_plain() + await receiver.probe_lossy()
        if version == scene.links.version(sink):
            break
    return results


class _Receiver:
    """One node that probes are sent to, and the nodes that send them."""

    def __init__(self, scene: FaultContext, sink: str, sources: list[str]) -> None:
        self.bed: TestBed = scene.bed
        self.sink = sink
        self.address = self.bed.node(sink).address
        self.agent = self.bed.agents[sink]
        self.wanted = {source: scene.links.effect((source, sink)) for source in sources}
        self.drop = {source: effect.drop for source, effect in self.wanted.items()}
        self.serial = scene.random.getrandbits(48)  # makes the tokens of this round unique

    async def probe_plain(self) -> list[ProbeResult]:
        """Probe the links that are open or cut, with a few packets each."""
        sources = [source for source, drop in self.drop.items() if drop in (0.0, 1.0)]
        if not sources:
            return []
        before = await self.agent.dropped()
        await asyncio.gather(*(self._send(source, "plain", PROBES) for source in sources))
        results: list[ProbeResult] = []

        async def settled() -> bool:
            after = await self.agent.dropped() if 1.0 in self.drop.values() else before
            results[:] = [await self._result(source, before, after) for source in sources]
            return all(r.matches_rules() or (r.narrow and r.drop <= 0) for r in results)

        timeout_s = max(probe_timeout_s(self.wanted[source]) for source in sources)
        await wait_until(self.bed, settled, self.bed.now_ns() + timeout_s * NS)
        return results

    async def _result(
        self, source: str, before: Mapping[str, int], after: Mapping[str, int]
    ) -> ProbeResult:
        address = self.bed.node(source).address
        counted = after.get(address, 0) - before.get(address, 0)
        arrived = await self.agent.probed(self._token(source, "plain"))
        link, wanted = (source, self.sink), self.wanted[source]
        return ProbeResult(link, wanted.drop, PROBES, arrived, counted, wanted.narrow)

    async def probe_lossy(self) -> list[ProbeResult]:
        """Probe the lossy links, with volleys that each end with a fence."""
        return [await self._lossy(source) for source, drop in self.drop.items() if 0.0 < drop < 1.0]

    async def _lossy(self, source: str) -> ProbeResult:
        for attempt in range(ATTEMPTS):
            result = await self._lossy_once(source, f"loss{attempt}")
            if result.matches_rules():
                break
        return result

    async def _lossy_once(self, source: str, name: str) -> ProbeResult:
        address = self.bed.node(source).address
        before = (await self.agent.dropped()).get(address, 0)
        count = loss_probe_count(self.drop[source])
        for sent in range(0, count, VOLLEY):
            await self._send(source, name, min(VOLLEY, count - sent))
            await self._fence(source, f"{name}-fence{sent}")
        counted = (await self.agent.dropped()).get(address, 0) - before
        arrived = await self.agent.probed(self._token(source, name))
        return ProbeResult((source, self.sink), self.drop[source], count, arrived, counted)

    async def _fence(self, source: str, name: str) -> None:
        async def passed() -> bool:
            await self._send(source, name, 10)
            return await self.agent.probed(self._token(source, name)) > 0

        effect = self.wanted[source]
        await wait_until(self.bed, passed, self.bed.now_ns() + probe_timeout_s(effect) * NS)
        if effect.reorder:
            await self.bed.sleep(effect.delay_s + effect.jitter_s)

    async def _send(self, source: str, name: str, count: int) -> None:
        await self.bed.agents[source].probe(self.address, self._token(source, name), count)

    def _token(self, source: str, name: str) -> str:
        return f"{source}>{self.sink}/{self.serial:x}/{name}"


def probe_timeout_s(effect: LinkEffect) -> float:
    """Return how long a probe may take on such a link."""
    rates = [rate for rate in (effect.bytes_per_s, effect.node_bytes_per_s) if rate]
    waits_s = sum(max(MAX_QUEUE_S, MIN_FULL_BYTES / rate) for rate in rates)
    return TIMEOUT_S + effect.delay_s + effect.jitter_s + waits_s
