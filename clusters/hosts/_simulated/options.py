"""The options of simulated hosts: what their wires and disks are like while nothing is wrong.

    latency_ms       of every wire, one way          spread      a wire may be so many times slower
    jitter_ms        at most so much more            split, join   chances that a piece arrives as
                                                     two, or waits for the next
    sync_ms          a usual sync takes at most      slow_sync_ms  a slow one takes at most
    slow_syncs       the share of slow ones
    drift_ppm        at most so many millionths of a second does a second of a node's clock differ

Left out, they are those of a quiet machine room. A campaign draws them anew for each seed
(`swarm`), for worlds that differ find more than one world that is average.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from harness.errors import BadRequest

from .disk import Pace
from .network import Wire

MS = 1_000_000
_MOST = {"split": 0.5, "join": 0.5, "slow_syncs": 1.0, "spread": 100.0, "drift_ppm": 20_000.0}
MOST_MS = 10_000.0
# of a campaign: slower wires or syncs leave no time for an answer at timeScale 0.1
SLOWEST_MS = 40.0
SLOWEST_SYNC_MS = 200.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Chances and shares from 0 to 1, `spread` from 1; of times, milliseconds."""

    latency_ms: float = 0.2
    jitter_ms: float = 0.1
    spread: float = 1.0
    split: float = 0.02
    join: float = 0.02
    sync_ms: float = 0.4
    slow_sync_ms: float = 15.0
    slow_syncs: float = 0.01
    drift_ppm: float = 0.0

    @classmethod
    def of(cls, bed: Mapping[str, Any]) -> "Options":
        """What the table says. BadRequest names the key."""
        known = {field.name: field.default for field in fields(cls)}
        for key, raw in bed.items():
            if key not in known:
                names = ", ".join(known)
                raise BadRequest(
                    f"bed.{key} is not an option of simulated hosts; there are: {names}"
                )
            least, most = 1.0 if key == "spread" else 0.0, _MOST.get(key, MOST_MS)
            number = isinstance(raw, int | float) and not isinstance(raw, bool)
            if not number or not least <= raw <= most:
                raise BadRequest(
                    f"bed.{key} must be a number from {least:g} to {most:g}, not {raw!r}"
                )
        return cls(**bed)

    def wire(self) -> Wire:
        return Wire(
            latency_ns=max(1_000, int(self.latency_ms * MS)),
            jitter_ns=int(self.jitter_ms * MS),
            split=self.split,
            join=self.join,
            spread=self.spread,
        )

    def pace(self) -> Pace:
        least_ns = min(Pace.least_ns, int(self.sync_ms * MS))
        return Pace(
            least_ns=least_ns,
            usual_ns=max(least_ns, int(self.sync_ms * MS)),
            slow_ns=max(least_ns, int(self.slow_sync_ms * MS)),
            slow_share=self.slow_syncs,
        )


def swarm(random: Random) -> dict[str, float]:
    """The options of one seed: usually near each other on good disks, now and then not."""
    latency_ms = _between(random, 0.05, 1.0) if random.random() < 0.7 else _between(random, 1, 20)
    sync_ms = _between(random, 0.1, 2.0) if random.random() < 0.7 else _between(random, 2, 20)
    jitter_ms = latency_ms * random.choice((0.0, 0.5, 3.0))
    most = max(1.0, SLOWEST_MS / (latency_ms + jitter_ms))
    drawn = {
        "latency_ms": latency_ms,
        "jitter_ms": jitter_ms,
        "spread": min(most, random.choice((1.0, 1.0, 4.0, 20.0))),
        "split": random.choice((0.0, 0.02, 0.2)),
        "join": random.choice((0.0, 0.02, 0.2)),
        "sync_ms": sync_ms,
        "slow_sync_ms": min(SLOWEST_SYNC_MS, sync_ms * random.choice((2, 10, 50))),
        "slow_syncs": random.choice((0.0, 0.01, 0.1)),
    }
    return {name: round(value, 3) for name, value in drawn.items()}


def _between(random: Random, low: float, high: float) -> float:
    """As likely in each octave."""
    return float(low * (high / low) ** random.random())
