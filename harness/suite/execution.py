"""Carries out the runs of a suite within its budget, except those with known results.

No run is repeated: one whose test bed failed is reported as such. Ctrl-C and a spent budget end the
suite early; the results so far are summed up, and the same command continues. A run is started only
if it is likely to end within the remaining time. A change of the code ends the suite, too; the
current run does not count, since it is unknown which code it ran.

To free disk space, folders of runs that ended as expected are removed, the oldest first, never
those of other runs.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness import registry
from harness.cli.options import Request
from harness.cli.session import (
    Engines,
    ReportOptions,
    RunEnd,
    judge_run,
    needs_java,
    render,
    run_one,
)
from harness.errors import SeatrialError
from harness.history.rundir import RunDir
from harness.history.runs import size_bytes
from harness.run.preflight import prepare
from harness.suite.expected import EXCUSED_RUN, ExpectedRun, is_excused
from harness.suite.figures import measured
from harness.suite.log import RunStart, SuiteLog, interrupted_run, is_recorded, ran_s, remove_run
from harness.suite.store import AS_EXPECTED, UNDECIDED, SuiteRow, verdict_of
from harness.text.code_hash import code_changed

if TYPE_CHECKING:
    from harness.spark.session import SparkLauncher

NS = 1e9
NOT_RUN = "not run"
BESIDE_LOAD_S = 20.0  # estimate of what a run takes besides its load
STOPPED = "stopped by request"
CHANGED = "the code has changed since the suite began"

Watch = Callable[[SuiteRow], None]  # called with each new row


@dataclass(frozen=True)
class SuiteRun:
    """A run to carry out; `number`: its repetition, from 1."""

    cell: ExpectedRun
    number: int = 1

    @property
    def key(self) -> str:
        return f"{self.cell.key}-{self.number}"


def repeated_runs(cells: Sequence[ExpectedRun], repeat: int) -> tuple[SuiteRun, ...]:
    """Return all runs once, then all of them again."""
    return tuple(SuiteRun(cell, number) for number in range(1, repeat + 1) for cell in cells)


@dataclass(frozen=True)
class SuiteBudget:
    """Limits of a suite; None: no limit."""

    time_s: float | None = None
    disk_bytes: float | None = None


@dataclass
class SuiteState:
    """The state of a suite."""

    suite: Path
    turns: tuple[SuiteRun, ...]
    rows: dict[str, SuiteRow] = field(default_factory=dict)  # by the key of a turn
    resumed: int = 0  # rows from before an interruption
    early: str = ""  # why it ended early
    took_s: float = 0.0  # of this execution
    absent: Mapping[str, str] = field(default_factory=dict)  # key -> why it cannot run here
    excluded: tuple[ExpectedRun, ...] = ()  # runs that --only excludes
    command: tuple[str, ...] = ()  # the command line

    @property
    def complete(self) -> bool:
        """Whether everything that can run here did."""
        return all(turn.key in self.rows or turn.key in self.absent for turn in self.turns)

    @property
    def left_out(self) -> tuple[SuiteRun, ...]:
        """Runs that cannot be carried out here."""
        return tuple(
            turn for turn in self.turns if turn.key in self.absent and turn.key not in self.rows
        )

    @property
    def not_reached(self) -> int:
        """Runs that were not started because the suite ended early."""
        return sum(row.word == NOT_RUN for row in self.table) - len(self.left_out)

    @property
    def table(self) -> tuple[SuiteRow, ...]:
        """A row for each turn, in the order of the suite."""
        return tuple(map(self._row, self.turns))

    def _row(self, turn: SuiteRun) -> SuiteRow:
        absent = self.absent.get(turn.key, "").partition(":")[0]
        missing = absent or self.early or "not reached"
        return self.rows.get(turn.key) or not_run(turn.cell, turn.number, missing)

    @property
    def exit_code(self) -> int:
        return verdict_of([row.outcome for row in self.table])


def conduct(
    state: SuiteState,
    runs: Path,
    log: SuiteLog,
    budget: SuiteBudget,
    watch: Watch,
    page: bool = True,
) -> None:
    """Carry out the rest of the suite. `state.rows` has the recorded results, the log those from
    before an interruption."""
    began_s = time.monotonic()
    for turn in state.turns:
        if turn.key in log.rows:
            state.rows[turn.key] = log.rows[turn.key]
            state.resumed += 1
    if state.complete:
        return
    try:
        needed = any(needs_java(turn.cell.request.trial) for turn in state.turns)
        with closing(Engines(at_once=needed)) as engines:
            for turn in state.turns:
                if turn.key in state.rows or turn.key in state.absent:
                    continue
                if why := _spent(state, turn, budget, began_s, runs):
                    state.early = why
                    break
                row = _run_one(turn, runs, log, engines.ready(), page)
                if isinstance(row, str):
                    state.early = row
                    break
                state.rows[turn.key] = row
                watch(row)
    except KeyboardInterrupt:  # between two runs, or during judging
        state.early = STOPPED
    state.took_s = time.monotonic() - began_s


def _run_one(
    turn: SuiteRun, runs: Path, log: SuiteLog, spark: "SparkLauncher", page: bool
) -> SuiteRow | str:
    """Carry out and log one run. A returned sentence says why it does not count, and why the suite
    ends."""
    cell, began_s, before_s = turn.cell, time.monotonic(), 0.0
    begun = log.begun.get(turn.key)
    if begun and (left := _left(turn, runs, log, begun)):
        when = begun.when
        before_s = ran_s(left, when)
        ending = _attempt(cell, lambda: judge_run(left, cell.request.trial.seed, spark), left)
    else:
        when = log.begin(turn.key)
        try:
            ending = _attempt(cell, lambda: _run_prepared(cell.request, runs, spark))
        except KeyboardInterrupt:  # a complete recording is judged next time
            return STOPPED
    if code_changed():  # it is unknown which code ran or judged it
        log.broken_off(turn.key)
        return CHANGED
    judged_s = time.monotonic()
    render(ending, ReportOptions(page=page))
    if ending.interrupted:
        log.broken_off(turn.key)
        return STOPPED
    ended_s = time.monotonic()
    spent = TimeSpent(before_s + ended_s - began_s, ended_s - judged_s)
    row = row_of(cell, turn.number, ending, when, spent)
    log.done(turn.key, row)
    return row


def _run_prepared(request: Request, runs: Path, spark: "SparkLauncher") -> RunEnd:
    """Fetch what the nodes will run, since the trial itself may be cut off from the network."""
    prepare(request)
    return run_one(request, runs, spark)


def _attempt(cell: ExpectedRun, ended: Callable[[], RunEnd], run: RunDir | None = None) -> RunEnd:
    """Turn an error of the test bed into the result of this run, so that others continue."""
    try:
        return ended()
    except (SeatrialError, OSError) as e:
        return RunEnd(cell.request.trial.seed, run, error=str(e))


def _left(turn: SuiteRun, runs: Path, log: SuiteLog, begun: RunStart) -> RunDir | None:
    """What was going on when the command died, if it is all there; else it is cleared away."""
    done = [row.run for row in log.rows.values()]
    run = interrupted_run(runs, turn.cell.request.trial, begun, done)
    if run is None or is_recorded(run):
        return run
    remove_run(run)
    return None


# ---------------------------------------------------------------------------------- its results


@dataclass(frozen=True)
class TimeSpent:
    """How long a run took, of that its page."""

    took_s: float
    page_s: float = 0.0


def row_of(cell: ExpectedRun, turn: int, ending: RunEnd, when: str, spent: TimeSpent) -> SuiteRow:
    """Return the row of a finished run."""
    figures = measured(ending.run, ending.verdict)
    return SuiteRow(
        name=cell.title,
        seed=ending.seed,
        turn=turn,
        wanted=cell.wanted,
        outcome=cell.compare(ending, figures),
        word=EXCUSED_RUN if is_excused(ending) else ending.word,
        codes=ending.codes,
        error=ending.error,
        run=ending.run.path.name if ending.run else "",
        when=when,
        took_s=round(spent.took_s, 1),
        around_s=round(_around_s(ending, spent), 1),
        checked_s=round(ending.checked_s, 1),
        page_s=round(spent.page_s, 1),
        figures=figures,
        beside=cell.against(ending, figures),
    )


def not_run(cell: ExpectedRun, turn: int, why: str) -> SuiteRow:
    """Return the row of a run that was not carried out."""
    return SuiteRow(
        cell.title, cell.request.trial.seed, turn, cell.wanted, UNDECIDED, NOT_RUN, (), why
    )


def _around_s(ending: RunEnd, spent: TimeSpent) -> float:
    """Return the time without load, recovery, final reads, collecting, checking and the page; 0 if
    unknown, and for simulated runs, which have a time of their own."""
    state = ending.run.state() if ending.run else {}
    if "simulated" in state or "collected_ns" not in state or "load_began_ns" not in state:
        return 0.0
    under_way_s = (state["collected_ns"] - state["load_began_ns"]) / NS
    return max(0.0, spent.took_s - spent.page_s - ending.checked_s - float(under_way_s))


# ------------------------------------------------------------------------------------ the budget


def _spent(
    state: SuiteState, turn: SuiteRun, budget: SuiteBudget, began_s: float, runs: Path
) -> str:
    """Return why no other run is started, or nothing."""
    if budget.time_s is not None:
        left_s = budget.time_s - (time.monotonic() - began_s)
        if likely_s(turn, tuple(state.rows.values())) > left_s:
            return f"the budget of {budget.time_s:g} s is spent"
    if budget.disk_bytes is not None and not within(state.table, runs, budget.disk_bytes):
        return f"the runs have filled the budget of {budget.disk_bytes / 1e6:,.0f} MB"
    return ""


def likely_s(turn: SuiteRun, rows: Sequence[SuiteRow]) -> float:
    """Estimate how long a run takes: like others of its name, else its load and some overhead."""
    same = [row.took_s for row in rows if row.name == turn.cell.title and row.took_s]
    if same:
        return median(same)
    trial = turn.cell.request.trial
    return BESIDE_LOAD_S + (0.0 if registry.hosts(trial.hosts).edition else trial.duration_s)


def within(rows: Sequence[SuiteRow], runs: Path, max_bytes: float) -> bool:
    """Free space if needed, and return whether the runs of these rows fit into it."""
    there = [row for row in rows if row.run and (runs / row.run).is_dir()]
    sizes = {row.run: size_bytes(runs / row.run) for row in there}
    for row in sorted(there, key=lambda row: row.when):
        if sum(sizes.values()) <= max_bytes:
            break
        if row.outcome == AS_EXPECTED:
            shutil.rmtree(runs / row.run, ignore_errors=True)
            sizes[row.run] = 0
    return sum(sizes.values()) <= max_bytes
