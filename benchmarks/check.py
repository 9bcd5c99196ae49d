"""Checking: `python benchmarks/check.py [events]`.

Seconds from `seatrial check` to the verdict on a run of 10,000 operations with no JVM running and
its class archive built, and from the end of such a run to its verdict with the JVM up. Then the
message checks on ten million events, on Spark, against the same questions (loss, phantoms, doubles)
in SQL by DuckDB and Polars where those are installed.
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

from harness import java
from harness.errors import EXIT_VALID
from harness.judge import judge
from harness.rundir import RunDir
from harness.spark import Engine, make_archive

SMALL_MESSAGES = 2_500  # 10,000 events
COLD_WITHIN_S, WARM_WITHIN_S = 6.0, 2.0
QUESTIONS = """
    select
      (select count(*) from (select distinct value from ops where f = 1 and type = 1)
         anti join (select distinct value from ops where f = 3 and type = 1) using (value)),
      (select count(*) from (select distinct value from ops where f in (2, 3) and type = 1)
         anti join (select distinct value from ops where f = 1 and type = 0) using (value)),
      (select count(*) from (select value from ops where f = 3 and type = 1
         group by value having count(distinct "offset") > 1))
"""


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
    if not java.find().archive.is_file():
        make_archive()
    command = [shutil.which("seatrial") or str(Path(sys.executable).parent / "seatrial"), "check"]

    def check() -> None:
        ran = subprocess.run([*command, str(run.path)], capture_output=True, check=False)
        assert ran.returncode == EXIT_VALID, ran.stderr.decode()

    return timed("seatrial check, 10k events, JVM down, archive built", check)


def warm(run: RunDir, what: str, short_run: bool, repeat: int = 3) -> float:
    """Judging with the JVM up, as it is when a trial ends."""
    with closing(Engine(short_run=short_run, heap="1g" if short_run else "4g", warm_up=True)) as up:
        spark = up.session()
        return timed(what, lambda: judge(run, spark), repeat)


def duckdb(run: RunDir) -> None:
    try:
        import duckdb as engine
    except ImportError:
        print("DuckDB: not installed")
        return
    files = [str(path) for path in sorted(run.history.glob("ops-*.parquet"))]

    def ask() -> None:
        connection = engine.connect()
        connection.execute(f"create view ops as select * from read_parquet({files})")
        assert connection.execute(QUESTIONS).fetchone() == (0, 0, 0)

    timed("DuckDB, loss, phantoms and doubles alone", ask)


def polars(run: RunDir) -> None:
    try:
        import polars as pl
    except ImportError:
        print("Polars: not installed")
        return

    def ask() -> None:
        ops = pl.scan_parquet(sorted(run.history.glob("ops-*.parquet")))
        f, kind = pl.col("f"), pl.col("type")
        acked = ops.filter(f == 1, kind == 1).select("value").unique()
        sent = ops.filter(f == 1, kind == 0).select("value").unique()
        read = ops.filter(f == 3, kind == 1).select("value", "offset")
        seen = ops.filter(f.is_in([2, 3]), kind == 1).select("value").unique()
        twice = read.group_by("value").agg(pl.col("offset").n_unique().alias("n"))
        frames = [
            acked.join(read, on="value", how="anti"),
            seen.join(sent, on="value", how="anti"),
            twice.filter(pl.col("n") > 1),
        ]
        assert [len(frame) for frame in pl.collect_all(frames)] == [0, 0, 0]

    timed("Polars, loss, phantoms and doubles alone", ask)


def main() -> int:
    events = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        small = write_run(Path(folder) / "small", SMALL_MESSAGES)
        cold_s = cold(small)
        what = "end of run to verdict, 10k events, JVM up, never judged before"
        warm_s = min(warm(small, what, short_run=True, repeat=1) for _ in range(3))
        for checkers in (("loss",), ("loss", "phantom", "duplicates", "order", "linearizable")):
            path = Path(folder) / f"large-{len(checkers)}"
            large = write_run(path, events // 4, checkers)
            warm(large, f"{', '.join(checkers)}, {events:,} events", short_run=False)
        duckdb(large)
        polars(large)
    return 0 if cold_s <= COLD_WITHIN_S and warm_s <= WARM_WITHIN_S else 1


if __name__ == "__main__":
    sys.exit(main())
