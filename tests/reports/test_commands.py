"""Commands in a report do what the text beside them promises."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import session
from harness.errors import BadRequest
from harness.history.rundir import RunDir
from harness.judge.stored_verdict import load_verdict
from harness.judge.verdict import Finding
from reports import junit, page, summary, terminal
from reports._run import read_run
from reports._stories import page_findings
from reports._stories.witness import choose_witness

Written = Callable[..., RunDir]

REPORTS = (
    lambda run: page.page_html(read_run(run)).replace("&#39;", "'"),
    lambda run: junit.xml(read_run(run)).decode(),
    lambda run: summary.markdown(read_run(run)),
)


@pytest.mark.parametrize("report", REPORTS, ids=("page", "junit", "summary"))
def test_a_run_is_named_from_where_the_report_is_made(
    written: Written, monkeypatch: pytest.MonkeyPatch, report: Callable[[RunDir], str]
) -> None:
    """Below that folder shortly, whatever the folder of runs is called; elsewhere whole."""
    run = written()
    assert f"seatrial replay {run.path}" in report(run)
    monkeypatch.chdir(run.path.parents[1])
    assert f"seatrial replay {run.path.parent.name}/{run.path.name}" in report(run)


@pytest.mark.parametrize("report", REPORTS, ids=("page", "junit", "summary"))
def test_a_path_with_spaces_is_one_word(
    written: Written, monkeypatch: pytest.MonkeyPatch, report: Callable[[RunDir], str]
) -> None:
    """As a shell reads it."""
    monkeypatch.chdir(written().path.parent)
    run = RunDir(Path("20261121-101500-demo").rename("two words"))
    assert "seatrial replay 'two words'" in report(run)


def test_the_terminal_names_a_run_as_a_shell_reads_it(
    written: Written,
    lost: Finding,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder is not to be guessed."""
    monkeypatch.chdir(written((lost,)).path.parent)
    terminal.render(RunDir(Path("20261121-101500-demo").rename("two words")))
    out = capsys.readouterr().out
    assert "seatrial explain 'two words'" in out
    assert "seatrial replay 'two words'" in out


def test_who_misses_a_verdict_is_told_what_to_type(written: Written) -> None:
    """All commands that need a verdict name the one that makes it."""
    run = written()
    run.verdict_file.unlink()
    run = RunDir(run.path.rename(run.path.with_name("two words")))
    for ask in (
        lambda: session.report(run, ("page",)),
        lambda: read_run(run),
        lambda: load_verdict(run),
    ):
        with pytest.raises(BadRequest, match=f"seatrial check '{run.path}'"):
            ask()


def test_findings_of_one_code_have_witnesses_of_their_own(written: Written, lost: Finding) -> None:
    """The command below a finding, its stories and its marks speak of the same witness."""
    more = replace(lost, message="They were never given to group b.", evidence=lost.evidence[:2])
    told = read_run(written((lost, more)))
    first, second = (
        one for one in page_findings.finding_views(told) if one.finding.code == lost.code
    )
    assert first.explain.endswith(" LOST_ACKED")
    assert second.explain.endswith(" LOST_ACKED:4")
    assert second.witnesses[0].name == "LOST_ACKED:4"
    marks = [words for _, words in (*first.times, *second.times)]
    numbers = [re.findall(r"witness (\d)", words) for words in marks]
    assert numbers == [["1"], ["2"], ["3"], ["4"], ["5"]]
    about = choose_witness(told.verdict, "LOST_ACKED:4")
    assert about is not None
    assert about.finding.message == more.message
