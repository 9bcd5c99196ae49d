"""Kill the command with SIGKILL while it runs a trial, again and again: `kills.py [TIMES]`.

Each time at another moment of set-up, faults, drain or check, and then: within 5 s nothing of the
run is left (processes, namespaces, mounts, rules), and a run that had begun can be judged: as
INTERRUPTED, unless it had come to its end, with exactly the events that its writers counted.
Ends with 1 at the first deviation. `--at MOMENT` kills in the middle of that moment only.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import leftovers
import sailing

GONE_WITHIN_S = 5.0
TRIAL = """\
duration_s = 10.0
faults = ["kill", "pause", "partition", "loss"]
[rhythm]
quiet_s = 1.0
fault_s = 5.0
recovery_s = 3.0
"""
# what the command says when the moment begins, and for how long it lasts, about
MOMENTS = {
    "set-up": (r"trial kills", 3.0),
    "faults": (r"fault \d+: .*: applied", 4.5),
    "drain": (r"phase: drain", 1.0),
    "check": (r"phase: checking", 3.0),
}


def killed(moment: str, after_s: float, folder: Path) -> str:
    """One command, killed; what was seen, in words. AssertionError at a deviation."""
    words, _ = MOMENTS[moment]
    before = leftovers.machine()
    mark = uuid.uuid4().hex
    (folder / "kills.toml").write_text(TRIAL)
    command = sailing.Sailing(
        "run", folder / "kills.toml", runs=folder / "runs", **{leftovers.MARK: mark}
    )
    try:
        command.until(words)
        time.sleep(after_s)
        belongings = leftovers.Belongings(command.process.pid, mark)
        belongings.look()
        command.signal(signal.SIGKILL)
        began = time.monotonic()
        sailing.wait(lambda: not belongings.left(), GONE_WITHIN_S, f"{belongings.left()} ending")
        gone_s = time.monotonic() - began
    finally:
        command.close()
    assert leftovers.machine() == before, f"{before} became {leftovers.machine()}"
    run = (folder / "runs" / "latest").resolve()
    return f"{len(belongings.seen)} processes gone in {gone_s:.1f} s; {judged(run)}"


def judged(run: Path) -> str:
    """The leftover run judged."""
    state = sailing.state(run)
    if "load_began_ns" not in state:
        return f"it had not begun ({state.get('phase', 'no folder')})"
    counted = sailing.counted(run)
    checked = sailing.seatrial("check", run, "--json", runs=run.parent)
    verdict = json.loads(checked.out)
    assert verdict == sailing.verdict(run), checked.err
    assert verdict["events"] == counted, f"{verdict['events']} judged, {counted} counted"
    if state["ended"]:
        assert (checked.code, verdict["verdict"]) == (0, "valid"), verdict["sentence"]
    else:
        assert (checked.code, verdict["verdict"]) == (2, "unknown"), verdict["sentence"]
        assert "INTERRUPTED" in sailing.reasons(verdict), verdict["sentence"]
    return f"phase {state['phase']}: {verdict['verdict']} of {counted.total():,} events"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=20)
    parser.add_argument("--at", choices=MOMENTS)
    asked = parser.parse_args()
    for number in range(asked.times):
        moment = asked.at or list(MOMENTS)[number % len(MOMENTS)]
        after_s = MOMENTS[moment][1] * (0.5 if asked.at else random.random())
        with tempfile.TemporaryDirectory(prefix="seatrial-kills-") as folder:
            print(f"{number + 1:3}  {moment:7} +{after_s:.2f} s  ", end="", flush=True)
            try:
                print(killed(moment, after_s, Path(folder)), flush=True)
            except AssertionError as deviation:
                print(f"DEVIATION: {deviation}")
                kept = Path(tempfile.mkdtemp(prefix="seatrial-deviation-"))
                os.rename(folder, kept / "run")
                print(f"kept in {kept}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
