"""Histories of registers of any size: clients that read, write and compare-and-set.

The registers are real: an operation takes effect at some moment between its call and its return.
Some are never answered, and of these about half never happened. `corrupt` is the share of reads
that are told any value instead, so that a history is illegal with some luck.
"""

from dataclasses import dataclass

import numpy as np

from checkers._linear.batch import ABSENT
from checkers._linear.pairing import OperationColumns
from harness.compiled import kernel
from harness.operation import F, Type

GET, PUT, CAS = int(F.GET), int(F.PUT), int(F.CAS)
INVOKE, OK, FAIL = int(Type.INVOKE), int(Type.OK), int(Type.FAIL)
IDLE, CALLED, ACTED = range(3)


@dataclass(frozen=True)
class Shape:
    """`clients` of each key. `values` 0: every write is of a value of its own, and no cas."""

    operations: int
    keys: int = 1
    clients: int = 5
    info: float = 0.0
    values: int = 5
    corrupt: float = 0.0


def columns(shape: Shape, seed: int = 1) -> OperationColumns:
    """The history, in time order."""
    rows = 2 * shape.operations
    made = OperationColumns(
        t=np.arange(rows),
        process=np.empty(rows, np.int32),
        op=np.empty(rows, np.int64),
        type=np.empty(rows, np.int8),
        f=np.empty(rows, np.int8),
        key=np.empty(rows, np.int32),
        value=np.full(rows, ABSENT),
        arg=np.full(rows, ABSENT),
        pos=np.full(rows, -1, np.int32),
    )
    numbers = (shape.operations, shape.keys, shape.clients, shape.values)
    count = _play(made, numbers, (shape.info, shape.corrupt), seed)
    return OperationColumns(*(column[:count] for column in made))


@kernel
def _play(
    made: OperationColumns,
    numbers: tuple[int, int, int, int],
    chances: tuple[float, float],
    seed: int,
) -> int:
    """Fill in rows; how many."""
    np.random.seed(seed)
    operations, keys, clients, values = numbers
    doing, of = np.zeros((keys, clients), np.int8), np.zeros((keys, clients), np.int64)
    seen, lives = np.zeros((keys, clients), np.int64), np.zeros((keys, clients), np.int64)
    state, row_of = np.full(keys, ABSENT), np.empty(operations, np.int64)
    begun, left, at = 0, operations, 0
    while left:
        key, client = np.random.randint(keys), np.random.randint(clients)
        if doing[key, client] == IDLE:
            if begun == operations:
                continue
            _invoke(made, at, begun, values)
            made.key[at] = key
            made.process[at] = (lives[key, client] * keys + key) * clients + client
            doing[key, client], of[key, client], row_of[begun] = CALLED, begun, at
            begun, at = begun + 1, at + 1
            continue
        asked = row_of[of[key, client]]
        if np.random.random() < chances[0] / 2:  # of two moments to get lost
            doing[key, client], lives[key, client] = IDLE, lives[key, client] + 1
            left -= 1
        elif doing[key, client] == CALLED:
            seen[key, client], doing[key, client] = state[key], ACTED
            if made.f[asked] == PUT:
                state[key] = made.value[asked]
            elif made.f[asked] == CAS and made.value[asked] == state[key]:
                state[key] = made.arg[asked]
        else:
            lie = np.random.random() < chances[1]
            _answer(made, at, asked, seen[key, client], np.random.randint(5) if lie else ABSENT)
            doing[key, client], left, at = IDLE, left - 1, at + 1
    return at


@kernel
def _invoke(made: OperationColumns, at: int, op: int, values: int) -> None:
    kind = np.random.randint(2 if values == 0 else 3)
    made.op[at], made.type[at], made.f[at] = op, INVOKE, GET
    if kind == 1:
        made.f[at], made.value[at] = PUT, np.random.randint(values) if values else op
    elif kind == 2:
        made.f[at], made.value[at] = CAS, np.random.randint(values)
        made.arg[at] = np.random.randint(values)


@kernel
def _answer(made: OperationColumns, at: int, asked: int, seen: int, lie: int) -> None:
    made.op[at], made.type[at], made.f[at] = made.op[asked], OK, made.f[asked]
    made.key[at], made.process[at] = made.key[asked], made.process[asked]
    made.value[at], made.arg[at] = made.value[asked], made.arg[asked]
    if made.f[at] == GET:
        made.value[at] = seen if lie == ABSENT else lie
    elif made.f[at] == CAS and made.value[at] != seen:
        made.type[at], made.pos[at] = FAIL, 0
