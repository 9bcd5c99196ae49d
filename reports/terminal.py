"""Prints the summary of a run: the verdict in words, the numbers that matter, and what to do next.

Meaning never hangs on colour, so a pipe or a log reads the same: no escape codes, no box drawing,
lines as wide as they need to be.
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
from harness.text.sanitize import printable
from reports import _words
from reports._run import (
    Told,
    explain_command,
    from_here,
    rank,
    read,
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
TOLD_BELOW = ("explanation", "by_time")  # sentences, for which a column is too narrow
LONGEST = 500  # letters of one of them
NARROW = 60  # columns, below which numbers stand closer together
PLACES = 13  # columns of the labels below the findings


def render(run: RunDir) -> Path | None:
    """Print to standard output; nothing is written."""
    console = standard_output()
    if console.is_terminal:
        show(read(run), console)
        return None
    console.width = PLAIN_WIDTH
    with console.capture() as lines:
        show(read(run), console)
    for line in lines.get().splitlines():
        print(line.rstrip())
    return None


PLUGIN = ReportPlugin(render=render)


def show(told: Told, console: Console) -> None:
    """The whole summary."""
    told = replace(told, verdict=printable(told.verdict), trial=printable(told.trial))
    console.print()
    console.print(_verdict(told))
    console.print()
    console.print(_numbers(told, console.width))
    for reason in told.verdict.reasons:
        console.print()
        console.print(_reason(reason.code, reason.message))
    for result, finding in told.findings():
        console.print()
        _finding(console, result.checker, told.on_axis(finding))
    if any(finding.evidence for _, finding in told.findings()):
        console.print()
        console.print(Padding(Text(f"Times are {told.axis}.", "dim"), (0, 0, 0, 2), expand=False))
    for doubt in told.lacking:
        console.print()
        console.print(Padding(Text(printable(doubt), "yellow"), (0, 0, 0, 2), expand=False))
    console.print()
    for name, words in _places(told):
        _place(console, name, words)


def _verdict(told: Told) -> Table:
    judgement = told.verdict.verdict
    sentence = told.sentence or _words.MEANING[judgement]
    word = f" {_words.VERDICT_WORDS[judgement].upper()} "
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text(word, STYLES[judgement]), Text(sentence, "bold"))
    table.add_row("", "", Text(_words.one_line(told), style="dim"))
    return table


def _numbers(told: Told, width: int) -> Table:
    numbers = _words.known(told)
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
    text = Text.assemble((code, "bold yellow"), "  ", _words.full(message))
    return Padding(text, (0, 0, 0, 2), expand=False)


def _finding(console: Console, checker: str, finding: Finding) -> None:
    """Print code, count and message, then some rows of evidence."""
    style = ("bold red", "yellow", "cyan")[rank(finding)]
    standing = _words.standing_of(finding) + (f" {finding.demand}" if finding.demand else "")
    during = f", during fault {_ids(finding.faults)}" if finding.faults else ""
    head = Text.assemble(
        (f"{finding.code} x {finding.count:,}", style), "  ", _words.full(finding.message)
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
    for name in _words.columns(rows):
        if name in TOLD_BELOW:
            continue
        cells = [_words.cell(row.get(name)) for row in rows]
        width -= 2 + max(len(text) for text in (_words.heading(name), *cells))
        if width < 0 and shown:
            break
        table.add_column(Text(_words.heading(name)), overflow="fold")
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


def _places(told: Told) -> Iterator[tuple[str, str]]:
    for name, demands in zip(("checked", "not checked"), _words.checked(told), strict=True):
        if demands:
            yield name, demands
    if told.run.report_file.is_file():
        yield "report", printable(from_here(told.run, told.run.report_file))
    if told.verdict.first:
        yield "explain", explain_command(told, seatrial=seatrial())
    yield "run again", rerun_command(told, seatrial())


def _place(console: Console, name: str, words: str) -> None:
    """Print a label and its text; no path or command is broken within a word."""
    room = max(1, console.width - PLACES)
    lines = wrap(words, room, break_long_words=False, break_on_hyphens=False)
    for label, line in zip_longest((name,), lines, fillvalue=""):
        text = Text.assemble((f"{label:>{PLACES - 2}}", "dim"), "  ", line)
        console.print(text, soft_wrap=True)
