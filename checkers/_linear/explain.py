"""Why a key is not linearizable: a few operations that contradict each other.

1. The *smallest failing prefix*: histories that are cut off at a return only become more legal the
   earlier that is, so the first return that can not be explained is found by halving. What returns
   later is of unknown outcome by then.
2. The *core*: what can be relaxed without the contradiction going away is. A read is dropped; a
   write or compare-and-set may happen at any time or never. (Deleting writes would not do: reads of
   their values would then be the contradiction.) What is left, some five operations as a rule,
   can not be right together, whatever the others did.
3. The *frontier*: all states in which everything that returned before can leave the object, and in
   each of them why no operation that is open can make the failing one possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkers._linear import models
from checkers._linear.batch import (
    CALL,
    ILLEGAL,
    INFO,
    KIND,
    NEVER,
    OK,
    READ,
    REFUSED,
    RET,
    STATUS,
    Array,
    Batch,
    only,
)
from checkers._linear.judge import REGISTER, STRING, Budget, judge
from checkers._linear.models import Model, Operation, operations_of
from harness.operation import F

BUDGET = Budget(failures=20_000)
EFFORT = 100_000_000  # operations and steps of all probes for one key
CONFIGURATIONS = 20_000
LOOKED_THROUGH = 128  # operations; of longer prefixes no frontier is told
HEAVY = 10_000  # operations; longer probes end after a while, whatever their budget
HEAVY_S = 20.0
WORDS = {
    F.GET: "read {value}",
    F.PUT: "write {value}",
    F.CAS: "compare-and-set {value} to {arg}",
    F.APPEND: "append {value}",
}


@dataclass(frozen=True)
class Dead:
    """A state that everything before can have left, and why nobody who is open can go on."""

    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Counterexample:
    """`failing`: the operation whose return nothing explains; `core` holds it too.

    `prefix`: how many operations were called before that return. `frontier` is empty when there
    were too many operations, or ways, to look at them all.
    """

    key: int
    failing: Operation
    core: tuple[Operation, ...]
    prefix: int
    frontier: tuple[Dead, ...] = ()


def explain(
    batch: Batch,
    key: int,
    kind: str = REGISTER,
    texts: Sequence[str] = (),
    witness: Sequence[int] = (),
    effort: int = EFFORT,
) -> Counterexample | None:
    """The contradiction in the key at place `key`; None if the budget is too small to find it.

    `witness`: operations, as places in the batch, that are known to be illegal by themselves.
    `effort`: when it is spent the core is no longer made smaller.
    """
    keep = [place - int(batch.starts[key]) for place in witness] or None
    alone = only(batch, key, keep)
    probe = _Probe(kind, texts, effort)
    cut = _prefix(alone, probe)
    if cut is None:
        return None
    small, failing = cut
    core = _core(small, probe)
    named = _operations(small, kind, texts)
    frontier = _frontier(named, int(small.names[failing]), _model(kind))
    return Counterexample(
        key=int(batch.keys[key]),
        failing=named[failing],
        core=tuple(named[i] for i in core),
        prefix=len(named),
        frontier=frontier,
    )


def told(operation: Operation) -> str:
    """An operation in words."""
    value = "nothing" if operation.value is None else operation.value
    words = WORDS[operation.f].format(value=value, arg=operation.arg)
    if operation.refused:
        return f"{words} (refused)"
    return words if operation.done else f"{words} (outcome unknown)"


@dataclass
class _Probe:
    """Is it still illegal? And how much may still be asked."""

    kind: str
    texts: Sequence[str]
    left: int

    def illegal(self, batch: Batch) -> bool:
        heavy = len(batch.ops) > HEAVY
        budget = replace(BUDGET, seconds=HEAVY_S) if heavy else BUDGET
        judged = judge(batch, self.kind, budget, self.texts)
        self.left -= len(batch.ops) + judged.stats["steps"]
        return judged.worst == ILLEGAL


def _with(batch: Batch, ops: Array, keep: Array) -> Batch:
    """The batch of one key with these operations instead, of which some are kept."""
    count = np.array([0, int(np.count_nonzero(keep))])
    return batch._replace(starts=count, ops=ops[keep], names=batch.names[keep])


def _cut(batch: Batch, limit: int) -> Batch:
    """What was called before a return, and what was known of it then."""
    ops = batch.ops.copy()
    late = ops[:, RET] > limit
    ops[late, STATUS], ops[late, RET] = INFO, NEVER
    keep = (ops[:, CALL] < limit) & ~(late & np.isin(ops[:, KIND], (READ, REFUSED)))
    return _with(batch, ops, keep)


def _prefix(batch: Batch, probe: _Probe) -> tuple[Batch, int] | None:
    """The smallest failing prefix, and the place in it of the operation that fails."""
    rets = np.sort(batch.ops[batch.ops[:, STATUS] == OK, RET])
    low, high = 0, len(rets)
    while low < high:
        middle = (low + high) // 2
        if probe.illegal(_cut(batch, int(rets[middle]))):
            high = middle
        else:
            low = middle + 1
    if low == len(rets):
        return None
    cut = _cut(batch, int(rets[low]))
    return cut, int(np.flatnonzero(cut.ops[:, RET] == rets[low])[0])


def _core(batch: Batch, probe: _Probe) -> list[int]:
    """Places of the operations that can not be relaxed: many are tried at once, then fewer."""
    names, left = batch.names.tolist(), batch
    chunk = max(1, len(names) // 2)
    while chunk:
        firm = left.names[left.ops[:, CALL] >= 0].tolist()
        for at in range(0, len(firm), chunk):
            if probe.left <= 0:
                break
            tried = _relaxed(left, firm[at : at + chunk])
            if probe.illegal(tried):
                left = tried
        chunk //= 2
    kept = set(left.names[left.ops[:, CALL] >= 0].tolist())
    return [at for at, name in enumerate(names) if name in kept]


def _relaxed(batch: Batch, names: Sequence[int]) -> Batch:
    """Of these operations those that only look are dropped; others happen at any time or never."""
    ops, chosen = batch.ops.copy(), np.isin(batch.names, names)
    ops[chosen, STATUS], ops[chosen, CALL], ops[chosen, RET] = INFO, -1, NEVER
    keep = ~(chosen & np.isin(ops[:, KIND], (READ, REFUSED)))
    relaxed = _with(batch, ops, keep)
    order = np.argsort(relaxed.ops[:, CALL], kind="stable")
    return relaxed._replace(ops=relaxed.ops[order], names=relaxed.names[order])


def _model(kind: str) -> Model:
    return {REGISTER: models.REGISTER, STRING: models.STRING}[kind]


def _operations(batch: Batch, kind: str, texts: Sequence[str]) -> list[Operation]:
    """Operations as people and models read them: with texts, where values are numbers of them."""
    found = operations_of(batch, 0)
    if not texts and kind != STRING:
        return found
    empty = "" if kind == STRING else None
    return [replace(o, value=_text(o.value, texts, empty), arg=_text(o.arg, texts)) for o in found]


def _text(value: int | None, texts: Sequence[str], empty: str | None = None) -> str | None:
    return empty if value is None else texts[value]


def _frontier(operations: list[Operation], failing: int, model: Model) -> tuple[Dead, ...]:
    """The states in which everything that returned before can leave the object."""
    if len(operations) > LOOKED_THROUGH:
        return ()
    others = [o for o in operations if o.op != failing]
    last = next(o for o in operations if o.op == failing)
    ends = models.ends(model, others, CONFIGURATIONS)
    if ends is None:
        return ()
    pending = [(i, o) for i, o in enumerate(others) if not o.done]
    dead: dict[str, set[str]] = {}
    for taken, state in ends:
        reasons = dead.setdefault(_shown(state), {f"{told(last)}: not from here"})
        for i, operation in pending:
            after = model.step(state, operation)
            if not taken >> i & 1 and after != state:
                way = "not from here" if after is None else f"leads to {_shown(after)}"
                reasons.add(f"{told(operation)}: {way}")
    return tuple(Dead(state, tuple(sorted(dead[state]))) for state in sorted(dead))


def _shown(state: object) -> str:
    return "the empty string" if state == "" else str(state)
