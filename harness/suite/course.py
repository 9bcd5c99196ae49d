"""A suite under way: run by run, with what is known already left out, within its budget.

Nothing is tried a second time: a run whose test bed failed stays a failed one, and is told. Ctrl-C
and a spent budget end the suite early; what was done is summed up, and asking for the same again
goes on from there. A run is begun only if it is likely to end within the time that is left. Code
that changes under a suite ends it too; the run at hand, of nobody knows what code, does not count.

Room on the disk is made by the folders of runs that ended as expected, the oldest first, and never
by those that somebody wants to look at.
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
from harness.cli.session import Ending, Engines, Shown, judged, needs_java, render, run_one
from harness.errors import SeatrialError
from harness.history.rundir import RunDir
from harness.history.runs import size_bytes
from harness.suite.expected import AS_EXPECTED, Expected, verdict_of
from harness.suite.log import Begun, SuiteLog, all_there, cleared, cut_off, ran_s
from harness.suite.row import NOT_RUN, Row, Spent, not_run, row_of
from harness.text.code_hash import changed

if TYPE_CHECKING:
    from harness.spark.session import Sessions

BESIDE_LOAD_S = 20.0  # what a run takes besides its load, about
STOPPED = "stopped by request"
CHANGED = "the code has changed since the suite began"

Watch = Callable[[Row], None]  # is told of every row when it is there


@dataclass(frozen=True)
class Turn:
    """A run that is asked for: which, and for the how manieth time."""

    cell: Expected
    number: int = 1

    @property
    def key(self) -> str:
        return f"{self.cell.key}-{self.number}"


def turns(cells: Sequence[Expected], repeat: int) -> tuple[Turn, ...]:
    """All of them once, then all of them again."""
    return tuple(Turn(cell, number) for number in range(1, repeat + 1) for cell in cells)


@dataclass(frozen=True)
class Budget:
    """How much a suite may take; None: as much as it takes."""

    time_s: float | None = None
    disk_bytes: float | None = None


@dataclass
class Course:
    """How far a suite has come."""

    suite: Path
    asked: tuple[Turn, ...]
    rows: dict[str, Row] = field(default_factory=dict)  # key of a turn -> what it came to
    resumed: int = 0  # of the rows: done before an interruption
    early: str = ""  # why it ended before its end
    took_s: float = 0.0  # this time
    absent: Mapping[str, str] = field(default_factory=dict)  # key -> why it can not be run here
    unasked: tuple[Expected, ...] = ()  # runs of the suite that nobody asked for this time
    command: tuple[str, ...] = ()  # as it was typed

    @property
    def complete(self) -> bool:
        """Whatever can be run here was."""
        return all(turn.key in self.rows or turn.key in self.absent for turn in self.asked)

    @property
    def left_out(self) -> tuple[Turn, ...]:
        """Runs that can not be made here."""
        return tuple(
            turn for turn in self.asked if turn.key in self.absent and turn.key not in self.rows
        )

    @property
    def not_reached(self) -> int:
        """Runs that the suite ended too early for."""
        return sum(row.word == NOT_RUN for row in self.table) - len(self.left_out)

    @property
    def table(self) -> tuple[Row, ...]:
        """A row for each turn, in the order of the suite."""
        return tuple(map(self._row, self.asked))

    def _row(self, turn: Turn) -> Row:
        absent = self.absent.get(turn.key, "").partition(":")[0]
        missing = absent or self.early or "not reached"
        return self.rows.get(turn.key) or not_run(turn.cell, turn.number, missing)

    @property
    def exit_code(self) -> int:
        return verdict_of([row.outcome for row in self.table])


def conduct(
    course: Course, runs: Path, log: SuiteLog, budget: Budget, watch: Watch, page: bool = True
) -> None:
    """Carry out what is left of the suite. `course.rows` may hold what is known already; of what
    was done before an interruption the log knows more."""
    began_s = time.monotonic()
    for turn in course.asked:
        if turn.key in log.rows:
            course.rows[turn.key] = log.rows[turn.key]
            course.resumed += 1
    if course.complete:
        return
    try:
        needed = any(needs_java(turn.cell.asked.trial) for turn in course.asked)
        with closing(Engines(at_once=needed)) as engines:
            for turn in course.asked:
                if turn.key in course.rows or turn.key in course.absent:
                    continue
                if why := _spent(course, turn, budget, began_s, runs):
                    course.early = why
                    break
                row = _carried_out(turn, runs, log, engines.ready(), page)
                if isinstance(row, str):
                    course.early = row
                    break
                course.rows[turn.key] = row
                watch(row)
    except KeyboardInterrupt:  # between two runs, or while one was judged
        course.early = STOPPED
    course.took_s = time.monotonic() - began_s


def _carried_out(turn: Turn, runs: Path, log: SuiteLog, spark: "Sessions", page: bool) -> Row | str:
    """One run to its end, which is written down; a sentence: why it does not count, and no other
    is begun."""
    cell, began_s, before_s = turn.cell, time.monotonic(), 0.0
    begun = log.begun.get(turn.key)
    if begun and (left := _left(turn, runs, log, begun)):
        when = begun.when
        before_s = ran_s(left, when)
        ending = _attempt(cell, lambda: judged(left, cell.asked.trial.seed, spark), left)
    else:
        when = log.begin(turn.key)
        try:
            ending = _attempt(cell, lambda: run_one(cell.asked, runs, spark))
        except KeyboardInterrupt:  # if all was recorded, it is judged the next time
            return STOPPED
    if changed():  # before, during or after it: nobody knows what it was made or judged with
        log.broken_off(turn.key)
        return CHANGED
    judged_s = time.monotonic()
    render(ending, Shown(page=page))
    if ending.interrupted:
        log.broken_off(turn.key)
        return STOPPED
    ended_s = time.monotonic()
    spent = Spent(before_s + ended_s - began_s, ended_s - judged_s)
    row = row_of(cell, turn.number, ending, when, spent)
    log.done(turn.key, row)
    return row


def _attempt(cell: Expected, ended: Callable[[], Ending], run: RunDir | None = None) -> Ending:
    """Whatever goes wrong on our side is told of this run; the others go on."""
    try:
        return ended()
    except (SeatrialError, OSError) as e:
        return Ending(cell.asked.trial.seed, run, error=str(e))


def _left(turn: Turn, runs: Path, log: SuiteLog, begun: Begun) -> RunDir | None:
    """What was going on when the command died, if it is all there; else it is cleared away."""
    done = [row.run for row in log.rows.values()]
    run = cut_off(runs, turn.cell.asked.trial, begun, done)
    if run is None or all_there(run):
        return run
    cleared(run)
    return None


# ------------------------------------------------------------------------------------ the budget


def _spent(course: Course, turn: Turn, budget: Budget, began_s: float, runs: Path) -> str:
    """Why no other run is begun; empty: one is."""
    if budget.time_s is not None:
        left_s = budget.time_s - (time.monotonic() - began_s)
        if likely_s(turn, tuple(course.rows.values())) > left_s:
            return f"the budget of {budget.time_s:g} s is spent"
    if budget.disk_bytes is not None and not within(course.table, runs, budget.disk_bytes):
        return f"the runs have filled the budget of {budget.disk_bytes / 1e6:,.0f} MB"
    return ""


def likely_s(turn: Turn, rows: Sequence[Row]) -> float:
    """How long a run will take: as others of its name did, else as its load does, and something."""
    same = [row.took_s for row in rows if row.name == turn.cell.title and row.took_s]
    if same:
        return median(same)
    trial = turn.cell.asked.trial
    return BESIDE_LOAD_S + (0.0 if registry.hosts(trial.hosts).edition else trial.duration_s)


def within(rows: Sequence[Row], runs: Path, most_bytes: float) -> bool:
    """Whether the runs of these rows take no more than that, after room was made."""
    there = [row for row in rows if row.run and (runs / row.run).is_dir()]
    sizes = {row.run: size_bytes(runs / row.run) for row in there}
    for row in sorted(there, key=lambda row: row.when):
        if sum(sizes.values()) <= most_bytes:
            break
        if row.outcome == AS_EXPECTED:
            shutil.rmtree(runs / row.run, ignore_errors=True)
            sizes[row.run] = 0
    return sum(sizes.values()) <= most_bytes
