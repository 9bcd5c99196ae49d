"""Transactions over logs of messages: the messages that each sent to queues and polled from them.

An operation of several parts is a transaction. The order of a queue's log is that of its versions,
so offsets show all dependencies: the sender of a message came before the senders of later ones
(`ww`), and before all that polled it or a later one (`wr`). Messages that were not polled show
nothing, because consumers read at their own pace; so there is no `rw`, and a cycle is one of writes
or of writes and reads.

Conservative where the log is ambiguous: a value at two offsets, an offset with two values, and a
value that two operations sent have no place in it; neither has a refused send.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checkers._cycles.arrays import (
    NULL,
    Bools,
    Ints,
    Lookup,
    concat_packs,
    count_until,
    group_numbers,
    group_starts,
    split_tables,
    unpack,
)
from checkers._cycles.blocks import BUCKETS, TRANSACTIONS, bucketed, by_block, packed_row
from checkers._cycles.edges import EdgeKind, Edges, concat_edges, make_edges
from checkers._cycles.rows import (
    COLUMNS,
    FAIL,
    OK,
    ColumnTable,
    Rows,
    Transactions,
    by_operation,
    row_chunks,
    transactions_of,
)
from checkers._spark.spark_stages import PARTIALS, Batches, Unit, reduced, units_of
from harness.history.reader import History
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Sends(ColumnTable):
    """Messages that transactions sent."""

    op: Ints
    key: Ints
    value: Ints
    status: Ints


@dataclass(frozen=True)
class FurthestPolls(ColumnTable):
    """The furthest message of a queue that a committed transaction polled."""

    op: Ints
    key: Ints
    offset: Ints


@dataclass(frozen=True)
class Places(ColumnTable):
    """Places of messages that were read or acknowledged, each once."""

    value: Ints
    key: Ints
    offset: Ints


@dataclass(frozen=True)
class LogAccesses:
    """Accesses of complete operations."""

    transactions: Transactions
    sends: Sends
    polls: FurthestPolls
    places: Places


@dataclass(frozen=True)
class LogHistory:
    """The transactions of a history, in order of `op`, and their dependencies."""

    transactions: Transactions
    edges: Edges


WIDTHS = (Sends.width(), FurthestPolls.width(), Places.width())


def collect_log_transactions(history: History, spark: "SparkSession | None") -> LogHistory:
    """Return the transactions of a history: first by file, then by queue."""
    units, by = units_of(history, "ops"), ("block",)
    table = reduced(spark, units, scan, PARTIALS, merge, PARTIALS, by, by)
    transactions: list[list[Ints]] = []
    dependencies: list[list[Ints]] = []
    for block, data in zip(*(table.column(n).to_pylist() for n in (*by, "packed")), strict=True):
        (transactions if block == TRANSACTIONS else dependencies).append(unpack(data))
    found = Transactions(*concat_packs(transactions, Transactions.width()))
    order = np.argsort(found.op, kind="stable")
    return LogHistory(found.at(order), Edges(*concat_packs(dependencies, Edges.width())))


# ----------------------------------------------------------------------------- first stage: files


def scan(unit: Unit) -> Batches:
    for rows in row_chunks(unit[1], (*COLUMNS, "offset")):
        yield from _packed(log_accesses(rows))


def log_accesses(rows: Rows) -> LogAccesses:
    """Return the accesses of rows whose operations have no rows elsewhere."""
    ours = np.isin(rows["f"], (F.SEND, F.POLL, F.READ))
    rows, of, starts = by_operation({name: column[ours] for name, column in rows.items()})
    transactions = transactions_of(rows, starts)
    several = np.zeros(len(starts), np.bool_)
    several[of[rows["mop"] > 0]] = True
    part = several[of]
    message = (rows["key"] >= 0) & (rows["value"] != NULL)
    placed = message & (rows["type"] == Type.OK) & (rows["offset"] >= 0)
    sending = rows["f"] == F.SEND
    sent = part & message & sending
    invoked = np.zeros(len(starts), np.bool_)
    invoked[of[sent & (rows["type"] == Type.INVOKE)]] = True
    sent &= np.where(invoked[of], rows["type"] == Type.INVOKE, rows["type"] == Type.OK)
    return LogAccesses(
        transactions.at(several),
        Sends(
            rows["op"][sent], rows["key"][sent], rows["value"][sent], transactions.status[of[sent]]
        ),
        _furthest(rows, part & placed & ~sending & (transactions.status[of] == OK)),
        _once(rows, placed & (part | ~sending)),
    )


def _furthest(rows: Rows, mask: Bools) -> FurthestPolls:
    polls = FurthestPolls(*(rows[name][mask] for name in ("op", "key", "offset")))
    polls = polls.at(np.lexsort((polls.offset, polls.key, polls.op)))
    heads = group_starts(polls.op, polls.key)
    return polls.at(np.append(heads[1:], len(polls)) - 1 if len(heads) else heads)


def _once(rows: Rows, mask: Bools) -> Places:
    return _distinct(Places(*(rows[name][mask] for name in ("value", "key", "offset"))))


def _distinct(places: Places) -> Places:
    """Return the distinct rows, by key, offset and value."""
    places = places.at(np.lexsort((places.value, places.offset, places.key)))
    return places.at(group_starts(places.key, places.offset, places.value))


def _packed(what: LogAccesses) -> Batches:
    yield packed_row(TRANSACTIONS, *what.transactions.columns())
    sends, polls, places = bucketed(what.sends), bucketed(what.polls), bucketed(what.places)
    for bucket in range(BUCKETS):
        columns = (sends(bucket), polls(bucket), places(bucket))
        if any(len(c) for c in columns):
            yield packed_row(bucket, *(column for c in columns for column in c.columns()))


# ---------------------------------------------------------------------------- second stage: queues


def merge(partials: Batches) -> Batches:
    for block, parts in by_block(partials):
        if block == TRANSACTIONS:
            yield packed_row(block, *concat_packs(parts, Transactions.width()))
            continue
        columns = concat_packs(parts, sum(WIDTHS))
        sends, polls, places = split_tables(columns, WIDTHS)
        found = dependencies(Sends(*sends), FurthestPolls(*polls), Places(*places))
        yield packed_row(block, *found.columns())


def dependencies(sends: Sends, polls: FurthestPolls, places: Places) -> Edges:
    """Return the edges between transactions of some queues; `a` and `b` are offsets."""
    sends, offset = _log(sends, _certain(places))
    same = np.flatnonzero(sends.key[1:] == sends.key[:-1])
    pair = offset[same], offset[same + 1]
    after = make_edges(sends.op[same], sends.op[same + 1], EdgeKind.WW, sends.key[same], *pair)
    last = count_until(sends.key, offset, polls.key, polls.offset) - 1
    there = last >= 0
    there[there] &= sends.key[last[there]] == polls.key[there]
    read, sent = polls.at(there), last[there]
    seen = make_edges(sends.op[sent], read.op, EdgeKind.WR, read.key, offset[sent], read.offset)
    return concat_edges([after, seen])


def _log(sends: Sends, places: Places) -> tuple[Sends, Ints]:
    """Return the sends that have a place in a log, in its order, and their offsets."""
    sends = sends.at(np.lexsort((sends.op, sends.value, sends.key)))
    sends = sends.at(_alone(sends.key, sends.value) & (sends.status != FAIL))
    at = Lookup(places.key, places.value).at(sends.key, sends.value)
    sends, offset = sends.at(at >= 0), places.offset[at[at >= 0]]
    order = np.lexsort((offset, sends.key))
    return sends.at(order), offset[order]


def _certain(places: Places) -> Places:
    """Return the places of messages with one place that no other message has."""
    places = _distinct(places)
    shared = ~_alone(places.key, places.offset)
    order = np.lexsort((places.offset, places.value, places.key))
    moved = np.empty(len(places), np.bool_)
    moved[order] = ~_alone(places.key[order], places.value[order])
    return places.at(~shared & ~moved)


def _alone(*columns: Ints) -> Bools:
    """Return for each row whether no other row equals it; equal rows are adjacent."""
    starts = group_starts(*columns)
    numbers = group_numbers(starts, len(columns[0]))
    alone: Bools = np.bincount(numbers, minlength=1)[numbers] == 1
    return alone
