"""What one run of a suite came to, as a row: enough to tell of it, to compare nights, and to go on
after an interruption without the run's folder. Pure but for `row_of`, which reads the run's.

Times to recover are told both ways (checkers/availability.py): from the fault to the first
acknowledgement, and from the first failed send to the next that succeeds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from harness.history import History
from harness.intervals import events
from harness.roles import elections
from harness.rundir import RunDir
from harness.session import Ending
from harness.suite.cells import UNDECIDED, Expected
from harness.verdict import Verdict

TIMES = ("to_ack_s", "failure_to_success_s")
QUANTILES = {"p50": 0.5, "p99": 0.99}
NS = 1e9


@dataclass(frozen=True)
class Row:
    """`turn`: for the how manieth time, from 1. `around_s`: what of `took_s` went into raising and
    taking down its cluster; `figures` are numbers by name, those that there are."""

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
    figures: Mapping[str, float] = field(default_factory=dict)
    known: bool = False  # from a record, not from a run of this suite

    @property
    def verdict(self) -> str:
        return ", ".join((self.word, *self.codes))

    @property
    def came(self) -> str:
        return self.error or self.verdict

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """From `plain`. TypeError when it is none."""
        return cls(**{**plain, "codes": tuple(plain.get("codes", ()))})


def row_of(cell: Expected, turn: int, ending: Ending, when: str, took_s: float) -> Row:
    """What an ending amounts to."""
    return Row(
        name=cell.title,
        seed=ending.seed,
        turn=turn,
        wanted=cell.wanted,
        outcome=cell.compare(ending),
        word=ending.word,
        codes=ending.codes,
        error=ending.error,
        run=ending.run.path.name if ending.run else "",
        when=when,
        took_s=round(took_s, 1),
        around_s=round(_around_s(ending, took_s), 1),
        figures=_figures(ending.run, ending.verdict),
    )


def not_run(cell: Expected, turn: int, why: str) -> Row:
    """A run that was asked for and is still to be made."""
    return Row(cell.title, cell.asked.trial.seed, turn, cell.wanted, UNDECIDED, "not run", (), why)


def _around_s(ending: Ending, took_s: float) -> float:
    """All but load, recovery, final reads, collecting and checking; 0 where nothing is known, and
    in a world with a time of its own."""
    state = ending.run.state() if ending.run else {}
    if "simulated" in state or "collected_ns" not in state or "load_began_ns" not in state:
        return 0.0
    under_way_s = (state["collected_ns"] - state["load_began_ns"]) / NS
    return max(0.0, took_s - ending.checked_s - float(under_way_s))


def _figures(run: RunDir | None, verdict: Verdict | None) -> dict[str, float]:
    if run is None or verdict is None:
        return {}
    found: dict[str, float | None] = {**figures(verdict)}
    state = run.state()
    if "load_ended_ns" in state:
        load_s = (state["load_ended_ns"] - state["load_began_ns"]) / NS
        acked = found.get("acknowledged")
        found["per_s"] = round(acked / load_s, 1) if acked is not None and load_s else None
    found["elections"] = elections(events(History.open(run).read("events")))
    return {name: value for name, value in found.items() if value is not None}


def figures(verdict: Verdict) -> dict[str, float | None]:
    """Numbers that checkers counted; None: nobody did."""
    loss, seen = verdict.stats("loss"), verdict.stats("availability")
    during, success = seen.get("sends_in_faults", {}), seen.get("success", {})
    found: dict[str, float | None] = {
        "injections": verdict.stats("coverage").get("counted"),
        "acknowledged": loss.get("acknowledged"),
        "lost": loss.get("lost"),
        "duplicated": verdict.stats("duplicates").get("stored_twice"),
        "anomalies": sum(f.count for r in verdict.checkers for f in r.findings if f.demand),
        "sends_in_faults": sum(during.values()) if during else None,
        "not_acknowledged_in_faults": _beside(during, "ok"),
        "success_in_faults": success.get("in_faults"),
        "success_quiet": success.get("quiet"),  # what the former is to be compared with
        "compared": verdict.stats("replicas").get("looks"),
    }
    for name in TIMES:
        times = [f[name] for f in seen.get("faults", ()) if f.get(name) is not None]
        for word, share in QUANTILES.items():
            found[f"{name}_{word}"] = quantile(times, share)
    return found


def quantile(values: Iterable[float], share: float) -> float | None:
    """The smallest of the values that so many are not above; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _beside(counts: Mapping[str, int], word: str) -> int | None:
    return sum(n for name, n in counts.items() if name != word) if counts else None
