"""What a profile promises and what it can not keep: some cells of suites/profiles.toml (spec 9.4).

The whole table is `seatrial suite suites/profiles.toml`.
"""

from pathlib import Path

import pytest
import run_command

from clusters.systems.flotilla.profiles import profiles
from harness.campaign.simulation import simulate
from harness.trial import Trial
from nemesis import dump, load

CELLS = (
    ("allack-min2", "kill"),  # waits for every member
    ("seed-cp", "kill"),  # a majority of copies where no majority elects
    ("semi-sync", "pause"),  # one slave is waited for, and it is elected
    ("seed-ap", "cut"),  # one copy is enough while slaves are silent
    ("allack-min1", "power"),  # the only copy was in memory
)


@pytest.mark.parametrize(("profile", "fault"), CELLS)
def test_a_profile_gets_its_expected_verdict(profile: str, fault: str, tmp_path: Path) -> None:
    """Valid, or convicted by the very finding that was expected."""
    plan = f"profile-{fault}"
    overrides, faults = load((run_command.PLANS / f"{plan}.toml").read_text(), plan)
    trial = Trial(name=plan, profile=profile).with_(overrides)
    outcome = simulate(trial, dump(faults), tmp_path / plan)
    expected = profiles()[profile].expected[plan]
    assert outcome.verdict, outcome.why
    if expected == "valid":
        assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.why
    else:
        assert expected in outcome.failure, outcome.why
