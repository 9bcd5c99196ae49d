"""Throughput of Flotilla's modes, side by side: `python benchmarks/throughput.py [ROUNDS]`.

Real processes on this machine, three brokers (a pair with ZooKeeper mode), one client process with
as many sends open as the workload allows. The asynchronous profile runs before and after each other
one, and a share is taken of the mean of both, so that other load of the machine strikes both alike.
Prints a JSON object: PROFILE, acknowledged sends a second (median of the rounds), PROFILE_share,
those over the asynchronous profile's (median), and the smallest and the largest of these shares.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from flotilla import TRIAL, per_second

from harness.run import launch

BASELINE = "unsafe-default"
PROFILES = ("allack-min2", "switchless-sync", "raft-log", "zk-ha")
LASTS_S = 6.0
Round = Mapping[str, tuple[float, float]]


def acknowledged(profile: str) -> float:
    """Return the acknowledged sends of a second, the median of a short load."""
    trial = TRIAL.with_({"duration_s": LASTS_S, "profile": profile, "recover_within_s": 60.0})
    with tempfile.TemporaryDirectory() as folder:
        return float(median(per_second(launch.run(trial, "", runs=Path(folder)))))


def one_round(measure: Callable[[str], float]) -> Round:
    """Return the rate of each profile, and the mean of the baseline's before and after it."""
    found, before = {}, measure(BASELINE)
    for profile in PROFILES:
        rate, after = measure(profile), measure(BASELINE)
        found[profile] = (rate, (before + after) / 2)
        before = after
    return found


def figures(rounds: Sequence[Round]) -> dict[str, float]:
    """Return medians of the rates, and of their shares of the baseline's around them."""
    found = {_name(BASELINE): median(base for each in rounds for _, base in each.values())}
    for profile in rounds[0]:
        name = _name(profile)
        shares = [each[profile][0] / each[profile][1] for each in rounds]
        found[name] = median(each[profile][0] for each in rounds)
        found[f"{name}_share"] = round(median(shares), 3)
        found[f"{name}_share_min"] = round(min(shares), 3)
        found[f"{name}_share_max"] = round(max(shares), 3)
    return found | {f"{_name(BASELINE)}_share": 1.0}


def _name(profile: str) -> str:
    return profile.replace("-", "_")


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(json.dumps(figures([one_round(acknowledged) for _ in range(count)])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
