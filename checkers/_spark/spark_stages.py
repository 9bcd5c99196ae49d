"""Distribution of a check over Spark tasks.

A *unit* is one writer's operations in time order, or one file of replicas. Spark receives only the
numbers of units; tasks read the files themselves. There are two plans with the same result:

    stages  a task reduces its units to a few rows (`scan`); rows of the same key meet in one task,
            sorted, and become the result (`merge`). What the stages exchange has a schema with a
            column for each value.
    shares  a task reads all units, and keeps the share of the messages or queues that is its own.
            Nothing is exchanged, or a few bytes (`in_shares_together`), which is quicker on few
            cores and with few rows: reading a column costs less than passing on what was found.

Jobs that search for a few rows have one stage (`collected`).

Without a Spark session the same functions run in this process, one unit after the other. Tests of
kernels use that and take milliseconds; tests on Spark only have to check the distribution.
"""

import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.history.journal import table_of
from harness.history.reader import TABLES, History, batches, pieces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Unit = tuple[str, tuple[Path, ...]]  # a table, and files of it that one task reads in order
Batches = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]

T = TypeVar("T")
P = ParamSpec("P")

PARTIALS = pa.schema([("block", pa.int64()), ("packed", pa.binary())])
ONE_TASK_BYTES = 4 << 20  # smaller histories are not worth a second task
MOST_SHARES = 4  # more tasks would gain little, as each of them reads everything
SHARED_BYTES = 1 << 30  # larger histories are in shares only where there are few cores
CLUSTER_SHARED_BYTES = 128 << 20  # on a cluster: stages cost no more here, and use all cores
MERGED_BYTES = 32 << 20  # of files, whose rows one task merges
TASKS_A_CORE = 4  # several, since units differ in size
EXCHANGED_WITHIN_S, LOOK_EVERY_S = 3600.0, 0.002
LOCAL_MASTER = re.compile(r"local(?:\[(\d+|\*)(?:,.*)?\])?")
BATCH_ROWS = 256  # of results
INT, INTS, BYTES = pa.int64(), pa.list_(pa.int64()), pa.binary()  # types of columns


def per_history(
    function: Callable[Concatenate[History, P], T],
) -> Callable[Concatenate[History, P], T]:
    """Decorator: the function's result is kept with its first argument, for all checkers.

    Other arguments, such as the trial, must be the same in all calls for a history.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(history: History, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name not in history.shared:
            history.shared[name] = function(history, *args, **kwargs)
        result: T = history.shared[name]
        return result

    return kept


# -------------------------------------------------------------------------------- the two stages


def units_of(history: History, *tables: str) -> list[Unit]:
    """Return the units of some tables: operations by writer, everything else by file."""
    units: list[Unit] = []
    for table in tables:
        if table == "ops":
            units += [(table, files) for files in history.writers.values()]
        else:
            units += [(table, (path,)) for path in history.files[table]]
    return units


@dataclass(frozen=True)
class Share:
    """The part of the blocks or queues that is a task's own: those whose number has the remainder
    `number` when divided by `of`."""

    number: int = 0
    of: int = 1


EVERYTHING = Share()
Exchange = Callable[[bytes], list[bytes]]  # a task's own bytes -> those of all tasks


def shares_of(spark: "SparkSession | None", units: list[Unit]) -> int:
    """Return into how many shares a check of these units is divided; 0: it is done in stages."""
    if spark is None or _size(units) < ONE_TASK_BYTES:
        return 1
    cores = local_cores(spark)
    spread = not cores and len(units) >= MOST_SHARES
    limit = CLUSTER_SHARED_BYTES if spread else SHARED_BYTES
    if _size(units) > limit and not 0 < cores <= MOST_SHARES:
        return 0
    return min(cores or MOST_SHARES, MOST_SHARES)


def in_shares(
    spark: "SparkSession | None",
    units: list[Unit],
    judge: Callable[[list[Unit], Share], Batches],
    answer: pa.Schema,
    shares: int,
    *,
    together: bool = False,
) -> pa.Table:
    """Judge all units in so many shares, and return what was found in all of them. `together`:
    the tasks run at the same time."""
    if spark is None or not units:
        every = [batch for n in range(shares) for batch in judge(units, Share(n, shares))]
        return pa.Table.from_batches(every, answer)

    def judge_share(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from judge(units, Share(number, shares))

    frame = spark.range(shares, numPartitions=shares)
    barrier = together and shares > 1
    table: pa.Table = frame.mapInArrow(judge_share, sql(answer), barrier=barrier).toArrow()
    return table


def in_shares_together(
    spark: "SparkSession | None",
    units: list[Unit],
    judge: Callable[[list[Unit], Share, Exchange], Batches],
    answer: pa.Schema,
    shares: int,
) -> pa.Table:
    """Judge all units in shares whose tasks run at the same time and may exchange some bytes."""

    def judge_share(units: list[Unit], share: Share) -> Batches:
        return judge(units, share, partial(_exchanged, Path(folder), share))

    with tempfile.TemporaryDirectory() as folder:
        return in_shares(spark, units, judge_share, answer, shares, together=True)


def _exchanged(folder: Path, share: Share, own: bytes) -> list[bytes]:
    """Exchange bytes by files: Spark's own barrier looks for answers once a second. Where another
    task failed, Spark ends this one, too, and starts all of them again, with the same bytes."""
    if share.of == 1:
        return [own]
    files = [folder / str(number) for number in range(share.of)]
    written = files[share.number].with_suffix(".tmp")
    written.write_bytes(own)
    written.rename(files[share.number])
    end = time.monotonic() + EXCHANGED_WITHIN_S
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise TimeoutError("another task of this check did not come to its end")
        time.sleep(LOOK_EVERY_S)
    return [file.read_bytes() for file in files]


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
    """Scan all units, bring their rows together `by` some columns, sort them `within` a task by
    others, and merge them. One task does all of it for a small history."""

    def scan_and_merge(unused: Batches) -> Batches:
        deque(unused, maxlen=0)
        rows = pa.Table.from_batches([b for unit in units for b in scan(unit)], partials)
        rows = rows.sort_by([(name, "ascending") for name in within])
        return merge(iter(rows.to_batches()))

    if spark is None:
        return pa.Table.from_batches(list(scan_and_merge(iter(()))), answer)
    if _size(units) < ONE_TASK_BYTES:
        one = spark.range(1, numPartitions=1).mapInArrow(scan_and_merge, sql(answer))
        only: pa.Table = one.toArrow()
        return only
    tasks = _tasks(spark, units)
    frame = _scanned(spark, units, scan, partials, tasks)
    if tasks > 1 or _size(units) > MERGED_BYTES:
        frame = frame.repartition(merge_tasks(spark, units), *by)
    frame = frame.sortWithinPartitions(*within)
    table: pa.Table = frame.mapInArrow(merge, sql(answer)).toArrow()
    return table


def collected(
    spark: "SparkSession | None",
    units: list[Unit],
    scan: Callable[[Unit], Batches],
    rows: pa.Schema,
) -> pa.Table:
    """Scan all units and return their few rows, in no particular order."""
    if spark is None:
        return pa.Table.from_batches([b for unit in units for b in scan(unit)], rows)
    table: pa.Table = _scanned(spark, units, scan, rows, _tasks(spark, units)).toArrow()
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


def merge_tasks(spark: "SparkSession", units: list[Unit]) -> int:
    """Return how many tasks merge the rows of some units: more for a larger history, so that a
    cluster has work for all of its cores."""
    least = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(least, _size(units) // MERGED_BYTES)


def _tasks(spark: "SparkSession", units: list[Unit]) -> int:
    if _size(units) < ONE_TASK_BYTES:
        return 1
    cores = local_cores(spark)
    return max(1, min(len(units), TASKS_A_CORE * cores) if cores else len(units))


def _size(units: list[Unit]) -> int:
    return sum(path.stat().st_size for _, paths in units for path in paths)


def local_cores(spark: "SparkSession") -> int:
    """Return the number of cores that a master on this machine uses; 0 for a cluster."""
    master = spark.conf.get("spark.master", "") or ""
    if not (found := LOCAL_MASTER.fullmatch(master)):
        return 0
    if found[1] == "*":  # as many as the JVM may use; a Connect client cannot ask it
        context = getattr(spark, "sparkContext", None)
        return context.defaultParallelism if context else 0
    return int(found[1] or 1)


# -------------------------------------------------------------------------- reading rows of files


def arrays(
    paths: Iterable[Path],
    columns: Sequence[str],
    afar: bool = False,
    narrow: bool = False,
    trivial: Mapping[str, int] | None = None,
) -> Iterator[dict[str, Ints]]:
    """Yield the rows of some files, a batch at a time, as arrays by column; -1 is null.

    afar     files in object storage are not fetched as a whole
    narrow   columns are as narrow as they are stored: for loops over rows, since arrays of them
             would lose bits when shifted
    trivial  columns that are not read, and null, where they have no number above these
    """
    for path in paths:
        types = TABLES[table_of(path)]
        for batch in batches(path, columns, afar, trivial=trivial):
            read = _columns(batch, narrow)
            for name in columns:
                if name not in read:
                    kind = types.field(name).type.to_pandas_dtype() if narrow else np.int64
                    read[name] = np.full(batch.num_rows, -1, kind)
            yield read


def chosen(
    paths: Iterable[Path],
    examined: Sequence[str],
    columns: Sequence[str],
    choose: Callable[[dict[str, Ints]], Ints],
) -> Iterator[dict[str, Ints]]:
    """Yield the few rows of some files that `choose` selects by the `examined` columns, which are
    as narrow as they are stored, with other columns; these are not read in pieces of a file that
    have no such row."""
    others = [name for name in columns if name not in examined]
    for path in paths:
        for read in pieces(path):
            known = read(examined)
            found = choose(_columns(known, narrow=True))
            if len(found):
                at = pa.array(found)
                yield _columns(known.take(at)) | _columns(read(others).take(at))


def _columns(batch: pa.RecordBatch, narrow: bool = False) -> dict[str, Ints]:
    arrays = {name: column(batch, name) for name in batch.schema.names}
    return arrays if narrow else {n: a.astype(np.int64, copy=False) for n, a in arrays.items()}


def column(batch: pa.RecordBatch, name: str) -> Array:
    """Return a column of integers, as wide as it is stored; -1 where it is null."""
    array = batch.column(batch.schema.get_field_index(name))
    numbers = _integers(array)
    if not array.null_count:
        return numbers
    known = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return np.where(known[array.offset :][: len(array)], numbers, numbers.dtype.type(-1))


def _integers(array: pa.Array) -> Array:
    """Return the values of an array, whatever they are where it is null. Arrow's own conversion
    would import pandas, which takes 0.2 s."""
    if not len(array):
        return np.zeros(0, str(array.type))
    return np.frombuffer(array.buffers()[1], str(array.type))[array.offset :][: len(array)]


# ------------------------------------------------------------------------------ schemas and rows


def row_type(record: type[Any]) -> pa.DataType:
    """Return the Arrow type of a dataclass or named tuple whose fields are integers."""
    names = getattr(record, "_fields", None) or [field.name for field in fields(record)]
    return pa.struct([(name, INT) for name in names])


def in_batches(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Batches:
    """Yield rows as batches of a schema; a missing value is null."""
    source = iter(rows)
    while some := list(islice(source, BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def int_columns(table: pa.Table) -> list[Ints]:
    """Return the columns of a table of integers as arrays."""
    whole = [column.combine_chunks() for column in table.columns]
    return [_integers(array) for array in whole]


def sql(schema: pa.Schema) -> "StructType":
    """Return a schema in Spark's types; as text it would have to be parsed by the JVM, where the
    first use of the parser takes 0.1 s."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
