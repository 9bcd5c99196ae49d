"""Random trials of a minute on a safe profile: `seeds.py [FIRST LAST]`, seeds 1 to 10.

Kill, pause, partition and loss on brokers and controllers. Each must be valid, and the naive script
must find nothing lost. Ends with 1 at the first deviation.
"""

import sys
import time
from pathlib import Path

import run_command
from naive_loss import lost


def main() -> int:
    first, last = (int(word) for word in (sys.argv[1:] or ("1", "10")))
    trial = run_command.ROOT / "suites" / "trials" / "random.toml"
    for seed in range(first, last + 1):
        began = time.monotonic()
        done = run_command.seatrial("run", trial, "--seed", seed, runs=Path("runs"))
        if done.code not in (0, 1, 2):
            print(done.words)
            return 1
        naive, events = lost(done.run), sum(done.verdict["events"].values())
        print(
            f"seed {seed:3}  {done.verdict['verdict']:8}  naive {naive:6,}  {events:9,} events"
            f"  {len(run_command.faults(done.run)):2} faults  {time.monotonic() - began:3.0f} s"
            f"  {done.run.name}",
            flush=True,
        )
        if done.code or naive:
            print(done.words)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
