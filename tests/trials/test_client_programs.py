"""The client programs of the documentation, in Go and for Node, on registers of etcd: valid while
the leader is killed, and while clients themselves crash. Both trials are under way at once."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import run_command

pytestmark = [pytest.mark.bed, pytest.mark.spark]

EXAMPLES = run_command.ROOT / "docs" / "examples"
FAULTS = {"go": ("--faults", "kill", "--targets", "leader"), "node": ("--faults", "crash")}
TIMES = ("--duration", "14s", "--rhythm", "quiet_s=2,fault_s=6,recovery_s=5")
Commands = Mapping[str, "Future[run_command.FinishedCommand]"]


def client(language: str, folder: Path) -> Path:
    """Return the program, once it is built. Skips if this machine lacks the language."""
    if not shutil.which(language):
        pytest.skip(f"{language} is not installed: `.ci/packages test` installs it")
    if language == "node":
        return EXAMPLES / "etcd-node" / "client.mjs"
    built = folder / "etcd-client"
    argv = ["go", "build", "-mod=readonly", "-o", str(built), "."]
    env = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(
        argv, cwd=EXAMPLES / "etcd-go", env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("programs")

    def run(language: str) -> run_command.FinishedCommand:
        return run_command.seatrial(
            *("run", "register", "--system", "etcd", "--client", client(language, folder)),
            *(*FAULTS[language], *TIMES, "--load", "rate=60", "--no-report"),
            runs=folder / language,
        )

    with ThreadPoolExecutor(len(FAULTS)) as pool:
        yield {language: pool.submit(run, language) for language in FAULTS}


@pytest.mark.parametrize("language", FAULTS)
def test_a_client_program_serves_a_trial(commands: Commands, language: str) -> None:
    done = commands[language].result()
    assert (done.code, done.verdict["verdict"]) == (0, "valid"), done.words
    assert {fault["state"] for fault in run_command.faults(done.run)} == {"installed"}
    kinds = {row["f"] for row in run_command.table(done.run, "ops") if row["type"] == 1}
    assert len(kinds) == 3, "reads, writes and comparisons succeeded"
