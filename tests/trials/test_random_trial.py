"""A random trial with every kind of fault: valid, judged twice alike, and carried out again."""

import tomllib

import pytest
import run_command
from naive_loss import lost

pytestmark = pytest.mark.bed


def test_a_safe_cluster_weathers_every_kind_of_fault(storm: run_command.FinishedCommand) -> None:
    """Valid without a reservation, each kind at work, and nothing lost by the naive count."""
    assert storm.code == 0, storm.words
    assert (storm.verdict["verdict"], storm.verdict["reasons"]) == ("valid", [])
    assert {fault["kind"] for fault in run_command.faults(storm.run)} == {
        *("kill", "pause", "partition", "loss")
    }
    assert lost(storm.run) == 0
    assert storm.verdict["events"] == run_command.counted(storm.run)


def test_checking_twice_gives_the_same_bytes(storm: run_command.FinishedCommand) -> None:
    """What the run wrote, and what a check writes after it, are the same verdict."""
    written = (storm.run / "verdict.json").read_bytes()
    checked = run_command.seatrial("check", storm.runs / "latest", runs=storm.runs)
    assert checked.code == 0, checked.words
    assert (storm.run / "verdict.json").read_bytes() == written


def test_a_replay_executes_the_plan(storm: run_command.FinishedCommand, tmp_path) -> None:
    """Kind and selector of each executed fault are the plan's, and no fault begins too early, or
    far too late; all of them would be late if times were counted from another moment."""
    plan = tomllib.loads((storm.run / "plan.toml").read_text())["fault"]
    again = run_command.seatrial("replay", storm.runs / "latest", runs=tmp_path / "again")
    assert again.code == 0, again.words
    executed, began_ns = run_command.faults(again.run), run_command.load_began_ns(again.run)
    assert [(row["kind"], row["selector"]) for row in executed] == [
        (fault["kind"], fault.get("target", "")) for fault in plan
    ]
    begun_s = [(row["begin"] - began_ns) / 1e9 for row in executed]
    late_s = [begun - fault["at_s"] for begun, fault in zip(begun_s, plan, strict=True)]
    assert min(late_s) == pytest.approx(0, abs=0.1)
    assert max(late_s) < 5
