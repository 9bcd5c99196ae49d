"""No needless elections: `python benchmarks/steady.py [seconds [profile [dledger|jraft]]]`.

At full load and timeScale 1. Half of the time nothing is broken; in the other half a server, drawn
by lot, is stopped for 200 ms again and again. The profile is `fast-failover` unless told otherwise,
which `benchmarks/recovery.py` measures, so that a quick recovery is not bought with elections that
nobody needed. Counted in the nodes' own event logs. The exit code is 1 when anything was elected or
changed, when the run failed, and when not all pauses were carried out.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from _recorded import faults

from harness.history.rundir import RunDir
from harness.run import launch
from harness.trial import Trial

TRIAL = Trial(
    name="steady",
    profile="fast-failover",
    settings={"timeScale": 1.0},
    load={"rate": 0, "producers": 4, "concurrency": 8, "body_bytes": 16},
    short_faults=True,  # that is the point: these pauses must not be noticed
)
PAUSE_S, EVERY_S = 0.2, 1.5
NEEDLESS = ("election", "leader", "set")


def pauses(seconds: float) -> str:
    """Pauses in the second half."""
    fault = '[[fault]]\nkind = "pause"\ntarget = "one server"\nat_s = {:.1f}\nfor_s = {}\n'
    half = seconds / 2
    moments = (half + n * EVERY_S for n in range(1, int((half - 2) / EVERY_S)))
    return "\n".join(fault.format(at, PAUSE_S) for at in moments)


def elections(run: RunDir) -> Counter[str]:
    """What the nodes decided while the load was on: broker elections, set changes, Raft leaders."""
    state = run.state()
    began, ended = state["load_began_ns"], state["load_ended_ns"]
    counts: Counter[str] = Counter()
    for path in run.path.glob("nodes/*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            at = event["mono"] * 1e9 - state["epoch_ns"]
            if began <= at <= ended:
                counts[event["kind"]] += 1
                counts["leader"] += event["kind"] == "raft" and event["state"] == "leader"
    return counts


def carried_out(run: RunDir) -> int:
    """How many pauses were in force, and are over."""
    return sum(row["state"] == "installed" and bool(row["healed"]) for row in faults(run))


def main() -> int:
    told = dict(enumerate(sys.argv))
    seconds, profile = float(told.get(1, "120")), told.get(2, TRIAL.profile)
    settings = {**TRIAL.settings, "controllerType": told.get(3, "dledger")}
    trial = TRIAL.with_({"duration_s": seconds, "profile": profile, "settings": settings})
    plan = pauses(seconds)
    planned = plan.count("[[fault]]")
    with tempfile.TemporaryDirectory() as folder:
        run = launch.run(trial, plan, runs=Path(folder))
        if why := run.state().get("error"):
            print(f"the run failed, so nothing is known: {why}")
            return 1
        counts, done = elections(run), carried_out(run)
    print(
        f"{counts['election']} elections of a master, {counts['leader']} of a controller, "
        f"{counts['set']} changes of a SyncStateSet in {seconds:g} s at full load, {profile}, "
        f"with {done} of {planned} pauses of {PAUSE_S:g} s in the second half"
    )
    needless = sum(counts[what] for what in NEEDLESS)
    return 1 if needless or done < planned else 0


if __name__ == "__main__":
    sys.exit(main())
