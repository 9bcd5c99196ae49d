"""The progress of a self-test, a line for each case, and the table at its end."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.console import standard_output
from harness.cli.screen import Screen
from harness.selftest.mutants import CAUGHT, UNDECIDED, CaseResult, SelftestState
from harness.text.plurals import quantity

STYLES = {CAUGHT: "green"}
HEADS = ("mutant", "plan", "seed", "expected", "found", "after", "correct build", "")


class SelftestScreen(Screen):
    """`conduct(..., SelftestScreen())`: prints each answer once."""

    def __init__(
        self, console: Console | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, now_s)
        self._printed = 0

    def __call__(self, state: SelftestState) -> None:
        for answer in state.answers[self._printed :]:
            self.say_timed(sentence(answer), self.began_s)
        self._printed = len(state.answers)


def sentence(answer: CaseResult) -> str:
    case = answer.case
    where = f"{case.mutant} on {case.hosts} hosts"
    if answer.word == CAUGHT:
        after = quantity(answer.faults, "fault")
        return f"{where}: {case.finding} with seed {answer.seed}, after {after}"
    return f"{where}: {answer.word}; {answer.why}"


def show(state: SelftestState, console: Console | None = None) -> None:
    """Print the table, in the order of the cases, and the conclusion."""
    console = console or standard_output()
    order = {case: place for place, case in enumerate(state.cases)}
    answers = sorted(state.answers, key=lambda answer: order[answer.case])
    console.print(table(answers))
    for answer in answers:
        if answer.word != CAUGHT:
            console.print(sentence(answer), markup=False, soft_wrap=True)
    console.print(conclusion(state), markup=False, soft_wrap=True)


def table(answers: Sequence[CaseResult]) -> Table:
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
            Text(found_text(answer)),
            quantity(answer.faults, "fault"),
            answer.sound or "-",
            Text(answer.word, style=STYLES.get(answer.word, "red")),
        )
    return shown


def found_text(answer: CaseResult) -> str:
    """Return the codes found: the expected one first, and the number of others."""
    mine = [code for code in answer.found if code == answer.case.finding]
    others = len(answer.found) - len(mine)
    more = f"+{others}" if mine else ", ".join(answer.found)
    return " ".join([*mine, more] if others else mine) or "nothing"


def conclusion(state: SelftestState) -> str:
    caught = sum(answer.word == CAUGHT for answer in state.answers)
    mutants = len({case.mutant for case in state.cases})
    text = (
        f"{caught} of {quantity(len(state.cases), 'case')} of {quantity(mutants, 'mutant')} caught"
    )
    if state.interrupted:
        text += ", stopped by request"
    if state.exit_code == UNDECIDED:
        text += "; the others are undecided"
    return text
