"""Prints the summary of a run: the verdict, the key numbers, and what to do next.

Meaning never depends on colour, so a pipe or a log has the same text: no escape codes, no box
drawing, lines of any length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.cli.console import standard_output
from harness.cli.prog_name import seatrial
from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Judgement
from harness.text.sanitize import sanitize_all
from reports import _format
from reports._run import (
    RunView,
    explain_command,
    from_here,
    rank,
    read_run,
    rerun_command,
)

STYLES = {
    Judgement.VALID: "bold white on dark_green",
    Judgement.INVALID: "bold white on red3",
    Judgement.UNKNOWN: "bold black on yellow3",
}
TONES = {"good": "green", "bad": "bold red", "doubt": "yellow", "": ""}
PLAIN_WIDTH = 160  # of output that is not a terminal
ROWS_SHOWN = 5
SENTENCES = ("explanation", "by_time")  # sentences, too long for a column
LONGEST = 500  # letters of one of them
NARROW = 60  # columns; in narrower terminals, numbers have less space
PLACES = 13  # columns of the labels below the findings


def render(run: RunDir) -> Path | None:
    """Print to standard output; nothing is written."""
    console = standard_output()
    if console.is_terminal:
        print_summary(read_run(run), console)
        return None
    console.width = PLAIN_WIDTH
    with console.capture() as lines:
        print_summary(read_run(run), console)
    for line in lines.get().splitlines():
        print(line.rstrip())
    return None


PLUGIN = ReportPlugin(render=render)


def print_summary(view: RunView, console: Console) -> None:
    """Print the whole summary."""
    view = replace(view, verdict=sanitize_all(view.verdict), trial=sanitize_all(view.trial))
    console.print()
    console.print(_verdict(view))
    console.print()
    console.print(_numbers(view, console.width))
    for reason in view.verdict.reasons:
        console.print()
        console.print(_reason(reason.code, reason.message))
    for result, finding in view.findings():
        console.print()
        _finding(console, result.checker, view.on_axis(finding))
    if any(finding.evidence for _, finding in view.findings()):
        console.print()
        console.print(Padding(Text(f"Times are {view.axis}.", "dim"), (0, 0, 0, 2), expand=False))
    for doubt in view.shown_doubts:
        console.print()
        console.print(Padding(Text(sanitize_all(doubt), "yellow"), (0, 0, 0, 2), expand=False))
    console.print()
    for name, words in _places(view):
        _place(console, name, words)


def _verdict(view: RunView) -> Table:
    judgement = view.verdict.verdict
    sentence = view.sentence or _format.MEANING[judgement]
    word = f" {_format.VERDICT_WORDS[judgement].upper()} "
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text(word, STYLES[judgement]), Text(sentence, "bold"))
    table.add_row("", "", Text(_format.trial_line(view), style="dim"))
    return table


def _numbers(view: RunView, width: int) -> Table:
    numbers = _format.key_numbers_or_none(view)
    indent, gap = ("  ", 2) if width >= NARROW else ("", 1)
    names = [f"{indent}{number.name}" for number in numbers]
    longest = max((len(indent + word) for name in names for word in name.split()), default=0)
    whole = max(map(len, names), default=0)
    table = Table.grid(padding=(0, gap))
    table.add_column(justify="right", style="dim", width=min(whole, max(longest, width * 2 // 5)))
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="fold")
    for name, number in zip(names, numbers, strict=True):
        value = Text(number.value, style=TONES[number.tone] or "bold")
        table.add_row(Text(name), value, Text(number.note))
    return table


def _reason(code: str, message: str) -> Padding:
    text = Text.assemble((code, "bold yellow"), "  ", _format.end_sentence(message))
    return Padding(text, (0, 0, 0, 2), expand=False)


def _finding(console: Console, checker: str, finding: Finding) -> None:
    """Print code, count and message, then some rows of evidence."""
    style = ("bold red", "yellow", "cyan")[rank(finding)]
    standing = _format.standing_of(finding) + (f" {finding.demand}" if finding.demand else "")
    during = f", during fault {_ids(finding.faults)}" if finding.faults else ""
    head = Text.assemble(
        (f"{finding.code} x {finding.count:,}", style), "  ", _format.end_sentence(finding.message)
    )
    console.print(Padding(head, (0, 0, 0, 2), expand=False))
    console.print(
        Padding(Text(f"{standing}; found by {checker}{during}", "dim"), (0, 0, 0, 4), expand=False)
    )
    rows = finding.evidence[:ROWS_SHOWN]
    if rows and rank(finding) < 2:
        console.print(Padding(_evidence(rows, console.width - 4), (0, 0, 0, 4), expand=False))
        for text in filter(None, map(_explained, rows)):
            console.print(Padding(Text(text), (0, 0, 0, 4)))
        if finding.count > len(rows):
            more = f"{len(rows)} of {finding.count:,} shown"
            more += "; the report has more" if len(finding.evidence) > len(rows) else ""
            console.print(Padding(Text(more, "dim"), (0, 0, 0, 4), expand=False))


def _evidence(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Return as many columns as fit the width; the HTML report has all of them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown: list[list[str]] = []
    for name in _format.columns(rows):
        if name in SENTENCES:
            continue
        cells = [_format.cell(row.get(name)) for row in rows]
        width -= 2 + max(len(text) for text in (_format.heading(name), *cells))
        if width < 0 and shown:
            break
        table.add_column(Text(_format.heading(name)), overflow="fold")
        shown.append(cells)
    for texts in zip(*shown, strict=True):
        table.add_row(*map(Text, texts))
    return table


def _explained(row: Mapping[str, Any]) -> str:
    """Return the explanation of a row, shortened; the HTML report has all of it."""
    words = str(row.get("explanation", ""))
    key = f"{row['key']}: " if words and "key" in row else ""
    return f"{key}{words if len(words) <= LONGEST else words[:LONGEST] + ' ...'}"


def _ids(faults: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in faults[:8])
    return shown + (f" and {len(faults) - 8} more" if len(faults) > 8 else "")


def _places(view: RunView) -> Iterator[tuple[str, str]]:
    for name, demands in zip(
        ("checked", "not checked"), _format.checked_demands(view), strict=True
    ):
        if demands:
            yield name, demands
    for program in _format.programs(view):
        yield "program", sanitize_all(_format.program_line(program))
    if view.run.report_file.is_file():
        yield "report", sanitize_all(from_here(view.run, view.run.report_file))
    if view.verdict.first_finding:
        yield "explain", explain_command(view, seatrial=seatrial())
    yield "run again", rerun_command(view, seatrial())


def _place(console: Console, name: str, words: str) -> None:
    """Print a label and its text; no path or command is broken within a word."""
    room = max(1, console.width - PLACES)
    lines = wrap(words, room, break_long_words=False, break_on_hyphens=False)
    for label, line in zip_longest((name,), lines, fillvalue=""):
        text = Text.assemble((f"{label:>{PLACES - 2}}", "dim"), "  ", line)
        console.print(text, soft_wrap=True)
