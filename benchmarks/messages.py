"""Message checks beside DuckDB and Polars: `python benchmarks/messages.py [events] [--alone]`.

Four questions about a history of ten million events, 16 of each wrong put in, on two cores:

    A  by value: acknowledged and not read, seen and never sent, stored at two places
    B  by offset: two messages at one offset
    C  by reader: offsets that go back within the answer to one poll
    D  by queue: messages that stand before what their producer had sent earlier

DuckDB and Polars count them. Seatrial's checkers loss, phantom, duplicates, order, linearizable and
offsets do, on Spark, and more: they merge what any number of machines saw, ask for real time across
producers (so that D has other counts), and give witnesses. Each engine has a process of its own,
asks once to get warm and five times more; told are the first and the median, the CPU seconds of a
time, and the peak of its memory, with all its processes. A and B must come to the counts that were
put in and C to one count, or the exit code is 1. Four million events are the fewest.

`--alone`: Seatrial alone, on one core and on two, as for a hundred million events.

`--cluster`: Seatrial alone on a standalone master with two workers, in both plans: which bytes move
and what each part costs (`_spark_jobs.py`). The verdicts must have the same bytes.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from _figures import needs, table
from _spark_jobs import both_plans
from _synthetic import write_run
from _used import used

from harness.history.rundir import RunDir
from harness.judge.judge import judge
from harness.spark.session import JvmLauncher

CHECKERS = ("loss", "phantom", "duplicates", "order", "linearizable", "offsets")
EACH, TIMES, CORES = 16, 5, 2
SQL = """
with by_value as (
  select value,
    bool_or(f = 1 and type = 0) as sent, bool_or(f = 1 and type = 1) as acked,
    bool_or(f = 3 and type = 1) as read, bool_or(f in (2, 3) and type = 1) as seen,
    min(case when f = 3 and type = 1 then "offset" end) as first,
    max(case when f = 3 and type = 1 then "offset" end) as last
  from ops where value is not null group by value),
by_offset as (
  select min(value) as first, max(value) as last
  from ops where type = 1 and "offset" is not null group by key, "offset"),
polls as (
  select op, "offset", lag(op) over reader as op_before, lag("offset") over reader as before
  from ops where f = 2 and type = 1 window reader as (partition by process, key order by t)),
sends as (
  select value, lag(value) over (partition by process, key order by "offset", value) as before
  from ops where f = 1 and type = 1)
select
  (select count(*) from by_value where acked and not read),
  (select count(*) from by_value where seen and not sent),
  (select count(*) from by_value where first <> last),
  (select count(*) from by_offset where first <> last),
  (select count(*) from polls where op = op_before and "offset" <= before),
  (select count(*) from sends where before > value)
"""
COUNTS = ("lost", "phantom", "twice", "clash", "back", "out of order")
PUT_IN = dict.fromkeys(COUNTS[:4], EACH)  # who is given clashing and swapped ones goes back, too
Counts = dict[str, int]


def ours(run: RunDir, cores: int) -> tuple[Callable[[], Counts], Callable[[], None]]:
    engine = JvmLauncher(f"local[{cores}]", warm_up=True)
    spark = engine.session()

    def ask() -> Counts:
        findings = [f for r in judge(run, spark).checkers for f in r.findings]
        found = {finding.code: finding.count for finding in findings}
        codes = ("LOST_ACKED", "PHANTOM_NEVER_SENT", "DUPLICATED", "OFFSET_CONFLICT")
        codes += ("NONMONOTONIC_POLL", "REORDERED")
        return {name: found.get(code, 0) for name, code in zip(COUNTS, codes, strict=True)}

    return ask, engine.close


def duckdb(run: RunDir, cores: int) -> tuple[Callable[[], Counts], Callable[[], None]]:
    import duckdb as engine

    connection = engine.connect(config={"threads": cores})
    files = [str(path) for path in sorted(run.history.glob("ops-*.parquet"))]
    connection.execute(f"create view ops as select * from read_parquet({files})")

    def ask() -> Counts:
        row = connection.execute(SQL).fetchone()
        assert row is not None
        return dict(zip(COUNTS, row, strict=True))

    return ask, connection.close


def polars(run: RunDir, cores: int) -> tuple[Callable[[], Counts], Callable[[], None]]:
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    import polars as pl

    def ask() -> Counts:
        ops = pl.scan_parquet(sorted(run.history.glob("ops-*.parquet")))
        f, ok, place = pl.col("f"), pl.col("type") == 1, pl.col("offset")
        value, before = pl.col("value"), pl.col("value").shift(1)
        read = place.filter((f == 3) & ok)
        by_value = (
            ops.filter(value.is_not_null())
            .group_by("value")
            .agg(
                ((f == 1) & (pl.col("type") == 0)).any().alias("sent"),
                ((f == 1) & ok).any().alias("acked"),
                ((f == 3) & ok).any().alias("read"),
                (f.is_in([2, 3]) & ok).any().alias("seen"),
                (read.max() != read.min()).alias("twice"),
            )
            .select(
                (pl.col("acked") & ~pl.col("read")).sum().alias("lost"),
                (pl.col("seen") & ~pl.col("sent")).sum().alias("phantom"),
                pl.col("twice").sum(),
            )
        )
        by_offset = ops.filter(ok & place.is_not_null()).group_by("key", "offset")
        clash = by_offset.agg((value.max() != value.min()).alias("clash")).select("clash").sum()
        back = (
            ops.filter((f == 2) & ok)
            .sort("t")
            .select(
                ((pl.col("op") == pl.col("op").shift(1)) & (place <= place.shift(1)))
                .over("process", "key")
                .sum()
                .alias("back")
            )
        )
        order = (
            ops.filter((f == 1) & ok)
            .sort("offset", "value")
            .select((before > value).over("process", "key").sum().alias("out of order"))
        )
        rows = [
            frame.row(0, named=True) for frame in pl.collect_all([by_value, clash, back, order])
        ]
        return {name: int(n) for row in rows for name, n in row.items()}

    return ask, lambda: None


ENGINES = {"Seatrial on Spark": ours, "DuckDB": duckdb, "Polars": polars}


def measured(name: str, path: Path, cores: int, times: int) -> tuple[Any, ...]:
    """In a process of its own."""
    ask, close = ENGINES[name](RunDir(path), cores)
    seconds: list[float] = []
    cpu_s = 0.0
    for _ in range(times + 1):
        before, _ = used()
        began = time.perf_counter()
        counts = ask()
        seconds.append(time.perf_counter() - began)
        cpu_s = used()[0] - before
    peak = used()[1]
    close()
    return counts, seconds[0], median(seconds[1:] or seconds), cpu_s, peak


def told_by(name: str, path: Path, cores: int, times: int = TIMES) -> tuple[Any, ...]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        return child.submit(measured, name, path, cores, times).result()


def written(path: Path, events: int) -> None:
    """By another process, so that its memory is nobody's."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        child.submit(write_run, path, events // 4, CHECKERS, EACH).result()


def beside(path: Path) -> bool:
    told = {name: told_by(name, path, CORES) for name in ENGINES}
    base = told["DuckDB"][2]
    headings = ("engine", "first s", "median s", "to DuckDB", "CPU s", "GB", *COUNTS)
    print(table(headings, [_row(name, row, f"{row[2] / base:.2f}") for name, row in told.items()]))
    ratio = told["Seatrial on Spark"][2] / base
    print(f"{ratio:.2f} of DuckDB's time, goal 0.7: {'reached' if ratio <= 0.7 else 'NOT reached'}")
    back = {row[0]["back"] for row in told.values()}
    return all(map(_right, told.values())) and len(back) == 1


def alone(path: Path) -> bool:
    told = {cores: told_by("Seatrial on Spark", path, cores, 1) for cores in (2, 1)}
    headings = ("cores", "first s", "median s", "to two cores", "CPU s", "GB", *COUNTS)
    rows = [_row(str(n), row, f"{row[2] / told[2][2]:.2f}") for n, row in told.items()]
    print(table(headings, rows))
    return all(map(_right, told.values()))


def _right(told: tuple[Any, ...]) -> bool:
    return {name: told[0][name] for name in PUT_IN} == PUT_IN


def _row(name: str, told: tuple[Any, ...], ratio: str) -> tuple[str, ...]:
    counts: Mapping[str, int]
    counts, first, warm, cpu_s, peak = told
    figures = (f"{first:.2f}", f"{warm:.2f}", ratio, f"{cpu_s:.1f}", f"{peak:.1f}")
    return (name, *figures, *(f"{counts[c]:,}" for c in COUNTS))


def main() -> int:
    numbers = [word for word in sys.argv[1:] if not word.startswith("-")]
    events = int(float(numbers[0])) if numbers else 10_000_000
    lone = {"--alone": alone, "--cluster": lambda path: both_plans(path, events)}
    measure = next((lone[word] for word in sys.argv if word in lone), beside)
    if measure is beside:
        needs("duckdb", "polars")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        written(path, events)
        print(f"{events:,} events, {EACH} of each wrong")
        if measure is beside:
            print(f"DuckDB is asked:\n{SQL}")
        good = measure(path)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
