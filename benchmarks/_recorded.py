"""What a run has recorded, as benchmarks read it: rows of any table, faults, and sends as columns.

Times are nanoseconds on the run's clock of record. A send lasts from its invocation to its
completion, all its tries included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.history.journal import read_stream
from harness.history.rundir import RunDir
from harness.operation import F, Type

Column = Any  # of numpy


def rows(run: RunDir, table: str) -> Iterator[dict[str, Any]]:
    for path in sorted(run.journal.glob(f"{table}-*.arrows")):
        for batch in read_stream(path):
            yield from batch.to_pylist()


def faults(run: RunDir) -> list[dict[str, Any]]:
    """What became of each fault, in the plan's order."""
    last = {row["id"]: row for row in rows(run, "faults")}
    return [last[number] for number in sorted(last)]


@dataclass(frozen=True)
class Sends:
    """Columns of equal length: when each was invoked, when it ended, whether acknowledged."""

    begun: Column
    ended: Column
    ok: Column

    def begun_in(self, *spans: tuple[int, int]) -> "Sends":
        """Those that were invoked in one of these spans."""
        wanted = np.zeros(len(self.begun), bool)
        for start, end in spans:
            wanted |= (self.begun >= start) & (self.begun < end)
        return Sends(self.begun[wanted], self.ended[wanted], self.ok[wanted])

    @property
    def failed(self) -> int:
        """How many were not acknowledged, for whatever reason."""
        return int((~self.ok).sum())

    @property
    def ms(self) -> Column:
        return (self.ended - self.begun) / 1e6

    def acknowledged_in(self, *spans: tuple[int, int]) -> float:
        """Acknowledgements a second that came in these spans."""
        ended = self.ended[self.ok]
        count = sum(int(((ended >= start) & (ended < end)).sum()) for start, end in spans)
        return count / (sum(end - start for start, end in spans) / 1e9)

    def served_ns(self, since: int) -> int | None:
        """When the first send ended that was invoked since then and acknowledged."""
        ended = self.ended[self.ok & (self.begun >= since)]
        return int(ended.min()) if len(ended) else None


def sends(run: RunDir) -> Sends:
    """All sends of a run that have ended."""
    parts = [
        [batch.column(name).to_numpy() for name in ("t", "op", "type", "f")]
        for path in sorted(run.journal.glob("ops-*.arrows"))
        for batch in read_stream(path)
    ]
    t, op, kind, f = (np.concatenate(column) for column in zip(*parts, strict=True))
    begun = (f == F.SEND) & (kind == Type.INVOKE)
    ended = (f == F.SEND) & (kind != Type.INVOKE)
    order = np.argsort(op[begun])
    place = order[np.searchsorted(op[begun], op[ended], sorter=order)]
    return Sends(t[begun][place], t[ended], kind[ended] == Type.OK)
