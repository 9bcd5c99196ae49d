"""A closed terminal and a second Ctrl-C while a fault is active: signals to the command, as a
terminal sends them."""

import signal
import uuid
from collections.abc import Callable, Iterator

import leftovers
import pytest
import run_command
from trial_scenarios import CUT

pytestmark = [pytest.mark.bed, pytest.mark.spark]

STOPPED_WITHIN_S = 30.0


@pytest.fixture
def cut_off(tmp_path) -> Iterator[Callable[[], run_command.RunningCommand]]:
    """A trial whose master is cut off, and stays so for a minute unless it is healed."""
    (tmp_path / "cut.toml").write_text(CUT)
    mark = {leftovers.MARK: uuid.uuid4().hex}
    plan = ("--plan", tmp_path / "cut.toml", "--duration", "60s", "--load", "rate=100")
    command = run_command.RunningCommand("run", "messages", *plan, runs=tmp_path / "runs", **mark)
    command.until("fault 0: partition on .*: observed")
    belongings = leftovers.Belongings(command.process.pid, mark[leftovers.MARK])
    belongings.look()
    yield command, belongings
    command.close()


def test_a_stopped_run_heals_takes_down_and_judges(cut_off) -> None:
    """A terminal is closed: the run is healed, drained, collected and judged: unknown, INTERRUPTED.
    Nothing is left. test_stopped_disks.py presses Ctrl-C."""
    command, belongings = cut_off
    command.signal(signal.SIGHUP)
    done = command.end()
    assert done.code == 2, done.words
    assert run_command.reasons(done.verdict) >= {"INTERRUPTED"}
    assert "Traceback" not in done.err
    (fault,) = run_command.faults(done.run)
    assert fault["healed"] is not None
    assert [note["text"] for note in run_command.table(done.run, "notes")].count("collected") == 1
    assert done.verdict["events"] == run_command.counted(done.run)
    run_command.wait(lambda: not belongings.left(), STOPPED_WITHIN_S, f"{belongings.left()} ending")


def test_stopped_before_the_load_it_says_that_nothing_was_recorded(tmp_path) -> None:
    """While the cluster is started: the sentence names the folder, and why it has no verdict."""
    runs = tmp_path / "runs"
    command = run_command.RunningCommand("run", "messages", "--duration", "60s", runs=runs)
    try:
        raising = runs.glob  # the runner writes its names first
        run_command.wait(lambda: any(raising("*/names.json")), run_command.LONGEST_S, "a runner")
        command.signal(signal.SIGINT)
        done = command.end()
    finally:
        command.close()
    assert done.code == 2, done.words
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("seatrial: stopped before there was a verdict; the load had not begun")
    assert last.endswith(f"so {done.run} has nothing to judge")


def test_a_second_ctrl_c_stops_at_once(cut_off) -> None:
    """No verdict, no traceback, nothing left; what was recorded can still be judged."""
    command, belongings = cut_off
    command.signal(signal.SIGINT)
    command.until("phase: interrupted")
    command.signal(signal.SIGINT)
    done = command.end()
    assert done.code == 2, done.words
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("seatrial: stopped before there was a verdict; the recorded run is in ")
    assert last.endswith(f"check {done.run}")
    assert "Traceback" not in done.err
    run_command.wait(lambda: not belongings.left(), STOPPED_WITHIN_S, f"{belongings.left()} ending")
    checked = run_command.seatrial("check", done.run, "--json", runs=done.runs)
    assert checked.code == 2, checked.words
    assert "INTERRUPTED" in run_command.reasons(done.verdict)
