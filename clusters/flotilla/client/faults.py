"""Which broker a producer avoids for a while, and which queue it chooses. Pure.

Every answer is recorded with its latency, and every failure counts as a very long one. A table of
RocketMQ's gives from the latency for how long the broker is avoided; two tables were published, and
both can be chosen. The queues are tried in turn, and the producer takes the first

    1. on an available broker of another set than the last try's,
    2. on the least bad of the known brokers (`pick_one_at_least`),
    3. on a broker of another set than the last try's that no probe has found unreachable,
    4. or just the next one.

A broker is known by its address, not by the name of its set as in RocketMQ: a newly elected broker
must not be avoided for the failures of its predecessor.

A broker whose circuit breaker is open (breaker.py) is skipped in every step but the last:
fault avoidance learns from answers, the breaker from their absence. See docs/flotilla-design.md,
Clients and fault avoidance.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .route_cache import QueueLocation


@dataclass(frozen=True)
class Avoidance:
    """A table: from which latency a broker is avoided for how long, in seconds; both ascending."""

    from_s: tuple[float, ...]
    for_s: tuple[float, ...]
    failure_s: float  # the latency that a failure counts as

    def lasts_s(self, latency_s: float) -> float:
        steps = zip(self.from_s, self.for_s, strict=True)
        return max((lasts_s for at_s, lasts_s in steps if latency_s >= at_s), default=0.0)

    def scaled(self, by: float) -> "Avoidance":
        times = (tuple(s * by for s in self.from_s), tuple(s * by for s in self.for_s))
        return Avoidance(*times, self.failure_s * by)


AVOIDANCES: Mapping[str, Avoidance] = MappingProxyType(
    {
        # of RocketMQ 5, and of RocketMQ 4
        "current": Avoidance(
            (0.05, 0.1, 0.55, 1.8, 3, 5, 15), (0, 0, 2, 5, 6, 10, 30), failure_s=10
        ),
        "former": Avoidance(
            (0.05, 0.1, 0.55, 1, 2, 3, 15), (0, 0, 30, 60, 120, 180, 600), failure_s=30
        ),
    }
)


@dataclass(frozen=True)
class Fault:
    """The state of one broker. `until`: end of the avoidance; `probe_at`: when a probe is due."""

    latency_s: float
    until: float
    reachable: bool = True
    probe_at: float = 0.0


class Faults:
    """The brokers that the producer has used, by address."""

    def __init__(self, avoidance: Avoidance) -> None:
        self._avoidance = avoidance
        self._known: dict[str, Fault] = {}

    def record_latency(self, address: str, latency_s: float, now: float) -> None:
        until = now + self._avoidance.lasts_s(latency_s)
        self._known[address] = Fault(latency_s, until)

    def record_failure(self, address: str, now: float, reachable: bool = True) -> None:
        latency_s = self._avoidance.failure_s
        until = now + self._avoidance.lasts_s(latency_s)
        self._known[address] = Fault(latency_s, until, reachable)

    def available(self, address: str, now: float) -> bool:
        known = self._known.get(address)
        return known is None or now >= known.until

    def reachable(self, address: str) -> bool:
        known = self._known.get(address)
        return known is None or known.reachable

    def pick_one_at_least(self, among: Collection[str], now: float) -> str | None:
        """Return the least bad of the known brokers among these, None if there is none."""
        known = {a: f for a, f in self._known.items() if f.reachable and a in among}
        return min(known, key=lambda a: (now < known[a].until, known[a].latency_s, a), default=None)

    # for the detector

    def due(self, now: float) -> list[str]:
        """Return the brokers to probe now."""
        return [address for address, fault in self._known.items() if now >= fault.probe_at]

    def record_probe(self, address: str, reached: bool, again_at: float) -> None:
        if address in self._known:
            known = self._known[address]
            self._known[address] = replace(known, reachable=reached, probe_at=again_at)


def choose(
    places: "Sequence[QueueLocation]",
    turn: int,
    last: str,
    faults: Faults | None,
    usable: Callable[[str], bool],
    now: float,
) -> "QueueLocation | None":
    """Return the queue for a try. `turn`: the number of the try; `last`: the broker set of the last
    try; `usable`: whether the circuit breaker of an address allows calls."""
    if not places:
        return None
    start = turn % len(places)
    turned = [*places[start:], *places[:start]]
    allowed = [p for p in turned if usable(p.address)]
    others = [p for p in allowed if p.broker_name != last]
    if faults is None:
        return (others or allowed or turned)[0]
    for place in others:
        if faults.available(place.address, now):
            return place
    least = faults.pick_one_at_least([p.address for p in allowed], now)
    on_least = [p for p in allowed if p.address == least]
    reachable = [p for p in (*others, *allowed) if faults.reachable(p.address)]
    return (on_least or reachable or turned)[0]
