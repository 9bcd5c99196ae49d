"""A suite as people and programs see it: a table, Markdown for a job's page, JUnit XML, JSON.

Whoever looks in the morning wants to know four things, in this order: did what was expected hold,
if not where, what has changed since the night before, and how long it took.
"""

import json
import os
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

from harness.campaign.tally import many
from harness.cli.console import standard_output
from harness.cli.prog_name import seatrial
from harness.errors import BedFailed
from harness.suite.course import CHANGED, Course
from harness.suite.expected import AS_EXPECTED, NOT_AS_EXPECTED, WORDS
from harness.suite.names import FOLDER
from harness.suite.row import NOT_RUN, Row
from harness.text.sanitize import sayable

HEADS = ("trial", "seed", "expected", "came", "recovers in", "acks/s", "took", "")
GOES_ON = "continues from here"
RIGHT = ("seed", "recovers in", "acks/s", "took")
STYLES = {AS_EXPECTED: "green", NOT_AS_EXPECTED: "red"}


def sentence(row: Row) -> str:
    """A run, as it is told when it is over."""
    where = f" ({row.run})" if row.run else ""
    if row.outcome == AS_EXPECTED:
        return f"{_who(row)}: {row.came}, as expected{where}"
    return f"{_who(row)}: {row.came}, but {row.wanted} was expected{where}"


def conclusion(course: Course) -> str:
    """What it comes to, in a sentence."""
    rows = course.table
    good = sum(row.outcome == AS_EXPECTED for row in rows)
    parts = [f"{good} of {many(len(rows), 'run')} of {course.suite} ended as expected"]
    if course.early:
        parts.append(f"{course.not_reached} were not run: {course.early}")
    if absent := course.left_out:
        parts.append(f"{len(absent)} were skipped, because their hosts are not available here")
    if course.resumed:
        parts.append(f"{course.resumed} were done earlier")
    if known := sum(row.known for row in rows):
        parts.append(f"{known} have recorded results")
    if course.unasked:
        kinds = Counter(cell.asked.trial.hosts for cell in course.unasked)
        told = ", ".join(f"{count} on {hosts}" for hosts, count in sorted(kinds.items()))
        parts.append(f"--only skipped {many(len(course.unasked), 'run')} of the suite ({told})")
    return "; ".join(parts)


def around(rows: Sequence[Row]) -> str:
    """Where the time went besides the load: into raising and taking down clusters, judging, and
    pages; empty: nobody knows."""
    timed = [row for row in rows if row.around_s]
    took_s, around_s = sum(row.took_s for row in timed), sum(row.around_s for row in timed)
    if not took_s:
        return ""
    checked_s, page_s = sum(row.checked_s for row in timed), sum(row.page_s for row in timed)
    return (
        f"raising and taking down {many(len(timed), 'cluster')} took {around_s:,.0f} of "
        f"{took_s:,.0f} s, {around_s / took_s:.0%} of the time; judging {checked_s / took_s:.0%}, "
        f"pages {page_s / took_s:.0%}"
    )


def details(course: Course, changed: Sequence[str]) -> Iterator[str]:
    """What is worth a line besides the table, but for the conclusion."""
    for row in course.table:
        if row.outcome != AS_EXPECTED and row.word != NOT_RUN:
            yield sentence(row)
    for why, count in Counter(course.absent[turn.key] for turn in course.left_out).items():
        yield f"skipped: {many(count, 'run')}, because there are {why}"
    yield from (f"changed: {each}" for each in changed)
    if told := around(course.table):
        yield told
    if course.early:
        does = "starts over with the current code" if course.early == CHANGED else GOES_ON
        yield f"the same command {does}: {seatrial()} {shlex.join(course.command)}"


def show(course: Course, changed: Sequence[str], console: Console | None = None) -> None:
    """The summary, on standard output."""
    console = console or standard_output()
    console.print(table(course.table))
    for line in (*details(course, changed), conclusion(course)):
        console.print(line, markup=False, soft_wrap=True)


def table(rows: Iterable[Row]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for head in HEADS:
        shown.add_column(head, justify="right" if head in RIGHT else "left", overflow="fold")
    for row in rows:
        *cells, outcome = _cells(row)
        style = STYLES.get(row.outcome, "yellow")
        shown.add_row(*map(Text, cells), Text(outcome, style=style))
    return shown


def _cells(row: Row) -> tuple[str, ...]:
    """In the order of the heads."""
    return (
        row.name if row.turn == 1 else f"{row.name} ({row.turn})",
        str(row.seed),
        row.wanted,
        row.came,
        _told(row.figures.get("to_ack_s_p50"), "{:.2f} s", "never"),
        _told(row.figures.get("per_s"), "{:,.0f}"),
        _told(row.took_s or None, "{:,.0f} s"),
        f"{WORDS[row.outcome]}{', recorded' * row.known}",
    )


def _told(value: float | None, words: str, never: str = "") -> str:
    return "" if value is None else never if value == inf else words.format(value)


def _who(row: Row) -> str:
    again = f", time {row.turn}" if row.turn > 1 else ""
    return f"{row.name} seed {row.seed}{again}"


# ---------------------------------------------------------------------------------- for programs


def markdown(course: Course, changed: Sequence[str]) -> str:
    """For a job's page: what is wrong first, and all runs below it, folded away."""
    heading = f"## {_safe(conclusion(course))}"
    below = [f"- {_safe(line)}" for line in details(course, changed)]
    head = [f"| {' | '.join(HEADS)} |", "|" + " --- |" * len(HEADS)]
    rows = [f"| {' | '.join(map(_safe, _cells(row)))} |" for row in course.table]
    folded = ["<details><summary>all runs</summary>", "", *head, *rows, "", "</details>"]
    return "\n".join([heading, "", *below, *([""] if below else []), *folded, "", ""])


def _safe(text: str) -> str:
    """Nothing in it means anything to Markdown's tables, or to HTML."""
    plain = " ".join(sayable(text).split())
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), ("\\", "&#92;"), ("|", "&#124;")):
        plain = plain.replace(sign, entity)
    return plain


def junit(course: Course) -> str:
    """A test case for each run: a failure came otherwise, an error proved nothing."""
    rows = course.table
    suite = Xml.Element(
        "testsuite",
        name=sayable(str(course.suite)),
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
            name=sayable(_who(row)),
            classname=sayable(course.suite.stem),
            time=f"{row.took_s:.1f}",
        )
        if kind := _kind(row):
            message = sayable(f"{row.came}, but {row.wanted} was expected")
            Xml.SubElement(case, kind, message=message).text = sayable(row.run)
    Xml.indent(suite)
    return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _kind(row: Row) -> str:
    """What JUnit calls it."""
    if row.outcome == AS_EXPECTED:
        return ""
    if row.outcome == NOT_AS_EXPECTED:
        return "failure"
    return "skipped" if row.word == NOT_RUN else "error"


def plain(course: Course, changed: Sequence[str]) -> Mapping[str, Any]:
    """For programs."""
    return {
        "suite": sayable(str(course.suite)),
        "conclusion": sayable(conclusion(course)),
        "exit_code": course.exit_code,
        "complete": course.complete,
        "early": course.early or None,
        "left_out": [turn.cell.title for turn in course.left_out],
        "not_asked_for": [cell.title for cell in course.unasked],
        "resumed": course.resumed,
        "took_s": round(course.took_s, 1),
        "around": around(course.table) or None,
        "changed": list(changed),
        "rows": [row.plain() for row in course.table],
    }


def keep(course: Course, changed: Sequence[str], runs: Path) -> Path:
    """The summary as JSON, JUnit XML and Markdown, below the runs; the path without its ending."""
    stem = runs / FOLDER / course.suite.stem
    texts = {
        ".json": json.dumps(plain(course, changed), indent=2) + "\n",
        ".xml": junit(course),
        ".md": markdown(course, changed),
    }
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for ending, text in texts.items():
            temporary = stem.with_name(f".{stem.name}{ending}-{os.getpid()}")
            temporary.write_text(text)
            os.replace(temporary, stem.with_name(f"{stem.name}{ending}"))
    except OSError as e:
        raise BedFailed(f"the summary cannot be written to {stem}: {e.strerror or e}") from e
    return stem
