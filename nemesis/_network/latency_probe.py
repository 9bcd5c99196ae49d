"""How late is what a link carries, and how much of it arrives a second? Asked of the world, by
datagrams between the agents that carry their number and the time.

The clocks of two nodes need not agree. Before a fault is applied, the quickest datagram of a link
says how far apart they are and how long the way is, in one figure: what comes on top of it later is
the fault's. No packet is ever quicker than the rules let it be, however busy a machine is; so a
link is late when all of its datagrams are, and not late any more as soon as one of them is not.
Likewise for a narrow link: what got through can not have taken less time than there was room for.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.contracts import Effect, Flight, Link, Scene
from harness.contracts.cluster_view import Overseen
from nemesis._network.drop_probe import patience
from nemesis._runner.waiting import NS, reached

COUNT, SMALL_BYTES = 20, 64
HEADERS_BYTES = 28  # of IP and UDP: they need room too
PATIENCE_S = 0.3  # for a quick datagram, before there is a fault
QUICK = 0.125  # ... of the delay that is to be added
LOOKS = 3


@dataclass(frozen=True)
class Measured:
    """What became of a link's datagrams. `wanted`: what the rules in force want of the link;
    `natural_ns`: what the two clocks and the way alone make between sending and arriving."""

    link: Link
    wanted: Effect
    natural_ns: float
    sent: int
    size_bytes: int
    flights: Sequence[Flight]

    @property
    def late_s(self) -> list[float]:
        """What was added to each one's way."""
        ways = (flight.arrived_ns - flight.sent_ns for flight in self.flights)
        return [(way - self.natural_ns) / NS for way in ways]

    @property
    def hidden(self) -> bool:
        """Whether another fault lets nothing through, so that nobody can see what else it is."""
        return self.wanted.drop >= 1

    @property
    def overtaken(self) -> int:
        """How many arrived after one that was sent later."""
        last, count = -1, 0
        for flight in self.flights:
            count += flight.number < last
            last = max(last, flight.number)
        return count


def per_s(group: Sequence[Measured]) -> float:
    """Bytes a second that arrived on links that lead to one node, measured together."""
    begun = [f.sent_ns + m.natural_ns for m in group for f in m.flights]
    ended = [f.arrived_ns for m in group for f in m.flights]
    if not ended:
        return 0.0
    carried = sum(len(m.flights) * (m.size_bytes + HEADERS_BYTES) for m in group)
    late_s = min(m.wanted.delay_s for m in group)
    return carried / max((max(ended) - min(begun)) / NS - late_s, 1e-6)


async def naturals(scene: Scene, links: Sequence[Link], delay_s: float = 0.0) -> dict[Link, float]:
    """What is between sending and arriving while the fault is not there. Of a link that carries
    nothing just now, what an earlier fault found, or else what the clocks say of each other."""
    clocks, hosts = by_clocks(scene, links), scene.bed.hosts
    if isinstance(hosts, Overseen):
        return {
            link: clocks[link] + hosts.way_ns(*link) + _far_s(scene, link) * NS for link in links
        }
    ways_s, slow = scene.links.ways_s, set(links)

    async def quick() -> bool:
        flying = (_hasty(scene, link, clocks[link]) for link in sorted(slow))
        for measured in await asyncio.gather(*flying):
            way_s = _own_way(measured)
            if way_s is not None:
                ways_s[measured.link] = min(way_s, ways_s.get(measured.link, way_s))
            quick_s = _far_s(scene, measured.link) + delay_s * QUICK
            if way_s is None or not delay_s or way_s <= quick_s:
                slow.discard(measured.link)
        return not slow

    await reached(scene.bed, quick, scene.bed.now_ns() + PATIENCE_S * NS)
    return {link: clocks[link] + ways_s.get(link, _far_s(scene, link)) * NS for link in links}


def _far_s(scene: Scene, link: Link) -> float:
    """By nature, as a fault has to see it."""
    return scene.links.distance(link).delay_s


def by_clocks(scene: Scene, links: Sequence[Link]) -> dict[Link, float]:
    """What the clocks of its ends make between sending and arriving on each link."""
    return {link: _apart_ns(scene, link) for link in links}


def _own_way(measured: Measured) -> float | None:
    """Seconds of the quickest, without what other faults add. Where nothing arrives, or packets
    wait for their turn, nobody knows."""
    wanted = measured.wanted
    if wanted.narrow or not measured.flights:
        return None
    return min(measured.late_s) - (0.0 if wanted.reorder else wanted.delay_s)


async def fly(
    scene: Scene,
    links: Sequence[Link],
    naturals_ns: Mapping[Link, float],
    count: int = COUNT,
    size_bytes: int = SMALL_BYTES,
) -> list[Measured]:
    """Measure the links, all at once."""
    return await asyncio.gather(
        *(_steady(scene, link, naturals_ns[link], count, size_bytes) for link in links)
    )


def by_sink(links: Sequence[Link]) -> Iterator[list[Link]]:
    """The links that lead to each node."""
    for sink in sorted({sink for _, sink in links}):
        yield [link for link in links if link[1] == sink]


async def _hasty(scene: Scene, link: Link, natural_ns: float) -> Measured:
    """As it comes: a fault waits for it to be applied. A narrow link is left alone."""
    wanted = scene.links.effect(link)
    within_s = PATIENCE_S + wanted.delay_s + wanted.jitter_s
    flights: Sequence[Flight] = ()
    if wanted.drop < 1 and not wanted.narrow:
        flights = await _flown(scene, link, COUNT, SMALL_BYTES, within_s)
    return Measured(link, wanted, natural_ns, COUNT, SMALL_BYTES, flights)


async def _steady(
    scene: Scene, link: Link, natural_ns: float, count: int, size_bytes: int
) -> Measured:
    """While no other fault replaced the receiver's rules, if that can be had."""
    for _ in range(LOOKS):
        version, wanted = scene.links.version(link[1]), scene.links.effect(link)
        flights: Sequence[Flight] = ()
        if wanted.drop < 1:
            flights = await _flown(scene, link, count, size_bytes, patience(wanted))
        if version == scene.links.version(link[1]):
            break
    return Measured(link, wanted, natural_ns, count, size_bytes, flights)


async def _flown(
    scene: Scene, link: Link, count: int, size_bytes: int, within_s: float
) -> Sequence[Flight]:
    source, sink = link
    bed, agents = scene.bed, scene.bed.agents
    token = f"{source}>{sink}/{scene.random.getrandbits(48):x}"
    await agents[source].fly(bed.node(sink).address, token, count, size_bytes)
    if isinstance(bed.hosts, Overseen):  # it is known already when they will arrive
        return await agents[sink].flown(token)
    landed: list[Flight] = []

    async def all_landed() -> bool:
        landed[:] = await agents[sink].flown(token)
        return len(landed) >= count

    await reached(bed, all_landed, bed.now_ns() + within_s * NS)
    return tuple(landed)


def _apart_ns(scene: Scene, link: Link) -> float:
    source, sink = (scene.bed.hosts.clock(name) for name in link)
    return float(sink.offset_ns - source.offset_ns)
