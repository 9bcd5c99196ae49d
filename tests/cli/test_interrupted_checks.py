"""Judging that is interrupted: the recorded run is named, with the command that judges it.

Java is a script that records its start and then hangs, signals are real, and the full disk is a
small file system in a namespace of its own.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.cli.session import IN_PROCESS_BYTES
from harness.history.rundir import RunDir

SCRIPT = Path(sys.executable).with_name("seatrial")
WITHIN_S = 600.0
FULL_DISK = """
mount -t tmpfs -o size=32m none "$1" && cp -r --sparse=always "$2" "$1/run" || exit 99
dd if=/dev/zero of="$1/filler" bs=4096 2>/dev/null
cd "$1" && exec "$3" check run
"""


def simulate(folder: Path, *arguments: str) -> RunDir:
    """A small sound run on simulated hosts, unjudged."""
    command: list[str | Path] = [
        SCRIPT,
        "run",
        "messages",
        "--hosts",
        "simulated",
        "--seed",
        "1",
        "--no-report",
    ]
    ran = subprocess.run(
        [*command, "--duration", "20s", "--faults", "kill", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return RunDir.open(folder / "runs" / "latest")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return simulate(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def simulated(recorded: RunDir, tmp_path: Path) -> RunDir:
    """A copy of that run, without its verdict."""
    shutil.copytree(recorded.path, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    run.verdict_file.unlink()
    return run


@pytest.fixture
def local(simulated: RunDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """The same history as of local hosts, which Spark judges."""
    monkeypatch.delenv("SEATRIAL_SPARK", raising=False)
    text = simulated.trial_file.read_text()
    assert 'hosts = "simulated"' in text
    simulated.trial_file.write_text(text.replace('hosts = "simulated"', 'hosts = "local"'))
    return simulated


@pytest.fixture
def hanging_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that never gets ready; the returned file is there once it was started."""
    home, started = tmp_path / "java", tmp_path / "java-was-started"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\ntouch '{started}'\nexec sleep 600\n")
    executable.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return started


def check(run: RunDir, *arguments: str) -> "CompletedProcess[str]":
    return subprocess.run(
        [SCRIPT, "check", str(run.path), *arguments],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def names_the_run(said: str, run: RunDir) -> bool:
    (line,) = said.splitlines()
    return f"is in {run.path}; to judge it: " in line and line.endswith(f" check {run.path}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_check_that_is_stopped_names_the_run(
    local: RunDir, hanging_java: Path, number: signal.Signals
) -> None:
    """Whichever signal stops it: exit code 2, one sentence, and the named command still judges."""
    process = subprocess.Popen(
        [SCRIPT, "check", str(local.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    _until(hanging_java.exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out) == (2, "")
    said = err.splitlines()[-1]  # above it, at times, the interpreter's word on a fork's callback
    assert said.startswith("seatrial: stopped before there was a verdict; ")
    assert names_the_run(said, local)
    assert not local.verdict_file.exists()


def test_java_that_does_not_start_in_time_costs_no_verdict(
    local: RunDir, hanging_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small history is judged in this process; the note names the bound and the limit."""
    monkeypatch.setenv("SEATRIAL_JAVA_WITHIN_S", "1")
    ran = check(local, "--json")
    assert ran.returncode == 0, ran.stderr
    (note,) = ran.stderr.splitlines()
    assert "java printed nothing for 1 s" in note
    assert "judging without Spark" in note
    assert "is below 32 MiB" in note
    assert json.loads(ran.stdout)["verdict"] == "valid"


@pytest.mark.spark
def test_both_ways_write_the_same_bytes(
    local: RunDir, hanging_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark and this process run the same kernels: verdict.json does not differ in a byte. Where
    the master is none, by option or variable, no Java is started."""
    assert check(local, "--spark", "none").stderr == ""
    here = local.verdict_file.read_bytes()
    local.verdict_file.unlink()
    monkeypatch.setenv("SEATRIAL_SPARK", "none")
    assert check(local).stderr == ""
    assert local.verdict_file.read_bytes() == here
    assert not hanging_java.exists()
    local.verdict_file.unlink()
    monkeypatch.delenv("JAVA_HOME")
    assert check(local, "--spark", "local[1]").stderr == ""
    assert local.verdict_file.read_bytes() == here


def test_a_large_history_waits_for_java(
    local: RunDir, hanging_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit nothing is judged in this process: 255, with the run and the limit."""
    monkeypatch.setenv("SEATRIAL_JAVA_WITHIN_S", "1")
    with (local.history / "large.parquet").open("wb") as large:
        large.truncate(IN_PROCESS_BYTES)
    ran = check(local)
    assert ran.returncode == 255
    assert "is larger than the limit of 32 MiB for judging without Spark" in ran.stderr
    assert names_the_run(ran.stderr, local)
    without = check(local, "--spark", "none")
    assert without.returncode == 255
    assert without.stderr.startswith("seatrial: Spark was not started, because its master is none;")
    assert "is larger than the limit of 32 MiB for judging without Spark" in without.stderr


@pytest.mark.parametrize("command", [("check", "."), ("suite", "nightly", "--only", "blackout")])
def test_a_variable_that_names_no_master_is_refused(
    local: RunDir, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Whether the command has the option or not."""
    monkeypatch.setenv("SEATRIAL_SPARK", "local(2)")
    ran = subprocess.run([SCRIPT, *command], cwd=local.path, capture_output=True, text=True)
    assert ran.returncode == 254
    refusal = ran.stderr.splitlines()[-1]
    assert refusal.startswith("seatrial: 'local(2)' is not a Spark master; write local[N], ")


def test_a_bound_that_is_no_number_is_refused(
    local: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is named."""
    monkeypatch.setenv("SEATRIAL_JAVA_WITHIN_S", "soon")
    ran = check(local)
    assert ran.returncode == 254
    assert "SEATRIAL_JAVA_WITHIN_S must be a number of seconds" in ran.stderr


def test_simulated_runs_need_no_java(simulated: RunDir, hanging_java: Path) -> None:
    """`check` and `replay` of a simulated run never start one."""
    assert check(simulated).returncode == 0
    replayed = subprocess.run(
        [SCRIPT, "replay", str(simulated.path), "--no-report"],
        cwd=simulated.path.parent,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stderr
    assert ": the same events" in replayed.stderr
    assert not hanging_java.exists()


def test_a_full_disk_names_the_run(simulated: RunDir, tmp_path: Path) -> None:
    """The verdict can not be written: 255, with what to do and what to type after it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh")
    ran = subprocess.run(
        [*alone, disk, simulated.path, SCRIPT],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 255, ran.stderr
    assert "free space and check again" in ran.stderr
    assert names_the_run(ran.stderr, RunDir(disk / "run"))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
