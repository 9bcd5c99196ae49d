"""Disks that are spoilt when the command is stopped, or killed: nothing of it stays."""

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
import run_command

from nemesis import open_entries

pytestmark = pytest.mark.bed

SPOILT = """
fault = [
    { kind = "disk-full", at_s = 0.5, for_s = 55.0, target = "broker-1" },
    { kind = "read-only", at_s = 0.5, for_s = 55.0, target = "broker-2" },
    { kind = "fsync", at_s = 0.5, for_s = 55.0, target = "broker-3", params = { how = "hang" } },
]
"""
GONE_WITHIN_S = 30.0

Spoilt = tuple[run_command.RunningCommand, leftovers.Belongings]


@pytest.fixture
def spoilt(tmp_path: Path) -> Iterator[Spoilt]:
    """A trial whose brokers' disks are full, read-only, and hang."""
    (tmp_path / "spoilt.toml").write_text(SPOILT)
    mark = {leftovers.MARK: uuid.uuid4().hex}
    plan = ("--plan", tmp_path / "spoilt.toml", "--duration", "60s", "--load", "rate=100")
    before = leftovers.machine()
    command = run_command.RunningCommand("run", "messages", *plan, runs=tmp_path / "runs", **mark)
    belongings = leftovers.Belongings(command.process.pid, mark[leftovers.MARK])
    try:
        for _ in range(3):
            command.until("fault [012]: .*: observed")
        belongings.look()
        commands = [leftovers.command(pid) for pid, _ in belongings.seen]
        wardens = [command for command in commands if "syscall_tracer.py watch" in command]
        assert wardens
        assert not any("/store" in command for command in wardens), "no fault wants a ledger"
        yield command, belongings
    finally:
        command.close()
    run_command.wait(lambda: not belongings.left(), GONE_WITHIN_S, f"{belongings.left()} ending")
    assert leftovers.machine() == before
    probes = [path.name for path in tmp_path.rglob("*") if "seatrial-probe" in path.name]
    assert probes == []


def test_ctrl_c_heals_spoilt_disks(spoilt: Spoilt) -> None:
    """Each is seen healed; the verdict is INTERRUPTED, and the end in order."""
    command, _ = spoilt
    command.signal(signal.SIGINT)
    done = command.end()
    assert done.code == 2, done.words
    assert run_command.reasons(done.verdict) >= {"INTERRUPTED"}
    faults = run_command.faults(done.run)
    assert {fault["kind"] for fault in faults} == {"disk-full", "read-only", "fsync"}
    assert all(fault["healed"] is not None for fault in faults)


def test_spoilt_disks_die_with_a_killed_command(spoilt: Spoilt) -> None:
    """Gates and wardens go with the nodes; `heal --all` closes what the ledger has open, once."""
    command, belongings = spoilt
    command.signal(signal.SIGKILL)
    done = command.end()
    run_command.wait(lambda: not belongings.left(), GONE_WITHIN_S, f"{belongings.left()} ending")
    ledger = done.run / "ledger.jsonl"
    assert len(open_entries(ledger)) == 3
    healed = run_command.seatrial("heal", "--all", "--runs", done.runs, runs=done.runs)
    assert healed.code == 0, healed.words
    assert "fsync of broker-3" in healed.out
    assert open_entries(ledger) == ()
