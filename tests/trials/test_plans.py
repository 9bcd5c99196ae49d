"""The two plans that aim at the acknowledgement rule: lost under RocketMQ's defaults, safe else."""

import pytest
import sailing
from naive_loss import lost

pytestmark = [pytest.mark.bed, pytest.mark.spark]


@pytest.mark.parametrize(
    ("plan", "least"), [("isolate-then-kill", 1000), ("isolate-from-controllers", 1)]
)
def test_defaults_lose_what_was_acknowledged(fleet, plan: str, least: int) -> None:
    """Exit code 1, LOST_ACKED, and exactly as many as a script counts that shares no code."""
    voyage = fleet[f"{plan} unsafe-default"]
    assert voyage.code == 1, voyage.words
    assert voyage.verdict["verdict"] == "invalid"
    assert voyage.findings["LOST_ACKED"] == lost(voyage.run) >= least
    assert f"{voyage.findings['LOST_ACKED']:,}" in voyage.verdict["sentence"]
    assert (voyage.run / "report.html").is_file()


@pytest.mark.parametrize("plan", ["isolate-then-kill", "isolate-from-controllers"])
def test_waiting_for_the_whole_set_loses_nothing(fleet, plan: str) -> None:
    """Exit code 0, and nothing lost by either count, though the faults were at work."""
    voyage = fleet[f"{plan} allack-min2"]
    assert voyage.code == 0, voyage.words
    assert (voyage.verdict["verdict"], voyage.verdict["reasons"]) == ("valid", [])
    assert lost(voyage.run) == 0
    assert {fault["state"] for fault in sailing.faults(voyage.run)} == {"installed"}
