"""Directed plans: stories that random faults hardly ever tell, played in a simulated world.

Each must be carried out as it is written, on a sound Flotilla without harm; and where a plan was
written against a certain mistake, a Flotilla that makes it is convicted.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import run_command

from clusters.flotilla import node as flotilla
from clusters.flotilla.raft import leader_state
from clusters.flotilla.rules import RULES, Rules
from clusters.hosts._world.ports import ports_of
from clusters.hosts._world.process import SimProcess
from clusters.hosts.simulated import machine
from harness.campaign.simulation import SeedOutcome, simulate
from harness.history.reader import History
from harness.trial import Trial
from nemesis import dump, load
from nemesis._plan.conditions import Conditions

DIRECTED = sorted(
    path.stem for path in run_command.PLANS.glob("*.toml") if '"event ' in path.read_text()
)


def played(plan: str, folder: Path, seed: int = 1, mutant: str = "") -> SeedOutcome:
    text = (run_command.PLANS / f"{plan}.toml").read_text()
    overrides, faults = load(text, plan)
    trial = Trial(name=plan, seed=seed).with_(overrides)
    if mutant:
        trial = replace(trial, settings={**trial.settings, "mutant": mutant})
    return simulate(trial, dump(faults), folder / plan)


def faults(outcome: SeedOutcome) -> Mapping[int, Mapping[str, Any]]:
    """The last row of each fault."""
    rows = History.open(outcome.run).read("faults").to_pylist()
    return {row["id"]: row for row in rows}


def victims(row: Mapping[str, Any]) -> set[str]:
    return {name for names in json.loads(row["targets"]).values() for name in names}


@pytest.mark.parametrize("plan", DIRECTED)
def test_the_story_is_told_and_does_no_harm(plan: str, tmp_path: Path) -> None:
    """Every event comes, and every fault at the moment that the plan names; all are seen; the
    verdict is valid."""
    outcome = played(plan, tmp_path)
    assert outcome.verdict, outcome.why
    assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.why
    written = load((run_command.PLANS / f"{plan}.toml").read_text()).faults
    for number, row in faults(outcome).items():
        assert row["state"] == "installed", row
        if event := Conditions.of(written[number]).event:
            told = json.loads(row["observation"])["told"]
            assert row["begin"] == pytest.approx(told["at"] + event.more_s * 1e9, abs=1000)
            assert row["applied"] == row["begin"], "nothing else happened before"
            assert written[number].target != "teller" or victims(row) == {told["by"]}


# -------------------------------------------------------------------------- what they convict


@pytest.mark.parametrize("mutant", ["no-fsync", "term-not-persisted"])
def test_a_vote_that_is_forgotten_is_given_twice(mutant: str, tmp_path: Path) -> None:
    """Two leaders of one term, in the first world that is tried."""
    outcome = played("promised-and-forgotten", tmp_path, mutant=mutant)
    assert "ONE_LEADER" in outcome.failure, outcome.why


def test_a_tail_that_is_not_cut_is_convicted(tmp_path: Path) -> None:
    """A slave keeps bytes that its new master has otherwise."""
    outcome = played("cut-mid-truncation", tmp_path, mutant="no-truncation")
    assert "CUT_TOO_HIGH" in outcome.failure, outcome.why


# ------------------------------------------------------------------------------------ figure 8


def careless(matches: Any, term_at: Any, term: int) -> int:
    """Counts copies and does not ask of which term."""
    return int(sorted(matches, reverse=True)[len(matches) // 2])


@pytest.fixture
def variant(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make every node of simulated hosts decide by these rules, and send entries one by one."""

    def use(rules: Rules) -> None:
        def program(place: machine.SimNode, arguments: Any) -> Any:
            async def main(process: SimProcess) -> int:
                return await flotilla.serve(
                    list(arguments), partial(ports_of, process, place.disk), rules
                )

            return main

        monkeypatch.setitem(machine.PROGRAMS, "clusters.flotilla", program)
        monkeypatch.setattr(leader_state, "MAX_BATCH_BYTES", 1)

    return use


def test_counting_copies_of_old_terms_is_convicted(variant: Any, tmp_path: Path) -> None:
    """Entries sent one by one, and a leader that acts upon one of an old term: it is overwritten,
    and the controller that acted upon it stops when it learns that."""
    variant(replace(RULES, commit_index=careless))
    outcome = played("raft-figure-8", tmp_path)
    assert "NODE_CRASHED" in outcome.failure, outcome.why


def test_the_rule_of_the_paper_needs_no_luck(variant: Any, tmp_path: Path) -> None:
    """Entries sent one by one do no harm as long as only those of the own term are counted."""
    variant(RULES)
    outcome = played("raft-figure-8", tmp_path)
    assert outcome.failure == (), outcome.why
