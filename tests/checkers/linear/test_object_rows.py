"""Rows of objects as operations: which rows are theirs, and what each operation is by its rows."""

from collections import defaultdict
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from checkers._linear.batch import ABSENT, INFO, OK
from checkers._linear.objects import (
    COLUMNS,
    FAILED,
    REFUSED,
    Objects,
    columns_of,
    encode_objects,
    object_rows,
)
from harness.operation import F, Type

TABLES = 700
MINE = (
    *(F.APPEND, F.LIST, F.ADD, F.COUNT),
    *(F.ENQUEUE, F.DEQUEUE, F.ACQUIRE, F.RELEASE),
)
NOBODY = -1
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS])

Row = dict[str, int | None]
Said = tuple[int, ...]


class Naive(NamedTuple):
    """The operations of a table without their places, by the words that define them."""

    operations: list[Said]
    elements: list[Said]
    owners: list[int]  # by rank: the number of the operation
    never: list[int]


def number(row: Row, name: str) -> int:
    cell = row[name]
    absent = ABSENT if name in ("value", "offset") else -1
    return absent if cell is None else int(cell)


def naive(rows: list[Row]) -> Naive:
    """Rows of objects, in any order."""
    keys = sorted({number(row, "key") for row in rows})
    rank: dict[int, int] = {}
    owners: list[int] = []
    never: list[int] = []
    for key in keys:
        mine = [row for row in rows if row["key"] == key]
        for row in sorted(mine, key=lambda row: (number(row, "t"), row["type"] != Type.INVOKE)):
            rank[id(row)] = len(owners)
            owners.append(number(row, "op"))
        never.append(len(owners))
        owners.append(NOBODY)
    invoked = {row["op"]: rank[id(row)] for row in rows if row["type"] == Type.INVOKE}
    grouped: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for at, row in enumerate(rows):
        drained = row["f"] == F.DEQUEUE and row["type"] == Type.OK and row["pos"] is not None
        grouped[number(row, "op"), at if drained else NOBODY].append(row)
    operations: list[Said] = []
    elements: list[Said] = []
    for some in grouped.values():
        some.sort(key=lambda row: rank[id(row)])
        head = some[0]
        place = keys.index(number(head, "key"))
        whole = [row for row in some if row["f"] != F.LIST or row["pos"] is None]
        status = outcome(whole)
        before = never[place - 1] if place else -1
        done = status in (OK, REFUSED)
        what = (number(head, name) for name in ("op", "process", "f"))
        said = (last(whole, name) for name in ("value", "offset"))
        call, ret = invoked.get(head["op"], before), rank[id(some[-1])] if done else never[place]
        drain = any(row["type"] == Type.INVOKE and row["pos"] == 0 for row in some)
        drain = drain and head["f"] == F.DEQUEUE
        operations.append((*what, place, *said, status, call, ret, int(drain)))
        elements += [
            (number(row, "op"), number(row, "value"), number(row, "pos"))
            for row in some
            if row["f"] == F.LIST and row["pos"] is not None and status == OK
        ]
    return Naive(sorted(operations), sorted(elements), owners, never)


def outcome(rows: list[Row]) -> int:
    for row in rows:
        if row["type"] == Type.OK:
            return OK
        if row["type"] == Type.FAIL:
            queue = row["f"] in (F.ENQUEUE, F.DEQUEUE)
            return REFUSED if row["pos"] == 0 and not queue else FAILED
    return INFO


def last(rows: list[Row], name: str) -> int:
    """Return the last value of the rows."""
    return next((number(row, name) for row in reversed(rows) if row[name] is not None), ABSENT)


def told(found: Objects) -> Naive:
    o = found.operations
    columns = (
        *(o.op, o.process, o.f, o.key, o.value, o.offset, o.status, o.call, o.ret),
        o.drain.astype(np.int64),
    )
    operations = zip(*(column.tolist() for column in columns), strict=True)
    lists = found.elements
    elements = zip(o.op[lists.list].tolist(), lists.value.tolist(), lists.pos.tolist(), strict=True)
    owners = [NOBODY if at == NOBODY else int(o.op[at]) for at in found.owner.tolist()]
    return Naive(sorted(operations), sorted(elements), owners, found.never.tolist())


def drawn(dice: Random) -> list[Row]:
    """Operations of all kinds on a few keys, some never answered, some never called; among them
    rows of transactions, and of what is no object."""
    rows: list[Row] = []
    for op in range(dice.randrange(1, 14)):
        f = dice.choice((*MINE, F.LIST, F.DEQUEUE, F.PUT, F.SEND))
        t, key = dice.randrange(9), dice.choice((0, 4, 8, None))
        mop = dice.choice((0, 1)) if dice.random() < 0.1 else None
        asked = None if f in (F.LIST, F.DEQUEUE, F.COUNT) else dice.randrange(5)
        head: Row = {"process": dice.randrange(3), "op": op, "f": f, "key": key, "mop": mop}
        blank: Row = {"value": None, "offset": None, "pos": None}
        end: Row = head | blank | {"t": t + dice.choice((0, 0, 1, 5))}
        kind = dice.choice((Type.OK, Type.OK, Type.OK, Type.FAIL, Type.INFO, None))
        if kind is None or dice.random() < 0.9:
            rows.append(head | blank | {"t": t, "type": Type.INVOKE, "value": asked})
        if f in (F.LIST, F.DEQUEUE) and dice.random() < 0.5:
            rows += [
                end | {"type": Type.OK, "pos": pos, "value": dice.randrange(5)}
                for pos in range(dice.randrange(4))
            ]
        if kind is not None:
            said: Row = {"type": kind, "value": dice.choice((None, 0, 1))}
            said |= {"offset": dice.choice((None, 0, 6))}
            pos = dice.choice((None, 0, 1)) if kind is Type.FAIL and f is not F.LIST else None
            rows.append(end | said | {"pos": pos})
    dice.shuffle(rows)
    return rows


def counts(row: Row) -> bool:
    """Is it a row of an object, and not of a transaction?"""
    return row["f"] in MINE and row["key"] is not None and row["mop"] is None


def of_some(all_of: Naive, keys: set[int]) -> Naive:
    """What is left of them: those of other keys did not happen, and have no elements."""
    operations = [
        said if said[3] in keys else (*said[:6], FAILED, *said[7:]) for said in all_of.operations
    ]
    here = {said[0] for said in operations if said[3] in keys}
    elements = [element for element in all_of.elements if element[0] in here]
    return all_of._replace(operations=sorted(operations), elements=elements)


def test_operations_are_what_their_rows_say() -> None:
    """Instants by rank, statuses, values and elements; in tables of one piece and of several, of
    which only rows of objects count."""
    dice, statuses, elements, unheard = Random(5), set[int](), 0, 0
    for _ in range(TABLES):
        rows = drawn(dice)
        batches = [pa.RecordBatch.from_pylist(some, SCHEMA) for some in (rows[:3], rows[3:])]
        both = columns_of(pa.Table.from_batches(batches))
        alone = columns_of(pa.RecordBatch.from_pylist(rows, SCHEMA))
        assert all((both[name] == alone[name]).all() for name in COLUMNS)
        mine = [row for row in rows if counts(row)]
        kept = object_rows(both)
        assert {name: column.tolist() for name, column in kept.items()} == {
            name: [number(row, name) for row in mine] for name in COLUMNS
        }
        found, truth = encode_objects(kept), naive(mine)
        assert told(found) == truth, mine
        chosen = np.array([dice.random() < 0.5 for _ in found.keys], np.bool_)
        keys = set(np.flatnonzero(chosen).tolist())
        assert told(found.only(chosen)) == of_some(truth, keys), mine
        statuses |= {operation[6] for operation in truth.operations}
        elements += len(truth.elements)
        unheard += sum(operation[7] in (-1, *truth.never) for operation in truth.operations)
    assert statuses == {OK, INFO, FAILED, REFUSED}
    assert min(elements, unheard) >= 200
