"""When a silent broker leaves the routes: `python benchmarks/route_expiry.py`; no time passes.

A nameserver's table is scanned as a nameserver scans it, a quarter of the time limit apart, and a
broker has to be silent at two checks. Prints a JSON object: `light_s`, the seconds until a silent
broker of ten is out, when brokers send light heartbeats every second with the time limit of the
configuration's default; `old_s`, the same when they register every 30 s and expire after 120 s, as
in RocketMQ 4. The `jitter` figures count the brokers that are removed within 60 s: if six of ten
fall silent at once with light heartbeats (the nameserver itself must be cut off), and if the rule
for that is switched off.
"""

import json
import sys
from collections.abc import Collection, Sequence

from clusters.flotilla.config import of_table
from clusters.flotilla.nameserver.nameserver import CHECKS
from clusters.flotilla.nameserver.route_table import (
    LightHeartbeat,
    Registration,
    RouteTable,
    displaces,
    is_deaf,
)

BROKERS = 10
STEP_S = 0.05
SETTLED_S = 300.0  # when some fall silent
LONGEST_S = 300.0
CONFIG = of_table({"role": "nameserver", "nodeName": "n", "listenHost": "h", "storePath": "s"})


def never_deaf(silences: Sequence[tuple[float, float]]) -> bool:
    """Return False: the nameserver never takes itself for cut off."""
    return False


class _Fleet:
    """Brokers that announce themselves every `every_s` to a table."""

    def __init__(self, timeout_s: float, every_s: float, deaf_rule: bool = True) -> None:
        rule = is_deaf if deaf_rule else never_deaf
        self.table = RouteTable(displaces, rule, CONFIG.channel_expired_s)
        self.timeout_s, self.every_s = timeout_s, every_s
        for number in range(BROKERS):
            self._register(number, 0.0)

    def removed(self, silent: Collection[int], lasts_s: float) -> dict[str, float]:
        """Return after how many seconds each broker was removed, `silent` ones among them."""
        due, check_at = dict.fromkeys(range(BROKERS), self.every_s), 0.0
        suspects: set[str] = set()
        gone: dict[str, float] = {}
        now = 0.0
        while now < SETTLED_S + lasts_s:
            now += STEP_S
            for number, at in due.items():
                if now >= at and not (number in silent and now >= SETTLED_S):
                    self._announce(number, now)
                    due[number] = now + self.every_s
            if now >= check_at:
                found = {one.addr for one in self.table.expired(now)}
                for addr in found & suspects:
                    self.table.unregister(f"set-{addr}", 0, addr)
                    gone.setdefault(addr, round(now - SETTLED_S, 2))
                suspects = found
                check_at = now + (STEP_S if found else self.timeout_s / CHECKS)
        return gone

    def _register(self, number: int, now: float) -> None:
        addr = f"b{number}"
        new = Registration("c", f"set-{addr}", 0, addr, addr, 1, self.timeout_s, {"t": 4})
        self.table.register(new, number, now)

    def _announce(self, number: int, now: float) -> None:
        addr = f"b{number}"
        beat = LightHeartbeat(f"set-{addr}", 0, addr, 0, 0)
        if not self.table.record_heartbeat(beat, number, now):
            self._register(number, now)


def main() -> int:
    light = (CONFIG.nameserver_timeout_s, CONFIG.broker_heartbeat_interval_s)
    old = (CONFIG.channel_expired_s, CONFIG.register_nameserver_s)
    six = range(6)
    figures = {
        "light_s": _Fleet(*light).removed({0}, LONGEST_S)["b0"],
        "old_s": _Fleet(*old).removed({0}, LONGEST_S)["b0"],
        "jitter_light_removed": len(_Fleet(*light).removed(six, 60.0)),
        "jitter_cut_removed": len(_Fleet(*light, deaf_rule=False).removed(six, 60.0)),
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
