"""What a check moves on a Spark cluster: a standalone master and two workers of one core each, on
loopback, started here and ended.

Each plan of `checkers._spark.spark_stages` has a driver of its own, which judges the run once to
get warm and once more; only the second time counts, part by part: first the small job that tests
the executors, then each checker. Sources of the figures:

    shuffle, to Python, results  Spark's event log: the metrics of each task. Rows go to Python from
                                 the executor beside it; results go to the driver
    files                        /proc/PID/io of the executors' Python processes: what they read,
                                 without the rows that came from Spark
    CPU seconds                  /proc/PID/stat of the driver and of the processes below each
                                 worker; Spark's own metrics leave Python out

Below the table of the plan in stages is what ten billion events would cost if all figures grew with
the number of events. Some seconds do not, and count for less in a larger history.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from _figures import table
from _used import descendants, used

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "labs" / "machines"))

SETTINGS = """\
spark.executor.memory           700m
spark.shuffle.readHostLocalDisk false
spark.eventLog.enabled          true
spark.eventLog.compress         false
spark.eventLog.rolling.enabled  false
spark.eventLog.dir              {folder}
"""
PLANS = {
    "stages": 0,
    "shares": 1 << 62,
}  # with the limits that lead to them
WORKERS = ("worker-1", "worker-2")
PROBE, WHOLE = "probe of executors", "together"
JOB_START = "SparkListenerJobStart"
SENT = "data sent to Python workers"
MB, GB = 1e6, 1e9
PROJECTED, CORES = 10_000_000_000, (64, 256)

Row = tuple[float, ...]  # the fields of Moved, files, seconds, CPU of the driver, Python and JVMs


@dataclass
class Moved:
    """Sums over the tasks of some jobs; sizes in bytes.

    remote  of what the shuffle read, from the other executor
    sent    to Python
    """

    jobs: int = 0
    tasks: int = 0
    written: int = 0
    remote: int = 0
    sent: int = 0
    result: int = 0


@dataclass
class Totals:
    """What the driver and the executors have used so far: seconds, and bytes that Python has
    read."""

    at_s: float
    driver_s: float
    python_s: float
    jvm_s: float
    read: float


@dataclass
class Judged:
    """A judgement in one plan: its parts with the totals where each began, and at the end; and the
    bytes of the verdict."""

    began: list[tuple[str, Totals]]
    verdict: bytes


def both_plans(path: Path, events: int) -> bool:
    """Judge a run in both plans, print what they moved, and return whether they agree."""
    import spark_lab

    verdicts = set()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        logs = folder / "logs"
        logs.mkdir()
        (folder / "spark-defaults.conf").write_text(SETTINGS.format(folder=logs))
        settings = {
            "SPARK_CONF_DIR": str(folder),
            "PYSPARK_PYTHON": str(spark_lab.stranger(folder)),
        }
        with spark_lab.cluster(folder) as servers:
            url = servers.master()
            for name in WORKERS:
                servers.worker(name, url)
            workers = [servers.running[name].pid for name in WORKERS]
            for plan, limit in PLANS.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
                    judged = child.submit(_judged, limit, url, path, settings, workers).result()
                (log,) = logs.iterdir()
                rows = _rows(judged, log)
                print(f"\nPlan: {plan}. Sizes in MB.\n\n{_table(rows, events)}")
                if plan == "stages":
                    print(f"\n{_projection(rows[WHOLE], events)}")
                log.unlink()
                verdicts.add(judged.verdict)
    same = len(verdicts) == 1
    print(f"\nThe verdicts of both plans have {'the same' if same else 'DIFFERENT'} bytes.")
    return same


def _judged(
    limit: int, url: str, path: Path, settings: dict[str, str], workers: Sequence[int]
) -> Judged:
    """In a process of its own."""
    os.environ.update(settings)
    from checkers._spark import spark_stages
    from harness.history.rundir import RunDir
    from harness.judge.judge import judge
    from harness.spark.session import JvmLauncher

    spark_stages.SHARED_BYTES = spark_stages.CLUSTER_SHARED_BYTES = limit
    run = RunDir(path)
    engine = JvmLauncher(url)
    spark = engine.session()
    judge(run, spark)
    began = [(PROBE, _totals(workers))]
    judge(run, spark, lambda checker: began.append((checker, _totals(workers))))
    began.append((WHOLE, _totals(workers)))
    engine.close()
    return Judged(began, run.verdict_file.read_bytes())


def _totals(workers: Sequence[int]) -> Totals:
    """Return what has been used by this process and by those that descend from the workers."""
    spent = dict.fromkeys(("java", "python"), 0.0)
    read = 0
    for pid in (pid for worker in workers for pid in descendants(worker)):
        try:
            name, _, stat = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            io = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            continue
        kind = "java" if name == "java" else "python"
        spent[kind] += sum(map(int, stat.split()[11:15])) / os.sysconf("SC_CLK_TCK")
        read += int(io.split()[1]) if kind == "python" else 0
    return Totals(time.time(), used()[0], spent["python"], spent["java"], read)


def _rows(judged: Judged, log: Path) -> dict[str, Row]:
    """Return what each part moved and used, and their sum."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    rows: dict[str, Row] = {}
    for (part, before), (_, after) in pairwise(judged.began):
        moved = _moved(entries, before.at_s * 1000, after.at_s * 1000)
        seconds, driver_s, python_s, jvm_s, read = (
            b - a for a, b in zip(astuple(before), astuple(after), strict=True)
        )
        files = max(0.0, read - moved.sent)
        rows[part] = (*astuple(moved), files, seconds, driver_s, python_s, jvm_s)
    rows[WHOLE] = tuple(map(sum, zip(*rows.values(), strict=True)))
    return rows


def _table(rows: dict[str, Row], events: int) -> str:
    lines = [_line(part, row) for part, row in rows.items()]
    for_a_million = [number * 1e6 / events for number in rows[WHOLE]]
    lines.append(_line("per 1 M events", for_a_million, 3))
    headings = ("part", "jobs", "tasks", "shuffle", "of it remote", "to Python", "results", "files")
    return table((*headings, "s", "driver CPU s", "Python CPU s", "JVM CPU s"), lines)


def _line(part: str, row: Sequence[float], digits: int = 2) -> tuple[str, ...]:
    jobs, tasks, *sizes, seconds, driver, python, jvm = row
    counts = (f"{jobs:.0f}", f"{tasks:.0f}") if digits == 2 else ("", "")
    moved = (f"{size / MB:.{digits}f}" for size in sizes)
    return (part, *counts, *moved, *(f"{t:.{digits}f}" for t in (seconds, driver, python, jvm)))


def _projection(whole: Row, events: int) -> str:
    """Return what ten billion events would cost, in a sentence."""
    _, _, written, _, _, result, files, _, _, python_s, jvm_s = whole
    times = PROJECTED / events
    cpu_s = (python_s + jvm_s) * times
    on = " and ".join(f"{cpu_s / cores:,.0f} s on {cores} cores" for cores in CORES)
    return (
        f"{PROJECTED:,} events in stages: {files * times / GB:,.0f} GB read from files, "
        f"{written * times / GB:,.0f} GB shuffled, {result * times / GB:.2f} GB of results, "
        f"{cpu_s:,.0f} CPU s on executors: {on}."
    )


def _moved(log: Sequence[dict[str, Any]], began_ms: float, ended_ms: float) -> Moved:
    """Add up the tasks of the jobs that were submitted in a period."""
    jobs = [
        entry
        for entry in log
        if entry["Event"] == JOB_START and began_ms <= entry["Submission Time"] < ended_ms
    ]
    stages = {stage["Stage ID"] for job in jobs for stage in job["Stage Infos"]}
    moved = Moved(len(jobs))
    for entry in log:
        if entry["Event"] == "SparkListenerTaskEnd" and entry["Stage ID"] in stages:
            metrics = entry["Task Metrics"]
            moved.tasks += 1
            moved.written += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            moved.remote += metrics["Shuffle Read Metrics"]["Remote Bytes Read"]
            moved.result += metrics["Result Size"]
            sent = (e for e in entry["Task Info"]["Accumulables"] if e["Name"] == SENT)
            moved.sent += sum(int(each["Update"]) for each in sent)
    return moved
