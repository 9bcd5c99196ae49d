"""The two plans that aim at the acknowledgement rule: lost under RocketMQ's defaults, safe else."""

import pytest
import run_command
from naive_loss import lost

pytestmark = [pytest.mark.bed, pytest.mark.spark]


@pytest.mark.parametrize(
    ("plan", "least"), [("isolate-then-kill", 1000), ("isolate-from-controllers", 1)]
)
def test_defaults_lose_what_was_acknowledged(fleet, plan: str, least: int) -> None:
    """Exit code 1, LOST_ACKED, and exactly as many as a script counts that shares no code."""
    done = fleet[f"{plan} unsafe-default"]
    assert done.code == 1, done.words
    assert done.verdict["verdict"] == "invalid"
    assert done.findings["LOST_ACKED"] == lost(done.run) >= least
    assert f"{done.findings['LOST_ACKED']:,}" in done.verdict["sentence"]
    assert (done.run / "report.html").is_file()


@pytest.mark.parametrize("plan", ["isolate-then-kill", "isolate-from-controllers"])
def test_waiting_for_the_whole_set_loses_nothing(fleet, plan: str) -> None:
    """Exit code 0, and nothing lost by either count, though the faults were at work."""
    done = fleet[f"{plan} allack-min2"]
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    assert lost(done.run) == 0
    assert {fault["state"] for fault in run_command.faults(done.run)} == {"installed"}
