"""Which broker a producer had better avoid for a while, and which queue it takes: pure.

Every answer tells how long it took, and every failure counts as a very slow one. From the latency a
table of RocketMQ's gives for how long the broker is avoided; two tables were published, and both
can be chosen. The choice of a queue goes round, and takes the first that is

    1. on an available broker of another set than the last try's,
    2. on the least bad of the brokers that are known to be bad (`pick_one_at_least`),
    3. on a broker of another set than the last try's that a probe has not found unreachable,
    4. just the next one.

Brokers are known by their address, not by their set's name as in the original: whoever is elected
after a failure must not be avoided for what its predecessor did.

A broker whose circuit breaker is open (capacity/breaker.py) is passed over in every step but the
last: fault tolerance learns from answers, the breaker from their absence.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .place import Place


@dataclass(frozen=True)
class Avoidance:
    """From which latency on a broker is avoided for how long, in seconds; both ascending."""

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
        # RocketMQ 5, and the one of the versions before that the seed article shows
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
    """What is known of one broker. `until`: it is avoided before; `probe_at`: when it is due."""

    latency_s: float
    until: float
    reachable: bool = True
    probe_at: float = 0.0


class Faults:
    """The brokers heard of, by address."""

    def __init__(self, avoidance: Avoidance) -> None:
        self._avoidance = avoidance
        self._known: dict[str, Fault] = {}

    def answered(self, address: str, latency_s: float, now: float) -> None:
        until = now + self._avoidance.lasts_s(latency_s)
        self._known[address] = Fault(latency_s, until)

    def failed(self, address: str, now: float, reachable: bool = True) -> None:
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
        """The least bad of the known ones among these; None: there is none."""
        known = {a: f for a, f in self._known.items() if f.reachable and a in among}
        return min(known, key=lambda a: (now < known[a].until, known[a].latency_s, a), default=None)

    # the detector's

    def due(self, now: float) -> list[str]:
        """Whom to probe now."""
        return [address for address, fault in self._known.items() if now >= fault.probe_at]

    def probed(self, address: str, reached: bool, again_at: float) -> None:
        if address in self._known:
            known = self._known[address]
            self._known[address] = replace(known, reachable=reached, probe_at=again_at)


def choose(
    places: Sequence[Place],
    turn: int,
    last: str,
    faults: Faults | None,
    usable: Callable[[str], bool],
    now: float,
) -> Place | None:
    """The queue for a try. `turn`: goes up by one each time; `last`: the last try's broker set;
    `usable`: may this address be called, by its circuit breaker?"""
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
