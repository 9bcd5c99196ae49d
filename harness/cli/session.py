"""Carries out trials for commands: checks the request, runs, judges, and shows the results.

The JVM starts while a trial runs, so no time is lost. A report that fails to render gives a message
and does not change the verdict. Of several runs the worst decides the exit code: invalid, then a
failed test bed, then unknown, then valid.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from harness import registry
from harness.cli.console import (
    announce,
    format_duration,
    message,
    standard_output,
    working,
)
from harness.cli.hints import check_command, naming_run, report_command
from harness.cli.options import Request, locate_client
from harness.errors import (
    EXIT_BED_FAILED,
    EXIT_INVALID,
    EXIT_UNKNOWN,
    EXIT_VALID,
    BadRequest,
    BedFailed,
    SparkUnavailable,
)
from harness.history.rundir import RunDir
from harness.judge.verdict import Judgement, Verdict
from harness.spark.master import DEFAULT, NONE, default_master
from harness.text.sanitize import sanitize
from harness.trial import SIMULATED, Trial

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from harness.spark.session import SparkLauncher

EXIT_CODES = {
    Judgement.VALID: EXIT_VALID,
    Judgement.INVALID: EXIT_INVALID,
    Judgement.UNKNOWN: EXIT_UNKNOWN,
}
IN_PROCESS_BYTES = 32 << 20  # of a history that is judged without Spark, at most
WARM_BYTES = 128 << 20  # of a file that takes longer to read than Spark to start
AROUND_S = 15.0  # of a real run: start, final read, judging
SIMULATED_START_S, SIMULATED_PACE = 4.0, 0.3  # of a simulated one: once, and per second of load
WORST_FIRST = (EXIT_INVALID, EXIT_BED_FAILED, EXIT_UNKNOWN, EXIT_VALID)


@dataclass(frozen=True)
class ReportOptions:
    """How to present a verdict: as text or JSON, with or without a page."""

    as_json: bool = False
    page: bool = True
    junit: Path | None = None


@dataclass(frozen=True)
class RunSeries:
    """The runs of a trial: each seed, `repeat` times. `fail_fast`: stop after the first run that is
    not valid."""

    seeds: Sequence[int]
    repeat: int = 1
    fail_fast: bool = False

    @property
    def number(self) -> int:
        return len(self.seeds) * self.repeat


@dataclass(frozen=True)
class RunEnd:
    """How one run ended. `error`: the test bed failed. `stopped`: the command was interrupted
    before the verdict, or before the page. `checked_s`: how long judging took."""

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
        """Why there is no reliable verdict; empty if there is one."""
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
    """Return the exit code of several runs."""
    seen = set(codes)
    return next(code for code in WORST_FIRST if code in seen)


def run_all(
    request: Request,
    several: RunSeries,
    runs: Path,
    shown: ReportOptions,
    master: str | None = None,
) -> int:
    """Run the trial for each seed, show the results, and return the worst exit code."""
    from harness.run.preflight import refuse_any_unrunnable

    requests = [replace(request, trial=replace(request.trial, seed=seed)) for seed in several.seeds]
    if shown.junit:
        refuse_unwritable(shown.junit, "--junit")
    each_s = likely_s(request.trial)
    if several.number == 1:
        return _run_single(requests[0], runs, shown, master).exit_code
    refuse_any_unrunnable(requests, runs, master)
    announce(several.number * each_s, f"{several.number:,} runs of about {format_duration(each_s)}")
    requests = [request for request in requests for _ in range(several.repeat)]
    with closing(Engines(master, needs_java(request.trial, master))) as engines:
        return run_series(requests, runs, engines, shown, several.fail_fast)


def likely_s(trial: Trial) -> float:
    """Estimate how long a run takes."""
    if trial.hosts == SIMULATED:
        return SIMULATED_START_S + SIMULATED_PACE * trial.duration_s
    return trial.duration_s + AROUND_S


def run_series(
    requests: Iterable[Request],
    runs: Path,
    engines: "Engines",
    shown: ReportOptions,
    fail_fast: bool = False,
) -> int:
    """Carry out several runs, show the results, and return the worst exit code."""
    endings: list[RunEnd] = []
    for ending in _until_stopped(requests, runs, engines, shown):
        endings.append(ending)
        if fail_fast and ending.exit_code != EXIT_VALID:
            say("stopped early: --fail-fast was given and this run is not valid")
            break
    _show_many(endings, shown)
    _write_junit(endings, shown)
    return worst(ending.exit_code for ending in endings)


def _run_single(
    request: Request, runs: Path, shown: ReportOptions, master: str | None = None
) -> RunEnd:
    """Carry out one run, and show its whole summary."""
    from harness.run.preflight import refuse_unrunnable

    refuse_unrunnable(request, runs, master)
    announce(likely_s(request.trial))
    with engine(request.trial, master) as spark:
        ending = _show(run_one(request, runs, spark), shown)
    _write_junit([ending], shown)
    return ending


def needs_java(trial: Trial, master: str | None = None) -> bool:
    """Return whether Spark judges: always, except for simulated runs, which are small, and where
    the master is none."""
    master = master or default_master()
    return master != NONE and (trial.hosts != SIMULATED or master != DEFAULT)


@contextmanager
def engine(trial: Trial, master: str | None = None) -> Iterator["SparkLauncher"]:
    """Yield Spark, which starts while trials run."""
    from harness.spark import session as spark

    master = master or default_master()
    begun = (
        spark.launch_in_background(master)
        if needs_java(trial, master)
        else spark.LazyLauncher(master)
    )
    with closing(begun) as sessions:
        yield sessions


@contextmanager
def starting_spark(
    master: str, *, wanted: bool, file_bytes: int = WARM_BYTES
) -> Iterator["SparkLauncher | None"]:
    """Yield Spark, which starts while a file is read, for a large history; None if it is not
    wanted, or cannot be started: the check says why."""
    from harness.spark import session as spark

    begun = None
    if wanted:
        with suppress(SparkUnavailable):
            begun = spark.launch(master, spark.LARGE_BYTES, warm_up=file_bytes >= WARM_BYTES)
    with closing(begun) if begun else nullcontext() as sessions:
        yield sessions


class Engines:
    """Spark for many runs, one after another. If it does not start, or dies, one run has no
    verdict, and Spark is started again for the next."""

    def __init__(self, master: str | None = None, at_once: bool = True) -> None:
        from harness.spark import session as spark

        launch = spark.launch_in_background if at_once else spark.LazyLauncher
        self._prepare = partial(launch, master or default_master())
        self._spark = self._prepare()

    def ready(self) -> "SparkLauncher":
        """Return Spark for the next run."""
        if getattr(self._spark, "failed", False):
            say("Spark is started again, because it did not start or has exited")
            self.close()
            self._spark = self._prepare()
        return self._spark

    def close(self) -> None:
        self._spark.close()


def run_one(request: Request, runs: Path, spark: "SparkLauncher") -> RunEnd:
    """Run and judge one trial. If the test bed fails, what was recorded is judged."""
    from harness.cli.live_view import TrialScreen
    from harness.run import launch

    seed, run = request.trial.seed, None
    try:
        with TrialScreen(request.trial) as live:

            def update(status: Mapping[str, Any]) -> None:
                if status.get("phase") == "drain":  # the load is over
                    Thread(target=_load_judge, args=(request.trial,), daemon=True).start()
                live.update(status)

            run = launch.run(request.trial, request.plan_text, update, runs)
            live.update({"phase": "checking"})
            ending = judge_run(
                run, seed, spark, on_progress=lambda name: live.update({"checker": name})
            )
    except BedFailed as e:
        return RunEnd(seed, run, error=str(e))
    if left := run.state().get("left"):
        say(f"not everything could be removed: {left}")
    if request.trial.hosts == SIMULATED and ending.verdict:
        _record_messages(run, ending.verdict)
    return ending


def _load_judge(trial: Trial) -> None:
    """Import what judges the trial. What fails here fails again, with its message, when it
    judges."""
    with suppress(Exception):
        from harness.judge.judge import load_checkers

        load_checkers(trial)


def _record_messages(run: RunDir, verdict: Verdict) -> None:
    """Record the messages around the violation of a simulated run that failed."""
    from harness.campaign.simulation import record_messages, standstill_codes
    from harness.history.reader import History
    from harness.run.launch import RunnerProcess

    def carry_out(again: RunDir) -> None:
        running = RunnerProcess(again)
        with running.interruptible():
            deque(running, maxlen=0)

    if verdict.convicting or standstill_codes(History.open(run), verdict):
        with working("recording the messages around the violation"):
            record_messages(run, carry_out)


def judge_run(
    run: RunDir,
    seed: int,
    spark: "SparkLauncher | None" = None,
    master: str | None = None,
    on_progress: Callable[[str], None] = lambda checker: None,
) -> RunEnd:
    """Judge what a run recorded."""
    from harness.judge.lock import judging

    began_s = time.monotonic()
    with naming_run(run), judging(run):
        verdict = _verdict(run, spark, master, on_progress)
    error = str(run.state().get("error") or "")
    return RunEnd(seed, run, verdict, error, time.monotonic() - began_s)


def _verdict(
    run: RunDir,
    spark: "SparkLauncher | None",
    master: str | None,
    on_progress: Callable[[str], None],
) -> Verdict:
    """Judge by Spark. A simulated run, and one for which Spark is not wanted or does not start, is
    judged by the same checkers in this process if its history is small."""
    master = spark.master.url if spark else master or default_master()
    size, limit = run.history_bytes(), f"{IN_PROCESS_BYTES >> 20} MiB"
    if size <= IN_PROCESS_BYTES and not needs_java(run.trial(), master):
        return _judge_here(run, on_progress)
    try:
        return _judge_by_spark(run, spark, master, on_progress)
    except SparkUnavailable as e:
        history = f"its history of {size / (1 << 20):,.1f} MiB"
        if size > IN_PROCESS_BYTES:
            more = f"{history} is larger than the limit of {limit} for judging without Spark"
            raise SparkUnavailable(f"{e}; {more}") from e
        say(f"{e}; judging without Spark, with the same checkers, since {history} is below {limit}")
        return _judge_here(run, on_progress)


def _judge_here(run: RunDir, on_progress: Callable[[str], None]) -> Verdict:
    from harness.judge.judge import judge_in_process

    return judge_in_process(run, on_progress)


def _judge_by_spark(
    run: RunDir, spark: "SparkLauncher | None", master: str, on_progress: Callable[[str], None]
) -> Verdict:
    """Judge by this Spark, or by one that is started before the judge is imported, which takes as
    long as a JVM needs to start."""
    from harness.spark.session import launch

    with nullcontext(spark) if spark else closing(launch(master, run.history_bytes())) as engine:
        from harness.judge.judge import judge_by

        return judge_by(engine, run, on_progress)


def check(
    run: RunDir,
    shown: ReportOptions,
    master: str | None = None,
    spark: "SparkLauncher | None" = None,
) -> int:
    """Judge a stored run again; `spark`: one that was started before."""
    run.plan_text()  # raises, before anything is judged, if it is unreadable
    with working(f"checking {run.path.name}") as step:
        ending = judge_run(run, run.trial().seed, spark, master, step)
    ending = replace(ending, error="")  # of the run, not of this command
    return _show(ending, shown).exit_code


def report(run: RunDir, formats: Iterable[str]) -> int:
    """Render a stored verdict, and print the paths of the reports."""
    names = tuple(formats)
    renderers = [registry.load("report", name) for name in formats]
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.name} has no verdict yet; to judge it: {check_command(run)}")
    for name, render in zip(names, renderers, strict=True):
        with working(f"reporting {run.path.name}: {name}") if name != "terminal" else nullcontext():
            written = render(run)
        if written is not None:
            print(sanitize(run.display_path(written)))
    return EXIT_VALID


@dataclass(frozen=True)
class HostTrust:
    """How far a stored run is trusted: options of hosts (`bed`) come from the command line, unless
    the user trusts the run, and a client program (`client`) always does."""

    bed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    run: bool = False
    client: Sequence[str] | None = None

    def trial(self, run: RunDir) -> Trial:
        """Return the trial of a stored run, with hosts' options and the client program that the
        user has named.

        Raises BadRequest if the run has others. An inventory says which machines are reached with
        the user's keys, and what is run there as root; an image is run as it is.
        """
        trial = run.trial()
        if trial.client and not self.client:
            raise BadRequest(
                f"the run in {run.path} names a client program, which a stored run is never trusted"
                " to choose; name it yourself: --client COMMAND"
            )
        if self.client:
            trial = replace(trial, client=locate_client(self.client))
        must_name = registry.hosts(trial.hosts).must_name
        unnamed = {*trial.bed, *(must_name or ())} - self.bed.keys()
        if unnamed and must_name is not None and not self.run:
            options = " ".join(f"--bed {key}=..." for key in sorted(unnamed))
            raise BadRequest(
                f"the run in {run.path} is not trusted to choose options of {trial.hosts} hosts; "
                f"name them yourself, {options}, or add --trust-run if the run is yours"
            )
        return trial.with_({"bed": {**trial.bed, **self.bed}}) if self.bed else trial


NO_HOST_TRUST = HostTrust()


def replay(run: RunDir, runs: Path, shown: ReportOptions, request: Request) -> int:
    """Run a stored run again, as requested. On simulated hosts, print whether the new run has the
    same events."""
    ending = _run_single(request, runs, shown)
    again = ending.run.state().get("digest") if ending.run else None
    before = run.state().get("digest")
    if again and before and not (ending.interrupted or run.state().get("interrupted")):
        same = "the same events" if again == before else f"not the same events as {before}"
        say(f"digest {again}: {same}")
    return ending.exit_code


def replay_request(run: RunDir, trusted: HostTrust = NO_HOST_TRUST) -> Request:
    """Return the trial and the plan of a stored run. Raises BadRequest if it has none."""
    if run.state().get("imported"):
        raise BadRequest(f"{run.path} was imported, so it cannot be run again")
    if not run.plan_file.is_file():
        raise BadRequest(f"{run.path} has no plan.toml: it ended before its plan was drawn")
    trial = trusted.trial(run)
    if check := registry.hosts(trial.hosts).replayable:
        check(run)
    return Request(trial, run.plan_text())


def _until_stopped(
    requests: Iterable[Request], runs: Path, engines: "Engines", shown: ReportOptions
) -> Iterator[RunEnd]:
    """Carry out several runs, with a line for each. Ctrl-C ends the series; the results of earlier
    runs are kept."""
    for request in requests:
        ending = RunEnd(request.trial.seed)
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


def _show(ending: RunEnd, shown: ReportOptions) -> RunEnd:
    """Show one verdict, as JSON or as summary and page. Ctrl-C does not discard the verdict."""
    if ending.error:
        say(ending.error)
    if ending.run is None or ending.verdict is None:
        return ending
    try:
        if shown.as_json:
            print(ending.run.verdict_file.read_text(), end="")
        render(ending, shown)
        if not shown.as_json:
            _attempt("terminal", ending.run)
    except KeyboardInterrupt:
        stopped = f"stopped before its page was made; to make it: {report_command(ending.run)}"
        say(f"{ending.word}; {stopped}")
        return replace(ending, stopped=stopped)
    return ending


def render(ending: RunEnd, shown: ReportOptions) -> None:
    """Write the page, if it is wanted and there is a verdict."""
    if ending.run is not None and ending.verdict is not None and shown.page:
        _attempt("page", ending.run)


def _attempt(name: str, run: RunDir) -> None:
    """Render a report. A failure is only printed."""
    try:
        registry.load("report", name)(run)
    except Exception as e:
        say(f"the {name} report of {run.name} could not be written: {registry.blame(e)}")


def refuse_unwritable(path: Path, option: str) -> None:
    """Raise BadRequest, before anything is run, if no file can be written where an option says."""
    try:
        path.open("ab").close()
    except OSError as e:
        raise BadRequest(
            f"{option}: {path} cannot be written: {e.strerror or e}; name a file in a folder that "
            "exists"
        ) from e


def _write_junit(endings: Sequence[RunEnd], shown: ReportOptions) -> None:
    """Write one JUnit file with a test suite for each run; a run without a verdict is an error."""
    if shown.junit is None:
        return
    from xml.etree import ElementTree as Xml

    render = registry.load("report", "junit")
    root = Xml.Element("testsuites", name="seatrial")
    for ending in endings:
        if ending.run is not None and ending.verdict is not None:
            for suite in Xml.parse(render(ending.run)).getroot():
                suite.set("name", f"{suite.get('name')}, seed {ending.seed}")
                root.append(suite)
        else:
            root.append(_junit_error(ending))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    Xml.indent(root)
    try:
        Xml.ElementTree(root).write(shown.junit, encoding="utf-8", xml_declaration=True)
    except OSError as e:
        raise BedFailed(f"{shown.junit} cannot be written: {e.strerror or e}") from e


def _junit_error(ending: RunEnd) -> "Element":
    from xml.etree import ElementTree as Xml

    name = f"seed {ending.seed}"
    suite = Xml.Element("testsuite", name=name, tests="1", failures="0", errors="1")
    case = Xml.SubElement(suite, "testcase", name="the run", classname=name)
    Xml.SubElement(case, "error", message=sanitize(ending.why or "no verdict"))
    return suite


def _show_many(endings: Sequence[RunEnd], shown: ReportOptions) -> None:
    if shown.as_json:
        print(json.dumps([_row(ending) for ending in endings], indent=2))
    else:
        _table(endings)


def _row(ending: RunEnd) -> dict[str, object]:
    verdict = json.loads(ending.verdict.to_json()) if ending.verdict else None
    run = str(ending.run.path) if ending.run else None
    return {"seed": ending.seed, "run": run, "error": ending.why or None, "verdict": verdict}


def _table(endings: Sequence[RunEnd]) -> None:
    """Print the table of several runs."""
    from rich.table import Table
    from rich.text import Text

    from harness.text.plurals import quantity

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("seed", "verdict", "findings and reasons", "run"):
        table.add_column(heading, overflow="fold")
    for ending in endings:
        run = ending.run.path.name if ending.run else ""
        table.add_row(*map(Text, (str(ending.seed), ending.word, _codes(ending), run)))
    console = standard_output()
    console.print(table)
    words = [ending.word for ending in endings]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    console.print(f"{quantity(len(endings), 'run')}: {counts}")


def _codes(ending: RunEnd) -> str:
    if ending.verdict is None:
        return ending.why
    codes = [
        f"{f.code} x{f.count}" for r in ending.verdict.checkers for f in r.findings if f.demand
    ]
    return ", ".join([*codes, *(reason.code for reason in ending.verdict.reasons)])


def say(sentence: str) -> None:
    """Print a sentence on standard error; a failed write is ignored."""
    with suppress(OSError):
        print(message(f"seatrial: {sentence}"), file=sys.stderr)
