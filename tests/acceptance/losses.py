"""Run a plan that must lose messages, again and again: `losses.py [TIMES]`.

Each run must be invalid with LOST_ACKED, at least 1,000 of them for the plan that kills, and as
many as the naive script counts. Ends with 1 at the first deviation.
`--profile allack-min2` demands the opposite: nothing lost, valid.
"""

import argparse
import sys
import time
from pathlib import Path

import run_command
from naive_loss import lost

LEAST = {"isolate-then-kill": 1000, "isolate-from-controllers": 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=20)
    parser.add_argument("--plan", choices=LEAST, default="isolate-then-kill")
    parser.add_argument("--profile", default="unsafe-default")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    asked = parser.parse_args()
    least = LEAST[asked.plan] if asked.profile == "unsafe-default" else 0
    argv = ["run", "messages", "--system", "flotilla", "--hosts", "local"]
    argv += ["--profile", asked.profile, "--plan", run_command.PLANS / f"{asked.plan}.toml"]
    for number in range(asked.times):
        began = time.monotonic()
        done = run_command.seatrial(*argv, runs=asked.runs)
        if done.code not in (0, 1, 2):
            print(done.words)
            return 1
        found, naive = done.findings["LOST_ACKED"], lost(done.run)
        sound = found == naive >= least if least else (done.code, found, naive) == (0, 0, 0)
        took_s = time.monotonic() - began
        print(
            f"{number + 1:3}  exit {done.code}  LOST_ACKED {found:6,}  naive {naive:6,}"
            f"  {took_s:3.0f} s  {done.run.name}",
            flush=True,
        )
        if not sound or (least and done.code != 1):
            print(done.words)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
