"""Kill the command with SIGKILL while it runs a trial, again and again: `kills.py [TIMES]`.

Each time at another moment of set-up, faults, drain or check, and then: within 30 s nothing of
the run is left (processes, namespaces, mounts, rules), and a run that had begun can be judged: as
INTERRUPTED, unless it had come to its end, with exactly the events that its writers wrote.
Ends with 1 at the first deviation. `--at MOMENT` kills early in that moment only.

`--system NAME` kills in mid-fault, each time under another seed, and judges the first run only.

`--hosts local|docker|ssh` kills a short trial at random moments in labs of its own. What nodes hold
is removed by `heal`. Rows that were recorded are counted, and the time from the last of them to the
kill is measured: at most 50 ms, a pause as the load has by itself, and what a busy machine adds.
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
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import lab_paths  # noqa: F401 - the labs below are found by it

# isort: split

import docker_lab
import leftovers
import run_command
import ssh_lab
from host_labs import BY_KIND, HostLab

GONE_WITHIN_S = 30.0
TRIAL = """\
duration_s = 13.0
load = { rate = 100 }
faults = ["kill", "pause", "partition", "loss"]
[rhythm]
quiet_s = 3.0
fault_s = 6.0
recovery_s = 3.0
"""
SYSTEMS = {
    "etcd": "register",
    "postgres": "register",
    "zookeeper": "lock",
    "rabbitmq": "queue",
    "kafka": "messages",
    "rocketmq": "messages",
    **dict.fromkeys(("nats", "redis", "redis-cluster", "valkey-cluster"), "messages"),
}
OF_SYSTEM = """\
system = "{system}"
workload = "{workload}"
seed = {seed}
short_faults = true
targets = ["one server"]
"""
RANDOM = """\
duration_s = 5.0
short_faults = true
nodes = { controller = 1, broker = 2 }
load = { rate = 300 }
faults = ["kill", "pause", "partition", "loss"]
[rhythm]
quiet_s = 1.0
fault_s = 2.0
recovery_s = 1.0
"""
BEGINNINGS = ("", "phase: load", "phase: load")  # what it says when the time to the kill begins
WITHIN_S = 7.0  # of set-up, or of load, drain and the start of the check
LATEST_S = 30.0
FLUSH_MS = 50.0
BUSY_MS = 50.0  # what scheduling, and the way from a node, may add on a machine with other work
PAUSES_NS = 2_000_000_000  # the pauses of the load are those of so long before
# what the command says when the moment begins, and for how long it lasts, about
MOMENTS = {
    "set-up": (r"trial kills", 3.0),
    "faults": (r"fault \d+: .*: applied", 4.5),
    "drain": (r"phase: drain", 1.0),
    "check": (r"phase: checking", 3.0),
}


def killed(moment: str, after_s: float, folder: Path, more: str = "", *, judge: bool = True) -> str:
    """One command, killed; what was seen, in words. AssertionError at a deviation. `more`: lines of
    its trial file."""
    words, _ = MOMENTS[moment]
    before = leftovers.machine()
    mark = uuid.uuid4().hex
    (folder / "kills.toml").write_text(more + TRIAL)
    command = run_command.RunningCommand(
        "run", folder / "kills.toml", runs=folder / "runs", **{leftovers.MARK: mark}
    )
    try:
        line = command.until(words)
        time.sleep(after_s)
        belongings = leftovers.Belongings(command.process.pid, mark)
        belongings.look()
        command.signal(signal.SIGKILL)
        began = time.monotonic()
        run_command.wait(
            lambda: not belongings.left(), GONE_WITHIN_S, f"{belongings.left()} ending"
        )
        gone_s = time.monotonic() - began
    finally:
        command.close()
    assert leftovers.machine() == before, f"{before} became {leftovers.machine()}"
    run = (folder / "runs" / "latest").resolve()
    under = line.strip() if more else ""
    found = [f"{len(belongings.seen)} processes gone in {gone_s:.1f} s", under]
    return "; ".join(filter(None, [*found, judged(run) if judge else ""]))


def judged(run: Path) -> str:
    """The leftover run judged."""
    state = run_command.state(run)
    if "load_began_ns" not in state:
        return f"it had not begun ({state.get('phase', 'no folder')})"
    written = run_command.written(run)
    checked = run_command.seatrial("check", run, "--json", runs=run.parent)
    verdict = json.loads(checked.out)
    assert verdict == run_command.verdict(run), checked.err
    assert verdict["events"] == written, f"{verdict['events']} judged, {written} written"
    if state["ended"]:
        assert (checked.code, verdict["verdict"]) == (0, "valid"), verdict["sentence"]
    else:
        assert (checked.code, verdict["verdict"]) == (2, "unknown"), verdict["sentence"]
        assert "INTERRUPTED" in run_command.reasons(verdict), verdict["sentence"]
    return f"phase {state['phase']}: {verdict['verdict']} of {written.total():,} events"


@dataclass(frozen=True)
class Moment:
    """So long after the command said these words; its runner may be killed at the same time."""

    words: str
    after_s: float
    runner: bool

    def __str__(self) -> str:
        whom = "both" if self.runner else "command"
        return f"{self.words or 'start':11} +{self.after_s:.2f} s  {whom:7}"


def killed_at_random(
    host_lab: HostLab, moment: Moment, folder: Path, busy_ms: float = BUSY_MS
) -> str:
    """One command, killed at that moment; what was seen, in words. AssertionError: a deviation."""
    before = host_lab.left()
    (folder / "kills.toml").write_text(RANDOM)
    command = host_lab.under_way("run", folder / "kills.toml", runs=folder / "runs")
    try:
        if moment.words:
            command.until(moment.words)
        time.sleep(moment.after_s)
        command.belongings.look()
        if host_lab.kind != "local":
            command.belongings.own.clear()  # the network is the lab's
        assert command.process.poll() in (None, 0, 1, 2), command.end().words
        seen = [pid for pid, _ in command.belongings.seen]
        runners = [pid for pid in seen if "harness.run.runner" in leftovers.command(pid)]
        at_ns = time.monotonic_ns()
        with suppress(ProcessLookupError):
            for pid in runners if moment.runner else ():
                os.kill(pid, signal.SIGKILL)
        command.signal(signal.SIGKILL)
        began = time.monotonic()
        left = command.belongings.left
        run_command.wait(lambda: not left(), LATEST_S, f"{left()} ending")
        gone_s = time.monotonic() - began
    finally:
        command.close()
    run = (folder / "runs" / "latest").resolve()
    recorded = _recorded(run, at_ns, busy_ms) if (run / "run.json").exists() else "no run yet"
    healed = ""
    if host_lab.kind != "local" and (folder / "runs").exists():
        done = host_lab.seatrial("heal", "--all", "--runs", folder / "runs", runs=folder / "runs")
        assert done.code == 0, done.words
        healed = "; ".join(done.out.splitlines()[:1])
    host_lab.is_as(before)
    return f"{len(command.belongings.seen)} processes gone in {gone_s:.1f} s; {recorded}; {healed}"


def _recorded(run: Path, at_ns: int, busy_ms: float) -> str:
    """What of a run is there: all that its writers counted, up to the kill."""
    state = run_command.state(run)
    rows = {name: run_command.table(run, name) for name in run_command.TABLES}
    counted = run_command.counted(run)
    for name, found in rows.items():
        assert not counted or len(found) >= counted[name], (name, len(found), counted)
    times = sorted(row["t"] for row in rows["ops"])
    if state.get("phase") != "load" or not times:
        return f"phase {state.get('phase')}: {len(times):,} rows"
    end_ns = at_ns - state["epoch_ns"]
    late = [t for t in times if t > end_ns - PAUSES_NS]
    pause_ms = max((b - a for a, b in pairwise(late)), default=0) / 1e6
    silent_ms = (end_ns - times[-1]) / 1e6
    seen = f"{silent_ms:.0f} ms silent before the kill, {pause_ms:.0f} ms is its longest pause"
    assert silent_ms <= FLUSH_MS + pause_ms + busy_ms, seen
    return f"phase load: {len(times):,} rows, {seen}"


def moments(times: int, seed: int) -> Iterator[Moment]:
    """So many, drawn."""
    dice = random.Random(seed)
    for _ in range(times):
        yield Moment(dice.choice(BEGINNINGS), dice.uniform(0.0, WITHIN_S), dice.random() < 0.5)


def random_kills(kind: str, times: int, seed: int) -> int:
    """So many kills on hosts of a kind; how many deviated."""
    labs = {"docker": docker_lab.raised, "ssh": lambda: ssh_lab.raised(9), "local": nullcontext}
    deviations = 0
    with labs[kind]() as lab, tempfile.TemporaryDirectory(prefix="seatrial-home-") as home:
        host_lab = BY_KIND[kind](lab, Path(home))
        for number, moment in enumerate(moments(times, seed)):
            with tempfile.TemporaryDirectory(prefix="seatrial-kills-") as folder:
                print(f"{number + 1:3}  {kind:7} {moment}  ", end="", flush=True)
                try:
                    print(killed_at_random(host_lab, moment, Path(folder)), flush=True)
                except AssertionError as deviation:
                    deviations += 1
                    print(f"DEVIATION: {deviation}", flush=True)
    print(f"{times} kills on {kind} hosts, {deviations} deviations")
    return deviations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=20)
    parser.add_argument("--at", choices=MOMENTS)
    parser.add_argument("--hosts", choices=BY_KIND)
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.hosts:
        return min(1, random_kills(asked.hosts, asked.times, asked.seed))
    for number in range(asked.times):
        moment = asked.at or list(MOMENTS)[number % len(MOMENTS)]
        more = ""
        if asked.system:
            moment, workload = "faults", SYSTEMS[asked.system]
            more = OF_SYSTEM.format(system=asked.system, workload=workload, seed=number + 1)
        after_s = MOMENTS[moment][1] * (0.25 if asked.at else random.random())
        with tempfile.TemporaryDirectory(prefix="seatrial-kills-") as folder:
            print(f"{number + 1:3}  {moment:7} +{after_s:.2f} s  ", end="", flush=True)
            try:
                judge = not asked.system or number == 0
                print(killed(moment, after_s, Path(folder), more, judge=judge), flush=True)
            except AssertionError as deviation:
                print(f"DEVIATION: {deviation}")
                kept = Path(tempfile.mkdtemp(prefix="seatrial-deviation-"))
                os.rename(folder, kept / "run")
                print(f"kept in {kept}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
