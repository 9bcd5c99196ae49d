"""Transactions over logs of messages: what each sent to queues and polled from them.

An operation of several parts is a transaction. The order of a queue's log is that of its versions,
so offsets tell all dependencies at once: who sent a message came before who sent one behind it
(`ww`), and who sent it or one before it came before who polled it (`wr`). What somebody did not
poll tells nothing, since consumers read on as they please; so there is no `rw`, and a cycle is one
of writes or of writes and reads.

Conservative where the log is in doubt: a value at two offsets, an offset with two values, and a
value that two operations sent have no place in it; a refused send has none either.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checkers._cycles.arrays import (
    NULL,
    Bools,
    Ints,
    Lookup,
    counted,
    divided,
    group_numbers,
    group_starts,
    joined,
    unpack,
)
from checkers._cycles.blocks import BUCKETS, TRANSACTIONS, bucketed, by_block, packed_row
from checkers._cycles.edges import Edges, Kind, edges, together
from checkers._cycles.rows import (
    COLUMNS,
    FAIL,
    OK,
    Columns,
    Rows,
    Transactions,
    by_operation,
    chunks,
    transactions_of,
)
from checkers._spark.spark_stages import PARTIALS, Batches, Unit, reduced, units_of
from harness.history.reader import History
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Sends(Columns):
    """What transactions sent."""

    op: Ints
    key: Ints
    value: Ints
    status: Ints


@dataclass(frozen=True)
class Polls(Columns):
    """The furthest message of a queue that a committed transaction polled."""

    op: Ints
    key: Ints
    offset: Ints


@dataclass(frozen=True)
class Places(Columns):
    """Where somebody saw a message, or was told that it is; each once."""

    value: Ints
    key: Ints
    offset: Ints


@dataclass(frozen=True)
class Said:
    """What complete operations say."""

    transactions: Transactions
    sends: Sends
    polls: Polls
    places: Places


@dataclass(frozen=True)
class Gathered:
    """The transactions of a history, in order of `op`, and their dependencies."""

    transactions: Transactions
    edges: Edges


WIDTHS = (Sends.width(), Polls.width(), Places.width())


def gathered(history: History, spark: "SparkSession | None") -> Gathered:
    """Files first, then queues."""
    units, by = units_of(history, "ops"), ("block",)
    table = reduced(spark, units, scan, PARTIALS, merge, PARTIALS, by, by)
    transactions: list[list[Ints]] = []
    dependencies: list[list[Ints]] = []
    for block, data in zip(*(table.column(n).to_pylist() for n in (*by, "packed")), strict=True):
        (transactions if block == TRANSACTIONS else dependencies).append(unpack(data))
    found = Transactions(*joined(transactions, Transactions.width()))
    order = np.argsort(found.op, kind="stable")
    return Gathered(found.at(order), Edges(*joined(dependencies, Edges.width())))


# ----------------------------------------------------------------------------- first stage: files


def scan(unit: Unit) -> Batches:
    for rows in chunks(unit[1], (*COLUMNS, "offset")):
        yield from _packed(said(rows))


def said(rows: Rows) -> Said:
    """What these rows say, when no more will come of their operations."""
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
    asked = np.zeros(len(starts), np.bool_)
    asked[of[sent & (rows["type"] == Type.INVOKE)]] = True
    sent &= np.where(asked[of], rows["type"] == Type.INVOKE, rows["type"] == Type.OK)
    return Said(
        transactions.at(several),
        Sends(
            rows["op"][sent], rows["key"][sent], rows["value"][sent], transactions.status[of[sent]]
        ),
        _furthest(rows, part & placed & ~sending & (transactions.status[of] == OK)),
        _once(rows, placed & (part | ~sending)),
    )


def _furthest(rows: Rows, mask: Bools) -> Polls:
    polls = Polls(*(rows[name][mask] for name in ("op", "key", "offset")))
    polls = polls.at(np.lexsort((polls.offset, polls.key, polls.op)))
    heads = group_starts(polls.op, polls.key)
    return polls.at(np.append(heads[1:], len(polls)) - 1 if len(heads) else heads)


def _once(rows: Rows, mask: Bools) -> Places:
    return _distinct(Places(*(rows[name][mask] for name in ("value", "key", "offset"))))


def _distinct(places: Places) -> Places:
    """Each once, by key, offset and value."""
    places = places.at(np.lexsort((places.value, places.offset, places.key)))
    return places.at(group_starts(places.key, places.offset, places.value))


def _packed(what: Said) -> Batches:
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
            yield packed_row(block, *joined(parts, Transactions.width()))
            continue
        columns = joined(parts, sum(WIDTHS))
        sends, polls, places = divided(columns, WIDTHS)
        found = dependencies(Sends(*sends), Polls(*polls), Places(*places))
        yield packed_row(block, *found.columns())


def dependencies(sends: Sends, polls: Polls, places: Places) -> Edges:
    """The edges between transactions of some queues; `a` and `b` are offsets."""
    sends, offset = _log(sends, _certain(places))
    same = np.flatnonzero(sends.key[1:] == sends.key[:-1])
    pair = offset[same], offset[same + 1]
    after = edges(sends.op[same], sends.op[same + 1], Kind.WW, sends.key[same], *pair)
    last = counted(sends.key, offset, polls.key, polls.offset) - 1
    there = last >= 0
    there[there] &= sends.key[last[there]] == polls.key[there]
    read, sent = polls.at(there), last[there]
    seen = edges(sends.op[sent], read.op, Kind.WR, read.key, offset[sent], read.offset)
    return together([after, seen])


def _log(sends: Sends, places: Places) -> tuple[Sends, Ints]:
    """Sends that have a place in a log, in its order, and their offsets."""
    sends = sends.at(np.lexsort((sends.op, sends.value, sends.key)))
    sends = sends.at(_alone(sends.key, sends.value) & (sends.status != FAIL))
    at = Lookup(places.key, places.value).at(sends.key, sends.value)
    sends, offset = sends.at(at >= 0), places.offset[at[at >= 0]]
    order = np.lexsort((offset, sends.key))
    return sends.at(order), offset[order]


def _certain(places: Places) -> Places:
    """Those of messages with one place, which is no other's."""
    places = _distinct(places)
    shared = ~_alone(places.key, places.offset)
    order = np.lexsort((places.offset, places.value, places.key))
    moved = np.empty(len(places), np.bool_)
    moved[order] = ~_alone(places.key[order], places.value[order])
    return places.at(~shared & ~moved)


def _alone(*columns: Ints) -> Bools:
    """Of rows whose equals lie together: has it none?"""
    starts = group_starts(*columns)
    numbers = group_numbers(starts, len(columns[0]))
    alone: Bools = np.bincount(numbers, minlength=1)[numbers] == 1
    return alone
