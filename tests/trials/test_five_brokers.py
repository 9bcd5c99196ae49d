"""Five brokers with `allack-min1`: any four die in turn, the survivor serves, nothing is lost."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import run_command

from harness.campaign.simulation import SeedOutcome, simulate
from harness.history.reader import History
from harness.operation import F, Type
from harness.trial import Trial
from nemesis import dump, load

PLAN = run_command.PLANS / "four-of-five.toml"
TRIAL = run_command.ROOT / "suites" / "trials" / "five-brokers.toml"
ALONE_S, BACK_S = 18.0, 26.0  # all but one are dead, and what they answered has come; they return


def played(folder: Path, seed: int, target: str) -> SeedOutcome:
    overrides, faults = load(PLAN.read_text().replace('"master"', f'"{target}"'), PLAN.name)
    trial = Trial.from_toml(TRIAL.read_text()).with_(overrides).with_({"seed": seed, "plan": ""})
    return simulate(trial, dump(faults), folder / "run")


def victims(outcome: SeedOutcome) -> set[str]:
    rows: list[Mapping[str, Any]] = History.open(outcome.run).read("faults").to_pylist()
    return {
        node
        for row in rows
        if row["state"] == "installed"
        for names in json.loads(row["targets"]).values()
        for node in names
    }


def acknowledged_by(outcome: SeedOutcome) -> set[str]:
    """Who acknowledged sends while one broker was left."""
    names = json.loads((outcome.run.path / "names.json").read_text())["nodes"]
    ops = History.open(outcome.run).read("ops").to_pylist()
    return {
        names[op["node"]]
        for op in ops
        if (op["type"], op["f"]) == (Type.OK, F.SEND) and ALONE_S * 1e9 < op["t"] < BACK_S * 1e9
    }


@pytest.mark.parametrize(("target", "seed"), [("master", 1), ("one in-set", 2)])
def test_the_last_of_five_serves(target: str, seed: int, tmp_path: Path) -> None:
    """Masters, or whoever the lot falls on, four times; then all return, and nothing is missing."""
    outcome = played(tmp_path, seed, target)
    assert outcome.verdict, outcome.why
    assert outcome.verdict.verdict == "valid", outcome.why
    dead = victims(outcome)
    assert len(dead) == 4
    [survivor] = {f"broker-{n}" for n in range(1, 6)} - dead
    assert acknowledged_by(outcome) == {survivor}
