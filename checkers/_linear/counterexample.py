"""Why a key is not linearizable: a few operations that contradict each other.

1. The *smallest failing prefix*: a shorter prefix of a legal history is legal, so bisection finds
   the first return that cannot be explained. Operations that return later are of unknown outcome.
2. The *core*: each operation is relaxed if the contradiction remains. A read is dropped; a write or
   compare-and-set may happen at any time or never. (Without the writes, reads of their values would
   be the contradiction.) The rest, about five operations as a rule, cannot be right together,
   whatever the others did.
3. The *window*: of values that are written repeatedly, each write would be in that core. So all
   operations that returned before some instant are left out. The latest instant is found after
   which the rest is a contradiction from any state of the register, and the rest is reduced to its
   core. The smaller of both cores is reported.
4. The *frontier*: all states in which the operations that returned before can leave the object, and
   for each the reasons why no open operation makes the failing one possible.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkers._linear import models
from checkers._linear.batch import (
    ABSENT,
    CALL,
    CAS,
    ILLEGAL,
    INFO,
    KIND,
    NEVER,
    OK,
    READ,
    REFUSED,
    RET,
    STATUS,
    WRITE,
    A,
    Array,
    B,
    OperationBatch,
    select_key,
)
from checkers._linear.judge import REGISTER, STRING, SearchBudget, judge
from checkers._linear.models import Model, ModelOperation, operations_of
from harness.operation import F

FAILURES = 20_000
EFFORT = 10_000_000  # operations and steps of all probes of one key
MAX_CONFIGURATIONS = 20_000
MAX_FRONTIER_OPERATIONS = 128  # longer prefixes have no frontier
FIRST_WINDOW = 16  # events
MAX_WINDOW_ROWS = 1 << 21  # operations of a window times values
HEAVY = 10_000  # operations; longer probes have a deadline, too
HEAVY_S = 20.0
EMPTY = "the empty string"
WORDS = {
    F.GET: "read {value}",
    F.PUT: "write {value}",
    F.CAS: "compare-and-set {value} to {arg}",
    F.APPEND: "append {value}",
}


@dataclass(frozen=True)
class DeadEnd:
    """A state that all earlier operations can have left, and why no open operation can go on from
    it."""

    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Counterexample:
    """`failing`: the operation whose return has no explanation; `core` contains it.

    `from_any_state`: the core is a contradiction whatever the key held before its operations.
    `prefix`: the number of operations called before that return. `frontier` is empty if there are
    too many operations or states.
    """

    key: int
    failing: ModelOperation
    core: tuple[ModelOperation, ...]
    prefix: int
    from_any_state: bool = False
    frontier: tuple[DeadEnd, ...] = ()


def find_counterexample(
    batch: OperationBatch,
    key: int,
    kind: str = REGISTER,
    texts: Sequence[str] = (),
    witness: Sequence[int] = (),
    passed: int | None = None,
    effort: int = EFFORT,
) -> Counterexample | None:
    """Return the contradiction in the key at place `key`; None if the budget is too small to find
    it.

    `witness`: operations, as places in the batch, known to be illegal by themselves. `passed`: the
    number of returns that the search could explain. `effort`: the budget for making the core
    smaller.
    """
    keep = [place - int(batch.starts[key]) for place in witness] or None
    alone = select_key(batch, key, keep)
    probe = _Probe(kind, texts, effort)
    limit = _failing_return(alone, probe, None if witness else passed)
    if limit is None:
        return None
    small = _prefix(alone, limit)
    failing = int(np.flatnonzero(small.ops[:, RET] == limit)[0])
    core, from_any_state = _smaller_core(small, limit, probe)
    if not core:
        return None
    named = _operations(small, kind, texts)
    frontier = _frontier(named, int(small.names[failing]), _model(kind))
    return Counterexample(
        key=int(batch.keys[key]),
        failing=named[failing],
        core=tuple(named[i] for i in core),
        prefix=len(named),
        from_any_state=from_any_state,
        frontier=frontier,
    )


def describe(operation: ModelOperation) -> str:
    """Return the text of an operation."""
    value = "nothing" if operation.value is None else operation.value
    words = WORDS[operation.f].format(value=value, arg=operation.arg)
    if operation.refused:
        return f"{words} (refused)"
    return words if operation.done else f"{words} (outcome unknown)"


@dataclass
class _Probe:
    """Decides whether a batch is still illegal. `left`: the rest of the budget."""

    kind: str
    texts: Sequence[str]
    left: int

    def illegal(self, batch: OperationBatch) -> bool:
        return ILLEGAL in self._verdicts(batch)

    def illegal_from_any_state(self, batch: OperationBatch) -> bool:
        """Return whether the batch is illegal whatever the register held before."""
        values = _possible_initial_values(batch)
        if len(values) * len(batch.ops) > MAX_WINDOW_ROWS:
            return False
        return set(self._verdicts(_from_each_value(batch, values))) == {ILLEGAL}

    def _verdicts(self, batch: OperationBatch) -> list[int]:
        seconds = HEAVY_S if len(batch.ops) > HEAVY else None
        budget = SearchBudget(FAILURES, seconds, exhaustive=True)
        judged = judge(batch, self.kind, budget, self.texts)
        self.left -= len(batch.ops) + judged.stats["steps"]
        verdicts: list[int] = judged.verdicts.tolist()
        return verdicts


def _with(batch: OperationBatch, ops: Array, keep: Array) -> OperationBatch:
    """Return the batch of one key with these operations instead, of which some are kept."""
    count = np.array([0, int(np.count_nonzero(keep))])
    return batch._replace(starts=count, ops=ops[keep], names=batch.names[keep])


def _prefix(batch: OperationBatch, limit: int) -> OperationBatch:
    """Return the operations that were called before a return, as known at that time."""
    ops = batch.ops.copy()
    late = ops[:, RET] > limit
    ops[late, STATUS], ops[late, RET] = INFO, NEVER
    keep = (ops[:, CALL] < limit) & ~(late & np.isin(ops[:, KIND], (READ, REFUSED)))
    return _with(batch, ops, keep)


def _failing_return(batch: OperationBatch, probe: _Probe, passed: int | None) -> int | None:
    """Return the rank of the return that ends the smallest failing prefix."""
    rets = np.sort(batch.ops[batch.ops[:, STATUS] == OK, RET]).tolist()
    low, high = 0, len(rets)
    if passed is not None and passed < high and probe.illegal(_prefix(batch, rets[passed])):
        high = passed
        low = passed if passed == 0 or not probe.illegal(_prefix(batch, rets[passed - 1])) else 0
    while low < high:
        middle = (low + high) // 2
        if probe.illegal(_prefix(batch, rets[middle])):
            high = middle
        else:
            low = middle + 1
    if low < len(rets):
        return int(rets[low])
    return None if passed is None or passed >= len(rets) else int(rets[passed])


def _smaller_core(batch: OperationBatch, limit: int, probe: _Probe) -> tuple[list[int], bool]:
    """Return the places of the smaller core, and whether it holds from any state; none if not
    proven."""
    others = batch.names[batch.ops[:, RET] != limit].tolist()
    if probe.illegal(
        _relaxed(batch, others)
    ):  # no operation can have written the value that it observed
        return _places(batch, set(batch.names.tolist()) - set(others)), False
    window = _window(batch, probe) if probe.kind == REGISTER else None
    late = set() if window is None else _core(window, probe.illegal_from_any_state, probe)
    if len(batch.ops) <= MAX_FRONTIER_OPERATIONS or (not late and probe.illegal(batch)):
        early = _core(batch, probe.illegal, probe)
        if not late or len(early) <= len(late):
            return _places(batch, early), False
    return _places(batch, late), True


def _places(batch: OperationBatch, names: set[int]) -> list[int]:
    return [at for at, name in enumerate(batch.names.tolist()) if name in names]


def _window(batch: OperationBatch, probe: _Probe) -> OperationBatch | None:
    """Return the shortest suffix that is illegal from any state; None if there is none or it is too
    long."""
    last = int(batch.ops[batch.ops[:, RET] != NEVER, RET].max())
    length, shortest = FIRST_WINDOW, 0
    while not probe.illegal_from_any_state(_suffix(batch, last - length)):
        if length > last or probe.left <= 0:
            return None
        shortest, length = length, 2 * length
    while length - shortest > 1:
        middle = (length + shortest) // 2
        if probe.illegal_from_any_state(_suffix(batch, last - middle)):
            length = middle
        else:
            shortest = middle
    return _suffix(batch, last - length)


def _suffix(batch: OperationBatch, rank: int) -> OperationBatch:
    """Return the batch without operations that returned before a rank; those open then are
    relaxed."""
    ops = batch.ops.copy()
    open_then = (ops[:, CALL] < rank) & (ops[:, RET] >= rank)
    ops[open_then, STATUS], ops[open_then, CALL], ops[open_then, RET] = INFO, -1, NEVER
    keep = (ops[:, RET] >= rank) & ~(open_then & np.isin(ops[:, KIND], (READ, REFUSED)))
    return _in_order(_with(batch, ops, keep))


def _possible_initial_values(batch: OperationBatch) -> Array:
    """Return the numbers of values that a register can have held before, and of one that never
    occurs."""
    pairs = np.isin(batch.ops[:, KIND], (CAS, REFUSED))
    named = np.unique(np.concatenate([batch.ops[:, A], batch.ops[pairs, B]]))
    return np.append(named, len(batch.values))


def _from_each_value(batch: OperationBatch, values: Array) -> OperationBatch:
    """Return a batch with a key for each of these values, set by a write before all operations."""
    ops = batch.ops.copy()
    ops[ops[:, CALL] >= 0, CALL] += 2
    ops[ops[:, RET] != NEVER, RET] += 2
    first = int(np.count_nonzero(ops[:, CALL] < 0))
    whole = np.insert(ops, first, (WRITE, 0, 0, OK, 0, 1), axis=0)
    tiled = np.tile(whole, (len(values), 1))
    tiled[first :: len(whole), A] = values
    keys = np.arange(len(values) + 1)
    return OperationBatch(
        keys[:-1],
        keys * len(whole),
        tiled,
        np.tile(np.insert(batch.names, first, -1), len(values)),
        keys * (len(batch.values) + 1),
        np.tile(np.append(batch.values, ABSENT), len(values)),
    )


def _core(
    batch: OperationBatch, illegal: Callable[[OperationBatch], bool], probe: _Probe
) -> set[int]:
    """Return the names of operations that cannot be relaxed; tries many at once, then fewer."""
    left = batch
    chunk = max(1, len(batch.names) // 2)
    while chunk:
        firm = left.names[left.ops[:, CALL] >= 0].tolist()
        for at in range(0, len(firm), chunk):
            if probe.left <= 0:
                break
            tried = _relaxed(left, firm[at : at + chunk])
            if illegal(tried):
                left = tried
        chunk //= 2
    return set(left.names[left.ops[:, CALL] >= 0].tolist())


def _relaxed(batch: OperationBatch, names: Sequence[int]) -> OperationBatch:
    """Drop the observers among these operations; let the others happen at any time or never."""
    ops, chosen = batch.ops.copy(), np.isin(batch.names, names)
    ops[chosen, STATUS], ops[chosen, CALL], ops[chosen, RET] = INFO, -1, NEVER
    keep = ~(chosen & np.isin(ops[:, KIND], (READ, REFUSED)))
    return _in_order(_with(batch, ops, keep))


def _in_order(batch: OperationBatch) -> OperationBatch:
    order = np.argsort(batch.ops[:, CALL], kind="stable")
    return batch._replace(ops=batch.ops[order], names=batch.names[order])


def _model(kind: str) -> Model:
    return {REGISTER: models.REGISTER, STRING: models.STRING}[kind]


def _operations(batch: OperationBatch, kind: str, texts: Sequence[str]) -> list[ModelOperation]:
    """Return operations with texts, where values are numbers of texts."""
    found = operations_of(batch, 0)
    if not texts and kind != STRING:
        return found
    empty = "" if kind == STRING else None
    return [replace(o, value=_text(o.value, texts, empty), arg=_text(o.arg, texts)) for o in found]


def _text(value: int | None, texts: Sequence[str], empty: str | None = None) -> str | None:
    return empty if value is None else texts[value]


def _frontier(operations: list[ModelOperation], failing: int, model: Model) -> tuple[DeadEnd, ...]:
    """Return the states in which the operations that returned before can leave the object."""
    if len(operations) > MAX_FRONTIER_OPERATIONS:
        return ()
    others = [o for o in operations if o.op != failing]
    last = next(o for o in operations if o.op == failing)
    ends = models.end_states(model, others, MAX_CONFIGURATIONS)
    if ends is None:
        return ()
    pending = [(i, o) for i, o in enumerate(others) if not o.done]
    dead: dict[str, set[str]] = {}
    for taken, state in ends:
        reasons = dead.setdefault(_state_text(state), {f"{describe(last)}: not from here"})
        for i, operation in pending:
            after = model.step(state, operation)
            if not taken >> i & 1 and after != state:
                way = "not from here" if after is None else f"leads to {_state_text(after)}"
                reasons.add(f"{describe(operation)}: {way}")
    return tuple(DeadEnd(state, tuple(sorted(dead[state]))) for state in sorted(dead))


def _state_text(state: object) -> str:
    return EMPTY if state == "" else str(state)
