"""What a checker offers: one property, proven or refuted on a history."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contracts.plugin import Plugin
from harness.judge.verdict import Result

if TYPE_CHECKING:
    from harness.history.reader import History
    from harness.trial import Trial

Check = Callable[["History", "Trial", Any], Result]  # the last is the Spark session, if any


@dataclass(frozen=True, kw_only=True)
class CheckerPlugin(Plugin):
    """What the module of a checker declares as `PLUGIN`.

    check         returns the result of a history: `check(history, trial, spark)`. `spark` is a
                  session, or None where none is needed for so few operations. An exception makes
                  the result CHECKER_FAILED, and the run unknown
    findings      codes of all findings that it can give
    reasons       codes of all reasons that it can give
    cut_short     those of its reasons that follow from a run that was cut short: they are left out
                  of the verdict of such a run
    standstill    those of its reasons that, in a simulated world, only a hanging cluster or client
                  causes
    unobserved    those of its reasons that say that planned faults were not seen to take effect
    spacing       those of its reasons that say that faults left no time between them
    decides       demands that hold if it finds nothing and gives no reason: those of a contract
                  (DEMANDS, ISOLATION), or names of your own, which every contract demands
    compares      it compares copies of a replica group: where each group has one node, it decides
                  nothing, and need not run
    needs_clocks  its findings depend on which of two nodes' events came first
    """

    MAIN: ClassVar[str] = "check"
    RETURNS: ClassVar[Any] = Result

    check: Check
    findings: frozenset[str]
    decides: frozenset[str]
    reasons: frozenset[str] = frozenset()
    cut_short: frozenset[str] = frozenset()
    standstill: frozenset[str] = frozenset()
    unobserved: frozenset[str] = frozenset()
    spacing: frozenset[str] = frozenset()
    compares: bool = False
    needs_clocks: bool = True
