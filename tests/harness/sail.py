"""Runs a trial as `seatrial run` does and prints each status line: `python sail.py TRIAL RUNS`."""

import json
import sys
from pathlib import Path

from harness.errors import BedFailed
from harness.run import launch
from harness.trial import Trial


def main() -> int:
    trial = Trial.from_toml(Path(sys.argv[1]).read_text())
    plan = Path(trial.plan).read_text() if trial.plan else None
    try:
        run = launch.run(trial, plan, lambda status: print(json.dumps(status)), Path(sys.argv[2]))
    except BedFailed as e:
        print(json.dumps({"refused": str(e)}))
        return e.exit_code
    except KeyboardInterrupt:
        return 130
    print(json.dumps({"run": str(run.path)}))
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
