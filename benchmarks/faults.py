"""Time and CPU of each kind of fault on hosts: `python benchmarks/faults.py KIND [key=value ...]`.

KIND is local, docker or ssh, `key=value` an option of the hosts (`inventory=hosts.toml`). In one
trial of seven nodes, a client and 20 sends a second, every fault that these hosts can do is
injected and healed as `seatrial list faults --verify` does, ROUNDS times, each on a cluster that is
whole again. A kind that can be shown in several ways (five shapes of partitions) has as many faults
a round.

Times are medians of the run's own rows, while this process looks at all others ten times a second,
which takes some of the processors; `benchmarks/hosts.py` times some kinds without that. CPU is the
mean of all faults of a kind, with its standard error: what was used from the fault's beginning
until it was seen healed, less what is used in as
long a part of a quiet time of the same run, before the first fault. It contains the watching of a
fault while it lasts, and not the waiting for a whole cluster between two. *Runner*, and *agents*
with the tools they start, are what faults cost. *Gates* are between nodes and their disks: they
work for each write of the cluster, so that column is mostly more or less load than in the quiet
time, as when a client has crashed. Where few milliseconds stand beside an error as large, read
nothing into them; that short tools are counted in ticks of 10 ms (`_sampled`) is in the error.
After `<=` processes of the cluster or clients ended, and what they used while they died could not
be told from the tools of the agents that reaped them. Not seen at all is the work of the kernel for
packets, and of others: dockerd, containerd, sshd.

On docker and ssh hosts the nodes must be on this machine, and no other run on hosts of that kind.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from _figures import table
from _recorded import faults, rows
from _sampled import OURS, Sampled, Used

from harness import registry
from harness.cli.options import toml_value
from harness.run import launch
from harness.selftest import faults as verifying
from harness.trial import Trial

ROUNDS = 3
NODES = {"nameserver": 1, "controller": 3, "broker": 3}
SETTLED_S, QUIET_S = 3.0, 20.0  # after the load began
REST_S = 0.2
AFTER = f"cluster is whole + {REST_S:g} s within 60 s"
HEADINGS = (
    *("fault", "seen", "to applied, ms", "to seen", "to healed"),
    *("runner, CPU ms", "agents and tools", "gates"),
)
Row = Mapping[str, Any]


def planned(kind: str, bed: Mapping[str, Any]) -> tuple[Trial, str, Mapping[str, str]]:
    """The trial, the plan of all faults in rounds, and why others can not be had."""
    asked = Trial(name="faults", nodes=NODES, hosts=kind, bed=bed)
    request, lacking = verifying.verification_plan(asked, ())
    nemesis, at_s = registry.nemesis(), SETTLED_S + QUIET_S
    once = nemesis.load(request.plan_text or "").faults
    plan = [replace(fault, at_s=at_s, after=AFTER) for _ in range(ROUNDS) for fault in once]
    longest_s = max(fault.at_s + REST_S + fault.for_s for fault in plan)
    plan[0] = replace(plan[0], after="")
    return replace(request.trial, duration_s=longest_s), nemesis.dump(plan), lacking


def line(
    kind: str, tried: Sequence[Row], epoch_ns: int, sampled: Sampled, quiet: Used
) -> list[str]:
    """Of the table."""
    good = [row for row in tried if row["state"] == "installed" and row["healed"] is not None]
    told = [kind, f"{len(good)} of {len(tried)}"]
    if not good:
        return told + ["-"] * (len(HEADINGS) - len(told))
    for since, until in (("begin", "applied"), ("begin", "observed"), ("heal", "healed")):
        told.append(f"{median((row[until] - row[since]) / 1e6 for row in good):.1f}")
    used = [sampled.between(epoch_ns + row["begin"], epoch_ns + row["healed"]) for row in good]
    above = [each.above(quiet) for each in used]
    runner, agents, gates = (figure([ms[role] for ms in above]) for role in OURS)
    at_most = "<= " if any(each.ended for each in used) else ""
    return [*told, runner, at_most + agents, gates]


def figure(values: Sequence[float]) -> str:
    """Mean and its standard error."""
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{mean(values):.1f} ± {error:.1f}"


def main() -> int:
    kind = sys.argv[1] if len(sys.argv) > 1 else "local"
    bed = {key: toml_value(raw) for key, _, raw in (a.partition("=") for a in sys.argv[2:])}
    trial, plan, lacking = planned(kind, bed)
    heard: dict[str, int] = {}  # when each phase of the run was told, on this process's clock

    def hear(status: launch.Status) -> None:
        if phase := status.get("phase"):
            heard.setdefault(phase, time.monotonic_ns())

    with tempfile.TemporaryDirectory() as folder, Sampled(kind != "local") as sampled:
        run = launch.run(trial, plan, hear, Path(folder))
        noted = {row["text"]: row["t"] for row in rows(run, "notes")}
        began_ns, error, found = run.state()["load_began_ns"], run.state().get("error"), faults(run)
    # a phase is told right after it is noted, so the shortest way is nearest to the truth
    epoch_ns = min(at_ns - noted[phase] for phase, at_ns in heard.items() if phase in noted)
    first = min(row["begin"] for row in found if row["begin"] is not None)
    quiet = sampled.between(epoch_ns + began_ns + int(SETTLED_S * 1e9), epoch_ns + first)
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_kind[row["kind"]].append(row)
    print(f"{kind} hosts, {ROUNDS} rounds{f'; the run failed: {error}' if error else ''}")
    told = [line(name, by_kind[name], epoch_ns, sampled, quiet) for name in sorted(by_kind)]
    print(table(HEADINGS, told))
    each = ", ".join(f"{role} {ms / quiet.seconds:.1f}" for role, ms in quiet.ms.items())
    print(f"quiet time of {quiet.seconds:.1f} s, CPU ms a second: {each}")
    for name, why in lacking.items():
        print(f"not here: {name}: {why}")
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
