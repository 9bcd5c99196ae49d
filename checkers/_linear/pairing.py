"""Pair invocations with completions and group them by key, in one pass over rows in time order.

A hash table holds the open operations only, so it fits the processor's cache however long the
history is. A completion without an open operation is an *orphan*: it becomes an operation that was
called before all others.
"""

from typing import NamedTuple

import numpy as np

from checkers._linear.batch import (
    CALL,
    CAS,
    GONE,
    INFO,
    KIND,
    NEVER,
    OK,
    READ,
    REFUSED,
    RET,
    STATUS,
    A,
    Array,
    B,
)
from harness.compiled import kernel, part
from harness.operation import Type

FOREIGN, NO_KIND = -1, -2  # judged by other checkers; unknown

_INVOKE, _OK, _FAIL, _INFO = (int(kind) for kind in Type)
_FIRST_SLOTS = 1 << 10
_FREE = -1

(
    UNKNOWN_TYPE,
    UNKNOWN_KIND,
    NO_KEY,
    INVOKED_TWICE,
    NEVER_INVOKED,
    COMPLETED_TWICE,
    ANOTHER_KIND,
    TIME_BACK,
    OVERLAPS_ITSELF,
) = range(1, 10)


class OperationColumns(NamedTuple):
    """Rows of `ops`, column by column. Absent: -1 in key and pos, ABSENT in value and arg."""

    t: Array
    process: Array
    op: Array
    type: Array
    f: Array
    key: Array
    value: Array
    arg: Array
    pos: Array


class PairedOperations(NamedTuple):
    """Operations in the order of their first rows, before they are grouped."""

    ops: Array  # as in a batch
    a: Array  # the values themselves
    b: Array
    names: Array
    slot: Array
    row: Array  # its first row
    overlap: Array  # 1 + the row in which the process invoked another operation meanwhile


@kernel
def in_order(t: Array, type_: Array) -> bool:
    """Return whether rows are in time order, with calls before returns at the same time."""
    for i in range(1, len(t)):
        if t[i] < t[i - 1] or (
            t[i] == t[i - 1] and type_[i] == _INVOKE and type_[i - 1] != _INVOKE
        ):
            return False
    return True


@kernel
def mark_backwards(t: Array, processes: Array, latest: Array, rules: Array) -> None:
    """Mark rows whose time is before that of the same process's previous row. `latest`: by
    process."""
    for i in range(len(t)):
        if t[i] < latest[processes[i]]:
            rules[i] = TIME_BACK
        else:
            latest[processes[i]] = t[i]


@kernel
def present(keys: Array, count: int) -> Array:
    """Return by key: 1 if a row has it."""
    marks = np.zeros(count, np.int8)
    for key in keys:
        if key >= 0:
            marks[key] = 1
    return marks


@kernel
def placed(keys: Array, place: Array) -> Array:
    """Return each row's place among all keys; -1 without a key."""
    slots = np.empty(len(keys), np.int32)
    for i in range(len(keys)):
        slots[i] = place[keys[i]] if keys[i] >= 0 else -1
    return slots


@part
def _home(op: int, mask: int) -> int:
    return int((((op & 0x7FFFFFFF) * 0x9E3779B1) >> 16) ^ (op >> 31)) & mask


@part
def _find(ids: Array, at: Array, op: int) -> int:
    """Return the slot of an open operation, or the free slot for it."""
    mask = len(ids) - 1
    slot = _home(op, mask)
    while at[slot] != _FREE and ids[slot] != op:
        slot = (slot + 1) & mask
    return slot


@part
def _forget(ids: Array, at: Array, slot: int) -> None:
    """Free a slot, and move up the entries behind it that a lookup would no longer find."""
    mask = len(ids) - 1
    hole = slot
    at[hole] = _FREE
    slot = (slot + 1) & mask
    while at[slot] != _FREE:
        home = _home(ids[slot], mask)
        if (slot - home) & mask >= (slot - hole) & mask:
            ids[hole], at[hole] = ids[slot], at[slot]
            at[slot] = _FREE
            hole = slot
        slot = (slot + 1) & mask


@kernel
def _grown(ids: Array, at: Array) -> tuple[Array, Array]:
    more, places = np.empty(4 * len(ids), np.int64), np.full(4 * len(ids), _FREE, np.int32)
    for i in range(len(ids)):
        if at[i] != _FREE:
            slot = _find(more, places, ids[i])
            more[slot], places[slot] = ids[i], at[i]
    return more, places


@part
def _flaw(type_: int, key: int, kind: int) -> int:
    """Return the rule that a row breaks by itself, or 0."""
    if kind == NO_KIND:
        return UNKNOWN_KIND
    if type_ < _INVOKE or type_ > _INFO:
        return UNKNOWN_TYPE
    return NO_KEY if key < 0 else 0


@part
def _close(ops: Array, number: int, type_: int, pos: int, rank: int) -> None:
    """Apply an operation's first completion."""
    if type_ == _OK:
        ops[number, STATUS], ops[number, RET] = OK, rank
    elif type_ == _FAIL:
        ops[number, STATUS] = GONE
        if ops[number, KIND] == CAS and pos == 0:
            ops[number, STATUS], ops[number, RET], ops[number, KIND] = OK, rank, REFUSED


@kernel
def pair(
    columns: OperationColumns,
    slots: Array,
    processes: Array,
    shape: tuple[int, int],
    kinds: Array,
    pipelined: bool,
    pairs: PairedOperations,
    rules: Array,
) -> tuple[int, Array]:
    """Fill `pairs` from rows in order; return their number, and orphans as (row, operation).

    `shape`: the number of keys and of processes. `kinds`: by F's number, the kind here.
    """
    ts, ops_of, types, fs, keys = columns.t, columns.op, columns.type, columns.f, columns.key
    values, args, poss = columns.value, columns.arg, columns.pos
    ops, a, b, names = pairs.ops, pairs.a, pairs.b, pairs.names
    slot_of, row, overlap = pairs.slot, pairs.row, pairs.overlap
    ranks, last = np.zeros(shape[0], np.int32), np.full(shape[1], -1, np.int32)
    ids, at = np.empty(_FIRST_SLOTS, np.int64), np.full(_FIRST_SLOTS, _FREE, np.int32)
    orphans = np.empty((16, 2), np.int64)
    count, lost, opened = 0, 0, 0
    for i in range(len(ts)):
        kind, type_ = kinds[fs[i]], types[i]
        if kind == FOREIGN:
            continue
        rule = _flaw(type_, keys[i], kind)
        if rule:
            rules[i] = rules[i] or rule
            continue
        slot, process = slots[i], processes[i]
        rank = ranks[slot]
        ranks[slot] += 1
        here = _find(ids, at, ops_of[i])
        number = at[here]
        if number == _FREE or type_ == _INVOKE:
            ops[count, KIND], ops[count, STATUS] = kind, GONE if kind == READ else INFO
            ops[count, CALL], ops[count, RET] = rank, NEVER
            a[count], b[count] = values[i], args[i]
            slot_of[count], names[count], row[count] = slot, ops_of[i], i
            if type_ != _INVOKE:
                ops[count, CALL] = -1
                _close(ops, count, type_, poss[i], rank)
                if lost == len(orphans):
                    orphans = np.concatenate((orphans, np.empty_like(orphans)))
                orphans[lost, 0], orphans[lost, 1] = i, count
                lost += 1
            elif number == _FREE:
                ids[here], at[here] = ops_of[i], count
                opened += 1
                if last[process] >= 0 and not pipelined:
                    overlap[last[process]] = i + 1
                last[process] = count
                if 2 * opened > len(ids):
                    ids, at = _grown(ids, at)
            count += 1
            continue
        _forget(ids, at, here)
        opened -= 1
        if overlap[number] and ts[overlap[number] - 1] == ts[i]:
            overlap[number] = 0
        if last[process] == number:
            last[process] = -1
        if kind != ops[number, KIND] or slot != slot_of[number]:
            rules[i] = rules[i] or ANOTHER_KIND
            continue
        _close(ops, number, type_, poss[i], rank)
        if kind == READ:
            a[number] = values[i]
    return count, orphans[:lost]


@kernel
def repeated(names: Array) -> Array:
    """Places whose name an earlier place has too, if names lie so densely that it costs little."""
    low, high = names.min(), names.max()
    seen, found = np.zeros(high - low + 1, np.int8), np.zeros(len(names), np.int8)
    for i in range(len(names)):
        found[i] = seen[names[i] - low]
        seen[names[i] - low] = 1
    return np.flatnonzero(found)


@kernel
def key_starts(ops: Array, slot: Array, keys: int) -> Array:
    """Where each key's operations will begin."""
    starts = np.zeros(keys + 1, np.int64)
    for i in range(len(slot)):
        if ops[i, STATUS] != GONE:
            starts[slot[i] + 1] += 1
    for k in range(keys):
        starts[k + 1] += starts[k]
    return starts


@kernel
def scatter(pairs: PairedOperations, at: Array, ops: Array, names: Array, wide: Array) -> None:
    """Group by key. `at`: where each key's next operation goes. `wide`: its values."""
    made, a, b, named, slot = pairs.ops, pairs.a, pairs.b, pairs.names, pairs.slot
    for i in range(len(slot)):
        if made[i, STATUS] != GONE:
            to = at[slot[i]]
            at[slot[i]] += 1
            for column in range(6):
                ops[to, column] = made[i, column]
            names[to], wide[to, 0], wide[to, 1] = named[i], a[i], b[i]


@part
def _number(
    table: Array,
    stamps: Array,
    values: Array,
    k: int,
    mask: int,
    first: int,
    count: int,
    value: int,
) -> int:
    """A value's number in this key; if it is new, it is `count` from now on."""
    slot = (value ^ (value >> 15) ^ (value >> 32)) & mask
    while stamps[slot] == k:
        if values[first + table[slot]] == value:
            return int(table[slot])
        slot = (slot + 1) & mask
    stamps[slot], table[slot], values[first + count] = k, count, value
    return count


@part
def _slots_for(operations: int) -> int:
    """A power of two with room for two values of each operation, at most half full."""
    size = 16
    while size < 4 * (operations + 1):
        size *= 2
    return size


@kernel
def renumber(
    starts: Array, wide: Array, initial: int, ops: Array, first: Array, values: Array
) -> None:
    """Number every key's values in order of appearance. `first`: where a key's values begin."""
    longest = 0
    for k in range(len(starts) - 1):
        longest = max(longest, starts[k + 1] - starts[k])
    room = _slots_for(longest)
    table, stamps = np.empty(room, np.int32), np.full(room, -1, np.int32)
    for k in range(len(starts) - 1):
        mask = _slots_for(starts[k + 1] - starts[k]) - 1
        at, count = first[k], 1
        _number(table, stamps, values, k, mask, at, 0, initial)
        for i in range(starts[k], starts[k + 1]):
            ops[i, A] = _number(table, stamps, values, k, mask, at, count, wide[i, 0])
            count = max(count, ops[i, A] + 1)
            ops[i, B] = 0
            if ops[i, KIND] == CAS or ops[i, KIND] == REFUSED:
                ops[i, B] = _number(table, stamps, values, k, mask, at, count, wide[i, 1])
                count = max(count, ops[i, B] + 1)
        first[k + 1] = first[k] + count
