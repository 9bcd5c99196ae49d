"""The same seven nodes on each kind of hosts: `python benchmarks/hosts.py KIND [key=value ...]`.

KIND is local, docker or ssh, `key=value` an option of the hosts (`inventory=hosts.toml`). Two
trials are run: one at a light load in which partitions, losses, pauses and kills of seven nodes
take turns, for the times from a fault's beginning to its being applied and seen; and one at full
load without faults, for operations a second. Both tell how long the cluster took to be healthy,
from an installed Seatrial and, for docker, a built image. Compare kinds measured on one machine.
"""

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from _recorded import rows

from harness.cli.options import toml_value
from harness.history.rundir import RunDir
from harness.operation import F, Type
from harness.run import launch
from harness.trial import Trial

TURNS = 8
KINDS = {
    "partition": '{ shape = "halves", clients = true }',
    "loss": "{ probability = 0.3 }",
    "pause": "{}",
    "kill": "{}",
}
FIRST_S, EVERY_S, FOR_S = 2.0, 2.0, 0.5
FULL_S = 20.0
NODES = {"nameserver": 1, "controller": 3, "broker": 3}
BROKEN = Trial(name="hosts-broken", nodes=NODES, short_faults=True, load={"rate": 100})
FULL = Trial(
    name="hosts-full",
    nodes=NODES,
    duration_s=FULL_S,
    load={"rate": 0, "producers": 4, "concurrency": 64, "body_bytes": 100},
)


def plan() -> str:
    """Every kind in turn; each fault is over long before the next."""
    faults = []
    for number in range(TURNS * len(KINDS)):
        kind = list(KINDS)[number % len(KINDS)]
        target = "" if kind == "partition" else 'target = "one slave"\n'
        at_s = FIRST_S + number * EVERY_S
        faults.append(
            f'[[fault]]\nkind = "{kind}"\n{target}at_s = {at_s}\nfor_s = {FOR_S}\n'
            f"params = {KINDS[kind]}\n"
        )
    return "\n".join(faults)


def phases_s(run: RunDir) -> Mapping[str, float]:
    """When each phase of the story began, in seconds since the runner's start."""
    return {row["text"]: row["t"] / 1e9 for row in rows(run, "notes") if row["process"] is None}


def acknowledged_a_second(run: RunDir) -> float:
    """Median over the whole seconds of the load."""
    state = run.state()
    seconds: Counter[int] = Counter()
    for row in rows(run, "ops"):
        if row["f"] == F.SEND and row["type"] == Type.OK:
            seconds[(row["t"] - state["load_began_ns"]) // 1_000_000_000] += 1
    return median(seconds[second] for second in range(1, int(FULL_S) - 1))


def tell_faults(run: RunDir) -> None:
    faults = {row["id"]: row for row in rows(run, "faults")}.values()
    applied, seen = defaultdict(list), defaultdict(list)
    for fault in faults:
        if fault["state"] == "installed":
            applied[fault["kind"]].append((fault["applied"] - fault["begin"]) / 1e6)
            seen[fault["kind"]].append((fault["observed"] - fault["begin"]) / 1e6)
    for kind, ms in applied.items():
        print(
            f"  {kind:10} begin to applied: median {median(ms):6.1f} ms, worst {max(ms):6.1f}; "
            f"to seen: median {median(seen[kind]):6.1f} ms ({len(ms)} of {TURNS})"
        )


def main() -> int:
    kind = sys.argv[1] if len(sys.argv) > 1 else "local"
    bed = {key: toml_value(raw) for key, _, raw in (a.partition("=") for a in sys.argv[2:])}
    broken_s = FIRST_S + TURNS * len(KINDS) * EVERY_S
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        more = {"hosts": kind, "bed": bed}
        broken = launch.run(BROKEN.with_({**more, "duration_s": broken_s}), plan(), runs=runs)
        full = launch.run(FULL.with_(more), "", runs=runs)
        print(f"{kind} hosts {json.dumps(bed) if bed else ''}")
        for run in (broken, full):
            phases = phases_s(run)
            print(f"  healthy after {phases['raised']:.2f} s, clients after {phases['load']:.2f} s")
        tell_faults(broken)
        print(f"  full load: {acknowledged_a_second(full):,.0f} acknowledged a second (median)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
