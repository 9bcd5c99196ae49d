"""How long a verdict on a short run takes: `python benchmarks/check.py [--against COMMIT]`.

A run of 2,500 messages, which are 10,000 events, is judged:

    cold        by `seatrial check`, with no JVM running and its class archive built
    none        by `seatrial check --spark none`, the whole command
    warm        when a trial ends, with the JVM up
    in process  when a trial ends that is judged without Spark

The first two, and `seatrial --help`, are whole commands: medians of wall seconds, and of the CPU
seconds of all their processes. With a commit, its commands are measured in turn with ours, on the
same run. When a trial ends, the judge's modules are imported already. The exit code is 1 when a
goal is missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _synthetic import write_run

from harness.errors import EXIT_VALID
from harness.history.rundir import RunDir
from harness.judge.judge import judge, judge_in_process, load_checkers
from harness.spark.session import JvmLauncher

ROOT = Path(__file__).resolve().parents[1]
SMALL_MESSAGES = 2_500  # 10,000 events
COLD_WITHIN_S, WARM_WITHIN_S, IN_PROCESS_WITHIN_S = 2.5, 0.55, 0.4
COMMANDS = {"cold": ("check",), "none": ("check", "--spark", "none"), "help": ("--help",)}


class Cost(NamedTuple):
    """What one command took: seconds, and CPU seconds of all its processes."""

    wall_s: float
    cpu_s: float


def cost(tree: Path, arguments: list[str], modules: Path) -> Cost:
    """Run the command of a working tree; compiled modules are kept, as installed ones are."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(modules)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", *arguments]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, cwd=tree, env=environment, stdout=output, stderr=output)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        output.seek(0)
        assert child.returncode == EXIT_VALID, output.read().decode()
    return Cost(wall_s, used.ru_utime + used.ru_stime)


def commands(trees: dict[str, Path], run: RunDir, repeat: int, folder: Path) -> float:
    """Print what the commands of some trees take, in turn; return the wall seconds of our cold
    check."""
    for name, tree in trees.items():
        cost(tree, ["harness.spark.session"], folder / name)  # the class archive
    cold_s = 0.0
    for what, arguments in COMMANDS.items():
        of = ["harness", *arguments, *([str(run.path)] if "check" in arguments else [])]
        for name, tree in trees.items():
            cost(tree, of, folder / name)  # compiles the modules
        costs: dict[str, list[Cost]] = {name: [] for name in trees}
        for _ in range(repeat):
            for name, tree in trees.items():
                costs[name].append(cost(tree, of, folder / name))
        for name, each in costs.items():
            wall_s, cpu_s = (median(one) for one in zip(*each, strict=True))
            print(f"{what:11} {name:10} {wall_s:6.2f} s {cpu_s:6.2f} CPU s")
            if what == "cold" and name == "ours":
                cold_s = wall_s
    return cold_s


def timed(what: str, work: Callable[[], Any], repeat: int) -> float:
    """The median of some times, printed."""
    times, cpu = [], []
    for _ in range(repeat):
        began, used = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    print(f"{what:22} {median(times):6.2f} s {median(cpu):6.2f} CPU s (first {times[0]:.2f} s)")
    return median(times)


def warm(run: RunDir, repeat: int) -> float:
    """Judging with the JVM up, as it is when a trial ends."""
    with closing(JvmLauncher(warm_up=True)) as engine:
        spark = engine.session()
        return timed("warm", lambda: judge(run, spark), repeat)


@contextmanager
def working_tree(commit: str, folder: Path) -> Iterator[Path]:
    """Yield a working tree of a commit."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def main() -> int:
    options = argparse.ArgumentParser(description="How long a verdict on a short run takes.")
    options.add_argument("--against", metavar="COMMIT", help="measure this commit's, too")
    options.add_argument("--repeat", type=int, default=5)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = write_run(folder / "run", SMALL_MESSAGES)
        if given.against:
            with working_tree(given.against, folder / "tree") as tree:
                trees = {"ours": ROOT, given.against[:10]: tree}
                cold_s = commands(trees, run, given.repeat, folder)
        else:
            cold_s = commands({"ours": ROOT}, run, given.repeat, folder)
        load_checkers(run.trial())
        here_s = timed("in process", lambda: judge_in_process(run), given.repeat)
        warm_s = warm(run, given.repeat)
    goals = (
        ("JVM down", cold_s, COLD_WITHIN_S),
        ("JVM up", warm_s, WARM_WITHIN_S),
        ("without Spark", here_s, IN_PROCESS_WITHIN_S),
    )
    missed = [f"{what}, {s:.2f} s of {most:g}" for what, s, most in goals if s > most]
    print("\n".join(f"goal missed: {words}" for words in missed) or "all goals are reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
