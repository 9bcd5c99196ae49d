"""Two runs side by side: parts that are too large are noted, and the choice of the two runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import site_lab

from harness.history.rundir import RunDir
from reports._run import read_run
from reports._site import compare, pages
from reports._site.compare import compare_runs
from reports._site.run_list import RunRow

Written = Callable[..., RunDir]
RUNS = ("20261121-101500-demo", "20261120-101500-demo", "20261119-101500-demo")  # newest first


@pytest.fixture
def runs(tmp_path: Path, written: Written) -> Path:
    run = written()
    for name in RUNS:
        site_lab.shelved(run, tmp_path / "runs", name)
    return tmp_path / "runs"


def test_what_is_too_much_to_be_shown_is_said(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two plans that differ only beyond the compared lines are not shown as equal."""
    told = read_run(written())
    lines = "# a line\n" * compare.MAX_LINES
    fine, long = replace(told, plan=lines), replace(told, plan=f"{lines}for_s = 9.0\n")
    assert compare_runs(fine, fine).left_out == ()
    (why,) = compare_runs(fine, long).left_out
    assert why == "of the 1,501 lines of B's plan the first 1,500 are compared"
    monkeypatch.setattr(compare, "MAX_FIELDS", 3)
    monkeypatch.setattr(compare, "MAX_FAULTS", 2)
    said = compare_runs(fine, fine).left_out
    assert "of 5 lines of checkers the first 3 are shown" in said
    assert "of the 3 faults of A the first 2 are bands" in said


def test_a_difference_is_found_behind_many_equal_lines(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tables of what differs only that is counted."""
    told = read_run(written())
    monkeypatch.setattr(compare, "MAX_FIELDS", 1)
    other = replace(told, trial=told.trial.with_({"seed": 77}))
    made = compare_runs(told, other)
    assert [(pair.name, pair.other) for pair in made.fields] == [("seed", "77")]
    assert not [why for why in made.left_out if "fields" in why]


def test_what_is_left_out_stands_on_the_page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before everything that it is missing from."""
    monkeypatch.setattr(compare, "MAX_LINES", 1)
    text = site_lab.browser(runs).get(f"/compare?run={RUNS[0]}&run={RUNS[1]}").text
    assert text.index("plan the first 1 are compared") < text.index("Numbers")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ((), [RUNS[0], RUNS[1]]),
        ((RUNS[0],), [RUNS[0], RUNS[1]]),
        ((RUNS[1],), [RUNS[1], RUNS[0]]),
        ((RUNS[2],), [RUNS[2], RUNS[0]]),
        (("nobody", RUNS[0]), [RUNS[1], RUNS[0]]),
        (("nobody",), [RUNS[0], RUNS[1]]),
    ],
)
def test_two_runs_are_offered(
    runs: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], chosen: list[str]
) -> None:
    """A named run stays where it was named, however old it is; beside it is the newest other
    run."""
    monkeypatch.setattr(pages, "MAX_CHOICES", 2)
    query = "&".join(f"run={name}" for name in names)
    text = site_lab.browser(runs).get(f"/compare?{query}").text
    boxes = text.split("<select")[1:]
    assert [_selected(box) for box in boxes] == [[name] for name in chosen]
    assert ("the newest 2 of 3" in text) == (RUNS[2] not in names)


def _selected(box: str) -> list[str]:
    options = box.split("</select>")[0].split("<option ")[1:]
    return [option.split('"')[1] for option in options if " selected" in option]


def test_a_run_alone_has_none_to_be_compared_with() -> None:
    """Nor is it compared with itself."""
    answer = pages._choice([RunRow(RUNS[0], "valid")], [RUNS[0]], ())
    assert b"At least two runs" in answer.body
