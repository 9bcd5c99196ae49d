"""Random trials of a minute on a safe profile: `seeds.py [FIRST LAST]`, seeds 1 to 10.

Kill, pause, partition and loss on brokers and controllers. Each must be valid, and the naive script
must find nothing lost. Ends with 1 at the first deviation.
"""

import sys
import time
from pathlib import Path

import sailing
from naive_loss import lost


def main() -> int:
    first, last = (int(word) for word in (sys.argv[1:] or ("1", "10")))
    trial = sailing.ROOT / "suites" / "trials" / "random.toml"
    for seed in range(first, last + 1):
        began = time.monotonic()
        voyage = sailing.seatrial("run", trial, "--seed", seed, runs=Path("runs"))
        if voyage.code not in (0, 1, 2):
            print(voyage.words)
            return 1
        naive, events = lost(voyage.run), sum(voyage.verdict["events"].values())
        print(
            f"seed {seed:3}  {voyage.verdict['verdict']:8}  naive {naive:6,}  {events:9,} events"
            f"  {len(sailing.faults(voyage.run)):2} faults  {time.monotonic() - began:3.0f} s"
            f"  {voyage.run.name}",
            flush=True,
        )
        if voyage.code or naive:
            print(voyage.words)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
