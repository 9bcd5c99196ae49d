"""Any object that somebody can write down: a model is a start and a step.

`step(state, operation)` gives the state after the operation, or None if the operation, with the
result that it had, is not possible in that state. States are values that can be compared and
hashed. Of an operation of unknown outcome the result is not known, so it must step by what was
asked alone; it may also never happen, which is not the model's business.

    def step(state, operation):
        if operation.f is F.GET:
            return state if operation.value == state else None
        return operation.value

    Model("register", None, step)

The search is plain Python and knows nothing of the object, so it is for histories of tens of
operations at once, and the second opinion on the kernels in their tests.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checkers._linear.batch import (
    APPEND,
    CAS,
    ILLEGAL,
    LEGAL,
    NEVER,
    OK,
    READ,
    REFUSED,
    UNKNOWN,
    WRITE,
    Batch,
    value_of,
)
from harness.operation import F

State = Hashable
STATES = 200_000


@dataclass(frozen=True)
class Operation:
    """What was asked and what came of it. `done`: it happened for certain, and by `ret`.

    `value` and `arg` as in the history's rows: a compare-and-set is from value to arg. `refused`:
    it was answered with no (a compare-and-set, an acquire, a release).
    """

    f: F
    value: Any = None
    arg: Any = None
    call: int = -1
    ret: int = NEVER
    done: bool = True
    refused: bool = False
    op: int = -1


@dataclass(frozen=True)
class Model:
    name: str
    start: State
    step: Callable[[Any, Operation], State | None]


def judge(model: Model, operations: Sequence[Operation], most: int = STATES) -> int:
    """LEGAL, ILLEGAL, or UNKNOWN after so many configurations."""
    try:
        found = next(_ends(model, operations, most), None) is not None
    except _TooMany:
        return UNKNOWN
    return LEGAL if found else ILLEGAL


def ends(
    model: Model, operations: Sequence[Operation], most: int = STATES
) -> list[tuple[int, State]] | None:
    """Every way in which all that happened for certain can have ended; None if there are too many.

    A way is the operations that took effect, as bits by their places, and the state they lead to.
    """
    try:
        return [(taken, state) for taken, state in _ends(model, operations, most)]
    except _TooMany:
        return None


class _TooMany(Exception):
    """There are more configurations than somebody wanted to see."""


def _ends(model: Model, operations: Sequence[Operation], most: int) -> Iterator[tuple[int, State]]:
    lasting = sum(1 << i for i, operation in enumerate(operations) if operation.done)
    seen: set[tuple[int, State]] = set()
    waiting: list[tuple[int, State]] = [(0, model.start)]
    while waiting:
        taken, state = waiting.pop()
        if (taken, state) in seen:
            continue
        if len(seen) >= most:
            raise _TooMany
        seen.add((taken, state))
        if taken & lasting == lasting:
            yield taken, state
        for i in window(operations, taken):
            after = model.step(state, operations[i])
            if after is not None:
                waiting.append((taken | 1 << i, after))


def window(operations: Sequence[Operation], taken: int) -> list[int]:
    """Those that may come next: no other one that is still to come had returned before."""
    left = [(i, o) for i, o in enumerate(operations) if not taken >> i & 1]
    limit = min((o.ret for _, o in left if o.done), default=NEVER)
    return [i for i, o in left if o.call < limit]


def operations_of(batch: Batch, key: int) -> list[Operation]:
    """A key's operations of a batch, as models take them."""
    first, last = int(batch.starts[key]), int(batch.starts[key + 1])
    rows = zip(batch.ops[first:last].tolist(), batch.names[first:last].tolist(), strict=True)
    return [_operation(batch, key, row, name) for row, name in rows]


def _operation(batch: Batch, key: int, row: Sequence[int], name: int) -> Operation:
    kind, a, b, status, call, ret = row
    return Operation(
        f={READ: F.GET, WRITE: F.PUT, APPEND: F.APPEND}.get(kind, F.CAS),
        value=value_of(batch, key, a),
        arg=value_of(batch, key, b) if kind in (CAS, REFUSED) else None,
        call=call,
        ret=ret,
        done=status == OK,
        refused=kind == REFUSED,
        op=name,
    )


NOTHING = "nothing"  # the state of a register without a value: None would say impossible


def _register(state: State, operation: Operation) -> State | None:
    held = None if state == NOTHING else state
    if operation.f is F.GET:
        return state if operation.value == held else None
    if operation.f is F.CAS and operation.refused:
        return state if operation.value != held else None
    if operation.f is F.CAS and operation.value != held:
        return None
    new: State = operation.arg if operation.f is F.CAS else operation.value
    return NOTHING if new is None else new


def _string(state: str, operation: Operation) -> State | None:
    if operation.f is F.GET:
        return state if (operation.value or "") == state else None
    text = operation.value or ""
    return state + text if operation.f is F.APPEND else text


def _set(state: frozenset[Any], operation: Operation) -> State | None:
    if operation.f is F.LIST:
        return state if frozenset(operation.value) == state else None
    return state | {operation.value}


def _counter(state: int, operation: Operation) -> State | None:
    if operation.f is F.COUNT:
        return state if operation.value == state else None
    return state + int(operation.value)


def _queue(state: tuple[Any, ...], operation: Operation) -> State | None:
    if operation.f is F.ENQUEUE:
        return (*state, operation.value)
    if not operation.done:
        return state[1:]
    if operation.value is None:
        return None if state else state
    return state[1:] if state and state[0] == operation.value else None


def _bag(state: tuple[Any, ...], operation: Operation) -> State | None:
    """A queue without an order, whose answer "empty" tells nothing."""
    if operation.f is F.ENQUEUE:
        return tuple(sorted((*state, operation.value)))
    if not operation.done or operation.value is None:
        return state
    if operation.value not in state:
        return None
    at = state.index(operation.value)
    return state[:at] + state[at + 1 :]


def _lock(state: bool, operation: Operation) -> State | None:
    """Held or free; an acquire that is refused found it held."""
    wanted = operation.f is F.ACQUIRE
    if operation.refused:
        return state if state == wanted else None
    return wanted if state != wanted else None


REGISTER = Model("register", NOTHING, _register)
STRING = Model("string", "", _string)
SET = Model("set", frozenset(), _set)
COUNTER = Model("counter", 0, _counter)
QUEUE = Model("queue", (), _queue)
BAG = Model("bag", (), _bag)
LOCK = Model("lock", False, _lock)
MODELS = {model.name: model for model in (REGISTER, STRING, SET, COUNTER, QUEUE, LOCK)}
