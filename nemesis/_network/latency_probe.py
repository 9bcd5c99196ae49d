"""Latency probe: measures the delay and the throughput of links, with datagrams between the agents
that carry their number and the time.

The clocks of two nodes need not agree. Before a fault is applied, the fastest datagram of a link
gives the difference of the clocks plus the latency of the path, in one figure, the *baseline*. What
is added to it later is the fault's effect. No packet is faster than the rules allow, however busy a
machine is; so a link is delayed if all of its datagrams are, and no longer delayed as soon as one
is not. Likewise, packets on a narrow link cannot arrive faster than its rate allows.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.contracts import FaultContext, Link, LinkEffect, TimedDatagram
from nemesis._network.drop_probe import probe_timeout_s
from nemesis._runner.waiting import NS, wait_until

COUNT, SMALL_BYTES = 20, 64
HEADERS_BYTES = 28  # of IP and UDP, which count towards the rate
BASELINE_TIMEOUT_S = 0.3  # for a fast datagram, before there is a fault
FAST = 0.125  # a datagram is fast enough if it takes this share of the delay to be added
ATTEMPTS = 3


@dataclass(frozen=True)
class LinkMeasurement:
    """The result of a link's datagrams.

    wanted       the effect that the rules in force have on the link
    baseline_ns  the difference between sending and arriving without them
    """

    link: Link
    wanted: LinkEffect
    baseline_ns: float
    sent: int
    size_bytes: int
    flights: Sequence[TimedDatagram]

    @property
    def added_s(self) -> list[float]:
        """The delay of each datagram above the baseline."""
        took_ns = (flight.arrived_ns - flight.sent_ns for flight in self.flights)
        return [(ns - self.baseline_ns) / NS for ns in took_ns]

    @property
    def is_cut(self) -> bool:
        """Whether another fault lets nothing through, so that no delay can be measured."""
        return self.wanted.drop >= 1

    @property
    def overtaken(self) -> int:
        """The number of datagrams that arrived after one that was sent later."""
        last, count = -1, 0
        for flight in self.flights:
            count += flight.number < last
            last = max(last, flight.number)
        return count


def throughput(group: Sequence[LinkMeasurement]) -> float:
    """Return the bytes a second that arrived on links to one node, measured together."""
    begun = [f.sent_ns + m.baseline_ns for m in group for f in m.flights]
    ended = [f.arrived_ns for m in group for f in m.flights]
    if not ended:
        return 0.0
    carried = sum(len(m.flights) * (m.size_bytes + HEADERS_BYTES) for m in group)
    late_s = min(m.wanted.delay_s for m in group)
    return carried / max((max(ended) - min(begun)) / NS - late_s, 1e-6)


async def measure_baselines(
    scene: FaultContext, links: Sequence[Link], delay_s: float = 0.0
) -> dict[Link, float]:
    """Measure the difference between sending and arriving while the fault is not there.

    For a link that carries nothing at the moment it is what an earlier fault measured, or else the
    known difference of the clocks.
    """
    clocks = clock_offsets_ns(scene, links)
    if world := scene.bed.omniscient:
        return {
            link: clocks[link] + world.min_latency_ns(*link) + _distance_s(scene, link) * NS
            for link in links
        }
    min_latency_s, slow = scene.links.min_latency_s, set(links)

    async def all_fast() -> bool:
        work = (_measure_once(scene, link, clocks[link]) for link in sorted(slow))
        for measured in await asyncio.gather(*work):
            latency_s = _path_latency(measured)
            if latency_s is not None:
                min_latency_s[measured.link] = min(
                    latency_s, min_latency_s.get(measured.link, latency_s)
                )
            fast_s = _distance_s(scene, measured.link) + delay_s * FAST
            if latency_s is None or not delay_s or latency_s <= fast_s:
                slow.discard(measured.link)
        return not slow

    await wait_until(scene.bed, all_fast, scene.bed.now_ns() + BASELINE_TIMEOUT_S * NS)
    return {
        link: clocks[link] + min_latency_s.get(link, _distance_s(scene, link)) * NS
        for link in links
    }


def _distance_s(scene: FaultContext, link: Link) -> float:
    """Return the delay between the zones of the link's ends."""
    return scene.links.distance(link).delay_s


def clock_offsets_ns(scene: FaultContext, links: Sequence[Link]) -> dict[Link, float]:
    """Return the difference of the clocks of each link's ends, as the hosts know them."""
    clock = scene.bed.hosts.clock
    return {link: float(clock(link[1]).offset_ns - clock(link[0]).offset_ns) for link in links}


def _path_latency(measured: LinkMeasurement) -> float | None:
    """Return the seconds of the fastest datagram without the delay of other faults.

    None, unknown, if nothing arrived or packets are queued.
    """
    wanted = measured.wanted
    if wanted.narrow or not measured.flights:
        return None
    return min(measured.added_s) - (0.0 if wanted.reorder else wanted.delay_s)


async def measure_links(
    scene: FaultContext,
    links: Sequence[Link],
    baselines_ns: Mapping[Link, float],
    count: int = COUNT,
    size_bytes: int = SMALL_BYTES,
) -> list[LinkMeasurement]:
    """Measure the links, all at the same time."""
    return await asyncio.gather(
        *(
            _measure_undisturbed(scene, link, baselines_ns[link], count, size_bytes)
            for link in links
        )
    )


def by_sink(links: Sequence[Link]) -> Iterator[list[Link]]:
    """Group the links by the node to which they lead."""
    for sink in sorted({sink for _, sink in links}):
        yield [link for link in links if link[1] == sink]


async def _measure_once(scene: FaultContext, link: Link, baseline_ns: float) -> LinkMeasurement:
    """Measure without retries, because a fault waits to be applied. Narrow links are skipped."""
    wanted = scene.links.effect(link)
    within_s = BASELINE_TIMEOUT_S + wanted.delay_s + wanted.jitter_s
    flights: Sequence[TimedDatagram] = ()
    if wanted.drop < 1 and not wanted.narrow:
        flights = await _send(scene, link, COUNT, SMALL_BYTES, within_s)
    return LinkMeasurement(link, wanted, baseline_ns, COUNT, SMALL_BYTES, flights)


async def _measure_undisturbed(
    scene: FaultContext, link: Link, baseline_ns: float, count: int, size_bytes: int
) -> LinkMeasurement:
    """Measure while no other fault replaces the receiver's rules; give up after some attempts."""
    for _ in range(ATTEMPTS):
        version, wanted = scene.links.version(link[1]), scene.links.effect(link)
        flights: Sequence[TimedDatagram] = ()
        if wanted.drop < 1:
            flights = await _send(scene, link, count, size_bytes, probe_timeout_s(wanted))
        if version == scene.links.version(link[1]):
            break
    return LinkMeasurement(link, wanted, baseline_ns, count, size_bytes, flights)


async def _send(
    scene: FaultContext, link: Link, count: int, size_bytes: int, within_s: float
) -> Sequence[TimedDatagram]:
    """Send datagrams over the link; return those that arrived in time."""
    source, sink = link
    bed, agents = scene.bed, scene.bed.agents
    token = f"{source}>{sink}/{scene.random.getrandbits(48):x}"
    await agents[source].send_timed(bed.node(sink).address, token, count, size_bytes)
    if bed.omniscient:  # the arrivals are known at once
        return await agents[sink].timed_arrivals(token)
    arrived: list[TimedDatagram] = []

    async def all_arrived() -> bool:
        arrived[:] = await agents[sink].timed_arrivals(token)
        return len(arrived) >= count

    await wait_until(bed, all_arrived, bed.now_ns() + within_s * NS)
    return tuple(arrived)
