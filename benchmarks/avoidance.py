"""How long clients avoid a broker: `python benchmarks/avoidance.py`; pure, no time passes.

Prints a JSON object: seconds of avoidance after a failure and after an answer that took 600 ms, by
the tables of RocketMQ 4 (*former*) and RocketMQ 5 (*current*), and after answers that took each
time of the former table; and the milliseconds after which a circuit breaker opens for a broker from
which answers are due and none comes.
"""

import json
import sys

from clusters.flotilla.client.breaker import Breaker, BreakerState
from clusters.flotilla.client.faults import AVOIDANCES, Faults
from clusters.flotilla.client.settings import ClientSettings

SLOW_S = 0.6
FORMER_MS = (50, 100, 550, 1000, 2000, 3000, 15000)
STEP_S = 0.001
LONGEST_S = 10_000


def avoided_s(table: str, latency_s: float | None) -> float:
    """Return for how many seconds a broker is not available; None: after a failure."""
    faults = Faults(AVOIDANCES[table])
    if latency_s is None:
        faults.record_failure("broker", 0.0)
    else:
        faults.record_latency("broker", latency_s, 0.0)
    return float(next(now for now in range(LONGEST_S) if faults.available("broker", now)))


def opens_after_s(breaker: Breaker) -> float:
    """Return the time from a call without an answer to the opening."""
    breaker.record_call(0.0)
    now = 0.0
    while breaker.state(now) is not BreakerState.OPEN:
        now += STEP_S
    return now


def main() -> int:
    figures = {
        f"{table}_{word}_s": avoided_s(table, latency_s)
        for table in ("former", "current")
        for word, latency_s in (("failed", None), ("slow", SLOW_S))
    }
    figures |= {f"former_{ms}ms_s": avoided_s("former", ms / 1000) for ms in FORMER_MS}
    limits = ClientSettings.of({"namesrvAddr": []}).breaker
    figures["breaker_ms"] = round(1000 * opens_after_s(Breaker(limits)), 1)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
