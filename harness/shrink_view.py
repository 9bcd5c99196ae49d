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
from harness.history import History
from harness.plans import told as plainly
from harness.shrink import Case, size
from harness.shrinking import Progress
from harness.simulation import Outcome
from harness.story import told
from harness.swarm import HOSTS
from harness.typed import seatrial


class Watched:
    """`with Watched() as watch: searched(..., watch)`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
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
        now = size(progress.tries.best)
        line = f"{progress.took_s:7.1f} s  {progress.tries.failure}: {now}"
        if self._status:
            self._status.update(f"{line}, {progress.tries.count:,} tries")
        elif now != self._last:
            self._console.print(f"{line}, {progress.tries.count:,} tries", soft_wrap=True)
        self._last = now


def show(progress: Progress, outcome: Outcome) -> None:
    """What came of it, on standard output."""
    for line in lines(progress, outcome):
        print(line)
    sys.stdout.flush()


def lines(progress: Progress, outcome: Outcome) -> Iterator[str]:
    tries = progress.tries
    yield (
        f"{size(progress.start)} became {size(tries.best)}: {tries.count:,} tries in "
        f"{progress.took_s:.0f} s."
    )
    if not progress.whole:
        yield "The search was stopped before its end; with more time the run may become smaller."
    if progress.start.trial.hosts != HOSTS:
        yield frequencies(progress)
    before = tries.first.failure if tries.first else ()
    if gone := [code for code in before if code not in outcome.failure]:
        yield f"Not found any more: {', '.join(gone)}."
    yield from ("", plan(tries.best).rstrip(), "")
    if outcome.verdict:
        yield from told(History.open(outcome.run), outcome.verdict)
    else:
        yield f"The law: a world comes to its end. {outcome.why}"
    again = f"{seatrial()} replay {shlex.quote(str(outcome.run.path))}"
    yield from ("", f"Run: {outcome.run.path}", f"Again: {again}")


def frequencies(progress: Progress) -> str:
    """How often a real run fails, which is not the same every time."""
    whole, least = (progress.tries.frequency(c) for c in (progress.start, progress.tries.best))
    return (
        f"What was given failed {whole[0]} of {whole[1]} times, what is left {least[0]} of"
        f" {least[1]}."
    )


def plan(case: Case) -> str:
    """The plan as one would write it: without what goes without saying."""
    kinds = {fault.kind for fault in case.plan}
    defaults = {
        kind: {name: param.default for name, param in registry.module("fault", kind).PARAMS.items()}
        for kind in sorted(kinds)
    }
    text: str = registry.nemesis().dump(plainly(case.plan, defaults))
    return text or "# no fault at all"
