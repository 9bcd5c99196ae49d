"""The summary in the terminal and in Markdown: readable anywhere, and only ever text."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from reports import summary, terminal
from reports._format import seconds
from reports._run import read_run, rerun_command, run_argument

Written = Callable[..., RunDir]


def test_piped_output_has_no_escape_codes(
    written: Written, lost: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log file reads like the screen: words and numbers, nothing else."""
    run = written((lost,))
    assert terminal.render(run) is None
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "INVALID" in out
    assert "3 acknowledged messages were lost." in out
    assert "LOST_ACKED x 3" in out
    assert "violates no-loss" in out
    assert "seatrial replay" in out
    assert all(line == line.rstrip() and len(line) <= 160 for line in out.splitlines())


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, ""),
        ({"hosts": "attached", "bed": {"inventory": "other.toml"}}, " --attach FILE"),
        ({"client": ("their-client",)}, " --client COMMAND"),
        ({"hosts": "of-another-version"}, ""),
    ],
)
def test_the_command_that_runs_it_again(
    written: Written, changes: dict[str, object], more: str
) -> None:
    """It has the options that are not taken from a stored run, without their values."""
    run = written(**changes)
    assert rerun_command(read_run(run)).endswith(f" replay {run_argument(run)}{more}")


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        ({"stored_twice": 0, "given_twice": 1200}, "stored twice; 1,200 given to one group twice"),
        ({"stored_twice": 0, "given_twice": 0}, "stored twice"),
        ({"stored_twice": 0}, "stored twice"),  # of a version that did not count it
    ],
)
def test_what_is_duplicated_and_what_was_given_again(
    written: Written, capsys: pytest.CaptureFixture[str], stats: dict[str, int], words: str
) -> None:
    """The number is of messages stored twice; messages delivered twice are beside it."""
    run = written()
    table = json.loads(run.verdict_file.read_text())
    next(r for r in table["checkers"] if r["checker"] == "duplicates")["stats"] = stats
    run.verdict_file.write_text(json.dumps(table))
    terminal.render(run)
    (line,) = (
        row.rstrip() for row in capsys.readouterr().out.splitlines() if "stored twice" in row
    )
    assert line.split(maxsplit=2) == ["duplicated", "0", words]


@pytest.mark.parametrize(
    ("count", "kept", "words"),
    [
        (3, 3, None),
        (21, 2, "2 of 21 shown"),
        (8, 8, "5 of 8 shown; the report has more"),
        (21, 8, "5 of 21 shown; the report has more"),
    ],
)
def test_the_report_is_said_to_have_more_where_it_has(
    written: Written,
    lost: Finding,
    capsys: pytest.CaptureFixture[str],
    count: int,
    kept: int,
    words: str | None,
) -> None:
    """Rows of evidence are a sample, and what was not kept is nowhere to be seen."""
    rows = tuple({"value": n} for n in range(kept))
    terminal.render(written((replace(lost, count=count, evidence=rows),)))
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if " shown" in line]
    assert said == ([words] if words else [])


def test_the_page_is_named_when_it_exists(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path of a report that was not written is not printed."""
    run = written()
    terminal.render(run)
    assert "report.html" not in capsys.readouterr().out
    run.report_file.write_text("")
    terminal.render(run)
    assert "report.html" in capsys.readouterr().out


def test_colour_only_adds(written: Written, lost: Finding) -> None:
    """With colour the words are the same."""
    told = read_run(written((lost,)))
    plain, coloured = (
        Console(file=StringIO(), width=120, force_terminal=colour, highlight=False)
        for colour in (False, True)
    )
    for console in (plain, coloured):
        with console.capture() as capture:
            terminal.print_summary(told, console)
        words = capture.get()
        assert ("\x1b[" in words) == (console is coloured)
        assert "INVALID" in words


def test_what_was_checked_and_what_was_not(
    written: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every demand is named with its number of operations, and so is one decided on nothing; the
    Markdown has each checker with what it proved."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    run = written()
    table = json.loads(run.verdict_file.read_text())
    loss, duplicates = table["checkers"][:2]
    loss["decided"] = {"no-loss": 20924, "at-least-once": 0}
    loss["stats"] = {"proved": "all are there"}
    duplicates["decided"] = {"no-loss": 7}
    for result in table["checkers"][2:]:
        result["decided"] = {}
    run.verdict_file.write_text(json.dumps(table))
    terminal.render(run)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "checked  no-loss on 20,924 (loss) and 7 (duplicates)" in lines
    assert "not checked  at-least-once" in lines
    path = summary.render(run)
    assert path is not None
    row = "| loss | valid | at-least-once 0, no-loss 20,924 | all are there |"
    assert row in path.read_text()


def test_markup_in_a_message_is_text(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich markup from a run is printed literally."""
    finding = Finding("CORRUPTED", 1, "[red]not[/red] markup", "no-loss", ({"key": "[bold]k"},))
    run = written((finding,))
    run.verdict_file.write_text(run.verdict_file.read_text().replace('"kill"', '"[/kill]"'))
    terminal.render(run)
    out = capsys.readouterr().out
    assert "[red]not[/red] markup" in out
    assert "[bold]k" in out
    assert "1 [/kill]" in out


def test_explanations_stand_below_the_table(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence is too long for a column, and hides none of them; a very long one is cut."""
    rows = [{"key": f"k{n}", "explanation": "a zags b; " * n * n * 20, "op": 7} for n in (1, 2)]
    terminal.render(written((Finding("G0", 2, "2 cycles", "no-loss", tuple(rows)),)))
    out = capsys.readouterr().out
    assert "k1: a zags b; a zags b; " in out
    assert out.count("zags") == 20 + terminal.LONGEST // 10
    assert out.split("key")[1].split()[:3] == ["op", "k1", "7"]


def test_markdown_for_ci(written: Written, lost: Finding, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary is a file of the run, and is added to the job's page where there is one."""
    run = written((lost,), name="a|b`c")
    page = run.path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    path = summary.render(run)
    assert path == run.path / "summary.md"
    text = path.read_text()
    assert text.startswith("## ❌ invalid: 3 acknowledged messages were lost.")
    assert "| orders-1 |" in text
    assert "`a|b'c`" in text
    assert page.read_text() == text + "\n"


def test_markdown_from_a_run_is_text(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell ends early and no HTML gets through."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    finding = Finding("CORRUPTED", 1, "<img src=x>|\n# head", "no-loss", ({"key": "a|b"},))
    path = summary.render(written((finding,)))
    assert path is not None
    text = path.read_text()
    assert "\\<img src=x\\>\\| \\# head" in text
    assert "| a\\|b |" in text


def test_what_is_missing_is_told_once(
    written: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Markdown the text after a list is not part of it; an ampersand begins no entity."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    run = written(name="demo")
    verdict = json.loads(run.verdict_file.read_text())
    verdict |= {"verdict": "unknown", "reasons": [{"code": "NO_LOAD", "message": "a &amp; b"}]}
    run.verdict_file.write_text(json.dumps(verdict))
    told = read_run(run)
    told.doubts.extend(["the events: torn", "the events: torn"])
    text = summary.markdown(told)
    assert text.count("- the events: torn\n") == 1
    assert "- the events: torn\n\nRun again: `seatrial" in text
    assert "- **NO_LOAD** a \\&amp; b.\n\n" in text
    out = StringIO()
    terminal.print_summary(told, Console(file=out, width=100))
    assert out.getvalue().count("the events: torn") == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (119.4, "119 s"),
        (119.7, "2 min 0 s"),
        (3599.9, "1 h 0 min"),
        (172_799.4, "47 h 59 min"),
        (172_799.9, "2.0 days"),
        (None, "never"),
    ],
)
def test_a_duration_is_rounded_before_its_unit_is_chosen(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_reports_change_no_verdict(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """A renderer only reads."""
    run = written()
    before = run.verdict_file.read_bytes()
    terminal.render(run)
    summary.render(run)
    assert run.verdict_file.read_bytes() == before
