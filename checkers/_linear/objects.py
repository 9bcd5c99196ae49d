"""Queues, sets, counters, locks and logs: their operations as columns, all keys in one.

An instant is its rank among all events, sorted by key, then time, calls before returns. So ranks of
a later key are all greater, and a running maximum of lower bounds, or a running minimum of upper
ones from the other end, never mistakes one key for another: whole tables are judged at once. After
the events of a key comes one more rank, its `never`: the return of what may still be going on.

A queue that is drained in one operation gives one row for each element, and each is a dequeue of
its own. A drain is invoked with a `pos` of 0: one of unknown outcome may have taken any number. A
list has one operation, and its elements beside it.
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
FAILED, REFUSED = 2, 3  # statuses beside OK and INFO; a refused one observed why

Rows = Mapping[str, Ints]


@dataclass(frozen=True)
class Operations:
    """`key`: its place among all keys. `value`: asked for or given; of a list, its length. `drain`:
    it may take any number of elements."""

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
        """The places of these kinds of operations with an outcome."""
        return np.flatnonzero(np.isin(self.f, fs) & (self.status == status))


class Elements(NamedTuple):
    """Of lists: the operation's place, the value and where it stood."""

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
    elements: Elements

    def only(self, keys: Bools) -> Self:
        """The same without operations on other keys. Places stay what they are."""
        kept = keys[self.operations.key]
        status = np.where(kept, self.operations.status, FAILED)
        columns = {**vars(self.operations), "status": status}
        mine = kept[self.elements.list]
        elements = Elements(*(column[mine] for column in self.elements))
        return type(self)(self.keys, self.never, self.owner, Operations(**columns), elements)


def columns_of(batch: pa.RecordBatch | pa.Table, names: Sequence[str] = COLUMNS) -> dict[str, Ints]:
    """Columns of `ops` as integers; absent: ABSENT for values and offsets, else -1."""
    rows = {}
    for name in names:
        absent = ABSENT if name in ("value", "offset") else -1
        column = batch.column(name).cast(pa.int64()).fill_null(absent)
        rows[name] = column.to_numpy(zero_copy_only=False)
    return rows


def ours(rows: Rows) -> dict[str, Ints]:
    """Rows of objects; those of transactions are not."""
    mine = np.isin(rows["f"], KINDS) & (rows["key"] >= 0) & (rows["mop"] < 0)
    return {name: column[mine] for name, column in rows.items()}


def objects(rows: Rows) -> Objects:
    """Operations of rows of `ours`, in any order."""
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
    elements = Elements(number[inside], rows["value"][inside], rows["pos"][inside])
    return Objects(keys, never, owner, operations, elements)


def _groups(rows: Rows) -> Ints:
    """Rows of one number are one operation: every element that a drain took is one of its own."""
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
        value=_said(rows, "value", starts, number),
        offset=_said(rows, "offset", starts, number),
        status=status,
        call=_calls(rows, starts, np.concatenate([[-1], never])[key]),
        ret=np.where(done, rows["rank"][last], never[key]),
        drain=_drains(rows, starts, number),
    )


def _drains(rows: Rows, starts: Ints, number: Ints) -> Bools:
    """Which operations are invoked as drains."""
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
    """When operations were invoked; before everything, if nobody knows."""
    at = np.flatnonzero(rows["type"] == Type.INVOKE)  # their groups are ops, so these are in order
    op, ranks = rows["op"][starts], np.append(rows["rank"][at], -1)
    place = np.searchsorted(rows["op"][at], op)
    known = np.append(rows["op"][at], -1)[place] == op
    return np.where(known, ranks[place], before)


def _said(rows: Rows, name: str, starts: Ints, number: Ints) -> Ints:
    """What the rows of each operation say last, of rows that say anything."""
    said = np.full(len(starts), ABSENT, np.int64)
    told = np.flatnonzero((rows[name] != ABSENT) & ((rows["pos"] < 0) | (rows["f"] != F.LIST)))
    said[number[told]] = rows[name][told]
    return said
