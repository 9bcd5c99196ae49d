"""How long a verdict on a short run takes: `python benchmarks/check.py`.

Seconds from `seatrial check` to the verdict on a run of 2,500 messages, which are 10,000 events,
with no JVM running and its class archive built; and from the end of such a run to its verdict with
the JVM up. The exit code is 1 when a goal is missed.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from _synthetic import write_run

from harness.errors import EXIT_VALID
from harness.history.rundir import RunDir
from harness.judge.judge import judge
from harness.spark import java
from harness.spark.session import JvmLauncher, make_archive

SMALL_MESSAGES = 2_500  # 10,000 events
COLD_WITHIN_S, WARM_WITHIN_S = 4.0, 2.0


def timed(what: str, work: Callable[[], Any], repeat: int = 3) -> float:
    """The best of some times, printed."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    first = f" (first {times[0]:.2f})" if repeat > 1 else ""
    print(f"{what}: {min(times):.2f} s{first}")
    return min(times)


def cold(run: RunDir) -> float:
    """The whole command, from nothing to exit code."""
    if not java.find_java().archive.is_file():
        make_archive()
    command = [shutil.which("seatrial") or str(Path(sys.executable).parent / "seatrial"), "check"]

    def check() -> None:
        ran = subprocess.run([*command, str(run.path)], capture_output=True, check=False)
        assert ran.returncode == EXIT_VALID, ran.stderr.decode()

    return timed("seatrial check, 10k events, JVM down, archive built", check)


def warm(run: RunDir) -> float:
    """Judging with the JVM up, as it is when a trial ends."""
    what = "end of run to verdict, 10k events, JVM up, never judged before"

    def judged() -> float:
        with closing(JvmLauncher(warm_up=True)) as engine:
            spark = engine.session()
            return timed(what, lambda: judge(run, spark), repeat=1)

    return min(judged() for _ in range(3))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", SMALL_MESSAGES)
        cold_s, warm_s = cold(run), warm(run)
    goals = (("JVM down", cold_s, COLD_WITHIN_S), ("JVM up", warm_s, WARM_WITHIN_S))
    missed = [f"{what}, {s:.2f} s of {most:g}" for what, s, most in goals if s > most]
    print("\n".join(f"goal missed: {words}" for words in missed) or "all goals are reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
