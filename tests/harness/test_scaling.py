"""A trial and its plan at another pace: every time is multiplied, and nothing else."""

import tomllib

import pytest
import tomli_w

from harness import registry
from harness.options import Request
from harness.scaling import FLAP_ON_S, Scale, paced, scaled
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
    text, shorter_s = paced(PLAN, TENTH)
    (row,) = tomllib.loads(text)["fault"]
    assert (row["at_s"], row["for_s"]) == (3.0, 6.0)
    assert row["after"] == "1000 acks within 2 s"
    assert row["until"] == "another-master + 0.2 s"
    assert row["repeat"] == {"times": 3, "every_s": 12.0}
    assert shorter_s == 240.0, "two rounds of its own seconds"
    assert [fault.at_s for fault in load(text).faults] == [3.0, 15.0, 27.0]


def test_rounds_that_end_at_a_time_are_counted() -> None:
    """`until_s` is as many rounds as fit."""
    text, shorter_s = paced(PLAN.replace("times = 5", "until_s = 600.0"), Scale(1.0, "", 0.5))
    (row,) = tomllib.loads(text)["fault"]
    assert row["repeat"] == {"times": 3, "every_s": 120.0}
    assert shorter_s == 240.0


def test_a_trial_ends_as_much_earlier() -> None:
    """Its recovery after the last round is kept, and the system's clock goes along."""
    trial = Trial(duration_s=630.0, settings={"timeScale": 0.5}, recover_within_s=60.0)
    asked = scaled(Request(trial, PLAN), TENTH)
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
    text, _ = paced(tomli_w.dumps({"fault": [row]}), TENTH)
    (changed,) = tomllib.loads(text)["fault"]
    assert changed["params"] == pytest.approx(scaled)
    assert [fault.for_s for fault in load(text).faults] == [6.0]


def test_the_rhythm_that_nobody_wrote_is_the_fault_s_own() -> None:
    """The same default as the fault's."""
    assert registry.module("fault", "partition").PARAMS["on_s"].default == FLAP_ON_S


def test_the_pace_it_was_written_for_changes_nothing() -> None:
    """Not even the text."""
    asked = Request(Trial(), PLAN)
    assert scaled(asked, Scale()) is asked
