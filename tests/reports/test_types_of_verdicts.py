"""Verdicts that are JSON, but whose parts are not what they should be."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.exit_codes import run_command_line
from harness.errors import BadRequest
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from reports import _format, badge, junit, page, summary, terminal
from reports._run import read_run
from reports._site.compare import _fields, compare_runs
from reports._site.matrix import matrices
from reports._site.run_index import RunIndex
from reports._site.run_list import UNJUDGED, read_row
from reports._stories.story import explain

Written = Callable[..., RunDir]
ODD = "\x00\x1b[31m\x7f\r\x9b2J\ud800\ufffe]]><&\"'</failure>"


@pytest.mark.parametrize(
    "change",
    [
        {"sentence": 7},
        *({"finding": {name: 7.5}} for name in ("code", "count", "message", "demand")),
        {"finding": {"count": float("inf")}},
        {"finding": {"evidence": [None]}},
        {"finding": {"faults": ["0"]}},
        {"finding": {"permitted": [1]}},
        {"finding": {"excuses": [{"faults": [0], "rows": "1", "nodes": []}]}},
        {"finding": {"excuses": [{"faults": [0], "rows": 1, "nodes": [7]}]}},
        {"result": {"stats": 7}},
        {"result": {"reasons": [{"code": 1, "message": "x"}]}},
    ],
)
def test_a_verdict_of_wrong_types_says_what_to_do(
    written: Written, lost: Finding, change: dict[str, Any]
) -> None:
    """It is no verdict, in every format and for stories, and in the list of runs too, which stays
    JSON."""
    run = written((lost,))
    table = json.loads(run.verdict_file.read_text())
    result = next(row for row in table["checkers"] if row["findings"])
    result["findings"][0] |= change.pop("finding", {})
    result |= change.pop("result", {})
    run.verdict_file.write_text(json.dumps(table | change))
    for render in (
        badge.render,
        junit.render,
        page.render,
        summary.render,
        terminal.render,
        explain,
    ):
        with pytest.raises(BadRequest, match=r"not a verdict.*seatrial check"):
            render(run)
    row = read_row(run.path)
    assert row.state == UNJUDGED
    json.dumps(row.plain(), allow_nan=False)


def test_damaged_numbers_are_left_out_and_said(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """What checkers counted is theirs to shape: damage there costs the numbers alone."""
    run = written()
    table = json.loads(run.verdict_file.read_text())
    for result in table["checkers"]:
        result["stats"] = dict.fromkeys(result["stats"], 7)
    run.verdict_file.write_text(json.dumps(table))
    assert terminal.render(run) is None
    path = summary.render(run)
    assert path is not None
    for text in (capsys.readouterr().out, path.read_text()):
        assert "the numbers could not be read" in text


def test_no_letter_of_a_run_commands_the_terminal(
    written: Written, lost: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an escape sequence nor half a character is printed."""
    evidence = ({**lost.evidence[0], "queue": ODD},)
    run = written((replace(lost, message=ODD, evidence=evidence),), name="a\x1b]0;b")
    terminal.render(run)
    path = summary.render(run)
    assert path is not None
    for text in (capsys.readouterr().out, path.read_text()):
        assert "\N{REPLACEMENT CHARACTER}" in text
        assert not set("\x00\x1b\x7f\r\x9b\ud800") & set(text)


def test_an_unreadable_trial_is_not_told_as_the_usual_one(written: Written) -> None:
    """The default trial is not the trial that was run."""
    run = written()
    run.trial_file.write_text("duration_s = inf\n")
    told = read_run(run)
    assert "trial.toml could not be read" in _format.trial_line(told)
    for text in (page.page_html(told), summary.markdown(told), junit.xml(told).decode()):
        assert "seed 1" not in text
        assert 'name="seed"' not in text
    assert not compare_runs(told, told).fields
    assert not _fields(told)


def test_a_night_nested_too_deep_breaks_no_page(tmp_path: Path) -> None:
    """A line of brackets alone, deeper than a reader of JSON goes."""
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "nights.jsonl").write_text("[" * 200_000 + "\n")
    assert matrices(RunIndex.of(tmp_path), ()) == []


def test_a_link_in_a_run_is_replaced_and_never_written_through(
    written: Written, tmp_path: Path
) -> None:
    """A run that another person sent does not choose which of the reader's files is overwritten."""
    outside = tmp_path / "mine"
    outside.write_text("mine")
    run = written()
    for name in ("report.html", "report.tmp", "junit.xml", "summary.md", "badge.svg"):
        (run.path / name).symlink_to(outside)
    for render in (badge.render, junit.render, page.render, summary.render):
        path = render(run)
        assert path is not None
        assert path.is_file()
        assert not path.is_symlink()
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("command", ["check", "report", "explain", "replay", "shrink"])
def test_a_run_with_a_link_out_of_it_is_not_opened(
    command: str, written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither what the link leads to nor anything else is read or written."""
    outside = tmp_path / "mine"
    outside.write_text("mine")
    run = written()
    (run.path / "nodes").mkdir(exist_ok=True)
    (run.path / "nodes" / "b0.log").symlink_to(outside)
    assert run_command_line([command, str(run.path)]) == BadRequest.exit_code
    assert "nodes/b0.log is a link that leads out of its folder" in capsys.readouterr().err
