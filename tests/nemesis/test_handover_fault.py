"""The fault `handover`: a master hands over by the operator's command, and another node leads.

Simulated worlds carry it out on a sound Flotilla; nothing else is wrong there, so no send may fail.
"""

from random import Random

import pytest

from harness.campaign.simulation import SeedOutcome, simulate
from harness.errors import Unsupported
from harness.history.reader import History
from harness.operation import F, Type
from harness.run.launch import PlanLimits
from harness.trial import Trial
from nemesis import dump, swarm
from nemesis import load as plan_of
from nemesis._plan import plan as _plan

PLAN = """
[[fault]]
kind = "handover"
at_s = 2.0
for_s = 2.0
target = "master"

[[fault]]
kind = "handover"
at_s = 5.0
for_s = 2.0
target = "master"

[[fault]]
kind = "handover"
at_s = 8.0
for_s = 1.0
target = "slave"
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    trial = Trial(
        name="handover",
        hosts="simulated",
        profile="sync-flush",
        duration_s=11.0,
        load={"rate": 50},
        settings={"timeScale": 0.1},
        short_faults=True,
    )
    return simulate(
        trial, dump(plan_of(PLAN, "p.toml").faults), tmp_path_factory.mktemp("h") / "run"
    )


def test_another_master_leads_after_each_handover(outcome: SeedOutcome) -> None:
    """Observed in the nodes' own reports; the second handover follows the first."""
    first, second, _ = History.open(outcome.run).faults
    assert (first.state, second.state) == ("installed", "installed")
    ((was, now),) = first.observation["effect"]["masters"].values()
    assert first.names == (was,) != (now,)
    ((then, last),) = second.observation["effect"]["masters"].values()
    assert then == now != last


def test_a_slave_has_nothing_to_hand_over(outcome: SeedOutcome) -> None:
    """Such a fault was never in force, so it proves nothing."""
    *_, third = History.open(outcome.run).faults
    assert third.state == "failed"
    assert "handover" in outcome.faults
    assert outcome.faults["handover"] == 2


def test_no_send_fails_in_a_handover(outcome: SeedOutcome) -> None:
    """What came meanwhile waited for the new master; nothing acknowledged is lost."""
    assert outcome.verdict
    assert not outcome.verdict.convicting, outcome.verdict.sentence
    sends = [row for row in History.open(outcome.run).read("ops").to_pylist() if row["f"] == F.SEND]
    ended = [row["type"] for row in sends if row["type"] != Type.INVOKE]
    assert len(ended) > 300
    assert set(ended) == {Type.OK}


def test_a_system_without_such_a_command_is_refused() -> None:
    """Before anything starts."""
    trial = Trial(system="redis", profile="", faults=("handover",), short_faults=True)
    stage = PlanLimits.of(trial)
    plan = plan_of(PLAN, "p.toml").faults[:1]
    with pytest.raises(Unsupported, match="lacks a command that hands"):
        _plan.check(plan, trial, stage.detection_s, stage.nodes, stage.can)


def test_campaigns_draw_handovers() -> None:
    """A kind that may break nothing needs no claim of the profile; where the system has no such
    command, it is not drawn."""
    trial = Trial(profile="sync-flush", duration_s=20.0, short_faults=True)
    stage = PlanLimits.of(trial)

    def kinds(can: frozenset[str]) -> set[str]:
        plans = (swarm(Random(seed), trial, 0.5, stage.nodes, can) for seed in range(12))
        return {fault.kind for plan in plans for fault in plan}

    assert "handover" in kinds(stage.can)
    assert "handover" not in kinds(stage.can - {"handover"})
