"""Mutated inputs for every decoder: `decode_mutations.py [NUMBER [KIND]]`; NUMBER is 10,000 by
default.

The kinds share them by the speed of their decoders. `runs/mutated.json` stores how many of each
kind were decoded, so that the next call continues there, and each exception that escaped, with the
number of its input: `mutations.carried(KIND, NUMBER, 1)` repeats it. The exit code is 1 if any
escaped.
"""

import json
import os
import sys
import time
from pathlib import Path

import lab_paths  # noqa: F401 - the labs below are found by it

# isort: split

import mutations

KEPT = Path("runs", "mutated.json")
SHARES = {"frames": 40, "lines": 15, "toml": 12, "json": 10, "porcupine": 7}
SHARES |= {"edn": 6, "csv": 4, "parquet": 2, "sealed": 2, "streams": 2}
STEP = 20_000


def main() -> int:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    kinds = sys.argv[2:] or list(mutations.KINDS)
    os.nice(10)
    KEPT.parent.mkdir(exist_ok=True)
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {"inputs": {}, "escaped": []}
    whole, began_s = sum(SHARES[kind] for kind in kinds), time.monotonic()
    for kind in kinds:
        left = number * SHARES[kind] // whole
        while left:
            some, first = min(left, STEP), known["inputs"].get(kind, 0)
            tally = mutations.carried(kind, first, some)
            left -= some
            known["inputs"][kind] = first + some
            known["escaped"] += [[kind, *one] for one in tally.escaped]
            KEPT.write_text(json.dumps(known, indent=1))
            print(
                f"{time.monotonic() - began_s:5.0f} s  {kind:10} {first + some:9,}  read "
                f"{tally.read:,}, refused {tally.refused:,}, escaped {tally.escaped}, "
                f"slow {tally.slow}",
                flush=True,
            )
    print(f"{sum(known['inputs'].values()):,} inputs in all, {len(known['escaped'])} escaped")
    return 1 if known["escaped"] else 0


if __name__ == "__main__":
    sys.exit(main())
