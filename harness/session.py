"""What a command does with trials from end to end: refuse, run, judge, show, add up.

The JVM starts while a trial runs, so nobody waits for it. A report that fails to render is said
and changes no verdict. Of several runs the worst decides the exit code: invalid, then a failed
test bed, then unknown, then valid.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import registry
from harness.check_command import check_command
from harness.errors import (
    EXIT_BED_FAILED,
    EXIT_INVALID,
    EXIT_UNKNOWN,
    EXIT_VALID,
    BadRequest,
    BedFailed,
)
from harness.options import Request
from harness.rundir import RunDir
from harness.sayable import sayable
from harness.spark_master import DEFAULT
from harness.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from harness.spark import Sessions

EXIT_CODES = {
    Judgement.VALID: EXIT_VALID,
    Judgement.INVALID: EXIT_INVALID,
    Judgement.UNKNOWN: EXIT_UNKNOWN,
}
WORST_FIRST = (EXIT_INVALID, EXIT_BED_FAILED, EXIT_UNKNOWN, EXIT_VALID)


@dataclass(frozen=True)
class Shown:
    """What to show of a verdict: for people, or for programs; with a page, or without."""

    as_json: bool = False
    page: bool = True


@dataclass(frozen=True)
class Ending:
    """How one run ended. `error`: the test bed failed, so a missing verdict is no verdict.
    `stopped`: somebody did not wait for its verdict, or its page. `checked_s`: how long judging
    took."""

    seed: int
    run: RunDir | None = None
    verdict: Verdict | None = None
    error: str = ""
    checked_s: float = 0.0
    stopped: str = ""

    @property
    def word(self) -> str:
        return self.verdict.verdict if self.verdict else "no verdict"

    @property
    def why(self) -> str:
        """Why there is no verdict, or none that can be relied on; empty when there is one."""
        return self.error or self.stopped

    @property
    def interrupted(self) -> bool:
        if self.stopped:
            return True
        return self.run is not None and bool(self.run.state().get("interrupted"))

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings that convict."""
        return self.verdict.convicting if self.verdict else ()

    @property
    def exit_code(self) -> int:
        if self.verdict and self.verdict.verdict is Judgement.INVALID:
            return EXIT_INVALID
        if self.stopped and not self.error:
            return EXIT_UNKNOWN
        if self.error or not self.verdict:
            return EXIT_BED_FAILED
        return EXIT_CODES[self.verdict.verdict]


def worst(codes: Iterable[int]) -> int:
    """The exit code of several endings."""
    seen = set(codes)
    return next(code for code in WORST_FIRST if code in seen)


def run_all(
    asked: Request,
    seeds: Sequence[int],
    repeat: int,
    runs: Path,
    shown: Shown,
    master: str = DEFAULT,
) -> int:
    """Run the trial for each seed, so many times each; show all; the worst exit code."""
    from harness.preflight import refuse_any

    requests = [replace(asked, trial=replace(asked.trial, seed=seed)) for seed in seeds]
    if len(requests) * repeat == 1:
        return _run_single(requests[0], runs, shown, master).exit_code
    refuse_any(requests, runs)
    requests = [request for request in requests for _ in range(repeat)]
    with closing(Engines(master)) as engines:
        return series(requests, runs, engines, shown)


def series(requests: Iterable[Request], runs: Path, engines: "Engines", shown: Shown) -> int:
    """Several runs, and what they came to: the worst exit code."""
    endings = list(_until_stopped(requests, runs, engines, shown))
    _show_many(endings, shown)
    return worst(ending.exit_code for ending in endings)


def _run_single(request: Request, runs: Path, shown: Shown, master: str = DEFAULT) -> Ending:
    """One run, with its whole summary."""
    from harness.preflight import refuse

    refuse(request, runs)
    with engine(master) as spark:
        ending = run_one(request, runs, spark)
        _show(ending, shown)
    return ending


@contextmanager
def engine(master: str = DEFAULT) -> Iterator["Sessions"]:
    """Spark, on its way up while trials run."""
    from harness import spark

    with closing(spark.prepare(master)) as prepared:
        yield prepared


class Engines:
    """Spark for many runs, one after another, on its way up from the first moment. One that did not
    start, or died, costs a run its verdict and not all that come after it."""

    def __init__(self, master: str = DEFAULT) -> None:
        from harness import spark

        self._prepare = partial(spark.prepare, master)
        self._spark = self._prepare()

    def ready(self) -> "Sessions":
        """The one for the next run."""
        if getattr(self._spark, "lost", False):
            say("Spark is begun anew, for it did not start, or has ended")
            self.close()
            self._spark = self._prepare()
        return self._spark

    def close(self) -> None:
        self._spark.close()


def run_one(asked: Request, runs: Path, spark: "Sessions") -> Ending:
    """Run and judge one trial. A bed that failed ends it too: what was recorded is judged."""
    from harness import launch
    from harness.live import Live

    seed, run = asked.trial.seed, None
    try:
        with Live(asked.trial) as live:
            run = launch.run(asked.trial, asked.plan_text, live.update, runs)
            live.update({"phase": "checking"})
            ending = judged(run, seed, spark)
    except BedFailed as e:
        return Ending(seed, run, error=str(e))
    if left := run.state().get("left"):
        say(f"not everything could be taken down: {left}")
    return ending


def judged(
    run: RunDir, seed: int, spark: "Sessions | None" = None, master: str = DEFAULT
) -> Ending:
    """The verdict on what a run recorded."""
    from harness.judge import judge
    from harness.judging import being_judged

    began_s = time.monotonic()
    with being_judged(run):
        verdict = judge(run, spark.session() if spark else None, master=master)
    error = str(run.state().get("error") or "")
    return Ending(seed, run, verdict, error, time.monotonic() - began_s)


def check(run: RunDir, shown: Shown, master: str = DEFAULT) -> int:
    """Judge a stored run again."""
    run.plan_text()  # one that can not be read is told before anything is judged
    ending = judged(run, run.trial().seed, master=master)
    ending = replace(ending, error="")  # its bed failed then, not now
    _show(ending, shown)
    return ending.exit_code


def report(run: RunDir, formats: Iterable[str]) -> int:
    """Render a stored verdict; each path that was written is printed."""
    renderers = [registry.load("report", name) for name in formats]
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.name} has no verdict yet: {check_command(run)} makes one")
    for render in renderers:
        if (written := render(run)) is not None:
            print(run.called(written))
    return EXIT_VALID


def replay(run: RunDir, runs: Path, shown: Shown) -> int:
    """A stored run's trial with its plan, once more. Where a run is a function of its seed, say
    whether it went the same way."""
    ending = _run_single(replayed(run), runs, shown)
    again = ending.run.state().get("digest") if ending.run else None
    before = run.state().get("digest")
    if again and before and not (ending.interrupted or run.state().get("interrupted")):
        same = "event by event the same run" if again == before else f"another run than {before}"
        say(f"digest {again}: {same}")
    return ending.exit_code


def replayed(run: RunDir) -> Request:
    """A stored run's trial and the plan it carried out. BadRequest when that is not to be had."""
    if run.state().get("imported"):
        raise BadRequest(f"{run.path} was imported: what happened elsewhere can not be run again")
    if not run.plan_file.is_file():
        raise BadRequest(f"{run.path} has no plan.toml: it ended before its plan was made")
    trial = run.trial()
    if check := getattr(registry.module("hosts", trial.hosts), "replayable", None):
        check(run)
    return Request(trial, run.plan_text())


def _until_stopped(
    requests: Iterable[Request], runs: Path, engines: "Engines", shown: Shown
) -> Iterator[Ending]:
    """Several runs, with a line about each instead of its whole summary. Ctrl-C ends the series,
    and takes away nothing of what came before it."""
    for request in requests:
        ending = Ending(request.trial.seed)
        try:
            ending = run_one(request, runs, engines.ready())
            render(ending, shown)
        except KeyboardInterrupt as e:
            before = "its page was made" if ending.verdict else "there was a verdict"
            ending = replace(ending, stopped=f"stopped before {before}{e}")
        say(f"seed {ending.seed}: {ending.word}{f' ({ending.why})' if ending.why else ''}")
        yield ending
        if ending.interrupted:
            return


def _show(ending: Ending, shown: Shown) -> None:
    """One verdict: JSON alone, or the summary and the page."""
    if ending.error:
        say(ending.error)
    if ending.run is None or ending.verdict is None:
        return
    if shown.as_json:
        print(ending.run.verdict_file.read_text(), end="")
    render(ending, shown)
    if not shown.as_json:
        _attempt("terminal", ending.run)


def render(ending: Ending, shown: Shown) -> None:
    """The page, when it is wanted and there is a verdict."""
    if ending.run is not None and ending.verdict is not None and shown.page:
        _attempt("page", ending.run)


def _attempt(name: str, run: RunDir) -> None:
    """A renderer's failure is said; it changes nothing else."""
    try:
        registry.load("report", name)(run)
    except Exception as e:
        say(f"the {name} report of {run.name} could not be made: {type(e).__name__}: {e}")


def _show_many(endings: Sequence[Ending], shown: Shown) -> None:
    if shown.as_json:
        print(json.dumps([_row(ending) for ending in endings], indent=2))
    else:
        _table(endings)


def _row(ending: Ending) -> dict[str, object]:
    verdict = json.loads(ending.verdict.to_json()) if ending.verdict else None
    run = str(ending.run.path) if ending.run else None
    return {"seed": ending.seed, "run": run, "error": ending.why or None, "verdict": verdict}


def _table(endings: Sequence[Ending]) -> None:
    """The last thing several runs print."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from harness.tally import many

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("seed", "verdict", "findings and reasons", "run"):
        table.add_column(heading, overflow="fold")
    for ending in endings:
        run = ending.run.path.name if ending.run else ""
        table.add_row(*map(Text, (str(ending.seed), ending.word, _codes(ending), run)))
    console = Console(highlight=False)
    console.print(table)
    words = [ending.word for ending in endings]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    console.print(f"{many(len(endings), 'run')}: {counts}")


def _codes(ending: Ending) -> str:
    if ending.verdict is None:
        return ending.why
    found = [
        f"{f.code} x{f.count}" for r in ending.verdict.checkers for f in r.findings if f.demand
    ]
    return ", ".join([*found, *(reason.code for reason in ending.verdict.reasons)])


def say(sentence: str) -> None:
    """On standard error, as far as that takes it."""
    with suppress(OSError):
        print(f"seatrial: {sayable(sentence)}", file=sys.stderr)
