"""Writes summary.md: the verdict, numbers, findings and faults in Markdown, for a CI job's page.

Where GITHUB_STEP_SUMMARY names a file, the summary is appended there too, so a job that renders it
shows it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from harness.text.sanitize import printable
from reports import _words
from reports._run import Told, put, rank, read, rerun_command
from reports._times import SILENCE, TO_ACK, of_faults

MARKS = {"valid": "✅", "invalid": "❌", "unknown": "❔"}
ROWS_SHOWN = 5


def render(run: RunDir) -> Path | None:
    """The path of summary.md in the run's folder."""
    text = markdown(read(run))
    path = put(run.path / "summary.md", text)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(page, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    return path


PLUGIN = ReportPlugin(render=render)


def markdown(told: Told) -> str:
    told = replace(told, verdict=printable(told.verdict), trial=printable(told.trial))
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Told) -> Iterator[str]:
    word = _words.VERDICT_WORDS[told.verdict.verdict]
    yield f"## {MARKS[word]} {word}: {_plain(told.sentence)}"
    yield ""
    yield f"`{_code(told.trial.name)}`: {_plain(_words.one_line(told))}"
    yield ""
    yield from _table(
        ("number", "value", "note"),
        [(number.name, number.value, number.note) for number in _words.known(told)],
    )
    yield from _bullets(
        f"**{_name(reason.code)}** {_plain(_words.full(reason.message))}"
        for reason in told.verdict.reasons
    )
    for result, finding in told.findings():
        yield from _finding(result.checker, told.on_axis(finding))
    yield from _checkers(told)
    yield from told.part("the faults", lambda: list(_faults(told)), list[str]())
    yield from (f"Times are {told.axis}.", "")
    yield from _bullets(map(_plain, told.lacking))
    yield f"Run again: `{_code(rerun_command(told))}`"


def _finding(checker: str, finding: Finding) -> Iterator[str]:
    demand = f" **{_name(finding.demand)}**" if finding.demand else ""
    yield f"### {_name(finding.code)} x {finding.count:,}"
    yield ""
    standing = f"{_plain(_words.standing_of(finding))}{demand}; found by {_plain(checker)}"
    yield f"{_plain(_words.full(finding.message))} ({standing})"
    yield ""
    rows = finding.evidence[:ROWS_SHOWN] if rank(finding) < 2 else ()
    if rows:
        names = _words.columns(rows)
        cells = [[_words.cell(row.get(name)) for name in names] for row in rows]
        yield from _table([_words.heading(name) for name in names], cells)


def _checkers(told: Told) -> Iterator[str]:
    """What each checker proved, and on how many operations it decided each demand."""
    yield "<details><summary>Checkers</summary>"
    yield ""
    yield from _table(
        ("checker", "verdict", "decided, on how many", "proved"),
        [
            (r.checker, r.judgement, _words.decided(r), str(r.stats.get("proved", "")))
            for r in told.verdict.checkers
        ],
    )
    yield "</details>"
    yield ""


def _faults(told: Told) -> Iterator[str]:
    times = of_faults(told.stats("availability"))
    if not times:
        return
    yield "<details><summary>Faults</summary>"
    yield ""
    yield from _table(
        ("#", "fault", "applied at", "to next acknowledgement", "longest silence"),
        [
            (
                str(time["fault"]),
                time["words"],
                f"{time['applied_s'] - told.zero / 1e9:.1f} s",
                _words.seconds(time[TO_ACK]),
                _words.seconds(time[SILENCE]),
            )
            for time in times
        ],
    )
    yield "</details>"
    yield ""


def _bullets(points: Iterable[str]) -> Iterator[str]:
    """A list, and the empty line that ends it."""
    if lines := [f"- {point}" for point in points]:
        yield from (*lines, "")


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(map(_plain, names)) + " |"
    yield "|" + " --- |" * len(names)
    for row in rows:
        yield "| " + " | ".join(map(_plain, row)) + " |"
    yield ""


def _plain(text: str) -> str:
    """Text that stays text: no markup or links of its own, no line breaks, no cell borders."""
    escaped = "".join(f"\\{c}" if c in r"\`*_[]<>|#~&@" else c for c in text)
    escaped = escaped.replace("://", ":\\//").replace("www.", "www\\.")
    return " ".join(escaped.split())


def _name(text: str) -> str:
    """A code or a demand; as it stands, if it is one of words and underscores between them."""
    return text if re.fullmatch(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*", text) else _plain(text)


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())
