"""Summaries of a suite: a table, Markdown for the page of a CI job, JUnit XML, and JSON.

They answer, in this order: did everything end as expected, what did not, what has changed since the
previous night, and how long did it take.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.console import standard_output
from harness.cli.prog_name import seatrial
from harness.errors import BedFailed
from harness.suite.execution import CHANGED, NOT_RUN, SuiteState
from harness.suite.store import AS_EXPECTED, FOLDER, NOT_AS_EXPECTED, WORDS, SuiteRow, replace_file
from harness.text.plurals import quantity
from harness.text.sanitize import sanitize

HEADS = ("trial", "seed", "expected", "came", "recovers in", "acks/s", "took", "")
RESUMES = "continues from here"
RIGHT = ("seed", "recovers in", "acks/s", "took")
STYLES = {AS_EXPECTED: "green", NOT_AS_EXPECTED: "red"}


def sentence(row: SuiteRow) -> str:
    """Return a sentence about a finished run."""
    where = f" ({row.run})" if row.run else ""
    if row.outcome == AS_EXPECTED:
        return f"{_who(row)}: {row.came}, as expected{where}"
    return f"{_who(row)}: {row.came}, but {row.wanted} was expected{where}"


def conclusion(state: SuiteState) -> str:
    """Return the result of the suite in a sentence."""
    rows = state.table
    good = sum(row.outcome == AS_EXPECTED for row in rows)
    parts = [f"{good} of {quantity(len(rows), 'run')} of {state.suite} ended as expected"]
    if state.early:
        parts.append(f"{state.not_reached} were not run: {state.early}")
    if absent := state.left_out:
        parts.append(f"{len(absent)} were skipped, because their hosts are not available here")
    if state.resumed:
        parts.append(f"{state.resumed} were done earlier")
    if recorded := sum(row.known for row in rows):
        parts.append(f"{recorded} have recorded results")
    if state.excluded:
        kinds = Counter(cell.request.trial.hosts for cell in state.excluded)
        where = ", ".join(f"{count} on {hosts}" for hosts, count in sorted(kinds.items()))
        parts.append(
            f"--only skipped {quantity(len(state.excluded), 'run')} of the suite ({where})"
        )
    return "; ".join(parts)


def around(rows: Sequence[SuiteRow]) -> str:
    """Return the time spent besides the load: starting and stopping clusters, judging, and pages;
    empty if unknown."""
    timed = [row for row in rows if row.around_s]
    took_s, around_s = sum(row.took_s for row in timed), sum(row.around_s for row in timed)
    if not took_s:
        return ""
    checked_s, page_s = sum(row.checked_s for row in timed), sum(row.page_s for row in timed)
    return (
        f"starting and stopping {quantity(len(timed), 'cluster')} took {around_s:,.0f} of "
        f"{took_s:,.0f} s, {around_s / took_s:.0%} of the time; judging {checked_s / took_s:.0%}, "
        f"pages {page_s / took_s:.0%}"
    )


def details(state: SuiteState, changed: Sequence[str]) -> Iterator[str]:
    """Yield the lines between the table and the conclusion."""
    for row in state.table:
        if row.outcome != AS_EXPECTED and row.word != NOT_RUN:
            yield sentence(row)
    for why, count in Counter(state.absent[turn.key] for turn in state.left_out).items():
        yield f"skipped: {quantity(count, 'run')}, because there are {why}"
    yield from (f"changed: {each}" for each in changed)
    if overhead := around(state.table):
        yield overhead
    if state.early:
        does = "starts over with the current code" if state.early == CHANGED else RESUMES
        yield f"the same command {does}: {seatrial()} {shlex.join(state.command)}"


def show(state: SuiteState, changed: Sequence[str], console: Console | None = None) -> None:
    """Print the summary on standard output."""
    console = console or standard_output()
    console.print(table(state.table))
    for line in (*details(state, changed), conclusion(state)):
        console.print(line, markup=False, soft_wrap=True)


def table(rows: Iterable[SuiteRow]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    for head in HEADS:
        made.add_column(head, justify="right" if head in RIGHT else "left", overflow="fold")
    for row in rows:
        *cells, outcome = _cells(row)
        style = STYLES.get(row.outcome, "yellow")
        made.add_row(*map(Text, cells), Text(outcome, style=style))
    return made


def _cells(row: SuiteRow) -> tuple[str, ...]:
    """Return the cells of a row, in the order of HEADS."""
    return (
        row.name if row.turn == 1 else f"{row.name} ({row.turn})",
        str(row.seed),
        row.wanted,
        row.came,
        _formatted(row.figures.get("to_ack_s_p50"), "{:.2f} s", "never"),
        _formatted(row.figures.get("per_s"), "{:,.0f}"),
        _formatted(row.took_s or None, "{:,.0f} s"),
        f"{WORDS[row.outcome]}{', recorded' * row.known}",
    )


def _formatted(value: float | None, words: str, never: str = "") -> str:
    return "" if value is None else never if value == inf else words.format(value)


def _who(row: SuiteRow) -> str:
    again = f", time {row.turn}" if row.turn > 1 else ""
    return f"{row.name} seed {row.seed}{again}"


# ---------------------------------------------------------------------------------- for programs


def markdown(state: SuiteState, changed: Sequence[str]) -> str:
    """For a job's page: what is wrong first, and all runs below it, folded away."""
    heading = f"## {_safe(conclusion(state))}"
    below = [f"- {_safe(line)}" for line in details(state, changed)]
    head = [f"| {' | '.join(HEADS)} |", "|" + " --- |" * len(HEADS)]
    rows = [f"| {' | '.join(map(_safe, _cells(row)))} |" for row in state.table]
    folded = ["<details><summary>all runs</summary>", "", *head, *rows, "", "</details>"]
    return "\n".join([heading, "", *below, *([""] if below else []), *folded, "", ""])


def _safe(text: str) -> str:
    """Escape text for Markdown tables and HTML."""
    plain = " ".join(sanitize(text).split())
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), ("\\", "&#92;"), ("|", "&#124;")):
        plain = plain.replace(sign, entity)
    return plain


def junit(state: SuiteState) -> str:
    """Return JUnit XML: a failure did not end as expected, an error is undecided."""
    rows = state.table
    suite = Xml.Element(
        "testsuite",
        name=sanitize(str(state.suite)),
        tests=str(len(rows)),
        failures=str(sum(row.outcome == NOT_AS_EXPECTED for row in rows)),
        errors=str(sum(_kind(row) == "error" for row in rows)),
        skipped=str(sum(_kind(row) == "skipped" for row in rows)),
        time=f"{sum(row.took_s for row in rows):.1f}",
    )
    for row in rows:
        case = Xml.SubElement(
            suite,
            "testcase",
            name=sanitize(_who(row)),
            classname=sanitize(state.suite.stem),
            time=f"{row.took_s:.1f}",
        )
        if kind := _kind(row):
            message = sanitize(f"{row.came}, but {row.wanted} was expected")
            Xml.SubElement(case, kind, message=message).text = sanitize(row.run)
    Xml.indent(suite)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _kind(row: SuiteRow) -> str:
    """Return JUnit's name of an outcome."""
    if row.outcome == AS_EXPECTED:
        return ""
    if row.outcome == NOT_AS_EXPECTED:
        return "failure"
    return "skipped" if row.word == NOT_RUN else "error"


def plain(state: SuiteState, changed: Sequence[str]) -> Mapping[str, Any]:
    """Return the summary for JSON."""
    return {
        "suite": sanitize(str(state.suite)),
        "conclusion": sanitize(conclusion(state)),
        "exit_code": state.exit_code,
        "complete": state.complete,
        "early": state.early or None,
        "left_out": [turn.cell.title for turn in state.left_out],
        "not_asked_for": [cell.title for cell in state.excluded],
        "resumed": state.resumed,
        "took_s": round(state.took_s, 1),
        "around": around(state.table) or None,
        "changed": list(changed),
        "rows": [row.plain() for row in state.table],
    }


def write_summary(state: SuiteState, changed: Sequence[str], runs: Path) -> Path:
    """Write the summary as JSON, JUnit XML and Markdown, and return the path without a suffix."""
    stem = runs / FOLDER / state.suite.stem
    texts = {
        ".json": json.dumps(plain(state, changed), indent=2) + "\n",
        ".xml": junit(state),
        ".md": markdown(state, changed),
    }
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            replace_file(stem.with_name(f"{stem.name}{suffix}"), text)
    except OSError as e:
        raise BedFailed(f"the summary cannot be written to {stem}: {e.strerror or e}") from e
    return stem
