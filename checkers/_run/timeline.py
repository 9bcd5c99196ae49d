"""One pass over the operations that says *how many, when and how fast*.

Coverage, recovery and availability have questions of the same kind, so they share one pass, and
the report draws its lanes from the same numbers. Each file of operations is reduced to *cells*:
rows of a few integers whose keys are small (a bin of time, a latency bucket, a window, a mark).
Cells are merged by adding counts and taking the least `lo` and the greatest `hi`, in any order, so
files are read in parallel and only cells are sent between processes.

    OPS       set, f, type, bin            operations invoked and completed
    MESSAGES  set, f, bin                  messages that polls returned
    LATENCY   set, bin, bucket             acknowledged sends, sixteen buckets per octave
    WITHIN    set, span, bucket            the same, of those acknowledged within some windows
    ACKED     set, fine bin                first and last acknowledgement: gaps are exact
    WINDOW    set, f, type, window         operations in a stretch of the run
    FLIGHT    set, f, window               operations open at some moment of it; a poll only if it
                                           failed or returned a message, since one that waits at
                                           the end of a queue is not being served
    LEFT      set, f, window               operations open at its end
    ANSWER    set, f, mark                 `lo`: first success among those invoked after the mark;
                                           of polls, the first message
    SENT      set                          first and last invocation of a send
    IN_VAIN   set, fine bin                sends that ended there and were not acknowledged, or
                                           never ended: first and last invocation
    FAILURE   set, mark, start             `lo`: first unsuccessful send after the mark, and when
                                           it had been invoked
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers._spark.spark_stages import Batches, Unit, reduced, units_of
from harness.history.journal import writer_of
from harness.history.reader import History, looked_up
from harness.history.reader import batches as read
from harness.operation import DELIVERIES, SENDS, F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CHUNK_ROWS = 1 << 18
OCTAVE_BUCKETS = 16  # a quantile is within 4.5 % of the truth
MIN_NS = 1_000
KEYS = ("what", "set", "f", "type", "slot", "slot2")
COLUMNS = ("t", "op", "type", "f", "key", "pos")  # of ops
NO_SET = -1  # of a key that is in no broker set
IDLING = (*DELIVERIES, F.READ, F.WATCH)  # may wait for new messages
SCHEMA = pa.schema([(name, pa.int64()) for name in (*KEYS, "n", "lo", "hi")])
NEVER = np.iinfo(np.int64).max  # the bin of operations that did not end
NOTHING_LO, NOTHING_HI = np.iinfo(np.int64).max, np.iinfo(np.int64).min


class CellKind(IntEnum):
    OPS = 0
    MESSAGES = 1
    LATENCY = 2
    ACKED = 3
    WINDOW = 4
    ANSWER = 5
    FAILURE = 6
    SENT = 7
    FLIGHT = 8
    LEFT = 9
    IN_VAIN = 10
    WITHIN = 11


@dataclass(frozen=True)
class TimelineQuery:
    """What to measure. `set_of_key[k]` is the number of key k's broker set; empty if there is one
    set. A span is a range of windows, by number; where they overlap, latencies count once."""

    bin_ns: int
    fine_ns: int
    windows: tuple[tuple[int, int], ...] = ()
    spans: tuple[range, ...] = ()
    marks: tuple[int, ...] = ()
    set_of_key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineRows:
    """Some rows of ops: columns, when each row's operation was invoked (-1: not known), which are
    completions of polls that returned messages, and which are answers of a cluster that serves."""

    t: Ints
    op: Ints
    type: Ints
    f: Ints
    set: Ints
    single: Bools  # not a message of a batch
    invoked: Ints
    brought: Bools
    answered: Bools  # a success, or refused because of the state of the key

    def where(self, mask: Bools) -> "TimelineRows":
        return self.at(np.flatnonzero(mask))

    def at(self, rows: Ints | slice) -> "TimelineRows":
        return TimelineRows(*(getattr(self, name)[rows] for name in self.__slots__))


def _nothing() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class OpenOperations:
    """Operations that are still open: numbers, times of invocation, kinds, broker sets, and the
    numbers of those that have returned messages."""

    op: Ints = field(default_factory=_nothing)
    t: Ints = field(default_factory=_nothing)
    f: Ints = field(default_factory=_nothing)
    set: Ints = field(default_factory=_nothing)
    brought: Ints = field(default_factory=_nothing)


def cells(batches: Iterable[pa.RecordBatch], query: TimelineQuery, spread_ns: int = 0) -> pa.Table:
    """Return the cells of one writer's operations, in their order. Each operation was recorded
    `spread_ns` longer than it was."""
    carry = OpenOperations()
    tables: list[pa.Table] = [SCHEMA.empty_table()]
    for table in _chunks(batches):
        rows, carry = _paired(table, query, carry)
        tables.append(merge(_measured(rows, query, spread_ns)))
    return merge([*tables, _never_ended(carry)])


def merge(tables: Iterable[pa.Table]) -> pa.Table:
    """Return all cells merged (sum of counts, least `lo`, greatest `hi`), in order of keys."""
    together = pa.concat_tables([SCHEMA.empty_table(), *tables])
    summed = together.group_by(list(KEYS), use_threads=False).aggregate(
        [("n", "sum"), ("lo", "min"), ("hi", "max")]
    )
    renamed = summed.select([*KEYS, "n_sum", "lo_min", "hi_max"]).rename_columns(SCHEMA.names)
    return renamed.cast(SCHEMA).sort_by([(name, "ascending") for name in KEYS])


def measure(history: History, query: TimelineQuery, spark: "SparkSession | None") -> pa.Table:
    """Return the cells of all operations, merged by Spark."""
    spreads = {writer: history.spread_ns(writer) for writer in history.writers}

    def scan(unit: Unit) -> Batches:
        _, paths = unit
        rows = (batch for path in paths for batch in read(path, COLUMNS))
        yield from cells(rows, query, spreads[writer_of(paths[0])]).to_batches()

    def together(parts: Batches) -> Batches:
        yield from merge([pa.Table.from_batches(parts, SCHEMA)]).to_batches()

    units = units_of(history, "ops")
    return merge([reduced(spark, units, scan, SCHEMA, together, SCHEMA, ("what", "slot"), KEYS)])


def bucket_of(latency_ns: Ints) -> Ints:
    """Return the latency buckets: sixteen per octave, from one microsecond."""
    ratio = np.maximum(latency_ns, MIN_NS) / MIN_NS
    buckets: Ints = np.floor(np.log2(ratio) * OCTAVE_BUCKETS).astype(np.int64)
    return buckets


def latency_ms(bucket: int) -> float:
    """Return the middle of a bucket, in milliseconds."""
    return float(MIN_NS * 2 ** ((bucket + 0.5) / OCTAVE_BUCKETS) / 1e6)


# ------------------------------------------------------------------------------------- kernel


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches joined to chunks that are worth a pass of numpy."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if count >= CHUNK_ROWS:
            yield pa.Table.from_batches(pending)
            pending, count = [], 0
    if count:
        yield pa.Table.from_batches(pending)


def _paired(
    table: pa.Table, query: TimelineQuery, carry: OpenOperations
) -> tuple[TimelineRows, OpenOperations]:
    """Return rows with the times of their invocations, and the operations that are still open."""
    t, op, kind, f = (_column(table, name) for name in ("t", "op", "type", "f"))
    pos = _column(table, "pos")
    single = (pos < 0) | (kind != Type.OK)
    answered = single & ((kind == Type.OK) | ((kind == Type.FAIL) & (pos == 0)))
    starts = kind == Type.INVOKE
    sets = _sets(table, query)
    open_op = np.concatenate([carry.op, op[starts]])
    order = np.argsort(open_op, kind="stable")
    open_op = open_op[order]
    open_t, open_f, open_set = (
        np.concatenate([mine, column[starts]])[order]
        for mine, column in ((carry.t, t), (carry.f, f), (carry.set, sets))
    )
    given = np.unique(np.concatenate([carry.brought, op[~single]]))
    brought = np.zeros(len(op), np.bool_)
    ended = np.flatnonzero(single & ~starts & np.isin(f, IDLING))
    brought[ended] = looked_up(op[ended], given, given) >= 0
    invoked = looked_up(op, open_op, open_t)
    rows = TimelineRows(t, op, kind, f, sets, single, invoked, brought, answered)
    closed = np.sort(op[~starts & single])
    still = looked_up(open_op, closed, closed) < 0
    given = given[looked_up(given, closed, closed) < 0]
    return rows, OpenOperations(
        open_op[still], open_t[still], open_f[still], open_set[still], given
    )


def _measured(rows: TimelineRows, query: TimelineQuery, spread_ns: int) -> list[pa.Table]:
    single = rows.where(rows.single)
    messages = rows.where(~rows.single)
    sends = single.where(np.isin(single.f, SENDS))
    sent = sends.where(sends.type == Type.INVOKE)
    sends = sends.where(sends.type != Type.INVOKE)
    acked, in_vain = sends.where(sends.type == Type.OK), sends.where(sends.type != Type.OK)
    return [
        _counted(CellKind.OPS, single, single.t // query.bin_ns),
        _counted(CellKind.MESSAGES, messages, messages.t // query.bin_ns),
        *_latencies(acked.where(acked.invoked >= 0), query, spread_ns),
        _extremes(CellKind.ACKED, acked, acked.t // query.fine_ns),
        _extremes(CellKind.SENT, sent, np.zeros(len(sent.t), np.int64)),
        *_windows(single, query),
        *_flights(single, query),
        *_answers(single.where(single.answered & ~np.isin(single.f, IDLING)), query),
        *_answers(messages, query),
        *_failures(in_vain, query),
        _in_vain(in_vain.set, in_vain.t // query.fine_ns, in_vain.invoked),
    ]


def _in_vain(group: Ints, slot: Ints, invoked: Ints) -> pa.Table:
    zero = np.zeros(len(group), np.int64)
    return _cells(CellKind.IN_VAIN, group, zero + F.SEND, zero, slot, lo=invoked, hi=invoked)


def _never_ended(carry: OpenOperations) -> pa.Table:
    """Return the cells of sends that never completed."""
    sends = np.flatnonzero(np.isin(carry.f, SENDS))
    return _in_vain(carry.set[sends], np.full(len(sends), NEVER, np.int64), carry.t[sends])


def _counted(what: CellKind, rows: TimelineRows, slot: Ints, slot2: Ints | None = None) -> pa.Table:
    return _cells(what, rows.set, rows.f, rows.type, slot, slot2)


def _latencies(acked: TimelineRows, query: TimelineQuery, spread_ns: int) -> Iterator[pa.Table]:
    """Yield cells of latencies, at the time of the acknowledgement; `hi` is the exact maximum."""
    took = acked.t - acked.invoked - spread_ns
    bucket = bucket_of(took)
    where = (acked.set, acked.f, acked.type)
    yield _cells(CellKind.LATENCY, *where, acked.t // query.bin_ns, bucket, lo=took, hi=took)
    for number, span in enumerate(query.spans):
        inside = np.flatnonzero(_within(acked.t, [query.windows[window] for window in span]))
        slot = np.full(len(inside), number, np.int64)
        group, f, kind = (column[inside] for column in where)
        worst = took[inside]
        yield _cells(CellKind.WITHIN, group, f, kind, slot, bucket[inside], lo=worst, hi=worst)


def _within(t: Ints, windows: Iterable[tuple[int, int]]) -> Bools:
    """Return which moments are in a window: more windows had begun than ended."""
    begins, ends = np.sort(np.array(list(windows), np.int64).reshape(-1, 2), axis=0).T
    mask: Bools = np.searchsorted(begins, t, "right") > np.searchsorted(ends, t, "right")
    return mask


def _extremes(what: CellKind, rows: TimelineRows, slot: Ints) -> pa.Table:
    return _cells(what, rows.set, rows.f, rows.type, slot, lo=rows.t, hi=rows.t)


def _windows(single: TimelineRows, query: TimelineQuery) -> Iterator[pa.Table]:
    """Yield cells of windows, each of which is a slice of the rows in order of time."""
    if len(single.t) and (np.diff(single.t) < 0).any():
        single = single.at(np.argsort(single.t, kind="stable"))
    for number, window in enumerate(query.windows):
        low, high = np.searchsorted(single.t, window)
        if high > low:
            inside = single.at(slice(low, high))
            yield _counted(CellKind.WINDOW, inside, np.full(high - low, number, np.int64))


def _flights(single: TimelineRows, query: TimelineQuery) -> Iterator[pa.Table]:
    """Yield for each window the operations invoked before its end, less those completed before its
    begin (FLIGHT) or before its end (LEFT)."""
    if not query.windows:
        return
    begins, ends = np.asarray(query.windows, np.int64).T
    for mine in _groups(single):
        group, f = mine.set[0], mine.f[0]
        starts = mine.type == Type.INVOKE
        invoked, completed = np.sort(mine.t[starts]), np.sort(mine.t[~starts])
        begun, done = np.searchsorted(invoked, ends), np.searchsorted(completed, ends)
        yield _in_windows(CellKind.LEFT, group, f, begun - done)
        if f in IDLING:
            served = mine.where(
                ~starts & (mine.invoked >= 0) & (mine.brought | (mine.type != Type.OK))
            )
            begun = np.searchsorted(np.sort(served.invoked), ends)
            completed = np.sort(served.t)
        yield _in_windows(CellKind.FLIGHT, group, f, begun - np.searchsorted(completed, begins))


def _in_windows(what: CellKind, group: int, f: int, count: Ints) -> pa.Table:
    zero = np.zeros(len(count), np.int64)
    return _cells(what, zero + group, zero + f, zero, np.arange(len(count)), n=count)


def _answers(successes: TimelineRows, query: TimelineQuery) -> Iterator[pa.Table]:
    """Yield for each mark the first success among the operations invoked after it."""
    marks = np.asarray(query.marks, np.int64)
    for rows in _groups(successes):
        rows = rows.at(np.argsort(rows.invoked, kind="stable"))
        first = np.minimum.accumulate(rows.t[::-1])[::-1]
        at = np.searchsorted(rows.invoked, marks)
        some = np.flatnonzero(at < len(first))
        found = rows.at(at[some])
        t = first[at[some]]
        yield _cells(CellKind.ANSWER, found.set, found.f, found.type, some, lo=t, hi=t)


def _failures(failures: TimelineRows, query: TimelineQuery) -> Iterator[pa.Table]:
    """Yield for each mark the first unsuccessful send after it, and when that was invoked."""
    marks = np.asarray(query.marks, np.int64)
    for rows in _groups(failures):
        rows = rows.at(np.argsort(rows.t, kind="stable"))
        at = np.searchsorted(rows.t, marks)
        some = np.flatnonzero(at < len(rows.t))
        found = rows.at(at[some])
        kind = np.zeros(len(some), np.int64)
        yield _cells(
            CellKind.FAILURE, found.set, found.f, kind, some, found.invoked, lo=found.t, hi=found.t
        )


def _groups(rows: TimelineRows) -> Iterator[TimelineRows]:
    """Yield the rows of each broker set and kind of operation."""
    kind = rows.set * 128 + rows.f
    for one in np.unique(kind):
        yield rows.where(kind == one)


def _cells(
    what: CellKind,
    group: Ints,
    f: Ints,
    kind: Ints,
    slot: Ints,
    slot2: Ints | None = None,
    lo: Ints | None = None,
    hi: Ints | None = None,
    n: Ints | None = None,
) -> pa.Table:
    """Return cells with these columns."""
    count = len(group)
    columns: Mapping[str, Any] = {
        "what": np.full(count, int(what), np.int64),
        "set": group,
        "f": f,
        "type": kind,
        "slot": slot,
        "slot2": np.zeros(count, np.int64) if slot2 is None else slot2,
        "n": np.ones(count, np.int64) if n is None else n,
        "lo": np.full(count, NOTHING_LO, np.int64) if lo is None else lo,
        "hi": np.full(count, NOTHING_HI, np.int64) if hi is None else hi,
    }
    return pa.table(dict(columns), schema=SCHEMA)


def _column(table: pa.Table, name: str) -> Ints:
    """Return an integer column as int64; null is -1."""
    values: Ints = table.column(name).cast(pa.int64()).fill_null(-1).to_numpy()
    return values


def _sets(table: pa.Table, query: TimelineQuery) -> Ints:
    key = _column(table, "key")
    if not query.set_of_key:
        return np.zeros(len(key), np.int64)
    known = np.asarray((*query.set_of_key, NO_SET), np.int64)
    return known[np.where((key >= 0) & (key < len(known) - 1), key, len(known) - 1)]
