"""A failing seed fails again from its run folder alone: elsewhere, for another user, with an empty
environment.
"""

import json
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import run_command

from harness.campaign.simulation import (
    MAX_STEPS,
    SeedOutcome,
    judge_simulated,
    record_messages,
    simulate,
)
from harness.history.messages import read_messages
from harness.history.rundir import RunDir
from harness.trial import Trial

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("harness", "nemesis", "checkers", "clusters", "reports")
NOBODY = "65534"
COMMAND = "from harness.cli.main import main; main()"  # as the console script has it
PLAN = """\
[[fault]]
kind = "power"
at_s = 1.0
for_s = 1.0
target = "all broker"
"""
FORGETFUL = Trial(
    name="seed-1",
    hosts="simulated",
    profile="sync-flush",
    duration_s=3.0,
    short_faults=True,
    settings={"timeScale": 0.1, "mutant": "no-fsync"},
    load={"rate": 60.0},
)


def failed(folder: Path) -> SeedOutcome:
    """A seed whose cluster lost data, as a campaign keeps it; its original place does not exist any
    more."""
    made = simulate(FORGETFUL, PLAN, folder / "made" / "seed-1")
    shutil.move(folder / "made" / "seed-1", folder / "received")
    (folder / "made").rmdir()
    return made


def clone(folder: Path) -> Path:
    """Our files at another path, installed in an interpreter that knows no other copy of them."""
    for package in PACKAGES:
        unmade = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=unmade)
    shutil.copy(ROOT / "pyproject.toml", folder)
    venv.create(folder / ".venv", symlinks=True)
    python = folder / ".venv" / "bin" / "python"
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    theirs = sysconfig.get_path("purelib")  # what others made; links in there are not followed
    (site / "seatrial.pth").write_text(f"{folder}\n{theirs}\n")
    found = _by_nobody(python, "import harness; print(harness.__file__)")
    assert found.stdout == f"{folder}/harness/__init__.py\n", found.stderr
    return python


def _by_nobody(python: Path, command: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run this as another user, without any variable: no HOME, no PATH, no hash seed."""
    unshare = shutil.which("unshare")
    assert unshare, "util-linux is not installed"
    argv = (unshare, "--user", f"--map-user={NOBODY}", python, "-c", command, *words)
    return subprocess.run(
        [str(word) for word in argv],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        timeout=run_command.LONGEST_S,
        check=False,
    )


@pytest.mark.bed
@pytest.mark.spark
def test_a_failing_seed_fails_again_from_its_folder_alone(tmp_path: Path) -> None:
    """In a clone at another path, as another user, with an empty environment: the same findings,
    and the same events."""
    before = failed(tmp_path)
    assert before.failure
    python = clone(tmp_path / "elsewhere" / "clone")
    asked = ("--runs", tmp_path / "runs", "--json", "--no-report")
    again = _by_nobody(python, COMMAND, "replay", tmp_path / "received", *asked)
    words = again.stdout + again.stderr
    assert again.returncode == 1, words
    assert f"digest {before.digest}: the same events" in words
    run = RunDir((tmp_path / "runs" / "latest").resolve())
    assert run.state()["digest"] == before.digest
    assert _convicting(json.loads(again.stdout)) == before.failure


def _convicting(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    found = (finding for checker in verdict["checkers"] for finding in checker["findings"])
    return tuple(f["code"] for f in found if f["demand"] and not (f["permitted"] or f["excuses"]))


def test_its_messages_are_recorded_by_a_second_run(tmp_path: Path) -> None:
    """Around its first violation; with a recording the same seed has the same digest. A recording
    of other events than the run's is not kept, and the run's log says so."""
    made = simulate(FORGETFUL, PLAN, tmp_path / "seed-1")
    before = {path.name for path in tmp_path.iterdir()}
    record_messages(made.run, scratch=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before
    recording = read_messages(made.run)
    assert recording
    assert recording.window.digest == made.digest
    assert made.verdict
    moments = [f.first_moment_s for f in made.verdict.convicting_findings]
    assert recording.window.moment / 1e9 == pytest.approx(min(m for m in moments if m is not None))
    sends = [m for m in recording.messages if m.kind == "send"]
    roles = made.run.names()["roles"]
    assert {(roles[m.source], roles[m.target]) for m in sends} == {("client", "broker")}
    assert {"append", "ha data", "broker heartbeat"} <= {m.kind for m in recording.messages}
    assert made.run.log.read_text() == ""

    made.run.messages_file.unlink()
    made.run.update_state(digest="of another run")
    record_messages(made.run, scratch=tmp_path)
    assert not made.run.messages_file.exists()
    assert "not the same events" in made.run.log.read_text()


def test_a_standstill_has_messages_too(tmp_path: Path) -> None:
    """Those around the end of the load, if no finding has a time."""
    made = simulate(FORGETFUL, PLAN, tmp_path / "seed-1")
    made.run.verdict_file.unlink()
    record_messages(made.run, scratch=tmp_path)
    recording = read_messages(made.run)
    assert recording
    assert recording.window.moment == made.run.state()["load_ended_ns"]
    assert recording.messages


def test_its_result_has_a_story(tmp_path: Path) -> None:
    """The faults in force at the violation, and what happened before it; the same each time."""
    made = simulate(FORGETFUL, PLAN, tmp_path / "seed-1")
    again = judge_simulated(made.run)
    assert (again.in_force, again.before) == (made.in_force, made.before)
    assert set(made.in_force) <= {"power"}
    assert made.in_force or made.before
    assert len(made.before) <= MAX_STEPS


def test_a_long_final_read_is_no_standstill(tmp_path: Path) -> None:
    """One message in each answer, on a slow link: reading goes on for over two minutes."""
    slow = Trial(
        hosts="simulated",
        profile="unsafe-default",
        nodes={"controller": 1, "broker": 1, "client": 1},
        bed={"latency_ms": 45.0, "jitter_ms": 0.0, "spread": 1.0},
        duration_s=8.0,
        load={"rate": 500.0, "concurrency": 48, "queues": 1, "poll_limit": 1, "body_bytes": 64},
    )
    made = simulate(slow, "fault = []\n", tmp_path / "seed-1")
    assert made.seconds > 130
    assert not made.failure
    assert not made.unproven
