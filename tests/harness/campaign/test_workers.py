"""Worker processes: replaced, lost one by one, deaf to what is for the command, never left over."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import leftovers
import pytest
from seedlings import Gated, Sow, whose

from harness.campaign import pool as workers
from harness.campaign.pool import SCRATCH, run_in_pool
from harness.run.interrupts import STOP_SIGNALS

SOON_S = 30.0
ROOT = Path(__file__).resolve().parents[3]


def test_workers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many items, or when one has grown too large, so that no leak adds up."""
    monkeypatch.setattr(workers, "MAX_ITEMS", 2)
    pids = [done.result for done in run_in_pool(whose, range(6), 1) if done]
    assert len(set(pids)) == 3
    monkeypatch.setattr(workers, "GROWN_BYTES", 0)
    pids = [done.result for done in run_in_pool(whose, range(3), 1) if done]
    assert len(set(pids)) == 3


def test_a_worker_is_as_large_as_itself() -> None:
    """Whoever starts it may be larger."""
    ballast = b"x" * (1 << 29)
    (peak_bytes,) = (done.peak_bytes for done in run_in_pool(whose, (1,), 1) if done)
    assert 0 < peak_bytes < len(ballast)


def test_an_item_has_so_much_time_of_the_processor() -> None:
    """One that takes more loses its worker, and the others go on."""
    steps = run_in_pool(Sow(spinning=(2,)), (1, 2, 3), 1, max_cpu_s=0.5)
    lost = {done.item: done.lost for done in steps if done}
    assert lost == {1: "", 2: "its process took too much CPU time", 3: ""}


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_what_is_sent_to_all_is_for_the_command_alone(
    number: signal.Signals, tmp_path: Path
) -> None:
    """A worker goes on, even if it has only just begun; whoever started it ends it."""
    gate = tmp_path / "open"
    steps = run_in_pool(Gated(gate), (1, 2), 1)
    before = _children(os.getpid())
    with closing(steps):
        while not (started := _children(os.getpid()) - before):
            assert next(steps) is None
        for pid in started:
            os.kill(pid, number)
        gate.touch()
        assert [done.lost for done in steps if done] == ["", ""]


def test_closing_ends_all_workers() -> None:
    """Also in the middle of an item."""
    before = _children(os.getpid())
    with closing(run_in_pool(Sow(endless=(1, 2)), (1, 2), 2)) as steps:
        assert next(steps) is None
        children = _children(os.getpid()) - before
    assert len(children) == 2
    _gone(children)


ORPHANS = """
from seedlings import Sow
from harness.campaign.pool import run_in_pool

if __name__ == "__main__":
    for step in run_in_pool(Sow(endless=(1, 2)), (1, 2), 2):
        print("at work", flush=True)
"""


def test_workers_end_with_whoever_started_them(tmp_path: Path) -> None:
    """Even if that is killed, which nobody can prepare for; nothing stays in memory either."""
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'labs' / 'sample_runs'}",
        "TMPDIR": str(tmp_path),
    }
    with subprocess.Popen([sys.executable, script], env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        children = _children(parent.pid)
        scratch = _scratches(children)
        parent.kill()
    assert len(children) == 2
    _gone(children)
    assert scratch
    _until(lambda: not any(folder.exists() for folder in scratch))


def test_a_folder_that_was_just_made_is_not_taken_for_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has not locked it yet; only an old one without a lock is removed."""
    monkeypatch.setattr(workers, "MEMORY", tmp_path)
    monkeypatch.setattr(workers, "ROOM_BYTES", 0)
    new, old = (tmp_path / f"{SCRATCH}{name}" for name in ("new", "old"))
    new.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    with closing(run_in_pool(Sow(), (1,), 1)) as steps:
        list(steps)
    assert new.exists()
    assert not old.exists()


def _children(pid: int) -> set[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {pid for pid in map(int, listed) if "resource_tracker" not in leftovers.command(pid)}


def _scratches(children: set[int]) -> set[Path]:
    """Scratch folders held by the parent of these."""
    (parent,) = {Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[1] for pid in children}
    held = (os.readlink(fd) for fd in Path(f"/proc/{parent}/fd").iterdir())
    return {Path(name).parent for name in held if SCRATCH in name}


def _gone(pids: set[int]) -> None:
    _until(lambda: not any(leftovers.alive(pid) for pid in pids))


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
