"""Rows of a history as a batch of operations: what every kernel here works on.

What tells nothing is left out: operations that certainly did not happen, and reads of unknown
outcome. A compare-and-set that was refused by its comparison is an observation and stays.

Histories of others may be wrong in themselves. Every offending row is named with the rule that it
breaks, and the operation it belongs to is only ever made weaker (an earlier call, a later return,
an unknown outcome): what is then still illegal is illegal indeed.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers._linear import pairing
from checkers._linear.batch import (
    ABSENT,
    APPEND,
    CALL,
    CAS,
    GONE,
    INFO,
    KIND,
    NEVER,
    READ,
    REFUSED,
    RET,
    STATUS,
    WRITE,
    Array,
    Batch,
)
from checkers._linear.pairing import FOREIGN, NO_KIND, Columns, Pairs
from harness.operation import F, Type

KINDS = {F.GET: READ, F.PUT: WRITE, F.CAS: CAS, F.APPEND: APPEND}

_DENSE = 1 << 22  # more keys or processes than this are numbered by sorting
_SPARSE = 8  # names spread wider than so many times their number are compared by sorting


class Rule(IntEnum):
    """What a row of a history can break."""

    UNKNOWN_TYPE = pairing.UNKNOWN_TYPE
    UNKNOWN_KIND = pairing.UNKNOWN_KIND
    NO_KEY = pairing.NO_KEY
    INVOKED_TWICE = pairing.INVOKED_TWICE
    NEVER_INVOKED = pairing.NEVER_INVOKED
    COMPLETED_TWICE = pairing.COMPLETED_TWICE
    ANOTHER_KIND = pairing.ANOTHER_KIND
    TIME_BACK = pairing.TIME_BACK
    OVERLAPS_ITSELF = pairing.OVERLAPS_ITSELF


RULES = {
    Rule.UNKNOWN_TYPE: "its type is none of invoke, ok, fail and info",
    Rule.UNKNOWN_KIND: "this kind of operation is unknown",
    Rule.NO_KEY: "it names no key",
    Rule.INVOKED_TWICE: "it invokes an operation that was invoked before",
    Rule.NEVER_INVOKED: "it completes an operation that was never invoked",
    Rule.COMPLETED_TWICE: "it completes an operation that has completed already",
    Rule.ANOTHER_KIND: "it completes an operation of another kind, or on another key",
    Rule.TIME_BACK: "its time is before that of the process's row before",
    Rule.OVERLAPS_ITSELF: "its process has another operation open",
}


@dataclass(frozen=True, order=True)
class Flaw:
    """A row that breaks a rule; `row` counts from 0 in the rows as they were given."""

    row: int
    rule: Rule
    op: int
    process: int

    def __str__(self) -> str:
        return f"row {self.row} (operation {self.op}, process {self.process}): {RULES[self.rule]}"


@dataclass(frozen=True)
class Encoded:
    """A batch, and what was wrong with its rows."""

    batch: Batch
    flaws: tuple[Flaw, ...] = ()


def columns_of(rows: pa.Table | pa.RecordBatch) -> Columns:
    """The columns of `ops` as arrays."""
    absent = {"key": -1, "pos": -1, "value": ABSENT, "arg": ABSENT}
    return Columns(*(_array(rows.column(name), absent.get(name)) for name in Columns._fields))


def encode(columns: Columns, initial: int = ABSENT, pipelined: bool = False) -> Encoded:
    """Operations by key. `pipelined`: a process may have several operations open."""
    rules = np.zeros(len(columns.t), np.int8)
    processes, count = _numbered(columns.process)
    order = None
    if not pairing.in_order(columns.t, columns.type):
        latest = np.full(count, np.iinfo(np.int64).min)
        pairing.mark_backwards(columns.t, processes, latest, rules)
        order = np.argsort(2 * columns.t + (columns.type != Type.INVOKE), kind="stable")
        columns = Columns(*(column[order] for column in columns))
        processes, rules = processes[order], rules[order]
    keys, slots = _slots(columns.key)
    pairs = _room_for(len(columns.t))
    shape = (len(keys), count)
    made, orphans = pairing.pair(
        columns, slots, processes, shape, _KIND_OF, pipelined, pairs, rules
    )
    pairs = Pairs(*(field[:made] for field in pairs))
    _settle(pairs, orphans, rules)
    batch = _grouped(pairs, keys, initial, len(orphans) > 0)
    return Encoded(batch, _flaws(columns, rules, order))


def _array(column: Any, absent: int | None) -> Array:
    if absent is not None and column.null_count:
        column = pc.fill_null(column, absent)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False))


def _kind_of() -> Array:
    """By F's number: the kind here, FOREIGN for what other checkers judge, or NO_KIND."""
    kinds = np.full(256, NO_KIND, np.int8)
    for f in F:
        kinds[f] = KINDS.get(f, FOREIGN)
    return kinds


_KIND_OF = _kind_of()


def _numbered(numbers: Array) -> tuple[Array, int]:
    """The same distinctions in small numbers, and one more than the greatest."""
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= _DENSE):
        found, at = np.unique(numbers, return_inverse=True)
        return at.astype(np.int32), len(found)
    return numbers, int(numbers.max(initial=-1)) + 1


def _slots(keys: Array) -> tuple[Array, Array]:
    """All keys in order, and each row's place among them; -1 for a row without a key."""
    if keys.max(initial=-1) < _DENSE:
        present = pairing.present(keys, int(keys.max(initial=-1)) + 1)
        return np.flatnonzero(present), pairing.placed(keys, np.cumsum(present) - 1)
    found, at = np.unique(keys, return_inverse=True)
    absent = int(np.searchsorted(found, 0))
    return found[absent:], np.maximum(at - absent, -1).astype(np.int32)


def _room_for(most: int) -> Pairs:
    """Untouched memory costs nothing, so there is room for as many operations as rows."""
    return Pairs(
        ops=np.empty((most, 6), np.int32),
        a=np.empty(most, np.int64),
        b=np.empty(most, np.int64),
        names=np.empty(most, np.int64),
        slot=np.empty(most, np.int32),
        row=np.empty(most, np.int32),
        overlap=np.zeros(most, np.int32),
    )


def _settle(pairs: Pairs, orphans: Array, rules: Array) -> None:
    """Name who overlapped with itself or came twice, and make sense of lonely completions.

    A second completion, or invocation, makes nothing sure any more. An operation never seen may
    have been invoked at any time before, which is how it was put down.
    """
    _name(rules, pairs.overlap[np.flatnonzero(pairs.overlap)] - 1, Rule.OVERLAPS_ITSELF)
    lonely = set(orphans[:, 1].tolist())
    for number in _repeated(pairs.names).tolist():
        if number not in lonely:
            _name(rules, pairs.row[number], Rule.INVOKED_TWICE)
            _doubt(pairs.ops[number])
    by_name = np.argsort(pairs.names, kind="stable") if lonely else orphans
    for row, number in orphans.tolist():
        at = int(np.searchsorted(pairs.names, pairs.names[number], sorter=by_name))
        known = int(by_name[at])
        _name(rules, row, Rule.NEVER_INVOKED if known == number else Rule.COMPLETED_TWICE)
        if known != number:
            pairs.ops[number, STATUS] = GONE
            _doubt(pairs.ops[known])


def _name(rules: Array, rows: Array | int, rule: Rule) -> None:
    """The first rule that a row breaks is the one that is told."""
    rules[rows] = np.where(rules[rows] == 0, rule, rules[rows])


def _repeated(names: Array) -> Array:
    """Operations whose name an earlier one has too."""
    if not len(names) or int(names.max()) - int(names.min()) < _SPARSE * len(names):
        return pairing.repeated(names) if len(names) else np.empty(0, np.int64)
    order = np.argsort(names, kind="stable")
    return np.sort(order[1:][names[order[1:]] == names[order[:-1]]])


def _doubt(op: Array) -> None:
    """An operation of which nobody knows whether it happened after all."""
    if op[KIND] == REFUSED:
        op[KIND] = CAS
    op[STATUS], op[RET] = GONE if op[KIND] == READ else INFO, NEVER


def _grouped(pairs: Pairs, keys: Array, initial: int, sort: bool) -> Batch:
    if sort:
        order = np.lexsort((pairs.ops[:, CALL], pairs.slot))
        pairs = Pairs(*(field[order] for field in pairs))
    starts = pairing.counted(pairs.ops, pairs.slot, len(keys))
    count = int(starts[-1])
    ops, names = np.empty((count, 6), np.int32), np.empty(count, np.int64)
    wide = np.empty((count, 2), np.int64)
    pairing.scatter(pairs, starts[:-1].copy(), ops, names, wide)
    value_starts = np.zeros(len(keys) + 1, np.int64)
    values = np.empty(len(keys) + 2 * count, np.int64)
    pairing.renumber(starts, wide, initial, ops, value_starts, values)
    return Batch(keys, starts, ops, names, value_starts, values[: value_starts[-1]].copy())


def _flaws(columns: Columns, rules: Array, order: Array | None) -> tuple[Flaw, ...]:
    rows = np.flatnonzero(rules)
    given = rows if order is None else order[rows]
    found = zip(given, rules[rows], columns.op[rows], columns.process[rows], strict=True)
    return tuple(sorted(Flaw(int(r), Rule(int(n)), int(o), int(p)) for r, n, o, p in found))
