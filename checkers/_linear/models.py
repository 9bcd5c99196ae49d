"""Models: any object that a start state and a step function describe.

`step(state, operation)` returns the state after the operation, or None if the operation, with its
result, is not possible in that state. States can be compared and hashed. The result of an operation
of unknown outcome is not known, so its step depends on the arguments alone; that it may also never
happen is not the model's concern.

    def step(state, operation):
        if operation.f is F.GET:
            return state if operation.value == state else None
        return operation.value

    Model("register", None, step)

The search is plain Python without knowledge of the object, for histories of tens of concurrent
operations. It judges short keys that no kernel decides, and is the oracle of the kernels' tests.
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
    OperationBatch,
    value_of,
)
from harness.operation import F

State = Hashable
STATES = 200_000


@dataclass(frozen=True)
class ModelOperation:
    """An operation and its outcome. `done`: it certainly happened, by `ret`.

    `value` and `arg` are as in the history's rows: a compare-and-set is from value to arg.
    `refused`: the answer was no (a compare-and-set, an acquire, a release).
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
    step: Callable[[Any, ModelOperation], State | None]


def search_model(
    model: Model, operations: Sequence[ModelOperation], max_states: int = STATES
) -> int:
    """Return LEGAL, ILLEGAL, or UNKNOWN after `max_states` configurations."""
    try:
        found = next(_ends(model, operations, max_states), None) is not None
    except _TooManyStates:
        return UNKNOWN
    return LEGAL if found else ILLEGAL


def end_states(
    model: Model, operations: Sequence[ModelOperation], max_states: int = STATES
) -> list[tuple[int, State]] | None:
    """Return all final configurations that have each certain operation; None if there are too many.

    A configuration is the operations that took effect, as bits by their places, and the state.
    """
    try:
        return [(taken, state) for taken, state in _ends(model, operations, max_states)]
    except _TooManyStates:
        return None


class _TooManyStates(Exception):
    """The search reached its limit of configurations."""


def _ends(
    model: Model, operations: Sequence[ModelOperation], most: int
) -> Iterator[tuple[int, State]]:
    lasting = sum(1 << i for i, operation in enumerate(operations) if operation.done)
    seen: set[tuple[int, State]] = set()
    waiting: list[tuple[int, State]] = [(0, model.start)]
    while waiting:
        taken, state = waiting.pop()
        if (taken, state) in seen:
            continue
        if len(seen) >= most:
            raise _TooManyStates
        seen.add((taken, state))
        if taken & lasting == lasting:
            yield taken, state
        for i in next_operations(operations, taken):
            after = model.step(state, operations[i])
            if after is not None:
                waiting.append((taken | 1 << i, after))


def next_operations(operations: Sequence[ModelOperation], taken: int) -> list[int]:
    """Return the operations that may come next: none that is still to come returned before their
    call."""
    left = [(i, o) for i, o in enumerate(operations) if not taken >> i & 1]
    limit = min((o.ret for _, o in left if o.done), default=NEVER)
    return [i for i, o in left if o.call < limit]


def operations_of(batch: OperationBatch, key: int) -> list[ModelOperation]:
    """Return a key's operations of a batch, as models take them."""
    first, last = int(batch.starts[key]), int(batch.starts[key + 1])
    rows = zip(batch.ops[first:last].tolist(), batch.names[first:last].tolist(), strict=True)
    return [_operation(batch, key, row, name) for row, name in rows]


def _operation(batch: OperationBatch, key: int, row: Sequence[int], name: int) -> ModelOperation:
    kind, a, b, status, call, ret = row
    return ModelOperation(
        f={READ: F.GET, WRITE: F.PUT, APPEND: F.APPEND}.get(kind, F.CAS),
        value=value_of(batch, key, a),
        arg=value_of(batch, key, b) if kind in (CAS, REFUSED) else None,
        call=call,
        ret=ret,
        done=status == OK,
        refused=kind == REFUSED,
        op=name,
    )


NOTHING = "nothing"  # the state of an empty register: None would mean impossible


def _register(state: State, operation: ModelOperation) -> State | None:
    held = None if state == NOTHING else state
    if operation.f is F.GET:
        return state if operation.value == held else None
    if operation.f is F.CAS and operation.refused:
        return state if operation.value != held else None
    if operation.f is F.CAS and operation.value != held:
        return None
    new: State = operation.arg if operation.f is F.CAS else operation.value
    return NOTHING if new is None else new


def _string(state: str, operation: ModelOperation) -> State | None:
    if operation.f is F.GET:
        return state if (operation.value or "") == state else None
    text = operation.value or ""
    return state + text if operation.f is F.APPEND else text


def _set(state: frozenset[Any], operation: ModelOperation) -> State | None:
    if operation.f is F.LIST:
        return state if frozenset(operation.value) == state else None
    return state | {operation.value}


def _counter(state: int, operation: ModelOperation) -> State | None:
    if operation.f is F.COUNT:
        return state if operation.value == state else None
    return state + int(operation.value)


def _queue(state: tuple[Any, ...], operation: ModelOperation) -> State | None:
    if operation.f is F.ENQUEUE:
        return (*state, operation.value)
    if not operation.done:
        return state[1:]
    if operation.value is None:
        return None if state else state
    return state[1:] if state and state[0] == operation.value else None


def _bag(state: tuple[Any, ...], operation: ModelOperation) -> State | None:
    """A queue without an order, whose answer "empty" proves nothing."""
    if operation.f is F.ENQUEUE:
        return tuple(sorted((*state, operation.value)))
    if not operation.done or operation.value is None:
        return state
    if operation.value not in state:
        return None
    at = state.index(operation.value)
    return state[:at] + state[at + 1 :]


def _lock(state: bool, operation: ModelOperation) -> State | None:
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
