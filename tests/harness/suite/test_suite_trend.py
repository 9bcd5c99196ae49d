"""Tonight against the nights before: what is told has changed, and what has not is not told."""

import json
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import pytest
from suite_rows import row

from harness.suite.command import came, changes
from harness.suite.store import (
    MAX_NIGHTS,
    NIGHTS,
    NOT_AS_EXPECTED,
    UNDECIDED,
    Night,
    nights,
    store_night,
)

LOST = {"outcome": NOT_AS_EXPECTED, "word": "invalid", "codes": ("LOST_ACKED",)}


def night(name: str, *rows: object, suite: str = "night") -> Night:
    return Night(name, "2026-01-01", suite, "code", came(rows))  # type: ignore[arg-type]


def quick(to_ack_s: float, per_s: float = 200.0) -> object:
    return row(figures={"to_ack_s_p50": to_ack_s, "per_s": per_s})


def test_a_verdict_that_is_another_one_is_told() -> None:
    """With what it was the night before; the same failure twice is no news, another one is."""
    before = [night("1", row()), night("2", row(**LOST))]
    (told,) = changes(came([row()]), before)
    assert told == (
        "calm: as expected (valid); the previous night NOT as expected (invalid, LOST_ACKED)"
    )
    assert not list(changes(came([row(**LOST)]), before))
    other = row(**{**LOST, "codes": ("REORDERED",)})
    assert len(list(changes(came([other]), before))) == 1
    lost, fine = row(**LOST), row()
    assert not list(changes(came([fine, lost]), [night("1", lost, fine)])), "another seed of it"
    failed = [row(outcome=UNDECIDED, word="no verdict", error=f"see run {n}") for n in (1, 2)]
    assert not list(changes(came(failed[1:]), [night("1", failed[0])]))


def test_a_number_far_from_the_usual_is_told() -> None:
    """The usual is the median of the last nights, so one bad night is not the measure."""
    before = [night(str(n), quick(to_ack_s)) for n, to_ack_s in enumerate((1.0, 9.0, 1.2))]
    assert not list(changes(came([quick(1.7)]), before))
    (slow,) = changes(came([quick(1.9)]), before)
    assert slow == "calm: half of the faults were recovered from within 1.90 s, usually 1.2"
    (few,) = changes(came([quick(1.0, 150.0)]), before)
    assert "150 messages a second" in few
    assert not list(changes(came([quick(0.2, 400.0)]), before)), "better is not told"


def test_a_recovery_that_never_came_is_told(tmp_path: Path) -> None:
    """It is slower than any, and no number in a file."""
    (told,) = changes(came([quick(inf)]), [night("1", quick(1.0))])
    assert told == "calm: at least half of the faults were not recovered from, usually 1"
    assert not list(changes(came([quick(inf)]), [night("1", quick(inf))]))
    assert not list(changes(came([quick(1.0)]), [night("1", quick(inf))])), "better is not told"
    store_night(night("1", quick(inf)), tmp_path)
    assert nights(tmp_path) == [night("1", quick(inf))]
    assert "Infinity" not in (tmp_path / "suites" / NIGHTS).read_text()


def test_a_name_without_a_past_is_no_change() -> None:
    """Nor is one that was not measured."""
    assert not list(changes(came([row("new")]), [night("1", row())]))
    assert not list(changes(came([row()]), [night("1", quick(1.0))]))


def test_nights_are_remembered_once_and_for_a_while(tmp_path: Path) -> None:
    """A night that is told twice, since the command died in between, counts once."""
    for number in range(MAX_NIGHTS + 3):
        store_night(night(str(number), quick(number)), tmp_path)
    store_night(night("last", row(**LOST), suite="other"), tmp_path)
    store_night(night("last", row(**LOST), suite="other"), tmp_path)
    assert len(nights(tmp_path)) == MAX_NIGHTS
    assert len(nights(tmp_path, "night")) == MAX_NIGHTS - 1
    (other,) = nights(tmp_path, "other")
    assert other == night("last", row(**LOST), suite="other")


def test_several_suites_at_once_lose_no_night(tmp_path: Path) -> None:
    """Each writes all nights anew."""
    names = [str(number) for number in range(40)]
    with ThreadPoolExecutor(4) as suites:
        list(suites.map(lambda name: store_night(night(name, row()), tmp_path), names))
    assert sorted(one.id for one in nights(tmp_path)) == sorted(names)


def test_a_line_of_another_edition_is_left_out(tmp_path: Path) -> None:
    """Nor does one that was cut short spoil the others."""
    store_night(night("1", row()), tmp_path)
    file = tmp_path / "suites" / NIGHTS
    file.write_text(f'{{"id": "0"}}\n3\n{file.read_text()}{{"id": "2", "wh')
    assert [one.id for one in nights(tmp_path)] == ["1"]


@pytest.mark.parametrize(
    "spoil",
    [
        {"figures": None},
        {"figures": {"per_s": "many"}},
        {"figures": {"per_s": float("nan")}},
        {"was": 9},
        {"words": [3]},
        {"words": None},
    ],
    ids=repr,
)
def test_a_foreign_line_is_left_out_and_told(tmp_path: Path, spoil: dict[str, object]) -> None:
    """By whoever kept it; the nights around it count."""
    store_night(night("1", row()), tmp_path)
    file = tmp_path / "suites" / NIGHTS
    line = json.loads(file.read_text())
    line["came"]["calm"] |= spoil
    file.write_text(f"{json.dumps(line)}\n{file.read_text()}")
    told: list[str] = []
    (left,) = nights(tmp_path, "night", told.append)
    assert told == [f"{file} line 1 is not a night of a suite and is left out"]
    assert not list(changes(came([row()]), [left]))
