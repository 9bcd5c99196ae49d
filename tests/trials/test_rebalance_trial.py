"""The workload `rebalance` in a simulated world: consumers come and go as the master is killed."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import run_command

from harness.campaign.simulation import SeedOutcome, simulate
from harness.trial import Trial
from nemesis import dump
from nemesis import load as plan_of

PLAN = run_command.PLANS.parent / "mutants" / "members-never-leave.toml"


def played(
    folder: Path, load: Mapping[str, int] = MappingProxyType({}), **settings: object
) -> SeedOutcome:
    overrides, faults = plan_of(PLAN.read_text(), PLAN.name)
    trial = Trial(name="rebalance").with_(overrides)
    trial = trial.with_(
        {"settings": {**trial.settings, **settings}, "load": {**trial.load, **load}}
    )
    return simulate(trial, dump(faults), folder / "run")


def test_every_queue_finds_one_owner(tmp_path: Path) -> None:
    """Over joins, leaves and a failover; the group is given every message that was acknowledged."""
    outcome = played(tmp_path)
    assert outcome.verdict
    assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.verdict.sentence
    assert outcome.verdict.stats("assignment")["moves"] > 20
    assert outcome.verdict.stats("loss")["delivered"] > 200


def test_a_member_that_owns_no_queue_in_the_end_has_read_for_its_group(tmp_path: Path) -> None:
    """With more members than queues, what such a member received counts as given to the group."""
    outcome = played(tmp_path, {"queues": 2, "members": 4})
    assert outcome.verdict
    assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.verdict.sentence
    assert outcome.verdict.stats("loss")["delivered"] > 200


def test_a_queue_without_an_owner_is_found(tmp_path: Path) -> None:
    """Consumers that left keep their share: the planted bug."""
    assert "QUEUE_WITHOUT_OWNER" in played(tmp_path, mutant="members-never-leave").failure
