"""The verdict that lies in a run's folder, for those who tell of it.

It is no more than a file, which may be damaged, of another version, or from somebody else. Whoever
tells of it may rely on its parts being what they should be: text, counts, rows of evidence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.cli.hints import check_command
from harness.errors import BadRequest, SeatrialError
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Reason, Verdict

BROKEN = (  # how reading a damaged or foreign file ends
    *(SeatrialError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(ArithmeticError, RecursionError, MemoryError),
)


def verdict_of(run: RunDir) -> Verdict:
    """The stored verdict. BadRequest when there is none, or it says what no verdict can."""
    again = check_command(run)
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.path} has no verdict yet: {again} makes one")
    try:
        return stored(run)
    except BROKEN as e:
        raise BadRequest(
            f"{run.verdict_file} is not a verdict ({e}): {again} writes it again"
        ) from e


def stored(run: RunDir) -> Verdict:
    """A stored verdict whose parts are what they should be. One of BROKEN when they are not."""
    verdict = Verdict.read(run.verdict_file)
    _are("sentence", (verdict.sentence,), str)
    reasons = list(verdict.reasons)
    for result in verdict.checkers:
        _are("checker", (result.checker,), str)
        _are("stats", (result.stats,), Mapping)
        _are("decided", (result.decided,), Mapping)
        _are("decided", tuple(result.decided.values()), int)
        reasons += result.reasons
        for finding in result.findings:
            _found(finding)
    for reason in reasons:
        _reason(reason)
    return verdict


def _reason(reason: Reason) -> None:
    _are("reason", (reason.code, reason.message), str)


def _found(finding: Finding) -> None:
    _are("finding", (finding.code, finding.message, finding.demand), str)
    _are("count", (finding.count,), int)
    _are("permitted", (finding.permitted,), bool)
    _are("evidence", finding.evidence, Mapping)
    _are("faults", finding.faults, int)
    for excuse in finding.excuses:
        _are("excuse", (excuse.rows, *excuse.faults), int)
        _are("excuse", excuse.nodes, str)


def _are(what: str, values: Sequence[Any], kind: type) -> None:
    """ValueError when one of the values is of another kind, or a number beyond all counting."""
    for value in values:
        if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value < 2**63):
            raise ValueError(f"{what} cannot be {str(value)[:40]!r}")
