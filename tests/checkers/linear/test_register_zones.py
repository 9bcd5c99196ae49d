"""The sweep alone: which registers it decides, how, and what it shows of those that are illegal."""

from collections import Counter

import numpy as np
import pytest
from register_dice import KINDS, all_orders, columns, games

from checkers._linear import models, zones
from checkers._linear.batch import (
    ABSENT,
    CALL,
    CAS,
    ILLEGAL,
    KIND,
    LEGAL,
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
    select_key,
)
from checkers._linear.encoding import encode
from checkers._linear.search_state import extent
from harness.operation import F, Type

KEYS = 1_500
SIMPLE = ((F.GET, F.PUT), (F.GET, F.GET, F.PUT))
UNHEARD = 0.02  # of rows, calls that nobody wrote down


def of_this_kind(ops: np.ndarray) -> bool:
    """Reads and writes, all called at a known time, and the writes of different new values."""
    written = [int(op[A]) for op in ops if op[KIND] == WRITE]
    plain = all(op[KIND] in (READ, WRITE) and op[CALL] >= 0 for op in ops)
    return plain and len({0, *written}) == len(written) + 1


def shown(batch: OperationBatch, k: int, witness: np.ndarray) -> None:
    """These few are illegal alone, and no read among them lacks a write that there is."""
    places = sorted({int(at) for at in witness if at >= 0})
    first = int(batch.starts[k])
    few = select_key(batch, k, [at - first for at in places])
    assert 1 <= len(places) <= 6
    assert models.search_model(models.REGISTER, models.operations_of(few, 0)) == ILLEGAL
    mine = batch.ops[first : int(batch.starts[k + 1])]
    written = {int(op[A]) for op in mine if op[KIND] == WRITE}
    kept = {int(op[A]) for op in few.ops if op[KIND] == WRITE}
    assert {int(op[A]) for op in few.ops if op[KIND] == READ} & written <= kept


def too_early(ops: Array) -> bool:
    """Whether an operation was given a value before any write of it, or compare-and-set that can
    have succeeded, was called: the definition, value by value."""
    there = {0}
    for ret in sorted({int(op[RET]) for op in ops if op[STATUS] == OK}):
        called = [op for op in ops if op[CALL] < ret]
        there |= {int(op[A]) for op in called if op[KIND] == WRITE}
        for _ in called:
            there |= {int(op[B]) for op in called if op[KIND] == CAS and int(op[A]) in there}
        given = [op for op in ops if op[RET] == ret and op[STATUS] == OK]
        if any(op[KIND] in (READ, CAS) and int(op[A]) not in there for op in given):
            return True
    return False


@pytest.mark.parametrize("unique", [True, False])
def test_a_sweep_decides_registers_whose_writes_differ(unique: bool) -> None:
    """All of them and no others, as all orders do; what convicts one is illegal by itself."""
    dice, counts = np.random.default_rng(3), Counter[int]()
    played = games(17, KEYS, SIMPLE if unique else KINDS, unique=unique)
    rows = [row for game in played for row in game.rows]
    ended = {row[2] for row in rows if row[3]}
    lost = {op for op in ended if dice.random() < UNHEARD}
    batch = encode(columns([r for r in rows if r[3] or r[2] not in lost]), pipelined=True).batch
    _, values, ranks = extent(batch, np.arange(KEYS))
    verdicts, witnesses = np.empty(KEYS, np.int8), np.empty((KEYS, 6), np.int64)
    zones.sweep(batch, values, ranks, verdicts, witnesses)
    for k, (game, verdict) in enumerate(zip(played, verdicts.tolist(), strict=True)):
        ops = batch.ops[batch.starts[k] : batch.starts[k + 1]]
        truth = UNKNOWN
        if of_this_kind(ops) or too_early(ops):
            truth = LEGAL if all_orders(game.ops) else ILLEGAL
        assert verdict == truth, game
        counts[verdict] += 1
        if verdict == ILLEGAL and of_this_kind(ops):
            shown(batch, k, witnesses[k])
        elif verdict == ILLEGAL:
            assert witnesses[k][0] >= 0
        else:
            assert (witnesses[k] == -1).all()
    print(dict(counts))
    assert min(counts.values()) >= 20
    assert len(counts) == 3


def swept(*rows: tuple[F, Type, int | None, int], initial: int = ABSENT) -> tuple[int, list[int]]:
    """The verdict on one key, and the witness; rows: kind, type, value, operation."""
    table = [(t, op, op, kind, f, 0, v, None, None) for t, (f, kind, v, op) in enumerate(rows)]
    batch = encode(columns(table), initial, pipelined=True).batch
    _, values, ranks = extent(batch, np.arange(1))
    verdicts, witnesses = np.empty(1, np.int8), np.empty((1, 6), np.int64)
    zones.sweep(batch, values, ranks, verdicts, witnesses)
    return int(verdicts[0]), witnesses[0].tolist()


def test_who_writes_what_was_there_at_first_is_left_to_the_search() -> None:
    """A read of the value would match either write."""
    write = ((F.PUT, Type.INVOKE, 7, 0), (F.PUT, Type.OK, 7, 0))
    assert swept(*write)[0] == LEGAL
    assert swept(*write, initial=7)[0] == UNKNOWN


def test_a_witness_has_three_of_each_value() -> None:
    """The write, the first return, and the last call, of the value in the wrong place and then of
    the value that was there all the time."""
    rows = []
    for op, (f, value) in enumerate(
        ((F.PUT, 1), (F.GET, 1), (F.PUT, 2), (F.GET, 2), (F.GET, 1), (F.GET, 2))
    ):
        rows += [(f, Type.INVOKE, value if f is F.PUT else None, op), (f, Type.OK, value, op)]
    verdict, witness = swept(*rows)
    assert verdict == ILLEGAL
    assert witness == [2, 2, 5, 0, 0, 4]
