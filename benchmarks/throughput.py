"""Throughput of Flotilla's modes, side by side: `python benchmarks/throughput.py [ROUNDS]`.

Real processes on this machine, three brokers (a pair with ZooKeeper mode), one client process with
as many sends open as the workload allows. The profiles take turns in each round, so that other load
of the machine strikes all of them; ratios are taken within a round. Prints a JSON object: PROFILE,
acknowledged sends a second (median of the rounds), PROFILE_share, those over the asynchronous
profile's (median), and the smallest and the largest of these shares.
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from flotilla import TRIAL, per_second

from harness.run import launch

BASELINE = "unsafe-default"
PROFILES = (BASELINE, "allack-min2", "switchless-sync", "raft-log", "zk-ha")
LASTS_S = 6.0


def acknowledged(profile: str) -> float:
    """Return the acknowledged sends of a second, the median of a short load."""
    trial = TRIAL.with_({"duration_s": LASTS_S, "profile": profile, "recover_within_s": 60.0})
    with tempfile.TemporaryDirectory() as folder:
        return float(median(per_second(launch.run(trial, "", runs=Path(folder)))))


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rounds = [{profile: acknowledged(profile) for profile in PROFILES} for _ in range(count)]
    figures: dict[str, float] = {}
    for profile in PROFILES:
        name = profile.replace("-", "_")
        shares = [each[profile] / each[BASELINE] for each in rounds]
        figures[name] = median(each[profile] for each in rounds)
        figures[f"{name}_share"] = round(median(shares), 3)
        figures[f"{name}_share_min"] = round(min(shares), 3)
        figures[f"{name}_share_max"] = round(max(shares), 3)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
