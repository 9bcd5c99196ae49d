"""Claims in whole trials of simulated worlds: what is a violation, and what is excused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from harness.campaign.simulation import SeedOutcome, judge_simulated, simulate
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Judgement
from harness.trial import Trial

# The master acknowledges alone and is killed; a fsync that is slow comes long after the loss.
LOSING = """
[[fault]]
kind = "partition"
at_s = {at}
for_s = 5.0
target = "master"
params = {{ shape = "isolate", from = "slave" }}
until = "next"

[[fault]]
kind = "kill"
at_s = {at}
for_s = 4.0
target = "master"
after = "30 acks within 3 s"
until = "another-master + 0.2 s"
"""
SLOW = """
[[fault]]
kind = "fsync"
at_s = 9.0
for_s = 1.5
target = "broker-3"
params = { how = "slow", delay_s = 0.01 }
"""
BLACKOUT = """
[[fault]]
kind = "power"
at_s = 2.0
for_s = 1.0
target = "all broker"
"""
COMMON: Mapping[str, Any] = {
    "hosts": "simulated",
    "duration_s": 14.0,
    "short_faults": True,
    "load": {"rate": 200.0},
    "settings": {"timeScale": 0.1},
}


def carried_out(folder: Path, plan: str, **trial: Any) -> SeedOutcome:
    given = {**COMMON, **trial, "settings": {**COMMON["settings"], **trial.get("settings", {})}}
    return simulate(Trial(**given), plan, folder / "run")


def finding(outcome: SeedOutcome, code: str) -> Finding:
    assert outcome.verdict is not None
    found = [f for c in outcome.verdict.checkers for f in c.findings if f.code == code]
    assert len(found) == 1, outcome.verdict.sentence
    return found[0]


def test_one_harmless_fault_excuses_no_loss(tmp_path: Path) -> None:
    """A slow fsync that no profile claims to survive, long after the loss: still invalid."""
    plan = LOSING.format(at=2.0) + SLOW
    claims = {"fsync": "none"}
    lost = carried_out(tmp_path, plan, profile="unsafe-default", seed=1, claims=claims)
    assert finding(lost, "LOST_ACKED").excused == 0
    assert "LOST_ACKED" in lost.failure


def judged(made: SeedOutcome, folder: Path, claims: dict[str, str]) -> SeedOutcome:
    """A copy of a run, judged by other claims, which have no part in what happens."""
    run = RunDir(copytree(made.run.path, folder / "run"))
    run.trial_file.write_text(replace(run.trial(), claims=claims).to_toml())
    return judge_simulated(run)


@pytest.fixture(scope="module")
def blackout(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    settings = {"flushIntervalCommitLog": 20000}
    trial = {"profile": "allack-min2", "seed": 2, "settings": settings}
    return carried_out(tmp_path_factory.mktemp("blackout"), BLACKOUT, **trial)


@pytest.mark.parametrize("claims", [{}, {"power": "one"}, {"power": "minority"}])
def test_a_power_cut_of_all_is_excused_where_no_profile_promises_it(
    tmp_path: Path, blackout: SeedOutcome, claims: dict[str, str]
) -> None:
    """Only brokers that lost unsynced data held each lost message: unknown, EXCUSED."""
    dark = judged(blackout, tmp_path, claims)
    lost = finding(dark, "LOST_ACKED")
    assert lost.excused == lost.count > 0
    assert dark.verdict is not None
    assert dark.verdict.verdict is Judgement.UNKNOWN
    assert not dark.failure
    assert "EXCUSED" in dark.unproven
    assert f"LOST_ACKED {lost.count} excused: all {lost.count} were held only by" in (
        dark.verdict.sentence
    )
    assert "profile allack-min2 claims to survive" in dark.verdict.sentence


# A master that is cut off alone is dark before its disk has what it acknowledged; then all are.
ALONE = """
[[fault]]
kind = "partition"
at_s = 2.0
for_s = 5.5
target = "master"
params = { shape = "isolate", from = "slave" }

[[fault]]
kind = "power"
at_s = 4.5
for_s = 3.0
target = "master"

[[fault]]
kind = "power"
at_s = 9.0
for_s = 2.0
target = "all broker"
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    return carried_out(
        tmp_path_factory.mktemp("alone"),
        ALONE,
        profile="allack-min2",
        seed=16,
        duration_s=13.0,
        load={"rate": 100.0, "body_bytes": 1024},
        settings={"flushIntervalCommitLog": 20000},
    )


@pytest.mark.parametrize("claim", ["none", "all"])
def test_all_that_follows_from_a_power_cut_is_excused_with_it(
    tmp_path: Path, alone: SeedOutcome, claim: str
) -> None:
    """Lost messages, offsets that were used again, and what their consumers missed: unknown if no
    power cut is claimed, else invalid."""
    dark = judged(alone, tmp_path, {"power": claim})
    codes = ("LOST_ACKED", "OFFSET_CONFLICT", "UNREAD_ACKED", "PHANTOM_VANISHED")
    found = [finding(dark, code) for code in codes]
    assert dark.verdict is not None
    if claim == "none":
        assert all(0 < one.excused == one.count for one in found)
        assert dark.verdict.verdict is Judgement.UNKNOWN
        assert "EXCUSED" in dark.unproven
    else:
        assert not any(one.excused for one in found)
        assert set(codes) <= set(dark.verdict.convicting)
    assert all(len(one.evidence) <= 20 for one in found)


def test_a_power_cut_of_all_convicts_where_it_is_claimed(
    tmp_path: Path, blackout: SeedOutcome
) -> None:
    """The same world with a trial that claims it."""
    dark = judged(blackout, tmp_path, {"power": "all"})
    assert finding(dark, "LOST_ACKED").excused == 0
    assert "LOST_ACKED" in dark.failure


def test_a_mutant_that_forgets_convicts_under_the_profiles_own_claims(tmp_path: Path) -> None:
    """sync-flush claims power cuts of all nodes, so nothing of a broken fsync is excused."""
    settings = {"mutant": "no-fsync"}
    dark = carried_out(tmp_path, BLACKOUT, profile="sync-flush", seed=1, settings=settings)
    assert finding(dark, "LOST_ACKED").excused == 0
    assert "LOST_ACKED" in dark.failure


def test_a_power_cut_excuses_nothing_that_was_acknowledged_after_it(tmp_path: Path) -> None:
    """Healed at 3 s; the loss by a kill at 8 s is a violation, the loss by the cut is counted
    apart."""
    plan = BLACKOUT + LOSING.format(at=8.0)
    settings = {"flushIntervalCommitLog": 20000}
    both = carried_out(tmp_path, plan, profile="unsafe-default", seed=2, settings=settings)
    lost = finding(both, "LOST_ACKED")
    assert 0 < lost.excused < lost.count
    assert "LOST_ACKED" in both.failure
    assert f"({lost.excused:,} of them excused)" in both.why


def test_a_fault_that_was_not_seen_at_work_excuses_nothing(tmp_path: Path) -> None:
    """The plan names a power cut of a node that does not run then, so the fault failed."""
    plan = LOSING.format(at=2.0)
    cut = '\n[[fault]]\nkind = "power"\nat_s = 3.0\nfor_s = 0.1\ntarget = "fault-1"\n'
    lost = carried_out(tmp_path, plan + cut, profile="unsafe-default", seed=1)
    assert finding(lost, "LOST_ACKED").excused == 0
    assert "LOST_ACKED" in lost.failure
