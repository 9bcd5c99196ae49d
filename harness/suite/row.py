"""What one run of a suite came to, as a row: enough to tell of it, to compare nights, and to go on
after an interruption without the run's folder. Pure but for `row_of`, which reads the run's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from harness.cli.session import Ending
from harness.suite import figures as numbers
from harness.suite.expected import EXCUSED_RUN, UNDECIDED, WORDS, Expected, is_excused

NS = 1e9
NOT_RUN = "not run"


@dataclass(frozen=True)
class Spent:
    """How long a run took in all, and its page."""

    took_s: float
    page_s: float = 0.0


@dataclass(frozen=True)
class Row:
    """`turn`: for the how manieth time, from 1. `around_s`, `checked_s` and `page_s`: what of
    `took_s` went into raising and taking down its cluster, judging it, and its page; `figures` are
    numbers by name, those that there are; `beside`: what stands against it besides its verdict."""

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
    known: bool = False  # from a record, not from a run of this suite
    beside: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return ", ".join((self.word, *self.codes))

    @property
    def came(self) -> str:
        """Also what was found before the test bed failed."""
        if self.error and not self.codes:
            return self.error
        told = ", ".join((self.verdict, *self.beside))
        return f"{told}; {self.error}" if self.error else told

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"figures": numbers.written(self.figures)}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """From `plain`. TypeError or AttributeError when it is none."""
        lists = {name: tuple(plain.get(name, ())) for name in ("codes", "beside")}
        row = cls(**{**plain, **lists, "figures": numbers.read(plain.get("figures", {}))})
        if row.outcome not in WORDS:
            raise TypeError("no run came to that")
        return row


def row_of(cell: Expected, turn: int, ending: Ending, when: str, spent: Spent) -> Row:
    """What an ending amounts to."""
    figures = numbers.measured(ending.run, ending.verdict)
    return Row(
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


def not_run(cell: Expected, turn: int, why: str) -> Row:
    """A run that was asked for and is still to be made."""
    return Row(cell.title, cell.asked.trial.seed, turn, cell.wanted, UNDECIDED, NOT_RUN, (), why)


def _around_s(ending: Ending, spent: Spent) -> float:
    """All but load, recovery, final reads, collecting, checking and the page; 0 where nothing is
    known, and in a world with a time of its own."""
    state = ending.run.state() if ending.run else {}
    if "simulated" in state or "collected_ns" not in state or "load_began_ns" not in state:
        return 0.0
    under_way_s = (state["collected_ns"] - state["load_began_ns"]) / NS
    return max(0.0, spent.took_s - spent.page_s - ending.checked_s - float(under_way_s))
