"""Writes junit.xml: a test case for each checker, for any CI server.

A violation of the contract is a *failure*. A checker, or a run, that is undecided is an *error*,
because a job must not pass on a run that proved nothing. Permitted and informing findings are in
the output of a case that passes. The file has no times: a verdict has none, and the same run gives
the same bytes.
"""

from collections.abc import Iterable
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Judgement, Reason, Result
from harness.text.sanitize import sanitize
from reports import _format
from reports._run import RunView, rank, read_run, rerun_command, write_report

ROWS_SHOWN = 5
LONGEST = 4_000  # letters of one text
WHOLE = "the run"


def render(run: RunDir) -> Path | None:
    """Write junit.xml into the run's folder; return its path."""
    return write_report(run.path / "junit.xml", xml(read_run(run)))


PLUGIN = ReportPlugin(render=render)


def xml(view: RunView) -> bytes:
    """Return one suite, named after the trial."""
    cases = [_case(view, result) for result in view.verdict.checkers]
    if own := _of_the_run(view):
        cases.insert(0, _errors(_test_case(view, WHOLE), own))
    failed, wrong = (sum(len(case.findall(tag)) > 0 for case in cases) for tag in TAGS)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": str(wrong)}
    root = Element("testsuites", {"name": "seatrial", **counts})
    suite = SubElement(root, "testsuite", {"name": _xml_text(view.trial.name), **counts})
    properties = SubElement(suite, "properties")
    for name, value in _properties(view):
        SubElement(properties, "property", {"name": name, "value": _xml_text(value)})
    suite.extend(cases)
    SubElement(suite, "system-out").text = _xml_text(_format.end_sentence(view.verdict.sentence))
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


TAGS = ("failure", "error")


def _properties(view: RunView) -> Iterable[tuple[str, str]]:
    trial = view.trial
    yield "verdict", str(view.verdict.verdict.value)
    if not view.trial_unknown:
        yield from (("system", trial.system), ("profile", trial.profile), ("hosts", trial.hosts))
        yield from (("workload", trial.workload), ("seed", str(trial.seed)))
    yield "run", view.run.path.name
    yield "again", rerun_command(view)


def _of_the_run(view: RunView) -> list[Reason]:
    """Return the verdict's reasons that no checker gave."""
    given = {reason for result in view.verdict.checkers for reason in result.reasons}
    return [reason for reason in view.verdict.reasons if reason not in given]


def _case(view: RunView, result: Result) -> Element:
    case = _test_case(view, result.checker)
    if result.judgement is Judgement.UNKNOWN:
        _errors(case, result.reasons)
    passing = []
    for finding in map(view.on_axis, result.findings):
        if rank(finding) == 0:
            attributes = {"type": _xml_text(finding.code), "message": _xml_text(finding.message)}
            SubElement(case, "failure", attributes).text = _xml_text(_evidence(finding))
        else:
            passing.append(f"{finding.code}: {finding.message} ({_format.standing_of(finding)})")
    if passing:
        SubElement(case, "system-out").text = _xml_text("\n".join(passing))
    return case


def _test_case(view: RunView, name: str) -> Element:
    return Element("testcase", {"classname": _xml_text(view.trial.name), "name": _xml_text(name)})


def _errors(case: Element, reasons: Iterable[Reason]) -> Element:
    for reason in reasons:
        SubElement(
            case, "error", {"type": _xml_text(reason.code), "message": _xml_text(reason.message)}
        )
    return case


def _evidence(finding: Finding) -> str:
    """Return a few rows, a line each."""
    lines = [f"{finding.demand}, {finding.count:,} in all"]
    lines += (
        ", ".join(f"{name} {_format.cell(row.get(name))}" for name in row)
        for row in finding.evidence[:ROWS_SHOWN]
    )
    return "\n".join(lines)


def _xml_text(text: str) -> str:
    """Return text that XML can contain, of a length that servers accept."""
    return sanitize(_format.clip(text, LONGEST))
