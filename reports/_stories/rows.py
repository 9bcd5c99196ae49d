"""The few rows of a history that a story needs, found without Spark.

Only the columns of the condition are read; a row group is read whole if it has a matching row. A
history of millions of operations takes a second or two.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.history.reader import History, batches
from harness.history.schema import OPS
from harness.operation import F, Type

Row = Mapping[str, Any]
Place = tuple[int, int]  # key, offset

READING = (F.POLL, F.READ)
ABOUT_MESSAGES = (F.SEND, *READING)
ABOUT_METADATA = (F.CREATE, F.DELETE, F.SEE, F.COMMIT, F.RESET, F.QUERY, F.LOCK, F.UNLOCK)
DECIDING = ("value", "f", "op", "key", "offset")
PASSING = ("t", "process", "type", "f", "key", "offset", "value")
MAX_ROWS = 200_000


@dataclass(frozen=True)
class RowQuery:
    """Messages by value, operations by number, places of queues by key and offset."""

    values: tuple[int, ...] = ()
    ops: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.ops or self.places)


@dataclass(frozen=True)
class Pass:
    """The first message beyond a place that a process received after a given time."""

    t: int
    process: int
    offset: int
    value: int


def select_rows(history: History, wanted: RowQuery) -> list[Row]:
    """Return the matching rows of operations, in order of time; the first `MAX_ROWS` if there are
    more."""
    rows: list[Row] = []
    for path in history.files["ops"] if wanted else ():
        for batch in _batches_with(path, wanted):
            rows += batch.filter(_mask(batch, wanted)).to_pylist()
            if len(rows) > MAX_ROWS:
                break
    return sorted(rows, key=_order)[:MAX_ROWS]


def _order(row: Row) -> tuple[int, ...]:
    return (row["t"], row["op"], row["type"] != Type.INVOKE, row["pos"] is None, row["pos"] or 0)


def _batches_with(path: Path, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
    """Yield the parts of a file that may have matching rows."""
    if path.suffix != ".parquet":
        yield from batches(path)
        return
    if not _sound(path):
        return  # the verdict reports the damage
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            some = file.read_row_group(number, columns=list(DECIDING), use_threads=False)
            if any(pc.any(_mask(b, wanted)).as_py() for b in some.to_batches()):
                yield from file.read_row_group(number).to_batches()


def _sound(path: Path) -> bool:
    try:
        return bool(pq.read_schema(path).equals(OPS))
    except (pa.ArrowInvalid, OSError):
        return False


def _mask(batch: pa.RecordBatch, wanted: RowQuery) -> pa.Array:
    """Return which rows match."""
    mask = _among(batch["op"], wanted.ops)
    if wanted.values:
        sent = pc.and_(_among(batch["value"], wanted.values), _among(batch["f"], ABOUT_MESSAGES))
        mask = pc.or_(mask, sent)
    for key, offset in wanted.places:
        there = pc.and_(pc.equal(batch["key"], key), pc.equal(batch["offset"], offset))
        there = pc.and_(there, _among(batch["f"], ABOUT_MESSAGES))
        mask = pc.or_(mask, pc.and_(pc.fill_null(there, False), pc.is_valid(batch["value"])))
    return mask


def _among(column: pa.Array, numbers: Sequence[int]) -> pa.Array:
    wanted = pa.array([int(number) for number in numbers], column.type)
    return pc.fill_null(pc.is_in(column, value_set=wanted), False)


def passes(history: History, place: Place, since: int) -> list[Pass]:
    """Return, for each process that read beyond a place, the first message that it received
    there."""
    key, offset = place
    first: dict[int, Pass] = {}
    for path in history.files["ops"]:
        for batch in batches(path, PASSING):
            mask = pc.and_(pc.equal(batch["key"], key), pc.greater(batch["offset"], offset))
            mask = pc.and_(mask, pc.and_(_among(batch["f"], READING), pc.is_valid(batch["value"])))
            mask = pc.and_(pc.fill_null(mask, False), pc.greater_equal(batch["t"], since))
            beyond = pa.Table.from_batches([batch.filter(mask)])
            beyond = beyond.sort_by([("t", "ascending"), ("offset", "ascending")])
            _, heads = _first_of_each(beyond["process"].to_pylist())
            for row in beyond.take(pa.array(heads, pa.int64())).to_pylist():
                seen = Pass(row["t"], row["process"], row["offset"], row["value"])
                earlier = first.get(seen.process)
                if earlier is None or (seen.t, seen.offset) < (earlier.t, earlier.offset):
                    first[seen.process] = seen
    return sorted(first.values(), key=lambda one: (one.t, one.process))


def _first_of_each(numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the distinct numbers, and the first place of each."""
    heads: dict[int, int] = {}
    for at, number in enumerate(numbers):
        heads.setdefault(number, at)
    return list(heads), list(heads.values())


def stored_copies(history: History, wanted: RowQuery) -> tuple[list[Row], frozenset[int]]:
    """Return the rows of replicas' logs that match, and the replicas whose logs were read at
    all."""
    rows: list[Row] = []
    nodes: set[int] = set()
    for path in history.files["replicas"]:
        for batch in batches(path):
            nodes |= {node for node in pc.unique(batch["node"]).to_pylist() if node is not None}
            mask = _among(batch["value"], wanted.values)
            for key, offset in wanted.places:
                at = pc.and_(pc.equal(batch["key"], key), pc.equal(batch["offset"], offset))
                mask = pc.or_(mask, pc.fill_null(at, False))
            rows += batch.filter(mask).to_pylist()
    return rows[:MAX_ROWS], frozenset(nodes)


def missing_offsets(history: History, key: int, node: int, limit: int) -> list[int]:
    """Return the first `limit` offsets that a replica's log of a queue lacks between its first and
    its last: one corrupt offset can make a gap that does not fit into memory."""
    held: set[int] = set()
    for path in history.files["replicas"]:
        for batch in batches(path, ("node", "key", "offset")):
            mine = pc.and_(pc.equal(batch["key"], key), pc.equal(batch["node"], node))
            held |= set(batch.filter(pc.fill_null(mine, False))["offset"].to_pylist())
    held.discard(None)
    gaps = (range(before + 1, after) for before, after in pairwise(sorted(held)))
    return list(islice(chain.from_iterable(gaps), limit))


def last_changes(
    history: History, key: int, until: int, limit: int, value: int | None = None
) -> tuple[int, ...]:
    """Return the last operations on a topic, a group or a lock that began before a given time.
    `value`: the topic, if a key has several."""
    begun: list[tuple[int, int]] = []
    for path in history.files["ops"]:
        for batch in batches(path, ("t", "op", "type", "f", "key", "value")):
            mine = pc.and_(pc.equal(batch["key"], key), pc.equal(batch["type"], int(Type.INVOKE)))
            if value is not None:
                mine = pc.and_(mine, pc.equal(batch["value"], value))
            mine = pc.and_(mine, pc.less_equal(batch["t"], until))
            mine = pc.and_(pc.fill_null(mine, False), _among(batch["f"], ABOUT_METADATA))
            rows = batch.filter(mine)
            begun += zip(rows["t"].to_pylist(), rows["op"].to_pylist(), strict=True)
            begun = sorted(begun)[-limit:]
    return tuple(op for _, op in begun)
