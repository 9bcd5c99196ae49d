"""Writes summary.md: the verdict, numbers, findings and faults in Markdown, for a CI job's page.

If GITHUB_STEP_SUMMARY names a file, the summary is appended to it, so the job's page shows it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from harness.text.sanitize import sanitize_all
from reports import _format
from reports._run import RunView, rank, read_run, rerun_command, write_report
from reports._times import SILENCE, TO_ACK, times_of_faults

MARKS = {"valid": "✅", "invalid": "❌", "unknown": "❔"}
ROWS_SHOWN = 5


def render(run: RunDir) -> Path | None:
    """Write summary.md into the run's folder; return its path."""
    text = markdown(read_run(run))
    path = write_report(run.path / "summary.md", text)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(page, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    return path


PLUGIN = ReportPlugin(render=render)


def markdown(view: RunView) -> str:
    """Return the summary as Markdown."""
    view = replace(view, verdict=sanitize_all(view.verdict), trial=sanitize_all(view.trial))
    return "\n".join(_lines(view)) + "\n"


def _lines(view: RunView) -> Iterator[str]:
    word = _format.VERDICT_WORDS[view.verdict.verdict]
    yield f"## {MARKS[word]} {word}: {_plain(view.sentence)}"
    yield ""
    yield f"`{_code(view.trial.name)}`: {_plain(_format.trial_line(view))}"
    yield ""
    yield from _table(
        ("number", "value", "note"),
        [(number.name, number.value, number.note) for number in _format.key_numbers_or_none(view)],
    )
    yield from _bullets(
        f"**{_name(reason.code)}** {_plain(_format.end_sentence(reason.message))}"
        for reason in view.verdict.reasons
    )
    for result, finding in view.findings():
        yield from _finding(result.checker, view.on_axis(finding))
    yield from _checkers(view)
    yield from view.part("the faults", lambda: list(_faults(view)), list[str]())
    yield from (f"Times are {view.axis}.", "")
    yield from _bullets(_plain(_format.program_line(each)) for each in _format.programs(view))
    yield from _bullets(map(_plain, view.shown_doubts))
    yield f"Run again: `{_code(rerun_command(view))}`"


def _finding(checker: str, finding: Finding) -> Iterator[str]:
    demand = f" **{_name(finding.demand)}**" if finding.demand else ""
    yield f"### {_name(finding.code)} x {finding.count:,}"
    yield ""
    standing = f"{_plain(_format.standing_of(finding))}{demand}; found by {_plain(checker)}"
    yield f"{_plain(_format.end_sentence(finding.message))} ({standing})"
    yield ""
    rows = finding.evidence[:ROWS_SHOWN] if rank(finding) < 2 else ()
    if rows:
        names = _format.columns(rows)
        cells = [[_format.cell(row.get(name)) for name in names] for row in rows]
        yield from _table([_format.heading(name) for name in names], cells)


def _checkers(view: RunView) -> Iterator[str]:
    """Yield what each checker proved, and the number of operations of each demand that it
    decided."""
    yield "<details><summary>Checkers</summary>"
    yield ""
    yield from _table(
        ("checker", "verdict", "decided, on how many", "proved"),
        [
            (r.checker, r.judgement, _format.decided_text(r), str(r.stats.get("proved", "")))
            for r in view.verdict.checkers
        ],
    )
    yield "</details>"
    yield ""


def _faults(view: RunView) -> Iterator[str]:
    times = times_of_faults(view.stats("availability"))
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
                f"{time['applied_s'] - view.zero / 1e9:.1f} s",
                _format.seconds(time[TO_ACK]),
                _format.seconds(time[SILENCE]),
            )
            for time in times
        ],
    )
    yield "</details>"
    yield ""


def _bullets(points: Iterable[str]) -> Iterator[str]:
    """Yield a list, and the empty line that ends it."""
    if lines := [f"- {point}" for point in points]:
        yield from (*lines, "")


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(map(_plain, names)) + " |"
    yield "|" + " --- |" * len(names)
    for row in rows:
        yield "| " + " | ".join(map(_plain, row)) + " |"
    yield ""


def _plain(text: str) -> str:
    """Return text without markup, links, line breaks or cell borders."""
    escaped = "".join(f"\\{c}" if c in r"\`*_[]<>|#~&@" else c for c in text)
    escaped = escaped.replace("://", ":\\//").replace("www.", "www\\.")
    return " ".join(escaped.split())


def _name(text: str) -> str:
    """Return a code or a demand; escaped unless it is words joined by dashes or underscores."""
    return text if re.fullmatch(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*", text) else _plain(text)


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())
