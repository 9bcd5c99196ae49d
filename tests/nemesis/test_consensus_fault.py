"""The fault `consensus`: controllers change how they agree, under load."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.systems.flotilla.driver import Flotilla
from harness.campaign.simulation import simulate
from harness.errors import BadRequest, Unsupported
from harness.history.reader import History
from harness.history.roles import election_count
from harness.run.launch import PlanLimits
from harness.trial import Trial
from nemesis import dump
from nemesis import load as plan_of
from nemesis._plan import plan as _plan

PLAN = """
[[fault]]
kind = "consensus"
at_s = 1.0
for_s = 9.0
target = "all controller"

[[fault]]
kind = "consensus"
at_s = 11.0
for_s = 4.0
target = "one controller"
params = { to = "dledger" }
"""
TRIAL = Trial(
    name="consensus",
    hosts="simulated",
    duration_s=17.0,
    load={"rate": 20},
    settings={"timeScale": 0.1},
    short_faults=True,
)
CONTROLLERS = ["controller-1", "controller-2", "controller-3"]


def changed(tmp_path: Path) -> tuple[History, str]:
    """Return the history of the plan, and the verdict's sentence if it is not valid."""
    outcome = simulate(TRIAL, dump(plan_of(PLAN, "p.toml").faults), tmp_path / "run")
    assert outcome.verdict
    return History.open(outcome.run), "; ".join(map(str, outcome.verdict.convicting))


def test_controllers_change_their_kind_and_brokers_keep_their_roles(tmp_path: Path) -> None:
    """`next` of dledger is jraft. Both kinds serve in one group in the end."""
    history, wrong = changed(tmp_path)
    assert not wrong
    first, second = (fault for fault in history.faults if fault.kind == "consensus")
    assert (first.state, second.state) == ("installed", "installed")
    assert first.observation["healing"]["versions"] == dict.fromkeys(CONTROLLERS, "jraft")
    assert list(second.observation["healing"]["versions"].values()) == ["dledger"]
    assert election_count(history.events) == 1, "the first one of all"


def test_a_change_that_the_processes_do_not_show_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that writes no configuration restarts controllers of the kind before."""

    async def only_noted(self: Flotilla, bed: Any, node: str, kind: str) -> None:
        self._consensus[node] = kind

    monkeypatch.setattr(Flotilla, "set_consensus", only_noted)
    history, _ = changed(tmp_path)
    first = next(fault for fault in history.faults if fault.kind == "consensus")
    assert first.state == "failed"


def test_the_kind_that_controllers_have_already_is_no_change(tmp_path: Path) -> None:
    """The verdict names it, so the plan can be corrected."""
    change, _ = plan_of(PLAN, "p.toml").faults
    same = replace(change, params={**change.params, "to": "dledger"})
    outcome = simulate(TRIAL, dump([same]), tmp_path / "run")
    assert outcome.verdict
    (reason,) = (r for r in outcome.verdict.reasons if r.code == "FAULT_NOT_OBSERVED")
    assert "controller-1, controller-2, controller-3 run dledger already" in reason.message


@pytest.mark.parametrize(
    ("target", "sentence"),
    [("broker-1", "means no controller"), ("", "needs a target, such as")],
)
def test_a_target_without_controllers_is_refused(target: str, sentence: str) -> None:
    text, limits = PLAN.replace("all controller", target), PlanLimits.of(TRIAL)
    trial = replace(TRIAL, plan="p.toml")
    with pytest.raises(BadRequest, match=sentence):
        _plan.plan_for_trial(trial, text, limits.detection_s, limits.nodes, limits.can)


def test_what_a_profile_lacks_comes_before_its_targets() -> None:
    """Where there are no controllers, no other target would help."""
    trial = Trial(profile="zk-ha", plan="p.toml", short_faults=True)
    limits = PlanLimits.of(trial)
    with pytest.raises(Unsupported, match="profile zk-ha, which lacks controllers with several"):
        _plan.plan_for_trial(trial, PLAN, limits.detection_s, limits.nodes, limits.can)


def test_only_systems_with_several_kinds_can_do_it() -> None:
    """Before anything starts."""
    plan = plan_of(PLAN, "p.toml").faults[:1]
    trial = Trial(profile="converting", faults=("consensus",), short_faults=True)
    limits = PlanLimits.of(trial)
    with pytest.raises(
        Unsupported, match="profile converting, which lacks controllers with several"
    ):
        _plan.check(plan, trial, limits.detection_s, limits.nodes, limits.can)
