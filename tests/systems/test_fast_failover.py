"""The profile `fast-failover` in simulated worlds: quick to replace who is gone, never in haste.

Times are the world's own, so no machine is too slow for them.
"""

from pathlib import Path

import pytest

from harness.campaign.simulation import SeedOutcome, simulate
from harness.run import launch
from harness.trial import Trial

TRIAL = Trial(
    profile="fast-failover",
    hosts="simulated",
    load={"rate": 50.0, "groups": 0, "concurrency": 200},
    checkers=("availability", "loss", "masters"),
    duration_s=12.0,
    short_faults=True,
)
FAULT = '[[fault]]\nkind = "{}"\ntarget = "{}"\nat_s = {}\nfor_s = {}\n'


def sailed(flavour: str, plan: str, folder: Path) -> SeedOutcome:
    trial = TRIAL.with_({"settings": {"controllerType": flavour}})
    return simulate(trial, launch.make_plan(trial, plan), folder)


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
@pytest.mark.parametrize(("kind", "within_s"), [("kill", 1.0), ("pause", 3.0), ("partition", 3.0)])
def test_a_master_that_is_gone_is_replaced_soon(
    flavour: str, kind: str, within_s: float, tmp_path: Path
) -> None:
    """Long before it comes back, and what it had acknowledged is there."""
    plan = FAULT.format(kind, "master", 3, 5) + "params = { clients = true }\n" * (
        kind == "partition"
    )
    outcome = sailed(flavour, plan, tmp_path / "run")
    assert outcome.failure == ()
    assert outcome.verdict is not None
    (fault,) = outcome.verdict.stats("availability")["faults"]
    assert fault["to_ack_s"] < within_s


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
@pytest.mark.parametrize("victim", ["master", "slave", "controller-leader"])
def test_nobody_is_elected_for_a_pause_of_200_ms(flavour: str, victim: str, tmp_path: Path) -> None:
    """The cluster decides as if nothing had happened: its first master, its first leader."""
    calm = sailed(flavour, "", tmp_path / "calm")
    moments = [1 + 0.73 * n for n in range(14)]
    plan = "\n".join(FAULT.format("pause", victim, at_s, 0.2) for at_s in moments)
    paused = sailed(flavour, plan, tmp_path / "paused")
    for kind in ("election", "raft", "expired"):
        assert paused.events.get(kind) == calm.events.get(kind), kind
