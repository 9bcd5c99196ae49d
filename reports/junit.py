"""Writes junit.xml: a test case for each checker, so that any CI server shows what broke.

What breaks the contract is a *failure*; what leaves a checker, or the run as a whole, undecided is
an *error*, because a job must not pass on a run that proved nothing. What the contract permits, and
what only informs, is told in the output of a case that passes. There are no times in it: a verdict
has none, and the same run gives the same bytes.
"""

from collections.abc import Iterable
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Judgement, Reason, Result
from harness.text.sanitize import sayable
from reports import _words
from reports._run import Told, put, rank, read, rerun_command

ROWS_SHOWN = 5
LONGEST = 4_000  # letters of one text
WHOLE = "the run"


def render(run: RunDir) -> Path | None:
    """The path of junit.xml in the run's folder."""
    return put(run.path / "junit.xml", xml(read(run)))


PLUGIN = ReportPlugin(render=render)


def xml(told: Told) -> bytes:
    """One suite, named for the trial."""
    cases = [_case(told, result) for result in told.verdict.checkers]
    if own := _of_the_run(told):
        cases.insert(0, _errors(_named(told, WHOLE), own))
    failed, wrong = (sum(len(case.findall(tag)) > 0 for case in cases) for tag in TAGS)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": str(wrong)}
    root = Element("testsuites", {"name": "seatrial", **counts})
    suite = SubElement(root, "testsuite", {"name": _said(told.trial.name), **counts})
    properties = SubElement(suite, "properties")
    for name, value in _properties(told):
        SubElement(properties, "property", {"name": name, "value": _said(value)})
    suite.extend(cases)
    SubElement(suite, "system-out").text = _said(_words.full(told.verdict.sentence))
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


TAGS = ("failure", "error")


def _properties(told: Told) -> Iterable[tuple[str, str]]:
    trial = told.trial
    yield "verdict", str(told.verdict.verdict.value)
    if not told.untold:
        yield from (("system", trial.system), ("profile", trial.profile), ("hosts", trial.hosts))
        yield from (("workload", trial.workload), ("seed", str(trial.seed)))
    yield "run", told.run.path.name
    yield "again", rerun_command(told)


def _of_the_run(told: Told) -> list[Reason]:
    """Reasons of the verdict that no checker gave."""
    given = {reason for result in told.verdict.checkers for reason in result.reasons}
    return [reason for reason in told.verdict.reasons if reason not in given]


def _case(told: Told, result: Result) -> Element:
    case = _named(told, result.checker)
    if result.judgement is Judgement.UNKNOWN:
        _errors(case, result.reasons)
    passing = []
    for finding in map(told.on_axis, result.findings):
        if rank(finding) == 0:
            attributes = {"type": _said(finding.code), "message": _said(finding.message)}
            SubElement(case, "failure", attributes).text = _said(_evidence(finding))
        else:
            passing.append(f"{finding.code}: {finding.message} ({_words.standing_of(finding)})")
    if passing:
        SubElement(case, "system-out").text = _said("\n".join(passing))
    return case


def _named(told: Told, name: str) -> Element:
    return Element("testcase", {"classname": _said(told.trial.name), "name": _said(name)})


def _errors(case: Element, reasons: Iterable[Reason]) -> Element:
    for reason in reasons:
        SubElement(case, "error", {"type": _said(reason.code), "message": _said(reason.message)})
    return case


def _evidence(finding: Finding) -> str:
    """A few rows, a line each."""
    lines = [f"{finding.demand}, {finding.count:,} in all"]
    lines += (
        ", ".join(f"{name} {_words.cell(row.get(name))}" for name in row)
        for row in finding.evidence[:ROWS_SHOWN]
    )
    return "\n".join(lines)


def _said(text: str) -> str:
    """Text that XML can hold, of a length that a server takes."""
    return sayable(_words.clip(text, LONGEST))
