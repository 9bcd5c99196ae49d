"""Queues, sets, counters, locks and logs: the operations of all keys as one table of columns.

A time is its rank among all events, sorted by key, then time, calls before returns. The ranks of a
later key are all greater, so a running maximum of lower bounds, or a running minimum of upper
bounds from the other end, never mixes two keys: whole tables are judged at once. After the events
of a key comes one more rank, its `never`: the return of operations that may still be running.

A queue that is drained in one operation gives one row for each element, each of which is a dequeue
of its own. A drain is invoked with a `pos` of 0; one of unknown outcome may have taken any number.
A list read is one operation, with its elements in a separate table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Bools, Ints, group_numbers, group_starts
from checkers._linear.batch import ABSENT, INFO, OK
from harness.operation import F, Type

COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "offset", "pos", "mop")
QUEUE = (F.ENQUEUE, F.DEQUEUE)
LOCK = (F.ACQUIRE, F.RELEASE)
KINDS = np.array([F.APPEND, F.LIST, F.ADD, F.COUNT, *QUEUE, *LOCK], np.int64)
FAILED, REFUSED = 2, 3  # statuses besides OK and INFO; a refused operation observed the state

Rows = Mapping[str, Ints]


@dataclass(frozen=True)
class Operations:
    """`key`: its place among all keys. `value`: the argument or the answer; of a list, its length.
    `drain`: it may take any number of elements."""

    op: Ints
    process: Ints
    f: Ints
    key: Ints
    value: Ints
    offset: Ints
    status: Ints
    call: Ints
    ret: Ints
    drain: Bools

    def __len__(self) -> int:
        return len(self.op)

    def of(self, *fs: F, status: int = OK) -> Ints:
        """Return the places of operations of these kinds with a status."""
        return np.flatnonzero(np.isin(self.f, fs) & (self.status == status))


class ListElements(NamedTuple):
    """Elements of lists: the operation's place, the value and its position."""

    list: Ints
    value: Ints
    pos: Ints


@dataclass(frozen=True)
class Objects:
    """`owner`: by rank, the place of the operation it belongs to. `never`: by key."""

    keys: Ints
    never: Ints
    owner: Ints
    operations: Operations
    elements: ListElements

    def only(self, keys: Bools) -> Self:
        """Return the same without operations on other keys. Places stay the same."""
        kept = keys[self.operations.key]
        status = np.where(kept, self.operations.status, FAILED)
        columns = {**vars(self.operations), "status": status}
        mine = kept[self.elements.list]
        elements = ListElements(*(column[mine] for column in self.elements))
        return type(self)(self.keys, self.never, self.owner, Operations(**columns), elements)


def columns_of(batch: pa.RecordBatch | pa.Table, names: Sequence[str] = COLUMNS) -> dict[str, Ints]:
    """Return columns of `ops` as integers; absent: ABSENT for values and offsets, else -1."""
    rows = {}
    for name in names:
        absent = ABSENT if name in ("value", "offset") else -1
        column = batch.column(name).cast(pa.int64()).fill_null(absent)
        rows[name] = column.to_numpy(zero_copy_only=False)
    return rows


def object_rows(rows: Rows) -> dict[str, Ints]:
    """Return the rows of objects, without those of transactions."""
    mine = np.isin(rows["f"], KINDS) & (rows["key"] >= 0) & (rows["mop"] < 0)
    return {name: column[mine] for name, column in rows.items()}


def encode_objects(rows: Rows) -> Objects:
    """Return the operations of rows of `object_rows`, in any order."""
    keys, key = np.unique(rows["key"], return_inverse=True)
    order = np.lexsort((rows["type"] != Type.INVOKE, rows["t"], key))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) + key[order]
    never = np.searchsorted(key[order], np.arange(len(keys)), side="right") + np.arange(len(keys))
    rows = {**rows, "key": key, "rank": rank, "group": _groups(rows)}
    together = np.lexsort((rank, rows["group"]))
    rows = {name: column[together] for name, column in rows.items()}
    starts = group_starts(rows["group"])
    number = group_numbers(starts, len(together))
    operations = _operations(rows, starts, number, never)
    owner = np.full(len(order) + len(keys), -1, np.int64)
    owner[rows["rank"]] = number
    inside = (rows["pos"] >= 0) & (rows["f"] == F.LIST) & (operations.status[number] == OK)
    elements = ListElements(number[inside], rows["value"][inside], rows["pos"][inside])
    return Objects(keys, never, owner, operations, elements)


def _groups(rows: Rows) -> Ints:
    """Return the operation of each row: its number, or one of its own for an element that a drain
    took."""
    taken = (rows["f"] == F.DEQUEUE) & (rows["pos"] >= 0) & (rows["type"] == Type.OK)
    return np.where(taken, -2 - np.arange(len(taken)), rows["op"])


def _operations(rows: Rows, starts: Ints, number: Ints, never: Ints) -> Operations:
    key, status = rows["key"][starts], _status(rows, starts, number)
    last = np.append(starts[1:], len(number))[: len(starts)] - 1
    done = (status == OK) | (status == REFUSED)
    return Operations(
        op=rows["op"][starts],
        process=rows["process"][starts],
        f=rows["f"][starts],
        key=key,
        value=_last_values(rows, "value", starts, number),
        offset=_last_values(rows, "offset", starts, number),
        status=status,
        call=_calls(rows, starts, np.concatenate([[-1], never])[key]),
        ret=np.where(done, rows["rank"][last], never[key]),
        drain=_drains(rows, starts, number),
    )


def _drains(rows: Rows, starts: Ints, number: Ints) -> Bools:
    """Return which operations are invoked as drains."""
    drains = np.zeros(len(starts), np.bool_)
    invoked = (rows["type"] == Type.INVOKE) & (rows["f"] == F.DEQUEUE) & (rows["pos"] == 0)
    drains[number[invoked]] = True
    return drains


def _status(rows: Rows, starts: Ints, number: Ints) -> Ints:
    status = np.full(len(starts), INFO, np.int64)
    whole = (rows["f"] != F.LIST) | (rows["pos"] < 0)
    for kind, outcome in ((Type.OK, OK), (Type.FAIL, FAILED), (Type.INFO, INFO)):
        status[number[whole & (rows["type"] == kind)]] = outcome
    refused = (rows["type"] == Type.FAIL) & (rows["pos"] == 0) & ~np.isin(rows["f"], QUEUE)
    status[number[refused]] = REFUSED
    return status


def _calls(rows: Rows, starts: Ints, before: Ints) -> Ints:
    """Return the ranks of invocations; of operations without one, a rank before all others."""
    at = np.flatnonzero(
        rows["type"] == Type.INVOKE
    )  # their groups are their operations, so these are in order
    op, ranks = rows["op"][starts], np.append(rows["rank"][at], -1)
    place = np.searchsorted(rows["op"][at], op)
    known = np.append(rows["op"][at], -1)[place] == op
    return np.where(known, ranks[place], before)


def _last_values(rows: Rows, name: str, starts: Ints, number: Ints) -> Ints:
    """Return the last value in the rows of each operation, of rows that have one."""
    values = np.full(len(starts), ABSENT, np.int64)
    filled = np.flatnonzero((rows[name] != ABSENT) & ((rows["pos"] < 0) | (rows["f"] != F.LIST)))
    values[number[filled]] = rows[name][filled]
    return values
