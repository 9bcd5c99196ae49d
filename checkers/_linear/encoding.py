"""Rows of a history as a batch of operations, the input of all kernels.

Operations without information are left out: those that certainly did not happen, and reads of
unknown outcome. A compare-and-set that its comparison refused is an observation and stays.

Imported histories may be malformed. Each offending row is reported with the rule that it breaks,
and its operation is only ever weakened (an earlier call, a later return, an unknown outcome): what
is still illegal then is certainly illegal.
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
    OperationBatch,
)
from checkers._linear.pairing import FOREIGN, NO_KIND, OperationColumns, PairedOperations
from harness.operation import F, Type

KINDS = {F.GET: READ, F.PUT: WRITE, F.CAS: CAS, F.APPEND: APPEND}

_DENSE = 1 << 22  # beyond this number, keys and processes are numbered by sorting
_SPARSE = 8  # names in a range wider than this many times their number are compared by sorting


class Rule(IntEnum):
    """A rule that a row of a history can break."""

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
    Rule.TIME_BACK: "its time is before that of its process's previous row",
    Rule.OVERLAPS_ITSELF: "its process has another operation open",
}


@dataclass(frozen=True, order=True)
class Flaw:
    """A row that breaks a rule; `row` counts from 0 in the rows as given."""

    row: int
    rule: Rule
    op: int
    process: int

    def __str__(self) -> str:
        return f"row {self.row} (operation {self.op}, process {self.process}): {RULES[self.rule]}"


@dataclass(frozen=True)
class EncodedHistory:
    """A batch, and the flaws of its rows."""

    batch: OperationBatch
    flaws: tuple[Flaw, ...] = ()


def columns_of(rows: pa.Table | pa.RecordBatch) -> OperationColumns:
    """Return the columns of `ops` as arrays."""
    absent = {"key": -1, "pos": -1, "value": ABSENT, "arg": ABSENT}
    return OperationColumns(
        *(_array(rows.column(name), absent.get(name)) for name in OperationColumns._fields)
    )


def encode(
    columns: OperationColumns, initial: int = ABSENT, pipelined: bool = False
) -> EncodedHistory:
    """Return the operations by key. `pipelined`: a process may have several operations open."""
    rules = np.zeros(len(columns.t), np.int8)
    processes, count = _compact(columns.process)
    order = None
    if not pairing.in_order(columns.t, columns.type):
        latest = np.full(count, np.iinfo(np.int64).min)
        pairing.mark_backwards(columns.t, processes, latest, rules)
        order = np.argsort(2 * columns.t + (columns.type != Type.INVOKE), kind="stable")
        columns = OperationColumns(*(column[order] for column in columns))
        processes, rules = processes[order], rules[order]
    keys, slots = _slots(columns.key)
    pairs = _allocate_pairs(len(columns.t))
    shape = (len(keys), count)
    made, orphans = pairing.pair(
        columns, slots, processes, shape, _KIND_OF, pipelined, pairs, rules
    )
    pairs = PairedOperations(*(field[:made] for field in pairs))
    _resolve_flaws(pairs, orphans, rules)
    batch = _group_by_key(pairs, keys, initial, len(orphans) > 0)
    return EncodedHistory(batch, _flaws(columns, rules, order))


def _array(column: Any, absent: int | None) -> Array:
    if absent is not None and column.null_count:
        column = pc.fill_null(column, absent)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False))


def _kind_of() -> Array:
    """Return by F's number the kind here; FOREIGN for what other checkers judge; else NO_KIND."""
    kinds = np.full(256, NO_KIND, np.int8)
    for f in F:
        kinds[f] = KINDS.get(f, FOREIGN)
    return kinds


_KIND_OF = _kind_of()


def _compact(numbers: Array) -> tuple[Array, int]:
    """Renumber processes densely, if their numbers are large; return the numbers and their
    count."""
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= _DENSE):
        found, at = np.unique(numbers, return_inverse=True)
        return at.astype(np.int32), len(found)
    return numbers, int(numbers.max(initial=-1)) + 1


def _slots(keys: Array) -> tuple[Array, Array]:
    """Return all keys in order, and each row's place among them, -1 for a row without a key."""
    if keys.max(initial=-1) < _DENSE:
        present = pairing.present(keys, int(keys.max(initial=-1)) + 1)
        return np.flatnonzero(present), pairing.placed(keys, np.cumsum(present) - 1)
    found, at = np.unique(keys, return_inverse=True)
    absent = int(np.searchsorted(found, 0))
    return found[absent:], np.maximum(at - absent, -1).astype(np.int32)


def _allocate_pairs(count: int) -> PairedOperations:
    """Return memory for `count` operations; pages that are never touched cost nothing."""
    return PairedOperations(
        ops=np.empty((count, 6), np.int32),
        a=np.empty(count, np.int64),
        b=np.empty(count, np.int64),
        names=np.empty(count, np.int64),
        slot=np.empty(count, np.int32),
        row=np.empty(count, np.int32),
        overlap=np.zeros(count, np.int32),
    )


def _resolve_flaws(pairs: PairedOperations, orphans: Array, rules: Array) -> None:
    """Mark overlaps, repetitions and completions without an invocation, and weaken their
    operations.

    A second completion or invocation makes the outcome uncertain. An operation without an
    invocation may have been invoked at any time before, so its call is before all others.
    """
    _mark_rule(rules, pairs.overlap[np.flatnonzero(pairs.overlap)] - 1, Rule.OVERLAPS_ITSELF)
    lonely = set(orphans[:, 1].tolist())
    for number in _repeated(pairs.names).tolist():
        if number not in lonely:
            _mark_rule(rules, pairs.row[number], Rule.INVOKED_TWICE)
            _weaken(pairs.ops[number])
    by_name = np.argsort(pairs.names, kind="stable") if lonely else orphans
    for row, number in orphans.tolist():
        at = int(np.searchsorted(pairs.names, pairs.names[number], sorter=by_name))
        known = int(by_name[at])
        _mark_rule(rules, row, Rule.NEVER_INVOKED if known == number else Rule.COMPLETED_TWICE)
        if known != number:
            pairs.ops[number, STATUS] = GONE
            _weaken(pairs.ops[known])


def _mark_rule(rules: Array, rows: Array | int, rule: Rule) -> None:
    """Mark rows with a rule; the first rule that a row breaks is the one reported."""
    rules[rows] = np.where(rules[rows] == 0, rule, rules[rows])


def _repeated(names: Array) -> Array:
    """Return the operations that have the name of an earlier one."""
    if not len(names) or int(names.max()) - int(names.min()) < _SPARSE * len(names):
        return pairing.repeated(names) if len(names) else np.empty(0, np.int64)
    order = np.argsort(names, kind="stable")
    return np.sort(order[1:][names[order[1:]] == names[order[:-1]]])


def _weaken(op: Array) -> None:
    """Make the outcome of an operation unknown."""
    if op[KIND] == REFUSED:
        op[KIND] = CAS
    op[STATUS], op[RET] = GONE if op[KIND] == READ else INFO, NEVER


def _group_by_key(pairs: PairedOperations, keys: Array, initial: int, sort: bool) -> OperationBatch:
    if sort:
        order = np.lexsort((pairs.ops[:, CALL], pairs.slot))
        pairs = PairedOperations(*(field[order] for field in pairs))
    starts = pairing.key_starts(pairs.ops, pairs.slot, len(keys))
    count = int(starts[-1])
    ops, names = np.empty((count, 6), np.int32), np.empty(count, np.int64)
    wide = np.empty((count, 2), np.int64)
    pairing.scatter(pairs, starts[:-1].copy(), ops, names, wide)
    value_starts = np.zeros(len(keys) + 1, np.int64)
    values = np.empty(len(keys) + 2 * count, np.int64)
    pairing.renumber(starts, wide, initial, ops, value_starts, values)
    return OperationBatch(keys, starts, ops, names, value_starts, values[: value_starts[-1]].copy())


def _flaws(columns: OperationColumns, rules: Array, order: Array | None) -> tuple[Flaw, ...]:
    rows = np.flatnonzero(rules)
    given = rows if order is None else order[rows]
    found = zip(given, rules[rows], columns.op[rows], columns.process[rows], strict=True)
    return tuple(sorted(Flaw(int(r), Rule(int(n)), int(o), int(p)) for r, n, o, p in found))
