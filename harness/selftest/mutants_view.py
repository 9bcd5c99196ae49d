"""A self-test as people see it: a line for each case when it is done, and the table at the end."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.campaign.tally import many
from harness.cli.console import standard_error, standard_output
from harness.selftest.mutants import CAUGHT, UNDECIDED, Answer, Course

STYLES = {CAUGHT: "green"}
HEADS = ("mutant", "plan", "seed", "expected", "found", "after", "sound build", "")


class Watched:
    """`conduct(..., Watched())`: says each answer once, on standard error."""

    def __init__(
        self, console: Console | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or standard_error()
        self._now_s, self._began_s, self._told = now_s, now_s(), 0

    def __call__(self, course: Course) -> None:
        for answer in course.answers[self._told :]:
            took = f"{self._now_s() - self._began_s:7.1f} s"
            self._console.print(f"{took}  {sentence(answer)}", markup=False, soft_wrap=True)
        self._told = len(course.answers)


def sentence(answer: Answer) -> str:
    case = answer.case
    where = f"{case.mutant} on {case.hosts} hosts"
    if answer.word == CAUGHT:
        after = many(answer.faults, "fault")
        return f"{where}: {case.finding} with seed {answer.seed}, after {after}"
    return f"{where}: {answer.word}; {answer.why}"


def show(course: Course, console: Console | None = None) -> None:
    """The table, in the order of the cases, and what it comes to."""
    console = console or standard_output()
    order = {case: place for place, case in enumerate(course.cases)}
    answers = sorted(course.answers, key=lambda answer: order[answer.case])
    console.print(table(answers))
    for answer in answers:
        if answer.word != CAUGHT:
            console.print(sentence(answer), markup=False, soft_wrap=True)
    console.print(conclusion(course), markup=False, soft_wrap=True)


def table(answers: Sequence[Answer]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for head in HEADS:
        shown.add_column(head, justify="right" if head in ("seed", "after") else "left")
    for answer in answers:
        case = answer.case
        shown.add_row(
            case.mutant,
            Text(case.plan.stem),
            str(answer.seed or ""),
            Text(case.finding),
            Text(found(answer)),
            many(answer.faults, "fault"),
            answer.sound or "-",
            Text(answer.word, style=STYLES.get(answer.word, "red")),
        )
    return shown


def found(answer: Answer) -> str:
    """The expected code first, and how many others."""
    mine = [code for code in answer.found if code == answer.case.finding]
    others = len(answer.found) - len(mine)
    more = f"+{others}" if mine else ", ".join(answer.found)
    return " ".join([*mine, more] if others else mine) or "nothing"


def conclusion(course: Course) -> str:
    caught = sum(answer.word == CAUGHT for answer in course.answers)
    mutants = len({case.mutant for case in course.cases})
    text = f"{caught} of {many(len(course.cases), 'case')} of {many(mutants, 'mutant')} caught"
    if course.interrupted:
        text += ", stopped by request"
    if course.exit_code == UNDECIDED:
        text += "; nothing is decided about the others"
    return text
