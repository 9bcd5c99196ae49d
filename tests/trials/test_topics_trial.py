"""The workload `topics` in a simulated world: masters die while topics, offsets and locks change.

Flotilla's own two settings are the sound build and the planted bug: what the original does (copies
from time to time, locks that nobody else knows of) against waiting for the set (spec 10.3, 10.4).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_command

from harness.campaign.simulation import SeedOutcome, simulate
from harness.errors import BadRequest
from harness.history.reader import History
from harness.judge.judge import judge_small
from harness.registry import load
from harness.trial import Trial
from nemesis import dump
from nemesis import load as plan_of

PLAN = run_command.PLANS / "topics-kill.toml"
STRICT = {"strictMetadata": True, "lockInStrictMode": True}


def played(folder: Path, settings: Mapping[str, Any], **more: Any) -> SeedOutcome:
    overrides, faults = plan_of(PLAN.read_text(), PLAN.name)
    trial = Trial(name="topics").with_(overrides).with_(more)
    trial = replace(trial, settings={**trial.settings, **settings})
    return simulate(trial, dump(faults), folder / "run")


def test_what_a_strict_cluster_acknowledged_outlives_its_masters(tmp_path: Path) -> None:
    """Valid, on hundreds of acknowledged changes and two failovers: spec 12, 18, 19, 25."""
    outcome = played(tmp_path, STRICT)
    assert outcome.verdict
    assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.verdict.sentence
    topics, offsets = outcome.verdict.stats("metadata"), outcome.verdict.stats("groups")
    assert topics["topics_changed"] > 100
    assert topics["locked"] > 3
    assert offsets["offsets_changed"] > 100
    assert offsets["redelivered"] == 0
    assert outcome.faults == {"kill": 2}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    """Metadata as the original has it."""
    return played(tmp_path_factory.mktemp("copied"), {}, seed=2)


def test_what_is_copied_from_time_to_time_is_lost(copied: SeedOutcome) -> None:
    """METADATA_LOST, and a lock that the next master has never heard of; no message is lost."""
    assert "METADATA_LOST" in copied.failure
    assert "QUEUE_OWNED_TWICE" in copied.failure
    assert "LOST_ACKED" not in copied.failure


def test_a_contract_may_do_without(copied: SeedOutcome) -> None:
    """`keeps-metadata` is a demand like others: who does not make it is not told *invalid*."""
    trial = copied.run.trial()
    less = replace(trial, contract=tuple(d for d in trial.contract if d != "keeps-metadata"))
    copied.run.trial_file.write_text(less.to_toml())
    assert judge_small(History.open(copied.run)).verdict == "valid"


@pytest.mark.parametrize(
    ("load_options", "why"),
    [
        ({"maker": 1}, "load.maker is not an option of the workload topics"),
        ({"makers": -1}, "load.makers must be a number from 0 to 1000"),
        ({"every_ms": 0}, "load.every_ms must be a number from 1 to 1000"),
        ({"queues": 1.5}, "load.queues must be a number"),
    ],
)
def test_a_load_that_makes_no_sense_names_the_key(load_options: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        load("workload", "topics")(Trial(workload="topics", load=load_options))
