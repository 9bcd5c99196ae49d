"""Clusters without executors: a real master that never had a worker, and one that loses all of them
while a checker runs. Spark would wait without end; `seatrial check` waits for a bounded time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sinking
import spark_lab
from terminal_lab import Terminal, wait_until

from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.spark import probe
from harness.spark.probe import WAITING, ExecutorWatch

PATIENCE_S = 200.0  # with a starved machine
COMMAND = """\
import sys
from harness.cli.main import main
from harness.spark import probe
probe.PROBE_WITHIN_S, probe.REPLACED_WITHIN_S = {probe_s}, {replaced_s}
sys.exit(main())
"""
CHECKER = '''\
"""Ends when a file exists."""

import time
from pathlib import Path

from harness.contracts import CheckerPlugin, Result

FOLDER = Path({folder!r})


def check(history, trial, spark):
    def wait(batches):
        (FOLDER / "began").touch()
        while not (FOLDER / "may-end").exists():
            time.sleep(0.05)
        yield from batches

    numbers = spark.range(1, numPartitions=1)
    numbers.mapInArrow(wait, numbers.schema).toArrow()
    return Result("patient")


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(),
    reasons=frozenset(),
    decides=frozenset(),
    needs_clocks=False,
)
'''


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[spark_lab.SparkCluster]:
    """A master; each test ends the workers that it starts."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "spark-defaults.conf").write_text(spark_lab.SMALL)
    with spark_lab.cluster(folder) as servers:
        servers.master()
        yield servers


@dataclass
class PatientRun:
    """A run, and its first checker, of another package, which ends when it may."""

    run: RunDir
    folder: Path
    cluster: spark_lab.SparkCluster

    def check(self, **bounds: float) -> list[str]:
        """Return the command that checks it on the cluster, with other bounds than 90 s."""
        bounds = {"probe_s": PATIENCE_S, "replaced_s": PATIENCE_S} | bounds
        program = COMMAND.format(**bounds)
        return [
            *(sys.executable, "-P", "-c", program),
            *("check", str(self.run.path), "--spark", self.cluster.url),
        ]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYSPARK_PYTHON": str(spark_lab.stranger(self.folder)),
            "SPARK_CONF_DIR": str(self.cluster.folder),
            "SEATRIAL_JAVA_WITHIN_S": f"{PATIENCE_S:.0f}",
        }

    def on_terminal(self, **bounds: float) -> "closing[Terminal]":
        return closing(Terminal(self.check(**bounds), self.environment(), columns=400))

    def wait_for_task(self) -> None:
        """Wait until the checker's task runs, and forget that it did."""
        wait_until((self.folder / "began").exists)
        (self.folder / "began").unlink()


@pytest.fixture
def patient(tmp_path: Path, master: spark_lab.SparkCluster) -> PatientRun:
    folder = tmp_path / "site"
    info = folder / "patient-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "patient.py").write_text(CHECKER.format(folder=str(folder)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patient\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[seatrial.checker]\npatient = patient\n")
    run: RunDir = sinking.sunk(tmp_path / "run").run
    run.trial_file.write_text(
        replace(run.trial(), checkers=("patient", "phantom"), contract=()).to_toml()
    )
    run.verdict_file.unlink()
    return PatientRun(run, folder, master)


class ClusterSession:
    """A session on a cluster with so many jobs and executors."""

    def __init__(self, jobs: int, executors: int, tracks: bool = True) -> None:
        self.conf = {"spark.master": "spark://host:7077"}
        members = SimpleNamespace(size=lambda: 1 + executors)  # with the driver
        context = SimpleNamespace(getExecutorMemoryStatus=lambda: members)
        tracker = SimpleNamespace(getActiveJobsIds=lambda: list(range(jobs)))
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context))
        if tracks:
            self.sparkContext.statusTracker = lambda: tracker


@pytest.mark.parametrize(
    ("session", "raises"),
    [
        (ClusterSession(jobs=1, executors=0), True),
        (ClusterSession(jobs=1, executors=1), False),
        (ClusterSession(jobs=0, executors=0), False),  # it works in the driver
        (ClusterSession(jobs=1, executors=0, tracks=False), False),  # as when the JVM has exited
        (SimpleNamespace(conf={"spark.master": "spark://host:7077"}), False),  # of Connect
        (None, False),
    ],
)
def test_jobs_without_executors_wait(
    session: Any, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only they do, and not without end."""
    monkeypatch.setattr(probe, "REPLACED_WITHIN_S", -1.0)
    steps: list[str] = []
    watch = ExecutorWatch(session, steps.append, "loss")
    watch.look()
    with pytest.raises(BedFailed) if raises else nullcontext():
        watch.look()
    assert steps == [WAITING] * raises


def test_a_jvm_that_has_exited_is_reported() -> None:
    """As the next checker begins, and not as a refused connection."""

    def get(name: str) -> str:
        raise ConnectionRefusedError(111, "Connection refused")

    session: Any = SimpleNamespace(conf=SimpleNamespace(get=get))
    with pytest.raises(BedFailed, match="Java process ended"):
        ExecutorWatch(session, lambda step: None, "loss")


@pytest.mark.spark
def test_a_jvm_that_is_killed_during_the_last_checker_is_reported(patient: PatientRun) -> None:
    """In one sentence, without tracebacks of libraries; exit code 255, and no verdict."""
    trial = patient.run.trial()
    patient.run.trial_file.write_text(replace(trial, checkers=("phantom", "patient")).to_toml())
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "harness", "check", patient.run.path, "--spark", "local[1]"],
        env=patient.environment() | {"PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        patient.wait_for_task()
        os.kill(_java_of(process.pid), signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (255, ""), err
    (line,) = err.splitlines()
    assert "Java process ended" in line
    assert f"is in {patient.run.path}; to judge it: " in line
    assert not patient.run.verdict_file.exists()


def _java_of(parent: int) -> int:
    """Return the child that is a JVM."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (java,) = (pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "java\n")
    return int(java)


@pytest.mark.spark
def test_a_master_without_workers_is_reported(patient: PatientRun) -> None:
    """In one sentence that says what to do and names the run; exit code 255, and no verdict."""
    ran = subprocess.run(
        patient.check(probe_s=1.0),
        env=patient.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    (line,) = ran.stderr.splitlines()
    assert line.startswith(
        "seatrial: no executor of the Spark master answered within 1 s; make sure that it has "
        "workers with free cores and memory, and see in their logs whether executors start; "
    )
    assert f"is in {patient.run.path}; to judge it: " in line
    assert (ran.returncode, ran.stdout) == (255, "")
    assert not patient.run.verdict_file.exists()


@pytest.mark.spark
def test_a_master_that_loses_all_workers_is_reported(patient: PatientRun) -> None:
    """A checker's task runs on the only worker when that is killed: the command says that it waits
    for executors, and then the same in one sentence; exit code 255, and no verdict."""
    patient.cluster.worker("lost", patient.cluster.url)
    with patient.on_terminal(replaced_s=5.0) as command:
        patient.wait_for_task()
        command.wait_for(f": {WAITING} .*: patient ")
        patient.cluster.kill("lost")
        code = command.exit_code()
    assert command.has_printed(f": {WAITING} .*: patient .*: {WAITING} "), command.text
    assert (
        "seatrial: all executors of the Spark master were lost, and none was started within 5 s; "
        "make sure that it has workers with free cores and memory, and see in their logs why they "
        f"ended; the recorded run is in {patient.run.path}; to judge it: "
    ) in command.text
    assert code == 255
    assert not patient.run.verdict_file.exists()


@pytest.mark.spark
def test_a_worker_that_replaces_a_lost_one_finishes_the_check(patient: PatientRun) -> None:
    """The command says that it waits, then names the checker again, and comes to its verdict."""
    patient.cluster.worker("first", patient.cluster.url)
    with patient.on_terminal() as command:
        patient.wait_for_task()
        patient.cluster.kill("first")
        command.wait_for(f": patient .*: {WAITING}")
        patient.cluster.worker("second", patient.cluster.url)
        patient.wait_for_task()
        command.wait_for(f": patient .*: {WAITING} .*: patient ")
        (patient.folder / "may-end").touch()
        assert command.exit_code() == 0, command.text
    patient.cluster.kill("second")
    assert patient.run.verdict_file.exists()
