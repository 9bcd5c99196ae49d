"""`seatrial list faults --verify`: what is told of faults is what was seen of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import registry
from harness.campaign.simulation import simulate
from harness.errors import BadRequest
from harness.history.faults_and_events import FaultInterval, fault_intervals
from harness.history.reader import History
from harness.selftest import faults as verifying
from harness.selftest.faults import FaultCheck, FaultVerification
from harness.trial import Trial
from nemesis import describe_effect

MS = 1_000_000
KINDS = ("pause", "loss", "kill")
GOOD = FaultInterval(
    id=0,
    kind="loss",
    params={"probability": 0.8, "direction": "both"},
    selector="one slave",
    targets={"slave": ("broker-2",)},
    begin=1000 * MS,
    applied=1020 * MS,
    observed=1250 * MS,
    heal=2250 * MS,
    healed=2300 * MS,
    state="installed",
    observation={"effect": {"probes": 200, "arrived": 40, "links": 12}},
)


def test_what_was_seen_is_told_in_times_and_figures() -> None:
    """From its moment to its effect, and from the beginning of its healing to its end."""
    seen = verifying.fault_check(GOOD)
    assert (seen.applied_s, seen.observed_s, seen.healed_s) == (0.02, 0.25, 0.05)
    assert seen.measured == "80 % of 200 packets lost on 12 links"
    assert seen.works
    assert verifying.row(seen)[:3] == ("ok", "loss, direction both", "broker-2")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "partial"}, "its effect was observed to be partial"),
        ({"state": "failed", "observation": {"error": "the disk burns"}}, "the disk burns"),
        ({"healed": None}, "it was not observed healed"),
        ({"healed": None, "observation": {"healing": {"error": "gone"}}}, "gone"),
        ({"begin": None, "applied": None, "state": "planned"}, "the run ended before it"),
    ],
)
def test_what_was_not_seen_does_not_work(changes: dict[str, Any], why: str) -> None:
    """It says why, and one such fault is enough for exit code 1; 2 if it was never tried."""
    seen = verifying.fault_check(replace(GOOD, **changes))
    assert not seen.works
    assert seen.why == why
    verified = FaultVerification("local", (verifying.fault_check(GOOD), seen))
    assert verified.exit_code == (2 if why == verifying.NOT_REACHED else 1)
    assert "Not observed in effect, or not healed, on local hosts: loss" in verifying.conclusion(
        verified
    )


def test_what_hosts_can_not_do_is_no_failure() -> None:
    """It is named, with the reason."""
    verified = FaultVerification(
        "local", (verifying.fault_check(GOOD),), {"power": "local hosts lack: power"}
    )
    assert verified.exit_code == 0
    assert verified.plain()["lacking"] == {"power": "local hosts lack: power"}
    assert verifying.conclusion(verified).startswith("All 1 faults were observed in effect")


def test_what_was_never_tried_is_undecided() -> None:
    """Whether somebody stopped it or its test bed failed: neither says anything of a fault."""
    good, tried = verifying.fault_check(GOOD), verifying.fault_check(replace(GOOD, state="failed"))
    never = verifying.fault_check(replace(GOOD, begin=None, applied=None, state="planned"))
    assert FaultVerification("local", (good, never)).exit_code == 2
    assert FaultVerification("local", (tried, never)).exit_code == 1
    assert FaultVerification("local", (good, never), error="the bed broke").exit_code == 255


def test_the_plan_shows_every_kind_that_the_hosts_can_do() -> None:
    """Each once at least, and the others with what is missing for them."""
    request, lacking = verifying.verification_plan(Trial(hosts="local"), ())
    (first, *rest) = registry.nemesis().load(request.plan_text).faults
    shown = {first.kind, *(fault.kind for fault in rest)}
    assert shown | {name.split(",")[0] for name in lacking} == set(registry.names("fault"))
    assert not shown & lacking.keys()
    assert "power" in lacking["power"]
    assert not first.after
    assert all(fault.after == "cluster is whole within 60 s" for fault in rest)


def test_no_fault_at_all_can_not_be_verified() -> None:
    """OpenChaos has a name for it."""
    with pytest.raises(BadRequest, match="noop breaks nothing, so nothing can be verified"):
        verifying.verification_plan(Trial(hosts="simulated"), ["noop"])


def test_some_kinds_only() -> None:
    """By any of their names; what these hosts can not do at all is refused, unknown names too."""
    request, _ = verifying.verification_plan(Trial(hosts="local"), ("leader-kill", "kill", "pause"))
    plan = registry.nemesis().load(request.plan_text).faults
    assert [fault.kind for fault in plan] == ["kill", "pause"]
    with pytest.raises(BadRequest, match="power: local hosts lack: power"):
        verifying.verification_plan(Trial(hosts="local"), ("power",))
    with pytest.raises(BadRequest, match="unknown fault"):
        verifying.verification_plan(Trial(hosts="local"), ("pwoer",))


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ({"measured": "102 ms added", "effect": {"probes": 3}}, "102 ms added"),
        (
            {"effect": {"processes": {"broker-1": {"was": 7, "pid": 7, "is": "exited"}}}},
            "broker-1: process 7 is exited",
        ),
        ({"effect": {"threads": {"broker-1": "TTTS"}}}, "broker-1: 3 of 4 threads stopped"),
        ({"effect": {"errno": "EIO", "rows": [1]}}, "errno EIO"),
        ({}, ""),
    ],
)
def test_what_a_fault_came_to_in_words(observation: dict[str, Any], words: str) -> None:
    """Its own words if it has any, else from its figures."""
    assert describe_effect(observation) == words


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[FaultCheck]:
    """Some kinds of faults, in one simulated world."""
    folder: Path = tmp_path_factory.mktemp("verify") / "run"
    request, lacking = verifying.verification_plan(Trial(hosts="simulated"), KINDS)
    assert request.plan_text
    assert not lacking
    outcome = simulate(request.trial, request.plan_text, folder)
    return [
        verifying.fault_check(fault)
        for fault in fault_intervals(History.open(outcome.run).read("faults"))
    ]


def test_faults_work_in_a_simulated_world(world: list[FaultCheck]) -> None:
    """Seen in effect, measured, and seen healed."""
    assert tuple(dict.fromkeys(seen.kind for seen in world)) == KINDS
    assert not [(seen.kind, seen.params, seen.why) for seen in world if not seen.works]
    assert not [seen.kind for seen in world if not seen.measured]
    assert json.dumps([seen.plain() for seen in world])
