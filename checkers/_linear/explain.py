"""Why a key is not linearizable: a few operations that contradict each other.

1. The *smallest failing prefix*: histories that are cut off at a return only become more legal the
   earlier that is, so the first return that can not be explained is found by halving. What returns
   later is of unknown outcome by then.
2. The *core*: what can be relaxed without the contradiction going away is. A read is dropped; a
   write or compare-and-set may happen at any time or never. (Deleting writes would not do: reads of
   their values would then be the contradiction.) What is left, some five operations as a rule,
   can not be right together, whatever the others did.
3. The *window*: of values that are written again and again each write would be in that core. So
   everything that returned before some instant is left out, the latest instant is found after which
   the rest is a contradiction whatever the register held then, and that is reduced to its core. The
   smaller one of both is told.
4. The *frontier*: all states in which everything that returned before can leave the object, and in
   each of them why no operation that is open can make the failing one possible.
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
    Batch,
    only,
)
from checkers._linear.judge import REGISTER, STRING, Budget, judge
from checkers._linear.models import Model, Operation, operations_of
from harness.operation import F

FAILURES = 20_000
EFFORT = 10_000_000  # operations and steps of all probes for one key
CONFIGURATIONS = 20_000
LOOKED_THROUGH = 128  # operations; of longer prefixes no frontier is told
FIRST_WINDOW = 16  # events
MOST_ROWS = 1 << 21  # of a window, once for each value: more would be too much to try
HEAVY = 10_000  # operations; longer probes end after a while, whatever their budget
HEAVY_S = 20.0
EMPTY = "the empty string"
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

    `whatever`: the core is a contradiction whatever the key held before its operations. `prefix`:
    how many operations were called before that return. `frontier` is empty when there
    were too many operations, or ways, to look at them all.
    """

    key: int
    failing: Operation
    core: tuple[Operation, ...]
    prefix: int
    whatever: bool = False
    frontier: tuple[Dead, ...] = ()


def explain(
    batch: Batch,
    key: int,
    kind: str = REGISTER,
    texts: Sequence[str] = (),
    witness: Sequence[int] = (),
    passed: int | None = None,
    effort: int = EFFORT,
) -> Counterexample | None:
    """The contradiction in the key at place `key`; None if the budget is too small to find it.

    `witness`: operations, as places in the batch, that are known to be illegal by themselves.
    `passed`: how many returns a search that found it illegal could explain at most. `effort`: when
    it is spent the core is no longer made smaller.
    """
    keep = [place - int(batch.starts[key]) for place in witness] or None
    alone = only(batch, key, keep)
    probe = _Probe(kind, texts, effort)
    limit = _limit(alone, probe, None if witness else passed)
    if limit is None:
        return None
    small = _cut(alone, limit)
    failing = int(np.flatnonzero(small.ops[:, RET] == limit)[0])
    core, whatever = _smaller(small, limit, probe)
    if not core:
        return None
    named = _operations(small, kind, texts)
    frontier = _frontier(named, int(small.names[failing]), _model(kind))
    return Counterexample(
        key=int(batch.keys[key]),
        failing=named[failing],
        core=tuple(named[i] for i in core),
        prefix=len(named),
        whatever=whatever,
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
        return ILLEGAL in self._verdicts(batch)

    def illegal_whatever(self, batch: Batch) -> bool:
        """Also whatever the register held before."""
        values = _named(batch)
        if len(values) * len(batch.ops) > MOST_ROWS:
            return False
        return set(self._verdicts(_from_each(batch, values))) == {ILLEGAL}

    def _verdicts(self, batch: Batch) -> list[int]:
        seconds = HEAVY_S if len(batch.ops) > HEAVY else None
        budget = Budget(FAILURES, seconds, exhaustive=True)
        judged = judge(batch, self.kind, budget, self.texts)
        self.left -= len(batch.ops) + judged.stats["steps"]
        verdicts: list[int] = judged.verdicts.tolist()
        return verdicts


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


def _limit(batch: Batch, probe: _Probe, passed: int | None) -> int | None:
    """The return with which the smallest failing prefix ends."""
    rets = np.sort(batch.ops[batch.ops[:, STATUS] == OK, RET]).tolist()
    low, high = 0, len(rets)
    if passed is not None and passed < high and probe.illegal(_cut(batch, rets[passed])):
        high = passed
        low = passed if passed == 0 or not probe.illegal(_cut(batch, rets[passed - 1])) else 0
    while low < high:
        middle = (low + high) // 2
        if probe.illegal(_cut(batch, rets[middle])):
            high = middle
        else:
            low = middle + 1
    if low < len(rets):
        return int(rets[low])
    return None if passed is None or passed >= len(rets) else int(rets[passed])


def _smaller(batch: Batch, limit: int, probe: _Probe) -> tuple[list[int], bool]:
    """The places of the smaller core, and whether it is one whatever the key held before. None, if
    nothing shows that this prefix fails."""
    others = batch.names[batch.ops[:, RET] != limit].tolist()
    if probe.illegal(_relaxed(batch, others)):  # nobody can have written what it saw
        return _places(batch, set(batch.names.tolist()) - set(others)), False
    window = _window(batch, probe) if probe.kind == REGISTER else None
    late = set() if window is None else _core(window, probe.illegal_whatever, probe)
    if len(batch.ops) <= LOOKED_THROUGH or (not late and probe.illegal(batch)):
        early = _core(batch, probe.illegal, probe)
        if not late or len(early) <= len(late):
            return _places(batch, early), False
    return _places(batch, late), True


def _places(batch: Batch, names: set[int]) -> list[int]:
    return [at for at, name in enumerate(batch.names.tolist()) if name in names]


def _window(batch: Batch, probe: _Probe) -> Batch | None:
    """The shortest end of a history that is illegal whatever the key held before; None if there is
    none, or if it is so long that it would be too much to look for it."""
    last = int(batch.ops[batch.ops[:, RET] != NEVER, RET].max())
    length, shortest = FIRST_WINDOW, 0
    while not probe.illegal_whatever(_since(batch, last - length)):
        if length > last or probe.left <= 0:
            return None
        shortest, length = length, 2 * length
    while length - shortest > 1:
        middle = (length + shortest) // 2
        if probe.illegal_whatever(_since(batch, last - middle)):
            length = middle
        else:
            shortest = middle
    return _since(batch, last - length)


def _since(batch: Batch, rank: int) -> Batch:
    """Without what returned before; what was open then may happen at any time or never."""
    ops = batch.ops.copy()
    open_then = (ops[:, CALL] < rank) & (ops[:, RET] >= rank)
    ops[open_then, STATUS], ops[open_then, CALL], ops[open_then, RET] = INFO, -1, NEVER
    keep = (ops[:, RET] >= rank) & ~(open_then & np.isin(ops[:, KIND], (READ, REFUSED)))
    return _in_order(_with(batch, ops, keep))


def _named(batch: Batch) -> Array:
    """The numbers of values that a register can have held before, and of one that nobody names."""
    pairs = np.isin(batch.ops[:, KIND], (CAS, REFUSED))
    named = np.unique(np.concatenate([batch.ops[:, A], batch.ops[pairs, B]]))
    return np.append(named, len(batch.values))


def _from_each(batch: Batch, values: Array) -> Batch:
    """A key for each of these values, which a write before everything puts there."""
    ops = batch.ops.copy()
    ops[ops[:, CALL] >= 0, CALL] += 2
    ops[ops[:, RET] != NEVER, RET] += 2
    first = int(np.count_nonzero(ops[:, CALL] < 0))
    whole = np.insert(ops, first, (WRITE, 0, 0, OK, 0, 1), axis=0)
    tiled = np.tile(whole, (len(values), 1))
    tiled[first :: len(whole), A] = values
    keys = np.arange(len(values) + 1)
    return Batch(
        keys[:-1],
        keys * len(whole),
        tiled,
        np.tile(np.insert(batch.names, first, -1), len(values)),
        keys * (len(batch.values) + 1),
        np.tile(np.append(batch.values, ABSENT), len(values)),
    )


def _core(batch: Batch, illegal: Callable[[Batch], bool], probe: _Probe) -> set[int]:
    """The names of operations that can not be relaxed: many are tried at once, then fewer."""
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


def _relaxed(batch: Batch, names: Sequence[int]) -> Batch:
    """Of these operations those that only look are dropped; others happen at any time or never."""
    ops, chosen = batch.ops.copy(), np.isin(batch.names, names)
    ops[chosen, STATUS], ops[chosen, CALL], ops[chosen, RET] = INFO, -1, NEVER
    keep = ~(chosen & np.isin(ops[:, KIND], (READ, REFUSED)))
    return _in_order(_with(batch, ops, keep))


def _in_order(batch: Batch) -> Batch:
    order = np.argsort(batch.ops[:, CALL], kind="stable")
    return batch._replace(ops=batch.ops[order], names=batch.names[order])


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
    return EMPTY if state == "" else str(state)
