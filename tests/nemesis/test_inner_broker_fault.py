"""The fault `inner-broker`: a broker leaves a running container, and returns."""

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
kind = "inner-broker"
at_s = 1.0
for_s = 2.0
target = "container-1"
params = { mistakes = true }

[[fault]]
kind = "inner-broker"
at_s = 4.0
for_s = 3.0
target = "container-2"
params = { broker = "master" }

[[fault]]
kind = "kill"
at_s = 6.5
for_s = 1.5
target = "container-2"
"""
TRIAL = Trial(
    name="inner",
    hosts="simulated",
    profile="container-cross",
    duration_s=10.0,
    load={"rate": 50},
    settings={"timeScale": 0.1},
    short_faults=True,
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    plan = dump(plan_of(PLAN, "p.toml").faults)
    return simulate(TRIAL, plan, tmp_path_factory.mktemp("i") / "run")


def test_a_slave_and_a_master_leave_and_return(outcome: SeedOutcome) -> None:
    """Also a broker whose process is dead when the fault ends: it is added when that is back."""
    history = History.open(outcome.run)
    faults = [fault for fault in history.faults if fault.kind == "inner-broker"]
    assert [fault.state for fault in faults] == ["installed", "installed"]
    assert all(fault.healed is not None for fault in faults)
    left = [
        (event.node, event.fields["brokerName"])
        for event in history.events
        if event.kind == "inner" and event.fields["action"] == "removed"
    ]
    assert left == [("container-1", "set-2"), ("container-2", "set-2")]
    added = [e for e in history.events if e.kind == "inner" and e.fields["action"] == "added"]
    [killed] = [fault for fault in history.faults if fault.kind == "kill"]
    assert killed.healed is not None
    assert added[-1].t >= killed.healed
    assert outcome.verdict
    assert not outcome.verdict.convicting, outcome.verdict.sentence


def test_mistakes_of_the_operator_are_refused(outcome: SeedOutcome) -> None:
    """The store of another broker, and a port that is in use."""
    actions = [
        (event.fields["action"], event.fields["brokerName"])
        for event in History.open(outcome.run).events
        if event.kind == "inner" and event.fields["action"] in ("refused", "failed")
    ]
    assert actions[:2] == [("refused", "set-of-another"), ("failed", "set-2")]


def test_a_system_without_containers_is_refused() -> None:
    """Before anything starts; and so is a target that is no container."""
    one = plan_of(PLAN, "p.toml").faults[:1]
    trial = Trial(profile="sync-flush", faults=("inner-broker",), short_faults=True)
    stage = PlanLimits.of(trial)
    with pytest.raises(Unsupported, match="lacks containers with several brokers"):
        _plan.check(
            plan_of(PLAN.replace("container-1", "broker-1"), "p.toml").faults[:1],
            trial,
            stage.detection_s,
            stage.nodes,
            stage.can,
        )
    there = PlanLimits.of(TRIAL)
    _plan.check(one, TRIAL, there.detection_s, there.nodes, there.can)
