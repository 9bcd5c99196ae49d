"""Registers whose writes all differ are decided by a sweep, without any search. In all registers,
the sweep finds values that were read before they can have been written.

Where each value is written once, each read shows which write it observed. A write and its reads
form a *cluster*, which occupies the register without interruption: from before the first return in
it (f) until after the last call in it (s). If f < s it is a *forward zone* [f, s]: during all that
time the register held this value. Otherwise it is a *backward zone* [s, f]: the register held the
value at some instant in between. A history is legal exactly when no read returns before its write
is called, the forward zones of a key are disjoint, and no backward zone lies inside a forward one
(Gibbons and Korach, Testing shared memories, 1997).

The initial value counts as a write before all operations. A write of unknown outcome counts if its
value was read, and may have ended at any time. Ranks are dense numbers, so nothing is sorted.

A register can hold a value from the call of the value's first write on, or from the call of a
compare-and-set to it whose expected value is possible by then. A read of the value returns after
that in any order of the operations. Hence a value that was never written is found however many
operations are concurrent.
"""

import numpy as np

from checkers._linear.batch import (
    CALL,
    CAS,
    ILLEGAL,
    KIND,
    LEGAL,
    NEVER,
    OK,
    READ,
    RET,
    STATUS,
    UNKNOWN,
    WRITE,
    A,
    Array,
    B,
    OperationBatch,
)
from harness.compiled import kernel, part

_NONE = -1
MAX_PASSES = 64  # over the compare-and-sets of a key


# rows of clusters, by value: the write, the first to return, the last called; that return and call
WRITER, ENDED, CALLED, END, LAST = range(5)


@part
def _gather(ops: Array, first: int, last: int, values: int, clusters: Array) -> bool:
    """Fill in a key's clusters; return False if a value is written twice or there is a
    compare-and-set."""
    for v in range(values):
        clusters[WRITER, v] = clusters[ENDED, v] = clusters[CALLED, v] = _NONE
        clusters[END, v], clusters[LAST, v] = NEVER, -1
    clusters[END, 0] = -1
    for i in range(first, last):
        v = ops[i, A]
        if ops[i, KIND] == WRITE:
            if v == 0 or clusters[WRITER, v] != _NONE:
                return False
            clusters[WRITER, v] = i
        elif ops[i, KIND] != READ:
            return False
        if ops[i, CALL] < 0:  # operations before all others have no distinct ranks
            return False
        if ops[i, RET] < clusters[END, v]:
            clusters[END, v], clusters[ENDED, v] = ops[i, RET], i
        clusters[LAST, v], clusters[CALLED, v] = ops[i, CALL], i  # operations are in order of calls
    return True


@part
def _first_there(ops: Array, first: int, last: int, values: int, since: Array) -> bool:
    """Fill in the earliest time of each value; return False if that takes too many passes."""
    for v in range(values):
        since[v] = NEVER
    since[0] = -2
    for i in range(first, last):
        if ops[i, KIND] == WRITE:
            since[ops[i, A]] = min(since[ops[i, A]], ops[i, CALL])
    for _ in range(MAX_PASSES):
        changed = False
        for i in range(first, last):
            if ops[i, KIND] == CAS and ops[i, A] != ops[i, B]:
                call = max(since[ops[i, A]], ops[i, CALL])
                if call < since[ops[i, B]]:
                    since[ops[i, B]] = call
                    changed = True
        if not changed:
            return True
    return False


@part
def _too_early(ops: Array, first: int, last: int, values: int, since: Array) -> int:
    """Return an operation that observed a value before it can have been there, or -1."""
    if not _first_there(ops, first, last, values, since):
        return _NONE
    for i in range(first, last):
        observed = ops[i, STATUS] == OK and (ops[i, KIND] == READ or ops[i, KIND] == CAS)
        if observed and ops[i, RET] < since[ops[i, A]]:
            return int(i)
    return _NONE


@part
def _premature(ops: Array, first: int, last: int, clusters: Array) -> int:
    """Return a read that returned before its value's write was called or that has no write, or
    -1."""
    for i in range(first, last):
        if ops[i, KIND] == READ and ops[i, A] != 0:
            writer = clusters[WRITER, ops[i, A]]
            if writer == _NONE or ops[i, RET] < ops[writer, CALL]:
                return int(i)
    return _NONE


@part
def _collision(values: int, clusters: Array, at_rank: Array) -> tuple[int, int]:
    """Return a value and another one that occupied the register when the first had to be there; or
    -1.

    Zones are visited by their lower ends; only the latest forward zone can still be open.
    """
    ranks = 0
    for v in range(values):
        if clusters[END, v] != NEVER:
            ranks = max(ranks, clusters[END, v] + 2, clusters[LAST, v] + 2)
    for rank in range(ranks):
        at_rank[rank] = _NONE
    for v in range(values):
        if clusters[END, v] != NEVER and clusters[LAST, v] >= 0:
            at_rank[min(clusters[END, v], clusters[LAST, v]) + 1] = v
    holder, until = _NONE, -2
    for rank in range(ranks):
        v = at_rank[rank]
        if v == _NONE:
            continue
        end, call = clusters[END, v], clusters[LAST, v]
        if end < until:
            return int(v), int(holder)
        if end < call:
            holder, until = v, call
    return _NONE, _NONE


@part
def _one(
    ops: Array, first: int, last: int, values: int, clusters: Array, at_rank: Array, witness: Array
) -> int:
    """Judge one key."""
    phantom = _too_early(ops, first, last, values, clusters[LAST])
    if phantom != _NONE:
        witness[0] = phantom
        for i in range(first, last):
            writes = ops[i, A] if ops[i, KIND] == WRITE else ops[i, B]
            if i != phantom and ops[i, KIND] in (WRITE, CAS) and writes == ops[phantom, A]:
                witness[1] = i
                break
        return ILLEGAL
    if not _gather(ops, first, last, values, clusters):
        return UNKNOWN
    read = _premature(ops, first, last, clusters)
    if read != _NONE:
        witness[0], witness[1] = read, clusters[WRITER, ops[read, A]]
        return ILLEGAL
    v, holder = _collision(values, clusters, at_rank)
    if v == _NONE:
        return LEGAL
    for row in range(3):
        witness[row], witness[3 + row] = clusters[row, v], clusters[row, holder]
    return ILLEGAL


@kernel
def sweep(
    batch: OperationBatch, values: int, ranks: int, verdicts: Array, witnesses: Array
) -> None:
    """Judge each key: LEGAL, ILLEGAL, or UNKNOWN for a key that zones do not decide.

    `values`, `ranks`: the maximum of any key. `witnesses`: up to six operations, as places in the
    batch, that are illegal by themselves; unused cells are -1.
    """
    clusters, at_rank = np.empty((5, values), np.int64), np.empty(ranks + 3, np.int64)
    witness, ops = np.empty(6, np.int64), batch.ops
    for k in range(len(verdicts)):
        first, last = batch.starts[k], batch.starts[k + 1]
        mine = batch.value_starts[k + 1] - batch.value_starts[k]
        for row in range(6):
            witness[row] = _NONE
        verdicts[k] = _one(ops, first, last, mine, clusters, at_rank, witness)
        for row in range(6):
            witnesses[k, row] = witness[row]
