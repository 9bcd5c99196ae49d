"""Shrinking as people see it: a line while it goes on, and at the end the plan and its story.

In a terminal the line is redrawn; anywhere else there is one whenever something got smaller.
"""

import shlex
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from harness import registry
from harness.campaign.simulation import Outcome
from harness.campaign.swarm import HOSTS
from harness.campaign.tally import many
from harness.cli.console import standard_error
from harness.cli.prog_name import seatrial
from harness.explain.failing_run import told
from harness.history.reader import History
from harness.plans import told as plainly
from harness.shrink.search import Case, size
from harness.shrink.simulated import Again, Progress
from harness.shrink.workers import Attempt


class Watched:
    """`with Watched() as watch: searched(..., watch)`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or standard_error()
        self._status: Status | None = None
        self._last = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("trying the run again")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        if not progress.tries.proven:
            return
        now = f"{size(progress.tries.best)}{_for_real(progress)}"
        line = f"{progress.took_s:7.1f} s  {progress.tries.failure}: {now}, {tried(progress)}"
        if self._status:
            self._status.update(line)
        elif now != self._last:
            self._console.print(line, soft_wrap=True)
        self._last = now


def tried(progress: Progress) -> str:
    """How many worlds or runs it took."""
    count = progress.tries.count + progress.again.count
    return "1 try" if count == 1 else f"{count:,} tries"


def _for_real(progress: Progress) -> str:
    """Of a real run, which does not fail every time: what is known of how often."""
    if not is_real(progress):
        return ""
    if progress.again.count:
        return f"; tried again, {often(progress.again)}"
    return f", failed at try {progress.tries.failed_at(progress.tries.best)} of it"


def is_real(progress: Progress) -> bool:
    return progress.start.trial.hosts != HOSTS


def show(progress: Progress, outcome: Outcome) -> None:
    """What came of it, on standard output."""
    for line in lines(progress, outcome):
        print(line)
    sys.stdout.flush()


def lines(progress: Progress, outcome: Outcome) -> Iterator[str]:
    tries = progress.tries
    yield (
        f"{size(progress.start)} became {size(tries.best)}: {tried(progress)} in "
        f"{progress.took_s:.0f} s."
    )
    if not progress.whole:
        yield "The search was stopped before its end; with more time the run may become smaller."
    if is_real(progress):
        yield from frequencies(progress)
    before = tries.first.failure if tries.first else ()
    if gone := [code for code in before if code not in outcome.failure]:
        yield f"Not found any more: {', '.join(gone)}."
    yield from ("", plan(tries.best).rstrip(), "")
    if outcome.verdict:
        yield from told(History.open(outcome.run), outcome.verdict)
    else:
        yield f"Violated: a simulated world ends. {outcome.why}"
    again = f"{seatrial()} replay {shlex.quote(str(outcome.run.path))}"
    yield from ("", f"Run: {outcome.run.path}", f"Again: {again}")


def frequencies(progress: Progress) -> Iterator[str]:
    """What is known of how often real runs fail.

    Tries of a candidate end with its first failure, so their number is no rate; what is left was
    tried again for one.
    """
    tries = progress.tries
    given, left = (tries.failed_at(case) for case in (progress.start, tries.best))
    if Attempt.of(progress.start.lucky(0)) == Attempt.of(tries.best.lucky(0)):
        yield f"What was given failed at try {given}, and nothing smaller did."
    else:
        yield f"What was given failed at try {given}, what is left at try {left} of it."
    if progress.again.count:
        yield f"Tried again, what is left {often(progress.again)}."
    else:
        why = "" if progress.stopped else ", for the time was over (--within)"
        yield f"How often what is left fails is not known: it was not tried again{why}."


def often(again: Again) -> str:
    """In words that hold for few tries, too."""
    if not again.judged:
        return f"was not judged once: the test bed failed {many(again.lost, 'time')}"
    lost = f"; the test bed failed {many(again.lost, 'more time')}" if again.lost else ""
    return f"failed {again.failed:,} of {many(again.judged, 'time')}{lost}"


def plan(case: Case) -> str:
    """The plan as one would write it: without what goes without saying."""
    kinds = {fault.kind for fault in case.plan}
    defaults = {
        kind: {name: param.default for name, param in registry.fault(kind).params.items()}
        for kind in sorted(kinds)
    }
    text: str = registry.nemesis().dump(plainly(case.plan, defaults))
    return text or "# no fault at all"
