"""How a checker's work is spread: Spark schedules, columns never become its rows.

A *unit* is what one task reads: a writer's operations in time order, or a file of replicas. Spark
is given numbers of units; a task reads the files itself and reduces them to a few rows that merge
(`scan`); rows that belong together meet in one task, sorted, and become the answer (`merge`). Where
a few lines are looked for, they come back as they are (`collected`).

Without a session the same steps run here, one after the other: so kernels are tested in
milliseconds, against naive oracles, and Spark's tests prove the wiring only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import Array, Blocks, Ints, column, pack
from harness.history.reader import History, batches, pieces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Unit = tuple[str, tuple[Path, ...]]  # a table, and files of it to read in one go
Batches = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]

T = TypeVar("T")

PARTIALS = pa.schema([("block", pa.int64()), ("packed", pa.binary())])
ONE_TASK_BYTES = 4 << 20  # smaller histories are not worth a second task


def once(history: History, name: str, make: Callable[[], T]) -> T:
    """What `make` gives of this history: made once, however many checkers ask."""
    if name not in history.shared:
        history.shared[name] = make()
    made: T = history.shared[name]
    return made


def units_of(history: History, *tables: str) -> list[Unit]:
    """Work for tasks: of operations by writer, of everything else by file."""
    units: list[Unit] = []
    for table in tables:
        if table == "ops":
            units += [(table, files) for files in history.writers(table).values()]
        else:
            units += [(table, (path,)) for path in history.files(table)]
    return units


def reduced(
    spark: "SparkSession | None",
    units: list[Unit],
    scan: Callable[[Unit], Batches],
    partials: pa.Schema,
    merge: Step,
    answer: pa.Schema,
    by: tuple[str, ...],
    within: tuple[str, ...],
) -> pa.Table:
    """All units scanned, their rows brought together `by` some columns, sorted, and merged."""
    if spark is None:
        return _reduced_here(units, scan, partials, merge, answer, within)
    tasks = _tasks(units)
    frame = _scanned(spark, units, scan, partials, tasks)
    if tasks > 1:
        frame = frame.repartition(*by)
    frame = frame.sortWithinPartitions(*within)
    table: pa.Table = frame.mapInArrow(merge, sql(answer)).toArrow()
    return table


def collected(
    spark: "SparkSession | None",
    units: list[Unit],
    scan: Callable[[Unit], Batches],
    rows: pa.Schema,
) -> pa.Table:
    """All units scanned, their few rows as they come: in no order that could be relied on."""
    if spark is None:
        return pa.Table.from_batches([b for unit in units for b in scan(unit)], rows)
    table: pa.Table = _scanned(spark, units, scan, rows, _tasks(units)).toArrow()
    return table


def _scanned(
    spark: "SparkSession",
    units: list[Unit],
    scan: Callable[[Unit], Batches],
    rows: pa.Schema,
    tasks: int,
) -> "DataFrame":
    def scan_all(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from scan(units[number])

    return spark.range(len(units), numPartitions=tasks).mapInArrow(scan_all, sql(rows))


def _tasks(units: list[Unit]) -> int:
    size = sum(path.stat().st_size for _, paths in units for path in paths)
    return 1 if size < ONE_TASK_BYTES else max(1, len(units))


def _reduced_here(
    units: list[Unit],
    scan: Callable[[Unit], Batches],
    partials: pa.Schema,
    merge: Step,
    answer: pa.Schema,
    within: tuple[str, ...],
) -> pa.Table:
    rows = pa.Table.from_batches([b for unit in units for b in scan(unit)], partials)
    rows = rows.sort_by([(name, "ascending") for name in within])
    return pa.Table.from_batches(list(merge(iter(rows.to_batches()))), answer)


def arrays(
    paths: Iterable[Path], columns: Sequence[str], afar: bool = False
) -> Iterator[dict[str, Ints]]:
    """The rows of some files, a batch at a time, as arrays by column. `afar`: of files in storage
    nothing else is fetched."""
    for path in paths:
        for batch in batches(path, columns, afar):
            yield _wide(batch)


def stored(paths: Iterable[Path], columns: Sequence[str]) -> Iterator[dict[str, Array]]:
    """The same as narrow as they are stored, which only loops over rows can work with: shifted as
    arrays they would lose bits."""
    for path in paths:
        for batch in batches(path, columns):
            yield {name: column(batch, name) for name in columns}


def chosen(
    paths: Iterable[Path],
    looked_at: Sequence[str],
    columns: Sequence[str],
    choose: Callable[[dict[str, Ints]], Ints],
) -> Iterator[dict[str, Ints]]:
    """The few rows of some files that `choose` picks by a look at some columns, with all columns;
    of what holds none of them, the others are not read."""
    for path in paths:
        for read in pieces(path):
            found = choose(_wide(read(looked_at)))
            if len(found):
                yield _wide(read(columns).take(pa.array(found)))


def _wide(batch: pa.RecordBatch) -> dict[str, Ints]:
    return {name: column(batch, name).astype(np.int64, copy=False) for name in batch.schema.names}


def packed(blocks: Blocks) -> Batches:
    """What a task knows of each block, for whoever merges them: one row of PARTIALS each."""
    for number, block in blocks.items():
        yield pa.record_batch([[number], [pack(block, blocks.fields)]], schema=PARTIALS)


def sql(schema: pa.Schema) -> str:
    """A schema in Spark's words."""
    words = {pa.int64(): "long", pa.string(): "string", pa.binary(): "binary"}
    return ", ".join(f"{field.name} {words[field.type]}" for field in schema)
