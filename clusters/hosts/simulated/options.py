"""Options of simulated hosts: the network and the disks without faults.

    latency_ms      one-way latency of a link      spread        a link may be so many times slower
    jitter_ms       maximum of a random addition   split, join   chances that a piece arrives as
                                                                 two, or waits for the next
    sync_ms         maximum of a usual sync        slow_sync_ms  maximum of a slow one
    slow_syncs      share of slow syncs
    drift_ppm       maximum error of the rate of a node's clock, in millionths
    choices         chance of an unusual answer at an enabled choice point of Flotilla; 0: never

The defaults are those of a quiet data center. A campaign draws the options for each seed (`swarm`),
because different worlds find more than one average world.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from clusters.hosts._world.disk import SyncTimes
from clusters.hosts._world.network import Wire
from harness.errors import BadRequest

MS = 1_000_000
_MAX = {
    "split": 0.5,
    "join": 0.5,
    "slow_syncs": 1.0,
    "spread": 100.0,
    "drift_ppm": 20_000.0,
    "choices": 0.5,
}
MAX_MS = 10_000.0
# limits of campaigns: with slower links or disks, answers come too late at timeScale 0.1
MAX_SWARM_MS = 40.0
MAX_SWARM_SYNC_MS = 200.0


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Chances and shares from 0 to 1; `spread` from 1; times in milliseconds."""

    latency_ms: float = 0.2
    jitter_ms: float = 0.1
    spread: float = 1.0
    split: float = 0.02
    join: float = 0.02
    sync_ms: float = 0.4
    slow_sync_ms: float = 15.0
    slow_syncs: float = 0.01
    drift_ppm: float = 0.0
    choices: float = 0.0

    @classmethod
    def of(cls, bed: Mapping[str, Any]) -> "SimulationOptions":
        """Return the options of the table. Raises BadRequest that names the key."""
        defaults = {field.name: field.default for field in fields(cls)}
        for key, raw in bed.items():
            if key not in defaults:
                names = ", ".join(defaults)
                raise BadRequest(
                    f"bed.{key} is not an option of simulated hosts; there are: {names}"
                )
            least, most = 1.0 if key == "spread" else 0.0, _MAX.get(key, MAX_MS)
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

    def pace(self) -> SyncTimes:
        least_ns = min(SyncTimes.least_ns, int(self.sync_ms * MS))
        return SyncTimes(
            least_ns=least_ns,
            usual_ns=max(least_ns, int(self.sync_ms * MS)),
            slow_ns=max(least_ns, int(self.slow_sync_ms * MS)),
            slow_share=self.slow_syncs,
        )


def swarm(random: Random) -> dict[str, float]:
    """Return random options of one seed: mostly low latency and fast disks, sometimes not."""
    latency_ms = (
        _log_uniform(random, 0.05, 1.0) if random.random() < 0.7 else _log_uniform(random, 1, 20)
    )
    sync_ms = (
        _log_uniform(random, 0.1, 2.0) if random.random() < 0.7 else _log_uniform(random, 2, 20)
    )
    jitter_ms = latency_ms * random.choice((0.0, 0.5, 3.0))
    most = max(1.0, MAX_SWARM_MS / (latency_ms + jitter_ms))
    drawn = {
        "latency_ms": latency_ms,
        "jitter_ms": jitter_ms,
        "spread": min(most, random.choice((1.0, 1.0, 4.0, 20.0))),
        "split": random.choice((0.0, 0.02, 0.2)),
        "join": random.choice((0.0, 0.02, 0.2)),
        "sync_ms": sync_ms,
        "slow_sync_ms": min(MAX_SWARM_SYNC_MS, sync_ms * random.choice((2, 10, 50))),
        "slow_syncs": random.choice((0.0, 0.01, 0.1)),
        "choices": 0.0 if random.random() < 0.5 else _log_uniform(random, 0.01, 0.3),
    }
    return {name: round(value, 3) for name, value in drawn.items()}


def _log_uniform(random: Random, low: float, high: float) -> float:
    """Return a log-uniform random number."""
    return float(low * (high / low) ** random.random())
