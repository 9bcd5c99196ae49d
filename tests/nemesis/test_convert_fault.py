"""The fault `convert`: a broker set changes its mode under load."""

import pytest

from harness.campaign.simulation import SeedOutcome, simulate
from harness.errors import Unsupported
from harness.history.reader import History
from harness.run.launch import PlanLimits
from harness.trial import Trial
from nemesis import dump
from nemesis import load as plan_of
from nemesis._plan import plan as _plan

PLAN = """
[[fault]]
kind = "convert"
at_s = 1.0
for_s = 1.0
target = "master"

[[fault]]
kind = "kill"
at_s = 3.0
for_s = 1.5
target = "master"
after = "event mode by broker within 3 s"

[[fault]]
kind = "convert"
at_s = 3.1
for_s = 3.0
target = "master"
params = { to = "raft-log" }
"""
TRIAL = Trial(
    name="convert",
    hosts="simulated",
    profile="converting",
    duration_s=8.0,
    load={"rate": 50},
    settings={"timeScale": 0.1},
    short_faults=True,
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    plan = dump(plan_of(PLAN, "p.toml").faults)
    return simulate(TRIAL, plan, tmp_path_factory.mktemp("c") / "run")


def test_a_conversion_that_another_fault_interrupts_is_ended(outcome: SeedOutcome) -> None:
    """`next` is the mode that follows. The master died when its disk had the new mode."""
    history = History.open(outcome.run)
    faults = [fault for fault in history.faults if fault.kind == "convert"]
    assert [fault.state for fault in faults] == ["installed", "installed"]
    assert all(fault.healed is not None for fault in faults)
    latest = {
        event.node: (event.fields["generation"], event.fields["mode"])
        for event in history.events
        if event.kind == "mode"
    }
    assert set(latest.values()) == {(2, "raft-log")}
    assert len(latest) == 3
    assert outcome.verdict
    assert not outcome.verdict.convicting, outcome.verdict.sentence


def test_only_sets_that_are_convertible_are_converted() -> None:
    """Refused before anything starts."""
    one = plan_of(PLAN, "p.toml").faults[:1]
    trial = Trial(profile="sync-flush", faults=("convert",), short_faults=True)
    stage = PlanLimits.of(trial)
    with pytest.raises(
        Unsupported, match="profile sync-flush, which lacks broker sets that can be"
    ):
        _plan.check(one, trial, stage.detection_s, stage.nodes, stage.can)
    there = PlanLimits.of(TRIAL)
    _plan.check(one, TRIAL, there.detection_s, there.nodes, there.can)
