"""A process that the agent did not start: found by name, hit with its descendants and no others,
and resumed when the agent leaves."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import leftovers
import pytest

from clusters.hosts._agent.existing import (
    AmbiguousName,
    ExistingProcesses,
    descendants,
    find,
    process_line,
)

CHILDREN = "import subprocess, sys; subprocess.run([sys.argv[1], '1000'])"


@pytest.fixture
def toy(tmp_path: Path) -> str:
    """A program with a name that no other process has."""
    path = tmp_path / f"toy{os.getpid()}"
    shutil.copy("/bin/sleep", path)
    return str(path)


@pytest.fixture
def started() -> Iterator[Callable[..., int]]:
    """Start processes, which end with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> int:
        running.append(subprocess.Popen(argv, start_new_session=True))
        return running[-1].pid

    yield start
    for process in running:
        os.killpg(process.pid, 9)
        process.wait()


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_process_by_its_name_or_its_command_line(toy: str, started: Callable[..., int]) -> None:
    name = os.path.basename(toy)
    assert find(name) == 0
    pid = started(toy, "1000")
    until(lambda: find(name) == pid)
    assert find(rf"{name} 10+$") == pid
    started(toy, "2000")
    until(lambda: bool(find(f"{name} 2000")))
    with pytest.raises(AmbiguousName, match="means 2 processes here"):
        find(name)


def test_descendants_are_stopped_and_resumed_and_nothing_else(
    toy: str, started: Callable[..., int]
) -> None:
    """By pid: others of the process group go on. What is left stopped is resumed at the end."""
    pid = started(sys.executable, "-c", CHILDREN, toy)
    other = started("/bin/sleep", "1000")
    until(lambda: any(leftovers.command(each).startswith(toy) for each in tree(pid)))
    assert len(tree(pid)) == 2
    processes = ExistingProcesses()
    processes.signal(pid, 0, SIGSTOP)
    until(lambda: set(processes.look(pid, 0, "")["threads"]) == {"T"})
    assert len(processes.look(pid, 0, "")["threads"]) == 2
    assert "T" not in processes.look(other, 0, "")["threads"]
    assert set(processes.stopped) == set(tree(pid))
    processes.resume()
    until(lambda: "T" not in processes.look(pid, 0, "")["threads"])
    assert not processes.stopped


def test_a_process_with_the_same_pid_is_another_one(started: Callable[..., int]) -> None:
    pid = started("/bin/sleep", "1000")
    line = process_line(pid)
    assert line
    processes = ExistingProcesses()
    processes.signal(pid, line.started + 1, SIGSTOP)
    assert processes.look(pid, line.started + 1, "")["pid"] == 0
    assert "T" not in processes.look(pid, line.started, "")["threads"]
    processes.signal(pid, line.started, SIGSTOP)
    until(lambda: processes.look(pid, 0, "")["threads"] == "T")
    processes.signal(pid, line.started, SIGCONT)
    assert not processes.stopped


def tree(pid: int) -> list[int]:
    line = process_line(pid)
    return sorted(descendants(pid, line)) if line else []
