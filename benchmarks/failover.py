"""Failover of a killed master at timeScale 1: `python benchmarks/failover.py [kills]`.

The master of a broker set is killed again and again under load, each time until the cluster is
whole again. Two times are taken for each kill: from the fault's application to the first send that
was invoked after it and acknowledged; and from the first failure that clients saw to their first
success after it, which is how failover is usually published (0: no send failed, for the client
retried until the next master was there).
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import launch
from harness.journal import read_stream
from harness.operation import F, Type
from harness.rundir import RunDir
from harness.trial import Trial

WANTED_S = 2.0
TRIAL = Trial(
    name="failover",
    profile="allack-min2",
    settings={"timeScale": 1.0},
    load={"rate": 400},
    short_faults=True,  # a killed process is seen at once, long before a silent one would be
)
FIRST_S, EVERY_S, DOWN_S = 5.0, 8.0, 2.0


@dataclass(frozen=True)
class Sent:
    begun: int
    ended: int
    ok: bool


def plan(kills: int) -> str:
    fault = '[[fault]]\nkind = "kill"\ntarget = "master"\nat_s = {}\nfor_s = {}\n'
    return "\n".join(fault.format(FIRST_S + n * EVERY_S, DOWN_S) for n in range(kills))


def rows(run: RunDir, table: str) -> Iterator[dict[str, int]]:
    for path in sorted(run.journal.glob(f"{table}-*.arrows")):
        for batch in read_stream(path):
            yield from batch.to_pylist()


def sends(run: RunDir) -> list[Sent]:
    begun = {}
    ended = []
    for row in rows(run, "ops"):
        if row["f"] == F.SEND and row["type"] == Type.INVOKE:
            begun[row["op"]] = row["t"]
        elif row["f"] == F.SEND:
            ended.append(Sent(begun[row["op"]], row["t"], row["type"] == Type.OK))
    return sorted(ended, key=lambda sent: sent.ended)


def failovers(run: RunDir) -> list[tuple[float, float]]:
    """For each kill: seconds to the first acknowledged send, and from failure to success."""
    all_sends = sends(run)
    times = []
    for fault in {row["id"]: row for row in rows(run, "faults")}.values():
        killed = fault["applied"]
        after = [sent for sent in all_sends if killed <= sent.ended < killed + EVERY_S * 1e9]
        served = next(sent.ended for sent in after if sent.ok and sent.begun >= killed)
        failed = next((s.begun for s in after if not s.ok), None)
        again = next((s.ended for s in after if s.ok and failed and s.begun > failed), 0)
        times.append(((served - killed) / 1e9, (again - failed) / 1e9 if failed else 0.0))
    return times


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    trial = TRIAL.with_({"duration_s": FIRST_S + kills * EVERY_S})
    with tempfile.TemporaryDirectory() as folder:
        times = failovers(launch.run(trial, plan(kills), runs=Path(folder)))
    for at, name in enumerate(("killed to acknowledged", "failure to success")):
        ordered = sorted(pair[at] for pair in times)
        p90 = ordered[len(ordered) * 9 // 10]
        print(f"{name}: p50 {median(ordered):.3f} s, p90 {p90:.3f} s, most {ordered[-1]:.3f} s")
    print(f"{len(times)} kills, profile {TRIAL.profile}, timeScale {TRIAL.settings['timeScale']:g}")
    return 0 if median(first for first, _ in times) <= WANTED_S else 1


if __name__ == "__main__":
    sys.exit(main())
