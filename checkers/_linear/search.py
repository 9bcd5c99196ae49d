"""Registers: a depth-first search that decides as late as possible.

The search walks along the returns. Before an operation's return is passed, the operation must be
ordered; the operations called by then, the *window*, may be ordered before it. All rules that keep
the search small are exact:

1. An observer that is legal now (a read of the state, a compare-and-set that the state refuses or
   that changes nothing) is ordered at once. This loses nothing, so there is no choice.
2. A write waits until an operation in the window needs its value, or until its return forces it. A
   forced write may *hide*: if it was called before the latest write was ordered, it may have
   happened just before that one, unobserved. A write of the present value may also go before a
   compare-and-set that takes the value away, because afterwards it cannot hide.
3. Of pending writes of one value, or compare-and-sets from and to the same values, only the one
   that returns first is tried. Those of unknown outcome never return, so they come last.
4. Operations of unknown outcome are used only when an operation in the window needs their value, or
   the value from which such a compare-and-set leads to a needed one, and so on backwards.
5. If no operation can set the value that the next return needs, the configuration fails.
6. Failed configurations are remembered, and end those that can do no more (`search_state`).

A search has a budget of failures; beyond it the key is unknown. Deciding is exponential in the
worst case (Gibbons and Korach 1997): many concurrent operations on few values.

In all functions `s` is the memory of the search, and `ops` are the key's operations.
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
    OperationBatch,
)
from checkers._linear.search_state import (
    NOW,
    Candidates,
    SearchState,
    has_failed,
    lift,
    lower,
    note_use,
    pass_returns,
    prepare,
    pull,
    push,
    remember_failure,
    report,
)
from harness.compiled import kernel, part

HIDE = -1  # the choice to let the forced write hide
NO_ROOM = 3  # instead of a verdict: the memory for choices is too small
POLL = 1023  # steps between two checks of the deadline: a power of two less one


@part
def _sort_infos(s: SearchState, ops: Array, values: int) -> None:
    """List the writes of unknown outcome by value, in order of calls."""
    for v in range(values + 1):
        s.info_start[v] = s.info_used[v] = 0
    for i in range(len(ops)):
        if ops[i, STATUS] == INFO and ops[i, KIND] == WRITE:
            s.info_start[ops[i, A] + 1] += 1
    for v in range(values):
        s.info_start[v + 1] += s.info_start[v]
    for i in range(len(ops)):
        if ops[i, STATUS] == INFO and ops[i, KIND] == WRITE:
            v = ops[i, A]
            s.info_ops[s.info_start[v] + s.info_used[v]] = i
            s.info_used[v] += 1
    for v in range(values):
        s.info_used[v] = 0


@part
def _sort_by(
    source: Array, target: Array, ops: Array, column: int, starts: Array, shape: tuple[int, int]
) -> None:
    """Copy the operations listed in `source` to `target`, stably sorted by a column.

    `shape`: the number of operations and of values. `starts`: scratch memory, one cell a value.
    """
    count, values = shape
    for v in range(values + 1):
        starts[v] = 0
    for at in range(count):
        starts[ops[source[at], column] + 1] += 1
    for v in range(values):
        starts[v + 1] += starts[v]
    for at in range(count):
        v = ops[source[at], column]
        target[starts[v]] = source[at]
        starts[v] += 1


@part
def _sort_pairs(s: SearchState, ops: Array, values: int) -> int:
    """List the compare-and-sets of unknown outcome by value set, then by value expected."""
    count, pairs = 0, -1
    for i in range(len(ops)):
        if ops[i, STATUS] == INFO and ops[i, KIND] == CAS and ops[i, A] != ops[i, B]:
            s.pair_ops[count] = i
            count += 1
    if count == 0:
        return 0
    _sort_by(s.pair_ops, s.pair_of, ops, A, s.pair_start, (count, values))
    _sort_by(s.pair_of, s.pair_ops, ops, B, s.pair_start, (count, values))
    for v in range(values + 1):
        s.pair_start[v] = 0
    for at in range(count):
        i = s.pair_ops[at]
        before = s.pair_ops[at - 1] if at else i
        if at == 0 or ops[i, A] != ops[before, A] or ops[i, B] != ops[before, B]:
            pairs += 1
            s.pair_source[pairs], s.pair_first[pairs] = ops[i, A], at
            s.pair_used[pairs] = 0
            s.pair_start[ops[i, B] + 1] += 1
        s.pair_of[i] = pairs
    s.pair_first[pairs + 1] = count
    for v in range(values):
        s.pair_start[v + 1] += s.pair_start[v]
    return count


@part
def _free_write(s: SearchState, ops: Array, v: int, limit: int) -> int:
    """Return the next write of v of unknown outcome that was called before the limit, or -1."""
    at = s.info_start[v] + s.info_used[v]
    if at == s.info_start[v + 1]:
        return -1
    i = int(s.info_ops[at])
    return i if ops[i, CALL] < limit else -1


@part
def _free_pair(s: SearchState, ops: Array, pair: int, limit: int) -> int:
    """Return the next compare-and-set of unknown outcome of a pair of values, or -1."""
    at = s.pair_first[pair] + s.pair_used[pair]
    if at == s.pair_first[pair + 1]:
        return -1
    i = int(s.pair_ops[at])
    return i if ops[i, CALL] < limit else -1


@part
def _want(s: SearchState, v: int, wants: int) -> int:
    """Note that an operation needs value v; return how many values are needed now."""
    if s.wanted_tick[v] == s.now[NOW.tick]:
        return wants
    s.wanted_tick[v] = s.now[NOW.tick]
    s.wanted[wants] = v
    return wants + 1


@part
def _note_candidate(
    candidates: Candidates, tick: int, ops: Array, count: int, v: int, i: int
) -> int:
    """Keep, of the operations that set v, the one that returns first; return how many values."""
    if candidates.tick[v] != tick:
        candidates.tick[v], candidates.best[v] = tick, i
        candidates.values[count] = v
        return count + 1
    if ops[i, RET] < ops[candidates.best[v], RET]:
        candidates.best[v] = i
    return count


@part
def _advance(s: SearchState, ops: Array, returned: int) -> tuple[int, int, int, bool]:
    """Order each legal observer, and note what the others in the window need and offer.

    Return how many values are needed, written, and set by a compare-and-set that is possible now;
    and whether an operation needs any other value than the present one.
    """
    now = s.now
    now[NOW.tick] += 1
    n, tick, state = len(ops), now[NOW.tick], now[NOW.state]
    wants, writes, cases, other = 0, 0, 0, False
    pass_returns(s, returned)
    i = s.after[n]
    while (
        now[NOW.front] < returned and i != n and ops[i, CALL] < ops[s.returns[now[NOW.front]], RET]
    ):
        following = s.after[i]
        f, a, b = ops[i, KIND], ops[i, A], ops[i, B]
        if (f == REFUSED and a != state) or (
            a == state and (f == READ or (f == CAS and b == state))
        ):
            lift(s, i)
            pass_returns(s, returned)
        elif f == WRITE:
            writes = _note_candidate(s.writes, tick, ops, writes, a, i)
        elif f == REFUSED:
            other = True
        else:
            if f == CAS:
                s.goal_tick[b] = tick
            if a == state:
                cases = _note_candidate(s.cas, tick, ops, cases, b, i)
            else:
                wants = _want(s, a, wants)
        i = following
    return wants, writes, cases, other


@part
def _reachable(s: SearchState, ops: Array, v: int, limit: int, pairs: bool) -> bool:
    """Return whether an operation that was called by now can set the value v."""
    tick = s.now[NOW.tick]
    if s.writes.tick[v] == tick or s.goal_tick[v] == tick:
        return True
    if _free_write(s, ops, v, limit) >= 0:
        return True
    if pairs:
        for pair in range(s.pair_start[v], s.pair_start[v + 1]):
            if _free_pair(s, ops, pair, limit) >= 0:
                return True
    return False


@part
def _choose_infos(s: SearchState, ops: Array, wants: int, limit: int, pairs: bool) -> int:
    """Add the operations of unknown outcome that lead to a needed value; return the choices' end.

    The sources of their compare-and-sets become needed values, too.
    """
    tick, state = s.now[NOW.tick], s.now[NOW.state]
    at, top = 0, int(s.now[NOW.top])
    while at < wants:
        v = s.wanted[at]
        at += 1
        if s.writes.tick[v] != tick:
            i = _free_write(s, ops, v, limit)
            if i >= 0:
                s.choices[top] = i
                top += 1
        if not pairs:
            continue
        for pair in range(s.pair_start[v], s.pair_start[v + 1]):
            i = _free_pair(s, ops, pair, limit)
            if i >= 0 and s.pair_source[pair] != state:
                wants = _want(s, s.pair_source[pair], wants)
            elif i >= 0 and s.cas.tick[v] != tick:
                s.choices[top] = i
                top += 1
    return top


@part
def _has_cas(choices: Array, ops: Array, base: int, top: int) -> bool:
    """Return whether one of these choices is a compare-and-set."""
    found = False
    for at in range(base, top):
        found |= ops[choices[at], KIND] == CAS
    return found


@part
def _promise(choice: int, ops: Array, forced: int, wanted: bool) -> int:
    """Return the rank of a choice: first what the next return needs, then what costs least later.

    `wanted`: an operation needs the value of the forced write.
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
    """Move the most promising choice to the end, from where it is taken first."""
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
    s: SearchState, ops: Array, found: tuple[int, int, int, bool], values: int, pairs: bool
) -> int:
    """Write the choices of this configuration, the best last; return their end, or -1: no room."""
    wants, writes, cases, other = found
    now, choices = s.now, s.choices
    top, state = int(now[NOW.top]), now[NOW.state]
    if top + 2 * values + writes + cases + 2 > len(choices):
        return -1
    forced = s.returns[now[NOW.front]]
    limit, kind, needs = ops[forced, RET], ops[forced, KIND], ops[forced, A]
    if kind != WRITE and needs != state and not _reachable(s, ops, needs, limit, pairs):
        return top
    if other:
        for v in range(values):
            if v != state:
                wants = _want(s, v, wants)
    top = _choose_infos(s, ops, wants, limit, pairs)
    if cases or _has_cas(choices, ops, int(now[NOW.top]), top):
        _want(s, state, wants)
    for at in range(writes):
        v = s.writes.values[at]
        if s.wanted_tick[v] == now[NOW.tick] and s.writes.best[v] != forced:
            choices[top] = s.writes.best[v]
            top += 1
    for at in range(cases):
        choices[top] = s.cas.best[s.cas.values[at]]
        top += 1
    if kind == WRITE:
        choices[top] = forced
        top += 1
        if needs != state and ops[forced, CALL] < now[NOW.horizon]:
            choices[top] = HIDE
            top += 1
    wanted = s.wanted_tick[needs] == now[NOW.tick]
    _sort_choices(choices, int(now[NOW.top]), top, ops, forced, wanted)
    return top


@part
def _take(s: SearchState, ops: Array, choice: int) -> None:
    """Order one operation."""
    now = s.now
    forced = s.returns[now[NOW.front]]
    if choice == HIDE:
        lift(s, forced)
        return
    f, a = ops[choice, KIND], ops[choice, A]
    if ops[choice, STATUS] == OK:
        lift(s, choice)
    else:
        note_use(s, choice)
        if f == WRITE:
            s.info_used[a] += 1
        else:
            s.pair_used[s.pair_of[choice]] += 1
    if f == WRITE:
        now[NOW.state], now[NOW.horizon] = a, ops[forced, RET]
    else:
        now[NOW.state] = ops[choice, B]


@part
def _restore(s: SearchState, ops: Array, depth: int) -> None:
    """Return to the newest saved configuration."""
    lower(s, s.frames[depth - 1, NOW.trail])
    at = s.now[NOW.used]
    while at != s.frames[depth - 1, NOW.used]:
        i = s.node_op[at]
        if ops[i, KIND] == WRITE:
            s.info_used[ops[i, A]] -= 1
        else:
            s.pair_used[s.pair_of[i]] -= 1
        at = s.node_next[at]
    pull(s, depth)


@part
def _search_key(s: SearchState, ops: Array, values: int, failures: int, stop: Array) -> int:
    """Return the verdict on one key, or NO_ROOM."""
    now = s.now
    returned = prepare(s, ops)
    _sort_infos(s, ops, values)
    pairs = _sort_pairs(s, ops, values) > 0
    n, depth, steps = len(ops), 0, len(ops) + 4 * failures
    while True:
        now[NOW.steps] += 1
        if now[NOW.failures] >= failures or now[NOW.steps] > steps:
            return UNKNOWN
        if now[NOW.steps] & POLL == 0 and stop[0]:
            return UNKNOWN
        found = _advance(s, ops, returned)
        if now[NOW.front] == returned:
            return LEGAL
        here = n + now[NOW.state]
        first, second = now[NOW.first] ^ s.zobrist[here, 0], now[NOW.second] ^ s.zobrist[here, 1]
        if not has_failed(s, first, second):
            top = _choose(s, ops, found, values, pairs)
            if top < 0:
                return NO_ROOM
            depth = push(s, depth, top)
        while True:
            if depth == 0:
                return ILLEGAL
            _restore(s, ops, depth)
            if now[NOW.top] > now[NOW.base]:
                break
            here = n + now[NOW.state]
            remember_failure(
                s, now[NOW.first] ^ s.zobrist[here, 0], now[NOW.second] ^ s.zobrist[here, 1]
            )
            depth -= 1
        now[NOW.top] -= 1
        s.frames[depth - 1, NOW.top] = now[NOW.top]
        _take(s, ops, s.choices[now[NOW.top]])


@kernel
def search(
    s: SearchState, batch: OperationBatch, which: Array, failures: int, stop: Array, out: Array
) -> None:
    """Search some keys. `out`, a row a key: verdict, steps, returns passed, hits of the table.

    Another thread may set `stop[0]` at any time.
    """
    for at in range(len(which)):
        k = which[at]
        out[at, 0] = UNKNOWN
        if not stop[0]:
            values = batch.value_starts[k + 1] - batch.value_starts[k]
            ops = batch.ops[batch.starts[k] : batch.starts[k + 1]]
            out[at, 0] = _search_key(s, ops, values, failures, stop)
            report(s, out, at)
