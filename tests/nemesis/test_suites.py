"""What we ship to run: every trial of the nightly suite makes sense before the night."""

from pathlib import Path

import pytest

from harness.launch import planned
from harness.options import request
from harness.suite import read_suite
from harness.trial import Trial


def test_every_trial_of_the_night_has_a_plan(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan fits the system's detection time, the load's duration and what its hosts can."""
    monkeypatch.chdir(root)
    runs = list(read_suite(root / "suites/nightly.toml"))
    plans = [planned(e.asked.trial, e.asked.plan_text) for e in runs]
    assert len(plans) > 20
    assert sum("kind = " in plan for plan in plans) == len(plans) - 1, "but for the quiet one"


TRIALS = Path(__file__).resolve().parents[2] / "suites/trials"


@pytest.mark.parametrize("path", sorted(TRIALS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_trial_file_is_run_at_night(path: Path, root: Path) -> None:
    """A trial that nobody runs is a trial that nobody keeps right."""
    assert Trial.from_toml(path.read_text(), str(path))
    assert path.name in (root / "suites/nightly.toml").read_text()


def test_the_demo_breaks_things_in_every_way_within_a_minute(root: Path) -> None:
    """`make demo` shows one fault of each kind."""
    trial = request(str(root / "suites/trials/demo.toml"), {}).trial
    plan = planned(trial)
    assert trial.duration_s == 60
    for kind in ("kill", "pause", "partition", "loss"):
        assert f'kind = "{kind}"' in plan
