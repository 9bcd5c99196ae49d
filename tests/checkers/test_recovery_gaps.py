"""What recovery may conclude where a part of the record is missing: nothing that the missing part
could explain, and everything else."""

from dataclasses import replace
from typing import Any

import pytest

from checkers import recovery
from harness.judge.verdict import Reason
from harness.operation import F
from harness.trial import Trial

Sketch = Any  # tests/checkers/conftest.py
S = 1_000_000_000
PERHAPS = ([], ["RECOVERY_UNRECORDED"])
CERTAIN = (["NOT_RECOVERED"], [])


def unrecorded(sketch: Sketch, *gaps: str) -> tuple[list[str], list[str]]:
    """Codes of the findings, and of the reasons, where something of these tables is missing."""
    sketch.gaps = gaps
    result = recovery.judge(sketch.facts())
    return [f.code for f in result.findings], [r.code for r in result.reasons]


def test_a_full_set_that_no_event_tells_of_may_be_in_the_gap(sound: Sketch) -> None:
    """Unless it is the runner who was told by the nodes themselves."""
    sound.events = [e for e in sound.events if e.t < 17 * S]
    assert unrecorded(sound) == CERTAIN
    assert unrecorded(sound, "ops", "notes") == CERTAIN
    assert unrecorded(sound, "events") == PERHAPS
    sound.event(18 + Trial().recover_within_s, "c", "set", brokerName="a", set=[1, 2, 3])
    assert unrecorded(sound, "events") == PERHAPS, "it may have been full before"
    sound.events.pop()
    sound.event(30, "", "recovery", redundant=True)
    assert unrecorded(sound, "events") == ([], [])
    sound.event(31, "", "recovery", redundant=False)
    assert unrecorded(sound, "events") == CERTAIN


def test_an_answer_that_is_not_recorded_may_be_in_the_gap(sound: Sketch) -> None:
    """The operations end 10 ms after the healing."""
    sound.rows = [row for row in sound.rows if row["t"] < 16.06 * S]
    sound.op(F.SEND, 16.055, kind=None)
    sound.op(F.READ, 16.055, kind=None)
    assert unrecorded(sound, "events", "notes") == CERTAIN
    assert unrecorded(sound, "ops") == PERHAPS


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(("kill", "pause"), PERHAPS), (("kill",), CERTAIN), ((), PERHAPS)],
    ids=["one is not recorded", "all are", "nobody knows the plan"],
)
def test_a_fault_that_could_not_be_undone_may_be_in_the_gap(
    sound: Sketch, kinds: tuple[str, ...], expected: object
) -> None:
    """It may be there still; one that was seen healed is not."""
    sound.event(30, "", "recovery", redundant=False)
    sound.events = [e for e in sound.events if e.t != 17 * S]
    sound.planned = list(kinds)
    assert unrecorded(sound, "faults") == expected


@pytest.mark.parametrize(
    ("gap", "kinds", "certain"),
    [
        ("faults", ("kill", "disk-full"), False),
        ("faults", ("kill", "pause"), True),  # under neither may a node end by its own will
        ("faults", ("disk-full",), True),  # its row is there, and it hit another node
        ("faults", (), False),
        ("events", ("kill", "disk-full"), True),
        ("ops", ("kill", "disk-full"), True),
    ],
)
def test_a_fault_that_excuses_a_crash_may_be_in_the_gap(
    sound: Sketch, gap: str, kinds: tuple[str, ...], certain: bool
) -> None:
    """As long as the plan has such a fault, and the record does not tell when it was."""
    sound.planned = list(kinds)
    sound.event(12, "broker-3", "fatal", why="no space")
    expected = (["NODE_CRASHED"], []) if certain else PERHAPS
    assert unrecorded(sound, gap) == expected


def test_that_the_bed_lost_a_node_may_be_in_the_gap(sound: Sketch) -> None:
    """Then its crash is nobody's; the state of the run says that there was such a node."""
    sound.interrupted, sound.cut_short = True, (Reason("NODE_GONE", "broker-3 is gone"),)
    sound.event(20, "broker-3", "exit", code=70)
    assert unrecorded(sound) == (["NODE_CRASHED"], [])
    assert unrecorded(sound, "events") == PERHAPS


@pytest.mark.parametrize(("gap", "certain"), [("faults", False), ("notes", False), ("ops", True)])
def test_who_killed_a_node_may_be_in_the_gap(sound: Sketch, gap: str, certain: bool) -> None:
    """A fault, or the phase in which we end all nodes; no operation does."""
    sound.faults[0] = replace(sound.faults[0], kind="pause")
    assert unrecorded(sound, gap)[0] == (["NODE_CRASHED"] if certain else [])
