"""Benchmarks refuse what they can not measure, and say which of them missed a goal."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.importers.table import read_csv
from harness.run import launch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Their modules by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(20, 0.5, 10), (1, 0.5, 1), (100, 0.99, 99), (100, 0.07, 7), (3, 1.0, 3), (3, 0.0, 1)],
)
def test_a_quantile_is_what_so_many_do_not_exceed(
    benchmark: Any, count: int, share: float, expected: float
) -> None:
    """The least value of which that holds."""
    figures = benchmark("_figures")
    assert figures.quantile(range(1, count + 1), share) == expected


def test_a_peer_that_is_not_installed_is_said_first(benchmark: Any) -> None:
    """In one sentence, with the command that helps."""
    figures = benchmark("_figures")
    figures.needs("json", "math")
    with pytest.raises(SystemExit, match=r"no_such_peer not installed: .* --group bench"):
        figures.needs("json", "no_such_peer")


@pytest.mark.parametrize("kind", ["local", "docker", "simulated"])
def test_the_plan_of_all_faults_is_one_that_can_be_carried_out(benchmark: Any, kind: str) -> None:
    """It is refused by nobody: its load lasts as long as the longest fault, and the wait before."""
    trial, plan, _ = benchmark("faults").planned(kind, {})
    launch.make_plan(trial, plan)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run without a fault."""
    path = tmp_path / "history.csv"
    path.write_text("process,type,f,key,value\na,invoke,send,q,1\na,ok,send,q,1\n")
    return _folder.write(read_csv(path), path, "csv", tmp_path / "run")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"error": "no broker"}, "no broker"),
        ({"ended": False}, "did not end"),
        ({}, "0 of 2 fault"),
    ],
)
def test_a_recovery_is_not_measured_of_a_run_that_failed(
    benchmark: Any, run: RunDir, state: dict[str, Any], says: str
) -> None:
    """Nor of one in which a fault was not in force."""
    outages = benchmark("_outages")
    run.update_state(**state)
    assert History.open(run).ended is state.get("ended", True)
    with pytest.raises(outages.Incomplete, match=says):
        outages.measured(run, 2)


def test_a_recovery_is_measured_again_with_another_number_of_faults(benchmark: Any) -> None:
    """And where nothing was kept of the run before."""
    recovery, outages = benchmark("recovery"), benchmark("_outages")
    cell = outages.Cell("kill")
    kept = {cell.key: {"times": [[0.1, 0.0]] * 2, "late": 0, "maimed": 0}}
    assert recovery.there(kept, cell, 2)
    assert not recovery.there(kept, cell, 20)
    assert not recovery.there({cell.key: {"times": [], "late": 0, "maimed": 0}}, cell, 20)
    assert not recovery.there({}, cell, 20)


def test_times_that_nobody_stored_are_no_times(
    benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Histories may stand there without Porcupine's own times."""
    assert benchmark("linearizable").stored(tmp_path) == {}
    assert "no times of Porcupine's" in capsys.readouterr().out


def test_all_benchmarks_are_run_and_those_that_missed_are_named(tmp_path: Path) -> None:
    """One that misses its goal does not end the others; all of them do at the end."""
    if shutil.which("make") is None:
        pytest.skip("no make here")
    for name in (".ci/packages", ".venv/bin/pip", ".venv/bin/python", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        body = 'exec sh "$1"' if name.endswith("python") else ":"
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "benchmarks").mkdir()
    for name, body in {"a": "echo a", "b": "exit 1", "c": "echo c", "d": "exit 3"}.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(body + "\n")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    os.utime(tmp_path / ".venv/.ready")
    ran = subprocess.run(
        ["make", "bench"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert [line for line in ran.stdout.splitlines() if len(line) == 1] == ["a", "c"]
    assert "goals missed, or no numbers: benchmarks/b.py benchmarks/d.py" in ran.stderr


class PreparedSession:
    """A server of two-phase commit in memory; it may refuse the next statement that has a word."""

    def __init__(self) -> None:
        self.prepared: set[str] = set()
        self.committed: set[str] = set()
        self.refuses = ""

    async def ask(self, sql: str) -> list[list[str | None]]:
        number = sql.split("'")[1] if "'" in sql else ""
        if self.refuses and self.refuses in sql:
            raise ConnectionError("killed")
        if "PREPARE TRANSACTION" in sql:
            self.prepared.add(number)
        elif "PREPARED '" in sql:
            self.prepared.remove(number)
            self.committed |= {number} if sql.startswith("COMMIT") else set()
        return [[number] for number in sorted(self.prepared)] if sql.startswith("SELECT") else []


@pytest.mark.parametrize(
    ("refuses", "committed"),
    [("PREPARE TRANSACTION", set()), ("COMMIT PREPARED", {"7"}), ("nothing", {"7"})],
)
def test_the_coordinator_ends_what_was_prepared_as_it_decided(
    benchmark: Any, tmp_path: Path, refuses: str, committed: set[str]
) -> None:
    """A server that dies before the decision rolls all back; one that dies after it commits."""
    two_phase = benchmark("two_phase")

    async def commit_and_recover() -> tuple[PreparedSession, PreparedSession]:
        coordinator = two_phase.Coordinator(tmp_path / "decisions")
        one, other = PreparedSession(), PreparedSession()
        one.refuses = refuses
        with suppress(ConnectionError):
            await coordinator.commit([one, other], 7)
        one.refuses = ""
        await coordinator.recover([one, other])
        coordinator.close()
        return one, other

    one, other = asyncio.run(commit_and_recover())
    assert one.committed == other.committed == committed
    assert one.prepared == other.prepared == set()


def test_the_figures_of_restored_backups(benchmark: Any) -> None:
    """Medians of times, sums of what was lost, and ratios to the time without backups."""
    cold_backup = benchmark("cold_backup")
    commits = cold_backup.Commits({1: 0.5, 2: 1.5, 3: 2.5}, [1.0, 4.0, 4.0])
    quiet = commits.between([(1.0, 2.0), (2.2, 3.0)])
    rounds = [
        cold_backup.Round(rpo_s, 1.0, 5, 0, 1, 4, 0, commits, quiet, 0.5)
        for rpo_s in (1.0, 3.0, 9.0)
    ]
    figures = cold_backup.figures(rounds)
    assert (figures["rpo_s"], figures["lost"], figures["went_back"]) == (3.0, 15, 3)
    assert (figures["latency_ratio"], figures["throughput_ratio"]) == (4.0, 0.5)


def test_shares_of_throughput_are_of_the_runs_around(benchmark: Any) -> None:
    """A machine that slows down changes the rates, and hardly their ratios."""
    throughput = benchmark("throughput")
    speeds = iter(range(100, 0, -1))

    def measure(profile: str) -> float:
        return float(next(speeds) * (1.0 if profile == throughput.BASELINE else 0.5))

    figures = throughput.figures([throughput.one_round(measure) for _ in range(3)])
    assert figures["unsafe_default"] < 100
    assert figures["raft_log_share_min"] == figures["allack_min2_share_max"] == 0.5


def test_a_flood_counts_each_acknowledged_send(benchmark: Any) -> None:
    """Of senders that wait at the same time; sends that failed do not count."""
    module = benchmark("side_by_side")
    happened, refused = module.CallOutcome.HAPPENED, module.CallOutcome.REFUSED
    outcomes: list[Any] = []

    class Producer:
        def send(self, _topic: str, _queue: int, _key: bytes, body: bytes, done: Any) -> None:
            assert len(body) == 9
            outcomes.append(refused if len(outcomes) % 3 == 0 else happened)
            result = SimpleNamespace(outcome=outcomes[-1])
            asyncio.get_running_loop().call_soon(done, result)

    client = SimpleNamespace(producer=Producer())
    asked = {"seconds": 0.05, "queue": 0, "body_bytes": 9, "open": 8}
    acked = asyncio.run(module.flood(None, client, asked))
    assert len(outcomes) >= 8
    assert acked == outcomes.count(happened)


def test_an_experiment_that_does_not_exist_is_refused(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names of all."""
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", "cold-storage"])
    with pytest.raises(SystemExit) as ended:
        benchmark("side_by_side").main()
    assert ended.value.code == 2
    assert (
        "no experiment is called cold-storage; there are: cold-standby," in capsys.readouterr().err
    )


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "soon"])
@pytest.mark.parametrize("script", ["side_by_side", "slow_slave"])
def test_a_length_that_no_phase_can_have_is_refused(
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    seconds: str,
) -> None:
    """Before clusters are raised."""
    module = benchmark(script)
    monkeypatch.setattr(module, "alone", lambda _story: pytest.fail("it began"))
    monkeypatch.setattr(sys, "argv", [f"{script}.py", f"--seconds={seconds}"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert f"--seconds: it must be a number above 0, not {seconds}" in capsys.readouterr().err


def test_the_record_of_a_failover_has_the_least_seconds(benchmark: Any) -> None:
    """Other work of the machine only adds to them; bytes have a median."""
    partitions, topics = benchmark("partitions"), benchmark("topics")
    found = [
        partitions.Failover(first, 2 * first, 3 * first, 1.0, sent, 0, 0.0, 9)
        for first, sent in ((2.0, 50), (1.0, 70), (4.0, 90))
    ]
    excess = sorted(each.excess for each in found)[1]
    kept = partitions.figures("kafka", 10, found)
    assert kept == {"kafka_first_10": 1.0, "kafka_last_10": 3.0, "kafka_excess_10": excess}
    row = topics.TopicFailovers(10, 5.0, 0.2, 0.9, 3.0, 0.01, 0)
    assert topics.figures([row]) == {"served_s_10": 0.2, "whole_s_10": 3.0}


def test_tasks_are_counted_in_the_part_that_submitted_them(benchmark: Any) -> None:
    """Jobs before and after the period do not count, nor do tasks of other stages."""
    jobs = benchmark("_spark_jobs")
    log = [
        {"Event": "SparkListenerJobStart", "Submission Time": at, "Stage Infos": [{"Stage ID": at}]}
        for at in (10, 20, 30)
    ]
    log += [
        {
            "Event": "SparkListenerTaskEnd",
            "Stage ID": stage,
            "Task Info": {"Accumulables": [{"Name": jobs.SENT, "Update": "7"}]},
            "Task Metrics": {
                "Shuffle Write Metrics": {"Shuffle Bytes Written": stage},
                "Shuffle Read Metrics": {"Remote Bytes Read": 3},
                "Result Size": 5,
            },
        }
        for stage in (10, 20, 20, 30)
    ]
    assert jobs._moved(log, 20.0, 30.0) == jobs.Moved(1, 2, 40, 6, 14, 10)
