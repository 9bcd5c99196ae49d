"""Signals to the process group of a node's program reach the sessions that it starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import leftovers
import pytest

from clusters.kit import process_tree

# a program whose child is an orphan in a session of its own, as PostgreSQL's processes are
PROGRAM = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        os.setsid()
        open("orphan", "w").write(f"{os.getpid()} {os.geteuid()} ")
        time.sleep(60)
    os._exit(0)
while not os.path.exists("orphan") or len(open("orphan").read().split()) < 2:
    time.sleep(0.01)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(folder: Path, seconds: float = 60) -> tuple[subprocess.Popen[bytes], int]:
    """Start the program; return it and the pid of its orphan."""
    orphan = folder / "orphan"
    orphan.unlink(missing_ok=True)
    argv = [sys.executable, "-I", "-S", process_tree.__file__, str(folder)]
    program = [sys.executable, "-c", PROGRAM, str(seconds)]
    run = subprocess.Popen([*argv, *program], cwd=folder, start_new_session=True)
    wait_until(lambda: orphan.exists() and len(orphan.read_text().split()) == 2)
    return run, int(orphan.read_text().split()[0])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    run, orphan = start(tmp_path)
    yield run, orphan
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    wait_until(lambda: not leftovers.state(orphan))


Running = tuple[subprocess.Popen[bytes], int]


def test_a_stopped_group_stops_all(running: Running) -> None:
    run, orphan = running
    os.killpg(run.pid, signal.SIGSTOP)
    wait_until(lambda: leftovers.state(orphan) == "T")
    os.killpg(run.pid, signal.SIGCONT)
    wait_until(lambda: leftovers.state(orphan) == "S")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_group_is_killed_whole(running: Running, stopped: bool) -> None:
    run, orphan = running
    if stopped:
        os.killpg(run.pid, signal.SIGSTOP)
        wait_until(lambda: leftovers.state(orphan) == "T")
    os.killpg(run.pid, signal.SIGKILL)
    wait_until(lambda: not leftovers.state(orphan))


def test_the_program_starts_again_when_the_one_before_is_dead(tmp_path: Path) -> None:
    before, old = start(tmp_path)
    os.killpg(before.pid, signal.SIGKILL)
    before.wait()
    after, new = start(tmp_path)
    assert not leftovers.state(old)
    os.killpg(after.pid, signal.SIGKILL)
    after.wait()
    wait_until(lambda: not leftovers.state(new))


def test_it_ends_with_its_program(tmp_path: Path) -> None:
    """With its exit code, and nothing is left."""
    run, orphan = start(tmp_path, 0.5)
    assert run.wait(20) == 7
    assert not leftovers.state(orphan)


def test_it_passes_on_that_it_should_end(running: Running) -> None:
    run, orphan = running
    os.killpg(run.pid, signal.SIGTERM)
    assert run.wait(20) == 128 + signal.SIGTERM
    assert not leftovers.state(orphan)


def test_the_program_is_not_root(tmp_path: Path) -> None:
    """It sees another user, whether this test runs as root or not."""
    run, _ = start(tmp_path)
    assert int((tmp_path / "orphan").read_text().split()[1]) != 0
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


NO_NAMESPACE = """
import sys
from types import SimpleNamespace
import process_tree
sys.path.pop()
real = process_tree.libc
process_tree.libc = SimpleNamespace(prctl=real.prctl, unshare=lambda _: -1)
process_tree.main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_becomes_another_user_where_user_namespaces_are_not_allowed(tmp_path: Path) -> None:
    """The user owns the folder, with all that it holds."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    code = (
        f"import sys; sys.path.append({str(Path(process_tree.__file__).parent)!r})" + NO_NAMESPACE
    )
    argv = [sys.executable, "-c", code, str(tmp_path), "/usr/bin/id", "-u"]
    run = subprocess.run(
        argv, capture_output=True, text=True, timeout=600, check=True, start_new_session=True
    )
    assert run.stdout == "65534\n"
    owned = {path.stat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))}
    assert owned == {process_tree.OTHER_ID}
