"""The journal writer alone: `python benchmarks/journal.py`.

Events per second (rows one at a time, as a crew writes them, and whole columns, as an importer
does), bytes per event at full batches and at 100 rows a batch, and events read back per second.
Every number is the best of three, on one core.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from harness.history.journal import BATCH_ROWS, TableJournal, read_stream
from harness.history.schema import OPS
from harness.operation import NONE

EVENTS = BATCH_ROWS * 60
WANTED_PER_S = 1_000_000


def rows() -> list[tuple[int, ...]]:
    """Sends, invoked and acknowledged, as a crew would record them."""
    jitter = np.random.default_rng(1).integers(20_000, 400_000, EVENTS).cumsum().tolist()
    made = []
    for n, t in enumerate(jitter):
        process, op, key, value = n % 8, n // 2, n * 7 % 4, n % 8 << 32 | n // 16
        if n % 2 == 0:
            made.append((t, process, op, 0, 1, key, value, *[NONE] * 7))
        else:
            tail = (NONE, n // 8, NONE, NONE, 1, 2, 1)
            made.append((t, process, op, 1, 1, key, value, *tail))
    return made


def written(write: Callable[[TableJournal], None]) -> tuple[float, float, float]:
    """Events per second, bytes per event, and events read per second."""
    with tempfile.TemporaryDirectory() as folder:
        journal = TableJournal(Path(folder), "ops", "crew")
        began = time.perf_counter()
        write(journal)
        journal.close()
        per_s = EVENTS / (time.perf_counter() - began)
        paths = sorted(Path(folder).glob("*.arrows"))
        began = time.perf_counter()
        read = sum(batch.num_rows for path in paths for batch in read_stream(path))
        read_per_s = read / (time.perf_counter() - began)
        return per_s, sum(path.stat().st_size for path in paths) / EVENTS, read_per_s


def by_row(some: Iterable[tuple[int, ...]], batch: int) -> Callable[[TableJournal], None]:
    def write(journal: TableJournal) -> None:
        append = journal.append
        for n, row in enumerate(some, 1):
            append(row)
            if n % batch == 0:
                journal.flush()

    return write


def by_column(columns: dict[str, Any]) -> Callable[[TableJournal], None]:
    return lambda journal: journal.append_columns(columns)


def main() -> int:
    some = rows()
    types = [field.type.to_pandas_dtype() for field in OPS]
    arrays = zip(OPS.names, types, zip(*some, strict=True), strict=True)
    columns = {name: np.array(column, kind) for name, kind, column in arrays}
    ways = {
        "rows, batches of 8,192": by_row(some, BATCH_ROWS),
        "rows, batches of 100": by_row(some, 100),
        "columns": by_column(columns),
    }
    best = 0.0
    for name, write in ways.items():
        per_s, size, read = max(written(write) for _ in range(3))
        best = max(best, per_s)
        print(f"{name}: {per_s:,.0f} events/s, {size:.1f} bytes/event, read {read:,.0f}/s")
    return 0 if best >= WANTED_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
