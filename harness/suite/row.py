"""The result of one run of a suite, as a row: enough for summaries, for comparing nights, and for
resuming without the run's folder. Pure, except `row_of`, which reads the run's folder.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from harness.cli.session import RunEnd
from harness.suite import figures as numbers
from harness.suite.expected import EXCUSED_RUN, UNDECIDED, WORDS, ExpectedRun, is_excused

NS = 1e9
NOT_RUN = "not run"


@dataclass(frozen=True)
class TimeSpent:
    """How long a run took, of that its page."""

    took_s: float
    page_s: float = 0.0


@dataclass(frozen=True)
class SuiteRow:
    """The result of one run.

    turn      its repetition, from 1
    around_s  of `took_s`, the time to start and stop the cluster; `checked_s`: to judge;
              `page_s`: for its page
    figures   by name, those that are known
    beside    what contradicts the expectation besides the verdict
    """

    name: str
    seed: int
    turn: int
    wanted: str
    outcome: int
    word: str
    codes: tuple[str, ...] = ()
    error: str = ""
    run: str = ""  # the name of its folder
    when: str = ""  # it was begun
    took_s: float = 0.0
    around_s: float = 0.0
    checked_s: float = 0.0
    page_s: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    known: bool = False  # read from a record
    beside: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return ", ".join((self.word, *self.codes))

    @property
    def came(self) -> str:
        """The result with the error of the test bed, if it failed."""
        if self.error and not self.codes:
            return self.error
        result = ", ".join((self.verdict, *self.beside))
        return f"{result}; {self.error}" if self.error else result

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"figures": numbers.written(self.figures)}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `plain` returns. Raises TypeError or AttributeError."""
        lists = {name: tuple(plain.get(name, ())) for name in ("codes", "beside")}
        row = cls(**{**plain, **lists, "figures": numbers.read(plain.get("figures", {}))})
        if row.outcome not in WORDS:
            raise TypeError("unknown outcome")
        return row


def row_of(cell: ExpectedRun, turn: int, ending: RunEnd, when: str, spent: TimeSpent) -> SuiteRow:
    """Return the row of a finished run."""
    figures = numbers.measured(ending.run, ending.verdict)
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
        cell.title, cell.asked.trial.seed, turn, cell.wanted, UNDECIDED, NOT_RUN, (), why
    )


def _around_s(ending: RunEnd, spent: TimeSpent) -> float:
    """Return the time without load, recovery, final reads, collecting, checking and the page; 0 if
    unknown, and for simulated runs, which have a time of their own."""
    state = ending.run.state() if ending.run else {}
    if "simulated" in state or "collected_ns" not in state or "load_began_ns" not in state:
        return 0.0
    under_way_s = (state["collected_ns"] - state["load_began_ns"]) / NS
    return max(0.0, spent.took_s - spent.page_s - ending.checked_s - float(under_way_s))
