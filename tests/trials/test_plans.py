"""The two plans that aim at the acknowledgement rule: messages are lost under RocketMQ's defaults,
and none under a safe profile.

One plan runs on real processes, the other in a simulated world; both run on both every night.
"""

from pathlib import Path

import pytest
import run_command
from naive_loss import lost

from harness.campaign.simulation import simulate
from harness.history.rundir import RunDir
from harness.trial import Trial
from nemesis import dump, load


@pytest.mark.bed
def test_defaults_lose_what_was_acknowledged(fleet) -> None:
    """Exit code 1, LOST_ACKED, and exactly as many as a script counts that shares no code."""
    done = fleet["isolate-then-kill unsafe-default"]
    assert done.code == 1, done.words
    assert done.verdict["verdict"] == "invalid"
    assert done.findings["LOST_ACKED"] == lost(done.run) >= 1000
    assert f"{done.findings['LOST_ACKED']:,}" in done.verdict["sentence"]
    assert (done.run / "report.html").is_file()


@pytest.mark.bed
def test_waiting_for_the_whole_set_loses_nothing(fleet) -> None:
    """Exit code 0, and nothing lost by either count, though the faults were at work."""
    done = fleet["isolate-then-kill allack-min2"]
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    assert lost(done.run) == 0
    assert {fault["state"] for fault in run_command.faults(done.run)} == {"installed"}


def isolated(folder: Path, profile: str) -> RunDir:
    """Return the run of a master that is cut off from its controllers, judged."""
    plan = (run_command.PLANS / "isolate-from-controllers.toml").read_text()
    overrides, faults = load(plan)
    trial = Trial(name="isolated", profile=profile, hosts="simulated").with_(overrides)
    return simulate(trial.with_({"load": {"rate": 100.0}}), dump(faults), folder / "run").run


def test_a_master_without_controllers_loses_messages_under_defaults(tmp_path: Path) -> None:
    run = isolated(tmp_path, "unsafe-default")
    findings = run_command.findings(run_command.verdict(run.path))
    assert findings["LOST_ACKED"] == lost(run.path) >= 1


def test_a_master_without_controllers_loses_nothing_under_a_safe_profile(tmp_path: Path) -> None:
    run = isolated(tmp_path, "allack-min2")
    verdict = run_command.verdict(run.path)
    assert (verdict["verdict"], verdict["reasons"]) == ("valid", [])
    assert lost(run.path) == 0
    assert {fault["state"] for fault in run_command.faults(run.path)} == {"installed"}
