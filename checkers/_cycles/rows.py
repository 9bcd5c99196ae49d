"""From rows of the history to transactions, appends and reads: one worker's files.

A transaction is an operation with rows of APPEND, LIST, GET, PUT or CAS; an operation without
micro-operations is a transaction of one. It committed if it completed `ok`, aborted if it failed,
and is otherwise of unknown outcome. Its writes are in its invocation, its reads in its rows of
`ok`. A read after appends of the transaction's own to that list must end with them; the elements
before them are the state that it read.

The operations of one process are in one writer's files, in time order. Rows are processed in
chunks; rows of operations that may continue after a chunk's end wait for the next chunk.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import NULL, Bools, Ints, group_numbers, group_starts
from harness.history.reader import batches
from harness.operation import F, Type

COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "arg", "pos", "mop")
CHUNK_ROWS = 1 << 20
OK, FAIL, INFO = int(Type.OK), int(Type.FAIL), int(Type.INFO)
NEVER = int(np.iinfo(np.int64).max >> 2)  # the end of a transaction of unknown outcome
KINDS = np.array([F.APPEND, F.LIST, F.GET, F.PUT, F.CAS], np.int64)

Rows = dict[str, Ints]


@dataclass(frozen=True)
class ColumnTable:
    """Rows by column."""

    def columns(self) -> list[Ints]:
        return [getattr(self, field.name) for field in fields(self)]

    def at(self, rows: Ints | Bools) -> Self:
        return type(self)(*(column[rows] for column in self.columns()))

    def __len__(self) -> int:
        return len(self.columns()[0])

    @classmethod
    def width(cls) -> int:
        return len(fields(cls))


@dataclass(frozen=True)
class Transactions(ColumnTable):
    """`begin` and `end` in nanoseconds; `status`: OK, FAIL or INFO."""

    op: Ints
    process: Ints
    begin: Ints
    end: Ints
    status: Ints


@dataclass(frozen=True)
class Accesses(ColumnTable):
    """Reads and writes of keys, in the order of the transaction: `step`.

    value   written or read; NULL: the register had none; of a list read: its number
    """

    op: Ints
    key: Ints
    step: Ints
    value: Ints
    of: Ints  # number of the transaction in the chunk


@dataclass(frozen=True)
class TransactionChunk:
    """Accesses of complete operations. `elements` of list i: `length[i]` of them, one after
    another."""

    transactions: Transactions
    appends: Accesses
    lists: Accesses
    length: Ints
    elements: Ints
    puts: Accesses
    gets: Accesses


def read_transactions(paths: Iterable[Path]) -> Iterator[TransactionChunk]:
    """Return one writer's transactions, a chunk at a time."""
    return map(transaction_chunk, row_chunks(paths))


def row_chunks(paths: Iterable[Path], columns: Sequence[str] = COLUMNS) -> Iterator[Rows]:
    """Yield the rows of one writer's files; all rows of an operation are in one chunk."""
    waiting: list[Rows] = []
    count = 0
    for path in paths:
        for batch in batches(path, columns):
            rows = {name: _column(batch, name) for name in columns}
            waiting.append(rows)
            count += len(rows["t"])
            if count >= CHUNK_ROWS:
                ready, rest = _settled(_together(waiting))
                waiting, count = [rest], 0
                yield ready
    if waiting:
        yield _together(waiting)


def transaction_chunk(rows: Rows) -> TransactionChunk:
    """Return the accesses of rows whose operations have no rows elsewhere."""
    rows, of, starts = by_operation(_ours(rows))
    transactions = transactions_of(rows, starts)
    invoked = rows["type"][starts] == Type.INVOKE
    writing = (rows["type"] == Type.INVOKE) | (~invoked[of] & (rows["type"] == Type.OK))
    writing &= (rows["key"] >= 0) & ((rows["value"] != NULL) | (rows["f"] == F.CAS))
    reading = (rows["type"] == Type.OK) & (transactions.status[of] == OK) & (rows["key"] >= 0)

    def moves(mask: Bools, f: F, column: str, step: int) -> Accesses:
        at = np.flatnonzero(mask & (rows["f"] == f))
        steps = 2 * rows["mop"][at] + step
        return Accesses(rows["op"][at], rows["key"][at], steps, rows[column][at], of[at])

    lists, length, elements = _lists(rows, np.flatnonzero(reading & (rows["f"] == F.LIST)), of)
    return TransactionChunk(
        transactions,
        moves(writing, F.APPEND, "value", 1),
        lists,
        length,
        elements,
        _both(moves(writing, F.PUT, "value", 1), moves(writing, F.CAS, "arg", 1)),
        _both(moves(reading, F.GET, "value", 0), moves(reading, F.CAS, "value", 0)),
    )


def by_operation(rows: Rows) -> tuple[Rows, Ints, Ints]:
    """Return the rows by operation, in time order within one; each row's operation; the starts."""
    order = np.argsort(rows["op"], kind="stable")
    rows = {name: column[order] for name, column in rows.items()}
    starts = group_starts(rows["op"])
    return rows, group_numbers(starts, len(order)), starts


def transactions_of(rows: Rows, starts: Ints) -> Transactions:
    """Return the transactions of rows sorted by operation, in time order within one."""
    ends = np.append(starts[1:], len(rows["op"])) - 1 if len(starts) else starts

    def some(kind: Type) -> Bools:
        if not len(starts):
            return np.empty(0, np.bool_)
        found: Bools = np.logical_or.reduceat(rows["type"] == kind, starts)
        return found

    unknown = some(Type.INFO) | ~(some(Type.OK) | some(Type.FAIL))
    status = np.where(unknown, INFO, np.where(some(Type.FAIL), FAIL, OK))
    end = np.where(status == INFO, NEVER, rows["t"][ends])
    begin = rows["t"][starts]
    return Transactions(rows["op"][starts], rows["process"][starts], begin, end, status)


def _lists(rows: Rows, at: Ints, of: Ints) -> tuple[Accesses, Ints, Ints]:
    """Return list reads, from one row for each element, and one row without a value at the end."""
    op, mop, pos = rows["op"][at], rows["mop"][at], rows["pos"][at]
    place = np.where(pos < 0, np.iinfo(np.int64).max, pos)
    same = (op[1:] == op[:-1]) & (mop[1:] == mop[:-1])
    sorted_already = (op[1:] == op[:-1]) & (mop[1:] < mop[:-1]) | same & (place[1:] < place[:-1])
    if sorted_already.any():
        order = np.lexsort((place, mop, op))
        at, op, mop, pos = at[order], op[order], mop[order], pos[order]
        same = (op[1:] == op[:-1]) & (mop[1:] == mop[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~same])) if len(at) else at
    inside = pos >= 0
    ends = np.append(starts[1:], len(at)) if len(starts) else starts
    counted = np.concatenate([[0], np.cumsum(inside)])
    first = at[starts]
    lists = Accesses(
        rows["op"][first],
        rows["key"][first],
        2 * rows["mop"][first],
        np.arange(len(first), dtype=np.int64),
        of[first],
    )
    return lists, counted[ends] - counted[starts], rows["value"][at[inside]]


def _both(some: Accesses, others: Accesses) -> Accesses:
    if not len(others):
        return some
    pairs = zip(some.columns(), others.columns(), strict=True)
    return Accesses(*(np.concatenate(pair) for pair in pairs))


def _ours(rows: Rows) -> Rows:
    """Return the rows of transactions; the row of a whole operation may have any `f`."""
    ours = np.isin(rows["f"], KINDS)
    whole = ~ours & (rows["key"] < 0) & (rows["mop"] < 0)
    if whole.any():
        ours |= whole & np.isin(rows["op"], rows["op"][ours])
    return rows if ours.all() else {name: column[ours] for name, column in rows.items()}


def _settled(rows: Rows) -> tuple[Rows, Rows]:
    """Return rows of complete operations; and the others, whose rows may continue."""
    done = rows["op"][(rows["type"] != Type.INVOKE) & (rows["t"] < rows["t"][-1])]
    open_still = rows["op"][rows["t"] >= rows["t"][-1]]
    ready = np.isin(rows["op"], done) & ~np.isin(rows["op"], open_still)
    kept = {name: column[ready] for name, column in rows.items()}
    return kept, {name: column[~ready] for name, column in rows.items()}


def _together(parts: list[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _column(batch: pa.RecordBatch, name: str) -> Ints:
    """Return a column as integers; absent: NULL for values, else -1."""
    absent = NULL if name in ("value", "arg") else -1
    numbers: Ints = batch.column(name).cast(pa.int64()).fill_null(absent).to_numpy()
    return numbers
