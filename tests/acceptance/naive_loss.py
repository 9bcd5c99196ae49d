"""Count lost messages the obvious way: `python tests/acceptance/naive_loss.py RUN`.

Shares no code with the checkers, on purpose: every acknowledged send's value that no read of the
final fresh reader returned. Reads journal streams or sealed Parquet, whichever the run has.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

OK, SEND, READ = 1, 1, 3


def batches(run: Path) -> Iterator[pa.RecordBatch]:
    for path in sorted(run.glob("history/ops-*.parquet")):
        yield from pyarrow.parquet.ParquetFile(path).iter_batches()
    for path in sorted(run.glob("journal/ops-*.arrows")):
        yield from pyarrow.ipc.open_stream(path)


def lost(run: Path) -> int:
    acknowledged: set[int] = set()
    read: set[int] = set()
    for batch in batches(run):
        columns = [batch.column(name).to_pylist() for name in ("type", "f", "value")]
        for kind, f, value in zip(*columns, strict=True):
            if kind == OK and f == SEND:
                acknowledged.add(value)
            elif kind == OK and f == READ and value is not None:
                read.add(value)
    return len(acknowledged - read)


if __name__ == "__main__":
    print(lost(Path(sys.argv[1])))
