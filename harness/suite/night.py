"""`seatrial suite` from end to end: read, refuse, carry out, compare with other nights, sum up."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from harness.campaign.tally import many
from harness.cli.console import announce
from harness.cli.session import say
from harness.errors import BadRequest, SeatrialError
from harness.history.runs import writable
from harness.run.preflight import refuse_impossible
from harness.suite.absent import absent
from harness.suite.cells import Place, chosen, read_suite
from harness.suite.course import Budget, Course, Turn, conduct, likely_s, turns
from harness.suite.expected import Expected
from harness.suite.log import SuiteLog
from harness.suite.record import Record
from harness.suite.row import NOT_RUN, Row
from harness.suite.trend import Night, came, changes, nights, remember
from harness.suite.view import keep, markdown, plain, sentence, show
from harness.text.code_hash import contents
from harness.text.parsing import shown


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    suite: Path
    only: tuple[str, ...] = ()
    repeat: int = 1
    scale: float | None = None
    share: float | None = None
    budget: Budget = field(default_factory=Budget)
    record: Path | None = None
    page: bool = True
    place: Place | None = None


def night(asked: Asked, runs: Path, summary: Path | None = None, as_json: bool = False) -> int:
    """Carry out the suite, as far as it goes; the exit code."""
    cells = read_suite(asked.suite, asked.scale, asked.share, asked.place)
    picked = chosen(cells, asked.only)
    others = tuple(cell for cell in cells if cell not in picked)
    course = Course(
        asked.suite, turns(picked, asked.repeat), unasked=others, command=tuple(sys.argv[1:])
    )
    record = Record.open(asked.record) if asked.record else None
    if record:
        course.rows.update(record.known(course.asked))
    for cell in {turn.cell.key: turn.cell for turn in course.asked}.values():
        _refuse(cell, asked.suite)
    missing = [turn for turn in course.asked if turn.key not in course.rows]
    course.absent = absent(missing, runs, known=bool(course.rows))
    writable(runs)
    _announce(missing, course, asked.budget)
    if asked.record:
        Record.refuse_unwritable(asked.record)
    with ExitStack() as open_files:
        page = open_files.enter_context(_appended(summary)) if summary else None
        log = open_files.enter_context(SuiteLog(asked.suite, [t.key for t in course.asked], runs))
        if aside := log.set_aside():
            say(f"{aside} runs of {asked.suite} were made with other code, and are not counted")
        watch = _Watch(course, asked.record)
        conduct(course, runs, log, asked.budget, watch, asked.page)
        watch.record()
        tonight, changed = _compared(course, log, runs)
        kept = keep(course, changed, runs)
        if page:
            page.write(markdown(course, changed))
            page.flush()
        if course.complete and tonight.came:
            _remember(tonight, runs)
        if course.complete:
            log.finish()
    if as_json:
        print(json.dumps(plain(course, changed), indent=2))
    else:
        show(course, changed)
        say(f"the summary is kept in {kept}.md, .json and .xml (JUnit)")
    return course.exit_code


def _announce(missing: Sequence[Turn], course: Course, budget: Budget) -> None:
    """Say how many runs there are to carry out, and about how long they take."""
    left = [turn for turn in missing if turn.key not in course.absent]
    total_s = sum(likely_s(turn, tuple(course.rows.values())) for turn in left)
    total_s = total_s if budget.time_s is None else min(total_s, budget.time_s)
    announce(total_s, many(len(left), "run"))


def _refuse(cell: Expected, suite: Path) -> None:
    """What is wrong with a run, told with its name."""
    try:
        refuse_impossible(cell.asked)
    except SeatrialError as e:
        e.args = (f"{suite}: {shown(cell.title)}: {e}",)
        raise


def _appended(path: Path) -> TextIO:
    """BadRequest when nothing can be written there; known before anything is run."""
    try:
        return path.open("a")
    except OSError as e:
        raise BadRequest(
            f"no summary can be written to {path}: {e.strerror or e}; name another file in a "
            "folder that is there"
        ) from e


class _Watch:
    """Says each run when it is over, and writes the record."""

    def __init__(self, course: Course, path: Path | None) -> None:
        self._course, self._path = course, path

    def __call__(self, row: Row) -> None:
        say(sentence(row))
        self.record()

    def record(self) -> None:
        """All that is known: also what was measured by a command that died before it wrote."""
        if self._path:
            rows, asked = self._course.rows, self._course.asked
            done = [(turn, rows[turn.key]) for turn in asked if turn.key in rows]
            Record.add(self._path, done, asked)


def _compared(course: Course, log: SuiteLog, runs: Path) -> tuple[Night, tuple[str, ...]]:
    """What was measured tonight, and what has changed since earlier nights."""
    measured = [row for row in course.table if row.word != NOT_RUN and not row.known]
    when, name = datetime.now(UTC).isoformat(timespec="seconds"), course.suite.stem
    tonight, earlier = Night(log.id, when, name, contents(), came(measured)), list[Night]()
    try:
        earlier = [one for one in nights(runs, name, say) if one.id != log.id]
    except OSError as e:
        say(f"this night is not compared with earlier ones, which cannot be read: {e}")
    return tonight, tuple(changes(tonight.came, earlier))


def _remember(tonight: Night, runs: Path) -> None:
    """The suite is told whether or not later nights will know of it."""
    try:
        remember(tonight, runs)
    except OSError as e:
        say(f"later nights will not be compared with this one, which cannot be stored: {e}")
