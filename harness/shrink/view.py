"""The progress display of a search for a smaller run, and its result: the plan and its story.

Without a terminal the display is a line whenever the run got smaller.
"""

import shlex
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.spinner import Spinner

from harness import registry
from harness.campaign.simulation import SeedOutcome
from harness.campaign.swarm import HOSTS
from harness.cli.prog_name import seatrial
from harness.cli.screen import Screen
from harness.history.reader import History
from harness.plans import without_defaults as plainly
from harness.shrink.search import Case, size
from harness.shrink.simulated import ResultRuns, ShrinkState
from harness.shrink.workers import Attempt
from harness.text.plurals import quantity


class ShrinkScreen(Screen):
    """`with ShrinkScreen() as screen: searched(..., screen)`."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._last = ""
        self._spinner = Spinner("dots", "trying the run again")
        self.show(self._spinner)

    def __call__(self, progress: ShrinkState) -> None:
        if not progress.tries.proven:
            return
        now = f"{size(progress.tries.best)}{_frequency(progress)}"
        line = f"{progress.took_s:7.1f} s  {progress.tries.failure}: {now}, {tries_text(progress)}"
        if self.has_panel:
            self._spinner.update(text=line)
        elif now != self._last:
            self.say(line)
        self._last = now


def tries_text(progress: ShrinkState) -> str:
    """Say how many worlds or runs it took."""
    count = progress.tries.count + progress.again.count
    return "1 try" if count == 1 else f"{count:,} tries"


def _frequency(progress: ShrinkState) -> str:
    """Say how often a run on real hosts failed, which does not fail every time."""
    if not is_real(progress):
        return ""
    if progress.again.count:
        return f"; run again, {frequency_text(progress.again)}"
    return f", failed at try {progress.tries.failed_at(progress.tries.best)}"


def is_real(progress: ShrinkState) -> bool:
    return progress.start.trial.hosts != HOSTS


def show(progress: ShrinkState, outcome: SeedOutcome) -> None:
    """Print the result on standard output."""
    for line in lines(progress, outcome):
        print(line)
    sys.stdout.flush()


def lines(progress: ShrinkState, outcome: SeedOutcome) -> Iterator[str]:
    tries = progress.tries
    yield (
        f"{size(progress.start)} became {size(tries.best)}: {tries_text(progress)} in "
        f"{progress.took_s:.0f} s."
    )
    if not progress.whole:
        yield "The search was stopped early; with more time the run may become smaller."
    if is_real(progress):
        yield from frequencies(progress)
    before = tries.first.failure if tries.first else ()
    if gone := [code for code in before if code not in outcome.failure]:
        yield f"Not found any more: {', '.join(gone)}."
    yield from ("", plan(tries.best).rstrip(), "")
    if outcome.verdict:
        yield from registry.stories().failing_run_story(History.open(outcome.run), outcome.verdict)
    else:
        yield f"The simulated world stopped. {outcome.why}"
    again = f"{seatrial()} replay {shlex.quote(str(outcome.run.path))}"
    yield from ("", f"Run: {outcome.run.path}", f"Again: {again}")


def frequencies(progress: ShrinkState) -> Iterator[str]:
    """Say how often real runs fail.

    Tries of a candidate end with its first failure, so their number gives no rate; the result was
    run again to get one.
    """
    tries = progress.tries
    given, left = (tries.failed_at(case) for case in (progress.start, tries.best))
    if Attempt.of(progress.start.lucky(0)) == Attempt.of(tries.best.lucky(0)):
        yield f"The given run failed at try {given}, and nothing smaller did."
    else:
        yield f"The given run failed at try {given}, the result at try {left}."
    if progress.again.count:
        yield f"Run again, the result {frequency_text(progress.again)}."
    else:
        why = "" if progress.stopped else ", because the time was over (--within)"
        yield f"How often the result fails is unknown: it was not run again{why}."


def frequency_text(again: ResultRuns) -> str:
    """Say how often it failed in counts, since few tries give no rate."""
    if not again.judged:
        return f"was not judged once: the test bed failed {quantity(again.lost, 'time')}"
    lost = f"; the test bed failed {quantity(again.lost, 'more time')}" if again.lost else ""
    return f"failed {again.failed:,} of {quantity(again.judged, 'time')}{lost}"


def plan(case: Case) -> str:
    """Return the plan without defaults, as one would write it."""
    kinds = {fault.kind for fault in case.plan}
    defaults = {
        kind: {name: param.default for name, param in registry.fault(kind).params.items()}
        for kind in sorted(kinds)
    }
    text: str = registry.nemesis().dump(plainly(case.plan, defaults))
    return text or "# no fault at all"
