"""The kind of each object, by its operations, and the verdict by the method of its kind.

Keys of one kind are judged together. Short keys that the method leaves undecided (a value put
twice, steps of several sizes, locks with ambiguous releases) are searched with a model; the rest is
unknown.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from checkers._cycles.arrays import Bools, Ints
from checkers._linear import appends, counters, fifo, locks, models, sets
from checkers._linear.batch import ABSENT, ILLEGAL, INFO, LEGAL, NEVER, OK
from checkers._linear.models import Model, ModelOperation
from checkers._linear.objects import REFUSED, Objects
from checkers._linear.violations import Code, MethodResult, Violations, violations
from harness.operation import F

MAX_SEARCHED = 64  # operations of a key that is searched
STATES = 5_000


class ObjectKind(StrEnum):
    QUEUE = "queue"
    SET = "set"
    COUNTER = "counter"
    LOG = "log"
    LOCK = "lock"


class KindVerdicts(NamedTuple):
    """`kind`: by key, the number of its kind or -1. `unknown`: keys that no method decided."""

    kind: Ints
    violations: list[tuple[ObjectKind, Violations]]
    unknown: Bools


def judge_by_kind(objects: Objects, *, ordered: bool = True) -> KindVerdicts:
    """Judge each key by the method of its kind. `ordered`: queues are first in, first out."""
    kind = _kinds(objects)
    unknown = np.zeros(len(objects.keys), np.bool_)
    found: list[tuple[ObjectKind, Violations]] = []
    for number, (name, method) in enumerate(_METHODS.items()):
        if (kind == number).any():
            mine = objects.only(kind == number)
            queue = name is ObjectKind.QUEUE
            judged = fifo.judge(mine, ordered=ordered) if queue else method(mine)
            found += [(name, each) for each in judged.violations if len(each.key)]
            model = models.BAG if queue and not ordered else _MODELS[name]
            more, unknown_here = _searched(mine, model, judged)
            found += [(name, each) for each in more]
            unknown |= unknown_here
    return KindVerdicts(kind, found, unknown)


_METHODS: Mapping[ObjectKind, Callable[[Objects], MethodResult]] = {
    ObjectKind.QUEUE: fifo.judge,
    ObjectKind.SET: sets.judge,
    ObjectKind.COUNTER: counters.judge,
    ObjectKind.LOG: appends.judge,
    ObjectKind.LOCK: locks.judge,
}


def _kinds(objects: Objects) -> Ints:
    """Return by key the number of the last kind that applies; -1 for adds that are never read."""
    f, key = objects.operations.f, objects.operations.key
    telling = {
        ObjectKind.SET: (F.LIST,),
        ObjectKind.LOG: (F.APPEND,),
        ObjectKind.COUNTER: (F.COUNT,),
        ObjectKind.QUEUE: (F.ENQUEUE, F.DEQUEUE),
        ObjectKind.LOCK: (F.ACQUIRE, F.RELEASE),
    }
    kind = np.full(len(objects.keys), -1, np.int64)
    numbers = list(_METHODS)
    for name, fs in telling.items():
        kind[key[np.isin(f, fs)]] = numbers.index(name)
    return kind


def kind_number(kind: ObjectKind) -> int:
    """Return the number of a kind in `KindVerdicts.kind`."""
    return list(_METHODS).index(kind)


# -------------------------------------------------------------------- searching what is left


def _searched(
    objects: Objects, model: Model, judged: MethodResult
) -> tuple[list[Violations], Bools]:
    """Search short undecided keys; return violations, and the keys that are still unknown."""
    bad = np.zeros(len(objects.keys), np.bool_)
    for each in judged.violations:
        bad[each.key] = True
    unknown = judged.undecided & ~bad
    illegal: list[tuple[int, int]] = []
    for key, places in _places(objects, np.flatnonzero(unknown)):
        if len(places) > MAX_SEARCHED:
            continue
        operations = [_operation(objects, place) for place in places]
        verdict = models.search_model(model, operations, STATES)
        unknown[key] = verdict not in (LEGAL, ILLEGAL)
        if verdict == ILLEGAL:
            illegal.append((key, _latest(operations, places)))
    table = np.array(illegal, np.int64).reshape(-1, 2)
    return (
        [violations(Code.NOT_LINEARIZABLE, table[:, 0], table[:, 1])] if illegal else []
    ), unknown


def _places(objects: Objects, keys: Ints) -> Iterator[tuple[int, list[int]]]:
    """Yield each key's operations that may have happened or that observed something."""
    operations = objects.operations
    kept = np.flatnonzero(np.isin(operations.status, (OK, INFO, REFUSED)))
    order = kept[np.lexsort((operations.call[kept], operations.key[kept]))]
    for key in keys.tolist():
        first, last = np.searchsorted(operations.key[order], (key, key + 1))
        mine = order[first:last]
        lost = mine[operations.drain[mine] & (operations.status[mine] == INFO)]
        puts = int((operations.f[mine] == F.ENQUEUE).sum())
        yield key, [*mine.tolist(), *(lost[:1].tolist() * (puts - 1))]


def _operation(objects: Objects, place: int) -> ModelOperation:
    o = objects.operations
    value: Any = int(o.value[place])
    value = None if value == ABSENT else value
    if o.f[place] == F.LIST:
        mine = np.flatnonzero(objects.elements.list == place)
        mine = mine[np.argsort(objects.elements.pos[mine], kind="stable")]
        value = objects.elements.value[mine].tolist()
    offset = int(o.offset[place])
    status = int(o.status[place])
    done = status != INFO
    return ModelOperation(
        f=F(int(o.f[place])),
        value=(value, int(o.process[place])) if o.f[place] in (F.ACQUIRE, F.RELEASE) else value,
        arg=None if offset == ABSENT else offset,
        call=int(o.call[place]),
        ret=int(o.ret[place]) if done else NEVER,
        done=done,
        refused=status == REFUSED,
        op=int(o.op[place]),
    )


def _latest(operations: list[ModelOperation], places: list[int]) -> int:
    """Return the operation that returned last."""
    return max(zip(operations, places, strict=True), key=lambda p: (p[0].done, p[0].ret))[1]


def _owned(
    state: tuple[int | None, int], operation: ModelOperation
) -> tuple[int | None, int] | None:
    """A lock: its holder, and the last token."""
    holder, token = state
    process = operation.value[1]
    if operation.f is F.ACQUIRE:
        fresh = operation.arg is None or operation.arg > token
        after = token if operation.arg is None else operation.arg
        return (process, after) if holder is None and fresh else None
    if operation.refused:
        return state if holder != process else None
    return (None, token) if holder == process else None


def _appended(state: tuple[int, ...], operation: ModelOperation) -> tuple[int, ...] | None:
    if operation.f is F.LIST:
        return state if tuple(operation.value) == state else None
    same_length = operation.arg is None or operation.arg == len(state)
    return (*state, operation.value) if same_length else None


_MODELS = {
    ObjectKind.QUEUE: models.QUEUE,
    ObjectKind.SET: models.SET,
    ObjectKind.COUNTER: models.COUNTER,
    ObjectKind.LOG: Model("log", (), _appended),
    ObjectKind.LOCK: Model("owned lock", (None, -(1 << 62)), _owned),
}
