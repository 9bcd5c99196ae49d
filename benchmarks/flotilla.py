"""Recorded operations per second against Flotilla: `python benchmarks/flotilla.py [seconds]`.

One crew process, three brokers on this machine, every replica acknowledging (`allack-min2`), as
many sends open as the workload allows; everything is journalled. The number is the median over the
seconds of the load, all of which have a write quorum: nothing is broken here.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median

from harness.history.journal import read_stream
from harness.history.rundir import RunDir
from harness.operation import F, Type
from harness.run import launch
from harness.trial import Trial

WANTED_PER_S = 5_000
TRIAL = Trial(
    name="throughput",
    profile="allack-min2",
    nodes={"client": 1},
    load={"rate": 0, "producers": 4, "concurrency": 32},
)


def per_second(run: RunDir) -> list[int]:
    """Acknowledged sends in each full second of the load."""
    began = run.state()["load_began_ns"]
    ended = run.state()["load_ended_ns"]
    counts: Counter[int] = Counter()
    for path in run.journal.glob("ops-*.arrows"):
        for batch in read_stream(path):
            columns = (batch.column(name).to_pylist() for name in ("t", "type", "f"))
            counts.update(
                (t - began) // 10**9
                for t, kind, f in zip(*columns, strict=True)
                if kind == Type.OK and f == F.SEND
            )
    return [counts[second] for second in range(1, (ended - began) // 10**9)]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    trial = TRIAL.with_({"duration_s": seconds})
    with tempfile.TemporaryDirectory() as folder:
        rates = per_second(launch.run(trial, "", runs=Path(folder)))
    print(
        f"{median(rates):,.0f} operations/s acknowledged by all replicas and recorded "
        f"(median of {len(rates)} seconds; least {min(rates):,}, most {max(rates):,})"
    )
    return 0 if median(rates) >= WANTED_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
