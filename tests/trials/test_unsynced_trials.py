"""All brokers of real hosts lose at one instant what they had written and not synced."""

import json
import os
from pathlib import Path

import pytest
import run_command
from naive_loss import lost

pytestmark = pytest.mark.bed

# Syncs hang until the loss, so each broker has unsynced data, also under SYNC_FLUSH. With it no
# send is acknowledged meanwhile, and the loss begins after 2 s.
FORGET = """
[trial]
claims = { unsynced = "all", fsync = "all" }
settings = { timeScale = 0.2, flushIntervalCommitLog = 20000 }
short_faults = true
load = { rate = 200 }

[[fault]]
kind = "fsync"
at_s = 3.0
for_s = 5.0
target = "all broker"
params = { how = "hang" }

[[fault]]
kind = "unsynced"
at_s = 3.2
for_s = 0.5
after = "50 acks within 2 s"
target = "all broker"
params = { keeps = "nothing", by = "calls" }
"""


def sailed(folder: Path, profile: str) -> run_command.FinishedCommand:
    """One trial, for which no Spark is started, and no message about Spark is printed."""
    env = {name: text for name, text in os.environ.items() if name != "SEATRIAL_SPARK"}
    (folder / "forget.toml").write_text(FORGET)
    asked = ("--profile", profile, "--duration", "13s")
    command = ("run", "messages", "--plan", folder / "forget.toml", "--spark", "none", *asked)
    done = run_command.seatrial(*command, runs=folder / "runs", env=env)
    assert "Spark" not in done.err
    return done


def taken(done: run_command.FinishedCommand) -> list[int]:
    """How many bytes each broker has lost, of some that were at stake."""
    fault = next(row for row in run_command.faults(done.run) if row["kind"] == "unsynced")
    assert fault["state"] == "installed", fault["observation"]
    assert fault["healed"] is not None, fault["observation"]
    files = json.loads(fault["observation"])["effect"]["files"]
    assert set(files) == {"broker-1", "broker-2", "broker-3"}
    assert all(told["unseen"] == [] for told in files.values()), files
    return [told["lost_bytes"] for told in files.values()]


def test_what_was_acknowledged_from_memory_is_lost(tmp_path: Path) -> None:
    """Three copies, none of them on a disk: convicted, with as many as a script counts that shares
    no code."""
    done = sailed(tmp_path, "allack-min2")
    assert done.code == 1, done.words
    assert all(taken(done))
    assert done.findings["LOST_ACKED"] == lost(done.run) >= 1


def test_what_was_synced_before_it_was_acknowledged_is_kept(tmp_path: Path) -> None:
    """The same fault takes what was under way, and nothing that anybody was promised."""
    done = sailed(tmp_path, "sync-flush")
    assert done.code == 0, done.words
    assert all(taken(done))
    assert lost(done.run) == 0
