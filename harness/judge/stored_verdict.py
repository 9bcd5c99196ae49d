"""The verdict that is stored in a run's folder, checked.

It is only a file, which may be damaged, of another version, or from another person. Readers may
rely on the types of its parts: text, counts, rows of evidence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.cli.hints import check_command
from harness.errors import BadRequest, SeatrialError
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Reason, Verdict

BROKEN = (  # raised by reading a damaged or foreign file
    *(SeatrialError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(ArithmeticError, RecursionError, MemoryError),
)


def load_verdict(run: RunDir) -> Verdict:
    """Return the stored verdict. Raises BadRequest if there is none, or it is malformed."""
    again = check_command(run)
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.path} has no verdict yet: {again} makes one")
    try:
        return read_verdict(run)
    except BROKEN as e:
        raise BadRequest(
            f"{run.verdict_file} is not a verdict ({e}): {again} writes it again"
        ) from e


def read_verdict(run: RunDir) -> Verdict:
    """Return a stored verdict with checked parts. Raises one of BROKEN if it is malformed."""
    verdict = Verdict.read(run.verdict_file)
    _check_types("sentence", (verdict.sentence,), str)
    reasons = list(verdict.reasons)
    for result in verdict.checkers:
        _check_types("checker", (result.checker,), str)
        _check_types("stats", (result.stats,), Mapping)
        _check_types("decided", (result.decided,), Mapping)
        _check_types("decided", tuple(result.decided.values()), int)
        reasons += result.reasons
        for finding in result.findings:
            _check_finding(finding)
    for reason in reasons:
        _check_reason(reason)
    return verdict


def _check_reason(reason: Reason) -> None:
    _check_types("reason", (reason.code, reason.message), str)


def _check_finding(finding: Finding) -> None:
    _check_types("finding", (finding.code, finding.message, finding.demand), str)
    _check_types("count", (finding.count,), int)
    _check_types("permitted", (finding.permitted,), bool)
    _check_types("evidence", finding.evidence, Mapping)
    _check_types("faults", finding.faults, int)
    for excuse in finding.excuses:
        _check_types("excuse", (excuse.rows, *excuse.faults), int)
        _check_types("excuse", excuse.nodes, str)


def _check_types(what: str, values: Sequence[Any], kind: type) -> None:
    """Raise ValueError if one of the values has another type, or is a number out of range."""
    for value in values:
        if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value < 2**63):
            raise ValueError(f"{what} cannot be {str(value)[:40]!r}")
