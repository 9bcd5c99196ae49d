"""Every mutant is one flaw, with stories of its own. `seatrial selftest` plays them all; here are
the laws of the list, and the few that take the least time."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from clusters.flotilla.rules import RULES
from clusters.flotilla_mutants import MUTANTS
from harness.selftest.mutants import CAUGHT, PLANS, MutantCase, cases, cheapest, in_worlds

MOST_FAULTS = 7
NAMED_BY_THE_SPEC = {  # spec 12, the list of switches at its end
    "no-union",
    "ignore-missing",
    "offsets-from-visible",
    "dispatch-to-end",
    "no-dispatch-wait",
    "equal-starts-refused",
    "lazy-truncation",
    "inverted-liveness",
    "no-election-retry",
    "last-writer-wins",
    "ack-before-append",
    "count-non-members",
    "cut-at-promotion",
    "unclean-election",
    "one-ack",
}


@pytest.mark.parametrize("case", cheapest(cases(), 4), ids=lambda case: case.mutant)
def test_a_mutant_is_caught_and_the_sound_build_is_not_blamed(
    case: MutantCase, tmp_path: Path
) -> None:
    """The same plan and the same seed: the finding it was made for, and *valid*."""
    answer = in_worlds(case, tmp_path)
    assert (answer.word, answer.sound) == (CAUGHT, "valid"), answer.why
    assert case.finding in answer.found
    assert answer.faults <= MOST_FAULTS * answer.seed


def test_every_story_belongs_to_a_mutant() -> None:
    """One for simulated hosts each, some for real ones, none left over, and few faults in each."""
    plans = {case.plan for case in cases()}
    assert plans == set(PLANS.glob("*.toml"))
    assert {case.mutant for case in cases() if not case.is_real} == set(MUTANTS)
    for plan in plans:
        assert len(tomllib.loads(plan.read_text())["fault"]) <= MOST_FAULTS


def test_the_bugs_that_the_specification_names_are_there() -> None:
    """Spec 12's switches; the sixteenth, counting connections, has no place in Flotilla: copies
    are counted by slave, in a mapping of one entry each. At least four show on real hosts too."""
    assert set(MUTANTS) >= NAMED_BY_THE_SPEC
    assert len({case.mutant for case in cases() if case.hosts == "local"}) >= 4


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_has_one_flaw(name: str) -> None:
    """One rule is replaced, or the ports, or a decision of clients, and nothing else; the sound
    value is no mutant.

    The store sees when a disk lost what it had promised, and does not start. `no-fsync` has to
    overlook that too, for a node that does not start loses nobody's message.
    """
    mutant = MUTANTS[name]
    replaced = [
        field.name
        for field in fields(RULES)
        if getattr(mutant.rules, field.name) is not getattr(RULES, field.name)
    ]
    own_ports = mutant.ports is not type(mutant).ports
    own_client = mutant.overall is not type(mutant).overall
    overlooked = {"log_is_whole"} if name == "no-fsync" else set()
    assert len(set(replaced) - overlooked) + own_ports + own_client == 1
