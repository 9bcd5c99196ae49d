"""Any register: a depth-first search that decides nothing before it must.

The search walks along the returns. Before an operation's return is passed it must be ordered; what
may be ordered before that are the operations called by then, the *window*. What keeps it small, all
of it exact:

1. An observer that is legal now (a read of the state, a compare-and-set refused by it or that
   changes nothing) is ordered at once: nothing is lost by it, so there is no choice.
2. A write waits until somebody in the window wants to see its value, or until its return forces
   it. A forced write may *hide*: if it was called before the latest write was ordered, then it can
   have happened just before that one, and nobody saw it. A write of the value that is there anyway
   may also go before a compare-and-set takes the value away, for then it can hide no longer.
3. Of pending writes of one value, or compare-and-sets from and to the same values, only the one
   that returns first is tried; those of unknown outcome never return, so they come last.
4. Operations of unknown outcome are used only when somebody in the window wants their value, or the
   value from which such a compare-and-set leads to a wanted one, and so on backwards.
5. If nobody can make the value that the next return needs, there is no point in going on.
6. Configurations that failed are remembered, and end those that can do no more (`room`).

A search has a budget of failures; beyond it the key is unknown. Deciding is exponential in the
worst case (Gibbons and Korach 1997), which is many operations pending at once, of few values.
"""

from checkers._linear.batch import (
    CALL,
    CAS,
    ILLEGAL,
    INFO,
    KIND,
    LEGAL,
    OK,
    READ,
    REFUSED,
    RET,
    STATUS,
    UNKNOWN,
    WRITE,
    A,
    Array,
    B,
    Batch,
)
from checkers._linear.room import (
    AFTER,
    BASE,
    CAS_BEST,
    CAS_TICK,
    CASES,
    FAILURES,
    FIRST,
    FRONT,
    GOAL_TICK,
    HORIZON,
    INFO_OPS,
    INFO_START,
    INFO_USED,
    NODE_NEXT,
    NODE_OP,
    PAIR_FIRST,
    PAIR_OF,
    PAIR_OPS,
    PAIR_SOURCE,
    PAIR_START,
    PAIR_USED,
    RETURNS,
    SECOND,
    STATE,
    STEPS,
    TICK,
    TOP,
    TRAIL,
    USED,
    WANTED,
    WANTS,
    WRITE_BEST,
    WRITE_TICK,
    WRITES,
    Room,
    hopeless,
    lift,
    lower,
    note_use,
    pass_returns,
    prepare,
    pull,
    push,
    remember,
    report,
)
from checkers._spark.compiled import kernel, part

HIDE = -1  # the choice to let the forced write hide
NO_ROOM = 3  # in place of a verdict: there were more choices than room for them
_POLL = 1023  # steps between two looks at the clock, a power of two less one


@part
def _sort_infos(op: Array, value: Array, ops: Array, values: int) -> None:
    """Writes of unknown outcome by value, in order of calls."""
    for v in range(values + 1):
        value[INFO_START, v] = value[INFO_USED, v] = 0
    for i in range(len(ops)):
        if ops[i, STATUS] == INFO and ops[i, KIND] == WRITE:
            value[INFO_START, ops[i, A] + 1] += 1
    for v in range(values):
        value[INFO_START, v + 1] += value[INFO_START, v]
    for i in range(len(ops)):
        if ops[i, STATUS] == INFO and ops[i, KIND] == WRITE:
            v = ops[i, A]
            op[INFO_OPS, value[INFO_START, v] + value[INFO_USED, v]] = i
            value[INFO_USED, v] += 1
    for v in range(values):
        value[INFO_USED, v] = 0


@part
def _sort_by(
    value: Array, op: Array, ops: Array, column: int, rows: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Put operations listed in one row into the other, by a column, equals in their order.

    `shape`: how many they are, and how many values there are.
    """
    count, values = shape
    for v in range(values + 1):
        value[PAIR_START, v] = 0
    for at in range(count):
        value[PAIR_START, ops[op[rows[0], at], column] + 1] += 1
    for v in range(values):
        value[PAIR_START, v + 1] += value[PAIR_START, v]
    for at in range(count):
        v = ops[op[rows[0], at], column]
        op[rows[1], value[PAIR_START, v]] = op[rows[0], at]
        value[PAIR_START, v] += 1


@part
def _sort_pairs(op: Array, value: Array, ops: Array, values: int) -> int:
    """Compare-and-sets of unknown outcome by what they set, then by what they expect."""
    count, pairs = 0, -1
    for i in range(len(ops)):
        if ops[i, STATUS] == INFO and ops[i, KIND] == CAS and ops[i, A] != ops[i, B]:
            op[PAIR_OPS, count] = i
            count += 1
    if count == 0:
        return 0
    _sort_by(value, op, ops, A, (PAIR_OPS, PAIR_OF), (count, values))
    _sort_by(value, op, ops, B, (PAIR_OF, PAIR_OPS), (count, values))
    for v in range(values + 1):
        value[PAIR_START, v] = 0
    for at in range(count):
        i = op[PAIR_OPS, at]
        before = op[PAIR_OPS, at - 1] if at else i
        if at == 0 or ops[i, A] != ops[before, A] or ops[i, B] != ops[before, B]:
            pairs += 1
            op[PAIR_SOURCE, pairs], op[PAIR_FIRST, pairs] = ops[i, A], at
            op[PAIR_USED, pairs] = 0
            value[PAIR_START, ops[i, B] + 1] += 1
        op[PAIR_OF, i] = pairs
    op[PAIR_FIRST, pairs + 1] = count
    for v in range(values):
        value[PAIR_START, v + 1] += value[PAIR_START, v]
    return count


@part
def _free_write(op: Array, value: Array, ops: Array, v: int, limit: int) -> int:
    """The next write of v of unknown outcome, if it was called before the limit; or -1."""
    at = value[INFO_START, v] + value[INFO_USED, v]
    if at == value[INFO_START, v + 1]:
        return -1
    i = int(op[INFO_OPS, at])
    return i if ops[i, CALL] < limit else -1


@part
def _free_pair(op: Array, ops: Array, pair: int, limit: int) -> int:
    """The same for compare-and-sets of one pair of values."""
    at = op[PAIR_FIRST, pair] + op[PAIR_USED, pair]
    if at == op[PAIR_FIRST, pair + 1]:
        return -1
    i = int(op[PAIR_OPS, at])
    return i if ops[i, CALL] < limit else -1


@part
def _want(now: Array, value: Array, v: int, wants: int) -> int:
    """Somebody wants to see value v. How many values are wanted now."""
    if value[WANTED, v] == now[TICK]:
        return wants
    value[WANTED, v] = now[TICK]
    value[WANTS, wants] = v
    return wants + 1


@part
def _soonest(now: Array, value: Array, ops: Array, row: int, count: int, v: int, i: int) -> int:
    """Of the operations noted under v, keep the one that returns first. How many values.

    `row` and the two after it: ticks, the operations, and the values listed.
    """
    if value[row, v] != now[TICK]:
        value[row, v], value[row + 1, v] = now[TICK], i
        value[row + 2, count] = v
        return count + 1
    if ops[i, RET] < ops[value[row + 1, v], RET]:
        value[row + 1, v] = i
    return count


@part
def _advance(
    now: Array, op: Array, value: Array, ops: Array, dice: Array, returned: int
) -> tuple[int, int, int, bool]:
    """Order every legal observer, and note what the others in the window want and can.

    How many values are wanted, written, and set by a compare-and-set that can go now; and whether
    somebody wants just any other value.
    """
    now[TICK] += 1
    n, state = len(ops), now[STATE]
    wants, writes, cases, other = 0, 0, 0, False
    pass_returns(now, op, returned)
    i = op[AFTER, n]
    while now[FRONT] < returned and i != n and ops[i, CALL] < ops[op[RETURNS, now[FRONT]], RET]:
        following = op[AFTER, i]
        f, a, b = ops[i, KIND], ops[i, A], ops[i, B]
        if (f == REFUSED and a != state) or (
            a == state and (f == READ or (f == CAS and b == state))
        ):
            lift(now, op, dice, i)
            pass_returns(now, op, returned)
        elif f == WRITE:
            writes = _soonest(now, value, ops, WRITE_TICK, writes, a, i)
        elif f == REFUSED:
            other = True
        else:
            if f == CAS:
                value[GOAL_TICK, b] = now[TICK]
            if a == state:
                cases = _soonest(now, value, ops, CAS_TICK, cases, b, i)
            else:
                wants = _want(now, value, a, wants)
        i = following
    return wants, writes, cases, other


@part
def _reachable(
    now: Array, op: Array, value: Array, ops: Array, v: int, limit: int, pairs: bool
) -> bool:
    """Somebody called by now can make the value v."""
    tick = now[TICK]
    if value[WRITE_TICK, v] == tick or value[GOAL_TICK, v] == tick:
        return True
    if _free_write(op, value, ops, v, limit) >= 0:
        return True
    if pairs:
        for pair in range(value[PAIR_START, v], value[PAIR_START, v + 1]):
            if _free_pair(op, ops, pair, limit) >= 0:
                return True
    return False


@part
def _choose_infos(
    now: Array,
    op: Array,
    value: Array,
    choices: Array,
    ops: Array,
    wants: int,
    limit: int,
    pairs: bool,
) -> int:
    """Operations of unknown outcome that lead to a wanted value; more values become wanted."""
    tick, state = now[TICK], now[STATE]
    at, top = 0, int(now[TOP])
    while at < wants:
        v = value[WANTS, at]
        at += 1
        if value[WRITE_TICK, v] != tick:
            i = _free_write(op, value, ops, v, limit)
            if i >= 0:
                choices[top] = i
                top += 1
        if not pairs:
            continue
        for pair in range(value[PAIR_START, v], value[PAIR_START, v + 1]):
            i = _free_pair(op, ops, pair, limit)
            if i >= 0 and op[PAIR_SOURCE, pair] != state:
                wants = _want(now, value, op[PAIR_SOURCE, pair], wants)
            elif i >= 0 and value[CAS_TICK, v] != tick:
                choices[top] = i
                top += 1
    return top


@part
def _leads_away(choices: Array, ops: Array, base: int, top: int) -> bool:
    """One of these choices is a compare-and-set."""
    found = False
    for at in range(base, top):
        found |= ops[choices[at], KIND] == CAS
    return found


@part
def _promise(choice: int, ops: Array, forced: int, wanted: bool) -> int:
    """How soon to try a choice: what the next return needs, and what costs nothing later.

    `wanted`: somebody wants to see the value of the write that is forced.
    """
    if choice == HIDE:
        return 3 if wanted else 9
    if choice == forced:
        return 4 if ops[forced, KIND] == WRITE else 8
    leads = ops[choice, A] if ops[choice, KIND] == WRITE else ops[choice, B]
    needed = ops[forced, KIND] != WRITE and leads == ops[forced, A]
    if ops[choice, STATUS] == INFO:
        return 2 if needed else 0
    if ops[choice, KIND] == CAS:
        return 7 if needed else 6
    return 3 if needed else 1


@part
def _sort_choices(
    choices: Array, base: int, top: int, ops: Array, forced: int, wanted: bool
) -> None:
    """The most promising choice last, where it is taken first."""
    for at in range(base + 1, top):
        choice = choices[at]
        promise = _promise(choice, ops, forced, wanted)
        to = at
        while to > base and _promise(choices[to - 1], ops, forced, wanted) > promise:
            choices[to] = choices[to - 1]
            to -= 1
        choices[to] = choice


@part
def _choose(
    now: Array,
    op: Array,
    value: Array,
    choices: Array,
    ops: Array,
    found: tuple[int, int, int, bool],
    values: int,
    pairs: bool,
) -> int:
    """Lay out the choices of this configuration, the best last. Where they end, or -1: no room."""
    wants, writes, cases, other = found
    top, state = int(now[TOP]), now[STATE]
    if top + 2 * values + writes + cases + 2 > len(choices):
        return -1
    forced = op[RETURNS, now[FRONT]]
    limit, kind, needs = ops[forced, RET], ops[forced, KIND], ops[forced, A]
    if (
        kind != WRITE
        and needs != state
        and not _reachable(now, op, value, ops, needs, limit, pairs)
    ):
        return top
    if other:
        for v in range(values):
            if v != state:
                wants = _want(now, value, v, wants)
    top = _choose_infos(now, op, value, choices, ops, wants, limit, pairs)
    if cases or _leads_away(choices, ops, int(now[TOP]), top):
        _want(now, value, state, wants)
    for at in range(writes):
        v = value[WRITES, at]
        if value[WANTED, v] == now[TICK] and value[WRITE_BEST, v] != forced:
            choices[top] = value[WRITE_BEST, v]
            top += 1
    for at in range(cases):
        choices[top] = value[CAS_BEST, value[CASES, at]]
        top += 1
    if kind == WRITE:
        choices[top] = forced
        top += 1
        if needs != state and ops[forced, CALL] < now[HORIZON]:
            choices[top] = HIDE
            top += 1
    _sort_choices(choices, int(now[TOP]), top, ops, forced, value[WANTED, needs] == now[TICK])
    return top


@part
def _take(
    now: Array, op: Array, value: Array, node: Array, ops: Array, dice: Array, choice: int
) -> None:
    """Order one operation."""
    forced = op[RETURNS, now[FRONT]]
    if choice == HIDE:
        lift(now, op, dice, forced)
        return
    f, a = ops[choice, KIND], ops[choice, A]
    if ops[choice, STATUS] == OK:
        lift(now, op, dice, choice)
    else:
        note_use(now, node, choice)
        if f == WRITE:
            value[INFO_USED, a] += 1
        else:
            op[PAIR_USED, op[PAIR_OF, choice]] += 1
    if f == WRITE:
        now[STATE], now[HORIZON] = a, ops[forced, RET]
    else:
        now[STATE] = ops[choice, B]


@part
def _restore(
    now: Array, op: Array, value: Array, node: Array, frames: Array, ops: Array, depth: int
) -> None:
    """Go back to the newest of the configurations kept."""
    lower(now, op, frames[depth - 1, TRAIL])
    at = now[USED]
    while at != frames[depth - 1, USED]:
        i = node[NODE_OP, at]
        if ops[i, KIND] == WRITE:
            value[INFO_USED, ops[i, A]] -= 1
        else:
            op[PAIR_USED, op[PAIR_OF, i]] -= 1
        at = node[NODE_NEXT, at]
    pull(now, frames, depth)


@part
def _one(room: Room, ops: Array, values: int, dice: Array, failures: int, stop: Array) -> int:
    """Search one key."""
    now, op, value, node = room.now, room.op, room.value, room.node
    frames, choices, failed = room.frames, room.choices, room.failed
    returned = prepare(now, op, node, room.at_rank, ops)
    _sort_infos(op, value, ops, values)
    pairs = _sort_pairs(op, value, ops, values) > 0
    n, depth, steps = len(ops), 0, len(ops) + 4 * failures
    while True:
        now[STEPS] += 1
        if now[FAILURES] >= failures or now[STEPS] > steps:
            return UNKNOWN
        if now[STEPS] & _POLL == 0 and stop[0]:
            return UNKNOWN
        found = _advance(now, op, value, ops, dice, returned)
        if now[FRONT] == returned:
            return LEGAL
        here = n + now[STATE]
        first, second = now[FIRST] ^ dice[here, 0], now[SECOND] ^ dice[here, 1]
        if not hopeless(now, node, failed, first, second):
            top = _choose(now, op, value, choices, ops, found, values, pairs)
            if top < 0:
                return NO_ROOM
            depth = push(now, frames, depth, top)
        while True:
            if depth == 0:
                return ILLEGAL
            _restore(now, op, value, node, frames, ops, depth)
            if now[TOP] > now[BASE]:
                break
            here = n + now[STATE]
            remember(now, failed, now[FIRST] ^ dice[here, 0], now[SECOND] ^ dice[here, 1])
            depth -= 1
        now[TOP] -= 1
        frames[depth - 1, TOP] = now[TOP]
        _take(now, op, value, node, ops, dice, choices[now[TOP]])


@kernel
def search(
    room: Room, batch: Batch, which: Array, dice: Array, failures: int, stop: Array, out: Array
) -> None:
    """Search some keys. `out`, a row for each: verdict, steps, returns passed, hits of the table.

    `dice` has a row for each operation of the longest key and one for each of its values; `stop[0]`
    may be set by somebody else at any time.
    """
    for at in range(len(which)):
        k = which[at]
        out[at, 0] = UNKNOWN
        if not stop[0]:
            values = batch.value_starts[k + 1] - batch.value_starts[k]
            ops = batch.ops[batch.starts[k] : batch.starts[k + 1]]
            out[at, 0] = _one(room, ops, values, dice, failures, stop)
            report(room.now, out, at)
