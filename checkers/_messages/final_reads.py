"""Who reads at the end of a run of ours, and what of its end the runner gave up."""

from dataclasses import dataclass

import numpy as np

from checkers._cycles.arrays import Bools, Ints
from harness.history.notes import GAVE_UP
from harness.history.reader import History

READER = "reader "  # so workloads call who has asked nothing before, and reads at the end


@dataclass(frozen=True)
class Readers:
    """Processes that read at the end; of `every` so many, those of later lives have numbers of the
    same rest. None of them: nobody is asked to."""

    processes: tuple[int, ...] = ()
    every: int = 1

    def among(self, process: Ints) -> Bools:
        mine: Bools = np.isin(process % self.every, self.processes)
        return mine


def readers(history: History) -> Readers:
    """Those of a run of ours; an imported history has none."""
    named = history.names.get("processes", {})
    if "imported" in history.state or not isinstance(named, dict) or not named:
        return Readers()
    mine = (int(p) for p, who in named.items() if p.isdecimal() and str(who).startswith(READER))
    return Readers(tuple(sorted(mine)), len(named))


def given_up(history: History, part: str) -> tuple[str, ...]:
    """What the runner said when it gave up on this part of the trial."""
    notes = history.notes(GAVE_UP.split()[0])
    return tuple(note.text for note in notes if note.text.startswith(f"{GAVE_UP} {part}"))
