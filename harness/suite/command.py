"""`seatrial suite`: reads a suite, carries it out, compares it with earlier nights.

The speed of a machine varies, so a figure is compared with the median of the last nights, and only
a large difference is reported; a verdict is compared with that of the previous night.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median
from typing import TextIO

from harness.cli.console import announce
from harness.cli.doctor import refuse_unready
from harness.cli.session import say
from harness.errors import BadRequest, BedFailed, SeatrialError
from harness.history.runs import check_writable
from harness.run.preflight import refuse_impossible
from harness.suite.execution import (
    NOT_RUN,
    SuiteBudget,
    SuiteRun,
    SuiteState,
    conduct,
    likely_s,
    repeated_runs,
)
from harness.suite.expected import ExpectedRun
from harness.suite.log import SuiteLog
from harness.suite.record import Record
from harness.suite.store import (
    AS_EXPECTED,
    WORDS,
    NameResult,
    Night,
    SuiteRow,
    nights,
    store_night,
    verdict_of,
)
from harness.suite.suite_file import HostsOverride, read_suite, select_runs
from harness.suite.view import markdown, plain, sentence, show, write_summary
from harness.text.code_hash import code_hash
from harness.text.parsing import abbreviate
from harness.text.plurals import quantity

COMPARED_WITH = 10  # nights
# a figure, its text, the factor that counts as worse (negative: smaller is worse), and the least
# difference to report
FIGURES = (
    ("to_ack_s_p50", "half of the faults were recovered from within {:.2f} s", 1.5, 0.5),
    ("per_s", "{:.0f} messages a second were acknowledged", -1.25, 10.0),
    ("anomalies", "{:.0f} anomalies", 2.0, 1.0),
)
NEVER_RECOVERED = "at least half of the faults were not recovered from"


@dataclass(frozen=True)
class SuiteRequest:
    """The options of the command line."""

    suite: Path
    only: tuple[str, ...] = ()
    repeat: int = 1
    scale: float | None = None
    share: float | None = None
    budget: SuiteBudget = field(default_factory=SuiteBudget)
    record: Path | None = None
    page: bool = True
    place: HostsOverride | None = None


def run_suite(
    request: SuiteRequest, runs: Path, summary: Path | None = None, as_json: bool = False
) -> int:
    """Carry out the suite within its budget, and return the exit code."""
    cells = read_suite(request.suite, request.scale, request.share, request.place)
    picked = select_runs(cells, request.only)
    others = tuple(cell for cell in cells if cell not in picked)
    state = SuiteState(
        request.suite,
        repeated_runs(picked, request.repeat),
        excluded=others,
        command=tuple(sys.argv[1:]),
    )
    record = Record.open(request.record) if request.record else None
    if record:
        state.rows.update(record.known(state.turns))
    for cell in {turn.cell.key: turn.cell for turn in state.turns}.values():
        _refuse(cell, request.suite)
    missing = [turn for turn in state.turns if turn.key not in state.rows]
    state.absent = unavailable(missing, runs, has_results=bool(state.rows))
    check_writable(runs)
    _announce(missing, state, request.budget)
    if request.record:
        Record.refuse_unwritable(request.record)
    with ExitStack() as open_files:
        page = open_files.enter_context(_appended(summary)) if summary else None
        log = open_files.enter_context(SuiteLog(request.suite, [t.key for t in state.turns], runs))
        if aside := log.set_aside():
            say(f"{aside} runs of {request.suite} were made with other code, and are not counted")
        watch = _Reporter(state, request.record)
        conduct(state, runs, log, request.budget, watch, request.page)
        watch.record()
        tonight, changed = _compared(state, log, runs)
        kept = write_summary(state, changed, runs)
        if page:
            page.write(markdown(state, changed))
            page.flush()
        if state.complete and tonight.came:
            _remember(tonight, runs)
        if state.complete:
            log.finish()
    if as_json:
        print(json.dumps(plain(state, changed), indent=2))
    else:
        show(state, changed)
        say(f"the summary is kept in {kept}.md, .json and .xml (JUnit)")
    return state.exit_code


def unavailable(
    turns: Sequence[SuiteRun], runs: Path, has_results: bool = False
) -> Mapping[str, str]:
    """Return why runs cannot be carried out on this machine, by the keys of their turns.

    A suite of local, simulated and Docker trials runs what it can where no Docker engine answers.
    The other runs have rows with the reason, and count as undecided. Raises BedFailed if none can
    run, unless there are results of other runs (`has_results`).
    """
    failed: dict[str, BedFailed | None] = {}  # by hosts and options: each is tested once
    why = {}
    for turn in turns:
        trial = turn.cell.request.trial
        hosts = json.dumps([trial.hosts, dict(trial.bed)], sort_keys=True, default=str)
        if hosts not in failed:
            failed[hosts] = _failed(trial.hosts, trial.bed, runs)
        if error := failed[hosts]:
            why[turn.key] = f"no {trial.hosts} hosts here: {' '.join(str(error).split())}"
    if turns and len(why) == len(turns) and not has_results:
        raise next(error for error in failed.values() if error)
    return why


def _failed(hosts: str, bed: Mapping[str, object], runs: Path) -> BedFailed | None:
    try:
        refuse_unready(hosts, bed, runs)
    except BedFailed as e:
        return e
    return None


def _announce(missing: Sequence[SuiteRun], state: SuiteState, budget: SuiteBudget) -> None:
    """Print how many runs there are to carry out, and about how long they take."""
    left = [turn for turn in missing if turn.key not in state.absent]
    total_s = sum(likely_s(turn, tuple(state.rows.values())) for turn in left)
    total_s = total_s if budget.time_s is None else min(total_s, budget.time_s)
    announce(total_s, quantity(len(left), "run"))


def _refuse(cell: ExpectedRun, suite: Path) -> None:
    """Raise what is wrong with a run, with its name."""
    try:
        refuse_impossible(cell.request)
    except SeatrialError as e:
        e.args = (f"{suite}: {abbreviate(cell.title)}: {e}",)
        raise


def _appended(path: Path) -> TextIO:
    """Open a file for appending. Raises BadRequest, before anything is run, if that fails."""
    try:
        return path.open("a")
    except OSError as e:
        raise BadRequest(
            f"no summary can be written to {path}: {e.strerror or e}; name a file in a folder "
            "that exists"
        ) from e


class _Reporter:
    """Prints each run when it has ended, and writes the record."""

    def __init__(self, state: SuiteState, path: Path | None) -> None:
        self._state, self._path = state, path

    def __call__(self, row: SuiteRow) -> None:
        say(sentence(row))
        self.record()

    def record(self) -> None:
        """Record all results, including those of a command that was killed before it wrote them."""
        if self._path:
            rows, asked = self._state.rows, self._state.turns
            done = [(turn, rows[turn.key]) for turn in asked if turn.key in rows]
            Record.add(self._path, done, asked)


def _compared(state: SuiteState, log: SuiteLog, runs: Path) -> tuple[Night, tuple[str, ...]]:
    """Return the results of this night, and what has changed since earlier ones."""
    measured = [row for row in state.table if row.word != NOT_RUN and not row.known]
    when, name = datetime.now(UTC).isoformat(timespec="seconds"), state.suite.stem
    tonight, earlier = Night(log.id, when, name, code_hash(), came(measured)), list[Night]()
    try:
        earlier = [one for one in nights(runs, name, say) if one.id != log.id]
    except OSError as e:
        say(f"this night is not compared with earlier ones, which cannot be read: {e}")
    return tonight, tuple(changes(tonight.came, earlier))


def _remember(tonight: Night, runs: Path) -> None:
    """Store this night; a failure is only reported."""
    try:
        store_night(tonight, runs)
    except OSError as e:
        say(f"later nights will not be compared with this one, which cannot be stored: {e}")


# ------------------------------------------------------------------------- changes since last night


def came(rows: Sequence[SuiteRow]) -> dict[str, NameResult]:
    """Return the results of runs by name."""
    names = dict.fromkeys(row.name for row in rows)
    return {name: _came([row for row in rows if row.name == name]) for name in names}


def _came(rows: Sequence[SuiteRow]) -> NameResult:
    figures = {}
    for name, *_ in FIGURES:
        values = [row.figures[name] for row in rows if name in row.figures]
        if values:
            figures[name] = median(values)
    words = tuple(dict.fromkeys(row.verdict for row in rows))  # without errors, which name folders
    return NameResult(verdict_of([row.outcome for row in rows]), words, figures)


def changes(tonight: Mapping[str, NameResult], earlier: Sequence[Night]) -> Iterator[str]:
    """Yield a sentence for each change. `earlier`: nights of the suite, in order."""
    for name, now in tonight.items():
        before = [night.came[name] for night in earlier if name in night.came][-COMPARED_WITH:]
        if not before:
            continue
        last = before[-1]
        other = set(now.words) != set(last.words)
        if now.was != last.was or (now.was != AS_EXPECTED and other):
            yield f"{name}: {_outcome(now)}; the previous night {_outcome(last)}"
        yield from _numbers(name, now, before)


def _outcome(one: NameResult) -> str:
    return f"{WORDS[one.was]} ({'; '.join(one.words)})"


def _numbers(name: str, now: NameResult, before: Sequence[NameResult]) -> Iterator[str]:
    for figure, words, factor, least in FIGURES:
        past = [one.figures[figure] for one in before if figure in one.figures]
        if figure not in now.figures or not past:
            continue
        value, usual = now.figures[figure], median(past)
        high, low = (value, usual) if factor > 0 else (usual, value)
        if high >= low * abs(factor) and high - low >= least:
            text = NEVER_RECOVERED if value == inf else words.format(value)
            yield f"{name}: {text}, usually {usual:.4g}"
