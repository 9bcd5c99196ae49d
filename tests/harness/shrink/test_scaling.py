"""A trial and its plan at another pace: every time is multiplied, and nothing else."""

import tomllib
from typing import Any

import pytest
import tomli_w

from harness import registry
from harness.cli.options import Request
from harness.errors import BadRequest
from harness.run.preflight import refuse_impossible
from harness.shrink.scaling import FLAP_ON_S, Scale, scale_plan, scale_request
from harness.trial import Trial
from nemesis import load

PLAN = """
[trial]
duration_s = 630.0

[[fault]]
kind = "kill"
at_s = 30.0
for_s = 60.0
target = "master"
after = "1000 acks within 20 s"
until = "another-master + 2 s"
repeat = { times = 5, every_s = 120.0 }
"""
TENTH = Scale(0.1, "timeScale", 0.5)


def test_times_are_multiplied_and_rounds_are_fewer() -> None:
    """Also those within conditions; a count of acknowledgements is no time."""
    text, shorter_s = scale_plan(PLAN, TENTH)
    (row,) = tomllib.loads(text)["fault"]
    assert (row["at_s"], row["for_s"]) == (3.0, 6.0)
    assert row["after"] == "1000 acks within 2 s"
    assert row["until"] == "another-master + 0.2 s"
    assert row["repeat"] == {"times": 3, "every_s": 12.0}
    assert shorter_s == 240.0, "two rounds of its own seconds"
    assert [fault.at_s for fault in load(text).faults] == [3.0, 15.0, 27.0]


def test_rounds_that_end_at_a_time_are_counted() -> None:
    """`until_s` is as many rounds as fit."""
    text, shorter_s = scale_plan(PLAN.replace("times = 5", "until_s = 600.0"), Scale(1.0, "", 0.5))
    (row,) = tomllib.loads(text)["fault"]
    assert row["repeat"] == {"times": 3, "every_s": 120.0}
    assert shorter_s == 240.0


@pytest.mark.parametrize("by", [0.125, 0.1, 1 / 3, 0.7, 1.5])
@pytest.mark.parametrize("often", [{"until_s": 18.0}, {"times": 11}], ids=["until", "times"])
def test_all_rounds_are_kept_and_fit_into_the_load(by: float, often: dict[str, float]) -> None:
    """Whatever the pace makes of their times: they stay as far apart as the load is long."""
    repeat = {"every_s": 1.5, **often}
    row = {"kind": "kill", "target": "master", "at_s": 2.0, "for_s": 1.0, "repeat": repeat}
    plan, trial = tomli_w.dumps({"fault": [row]}), Trial(duration_s=18.0, short_faults=True)
    before, asked = load(plan).faults, scale_request(Request(trial, plan), Scale(by))
    after = load(asked.plan_text or "").faults
    times_s = [by * fault.at_s for fault in before]
    assert [fault.at_s for fault in after] == pytest.approx(times_s, abs=0.001)
    assert len(after) == 11
    refuse_impossible(asked)


def test_a_trial_ends_as_much_earlier() -> None:
    """Its recovery after the last round is kept, and the system's clock goes along."""
    trial = Trial(duration_s=630.0, settings={"timeScale": 0.5}, recover_within_s=60.0)
    asked = scale_request(Request(trial, PLAN), TENTH)
    assert asked.trial.duration_s == 39.0
    assert asked.trial.settings == {"timeScale": 0.05}
    assert asked.trial.rhythm.fault_s == trial.rhythm.fault_s * 0.1
    assert asked.trial.recover_within_s == 60.0, "a limit of patience, not a time of the story"
    last = load(asked.plan_text or "").faults[-1]
    assert asked.trial.duration_s - last.at_s - last.for_s == 6.0


@pytest.mark.parametrize(
    ("kind", "params", "scaled"),
    [
        ("partition", {"off_s": 2.0, "on_s": 0.5}, {"off_s": 0.2, "on_s": 0.05}),
        ("partition", {"off_s": 2.0}, {"off_s": 0.2, "on_s": 0.1}),
        ("bridge", {"off_s": 2.0}, {"off_s": 0.2, "on_s": 0.1}),
        ("restart", {"down_s": 3.0}, {"down_s": 0.3}),
        ("delay", {"delay_s": 0.2, "jitter_s": 0.1}, {"delay_s": 0.2, "jitter_s": 0.1}),
    ],
)
def test_what_a_fault_repeats_keeps_its_rhythm(
    kind: str, params: dict[str, float], scaled: dict[str, float]
) -> None:
    """As often as before within its shorter time; how late a packet is belongs to the network."""
    target = "server" if kind == "bridge" else "one broker"
    row = {"kind": kind, "at_s": 10.0, "for_s": 60.0, "target": target, "params": params}
    text, _ = scale_plan(tomli_w.dumps({"fault": [row]}), TENTH)
    (changed,) = tomllib.loads(text)["fault"]
    assert changed["params"] == pytest.approx(scaled)
    assert [fault.for_s for fault in load(text).faults] == [6.0]


def test_the_rhythm_that_nobody_wrote_is_the_fault_s_own() -> None:
    """The same default as the fault's."""
    assert registry.fault("partition").params["on_s"].default == FLAP_ON_S


def test_the_pace_it_was_written_for_changes_nothing() -> None:
    """Not even the text."""
    asked = Request(Trial(), PLAN)
    assert scale_request(asked, Scale()) is asked


@pytest.mark.parametrize("by", [1e-9, 1e-300, 1e308])
@pytest.mark.parametrize("plan", [None, PLAN], ids=["load", "plan"])
def test_a_pace_at_which_no_time_is_left(by: float, plan: str | None) -> None:
    """A time that becomes nothing, or endless, is none."""
    with pytest.raises(BadRequest, match="s, which is not valid; choose a factor nearer to 1"):
        scale_request(Request(Trial(duration_s=630.0), plan), Scale(by))


def test_times_in_conditions_are_written_as_times() -> None:
    """However short or long they become: a plan knows no exponents."""
    for by, within in ((1e-4, "0.002 s"), (1e5, "2000000 s")):
        text, _ = scale_plan(PLAN, Scale(by))
        assert load(text).faults[0].after == f"1000 acks within {within}"


@pytest.mark.parametrize(
    ("fields", "name", "before"),
    [
        ({}, "timeScale", 0.1),
        ({"settings": {"timeScale": 1.0}}, "timeScale", 1.0),
        ({"system": "redis"}, "down-after-milliseconds", 2000),
        ({"settings": {"brokerHeartbeatInterval": 500}}, "brokerHeartbeatInterval", 500),
    ],
)
def test_the_setting_in_force_is_scaled(fields: dict[str, Any], name: str, before: float) -> None:
    """Also one that only the system says; a whole number stays one where it can."""
    asked = scale_request(Request(Trial(**fields)), Scale(0.5, name))
    assert asked.trial.settings[name] == before / 2
    assert type(asked.trial.settings[name]) is type(before)


def test_whole_numbers_make_a_whole_number() -> None:
    """As they stand in a suite: `by = 2` of a setting that is one."""
    trial = Trial(settings={"brokerHeartbeatInterval": 500})
    asked = scale_request(Request(trial), Scale(2, "brokerHeartbeatInterval"))
    assert repr(asked.trial.settings["brokerHeartbeatInterval"]) == "1000"


def test_a_setting_that_nobody_knows_is_not_scaled() -> None:
    """There is nothing to multiply."""
    with pytest.raises(BadRequest, match="flotilla has no default for it; set it"):
        scale_request(Request(Trial()), Scale(0.5, "enableSlip"))
