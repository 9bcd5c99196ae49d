"""Memory of a depth-first search over orders of operations, and its elementary moves.

A *configuration* is what has been ordered so far: the operations, the object's state, and the used
operations of unknown outcome. To *lift* an operation is to take it out of the linked list of those
still to be ordered (Wing and Gong 1993, Lowe 2017). The list is in the order of calls, so the
operations that may come next are at its head.

Failed configurations are remembered by two 64-bit sums of random numbers, one number for each
lifted operation and one for the state (Zobrist 1970), so that the cost of a step does not depend on
the length of the history. Of two configurations that differ only in the operations of unknown
outcome that they used, the one that used fewer can do everything the other can. Hence a failure
also ends each configuration that used a superset. The used operations are kept as lists that share
their tails, which keeps this comparison short.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from checkers._linear.batch import CALL, NEVER, OK, RET, STATUS, Array, OperationBatch
from harness.compiled import kernel, part

MAX_COMPARED = 64  # steps of one comparison with failures: more cost more than they save


class NowColumns(NamedTuple):
    """Columns of `now`. Those before `tick` are a configuration, and the columns of a frame."""

    state: int = 0
    horizon: int = 1  # a write called before it may precede the latest write, unobserved
    used: int = 2  # newest node of the list of used operations
    front: int = 3  # number of returns passed
    trail: int = 4  # number of operations lifted
    first: int = 5  # the two sums of the lifted operations
    second: int = 6
    base: int = 7  # begin and end of its choices
    top: int = 8
    length: int = 9  # strings: length of the state,
    gets_passed: int = 10  # number of gets passed,
    puts_passed: int = 11  # number of puts passed
    tick: int = 12  # from here on: counters that backtracking does not take back
    steps: int = 13
    failures: int = 14
    nodes: int = 15
    deepest: int = 16
    hits: int = 17
    generation: int = 18


class FailedColumns(NamedTuple):
    """Columns of the table of failures. `generation`: the search that an entry belongs to."""

    first: int = 0
    second: int = 1
    horizon: int = 2
    used: int = 3
    generation: int = 4


NOW, FAILED = NowColumns(), FailedColumns()
WIDTH = NOW.tick  # columns of a configuration


class Candidates(NamedTuple):
    """Pending operations by the value that they set. `tick`: when one was last noted for a value;
    `best`: the one that returns first; `values`: the values noted in this tick."""

    tick: Array
    best: Array
    values: Array


class SearchState(NamedTuple):
    """Memory for one search after another.

    `now` is the current configuration; `frames` are those with choices that are still to be tried.
    """

    now: Array
    frames: Array
    choices: Array
    zobrist: Array  # two random numbers for each operation, then for each state
    # by operation
    trailed: Array  # lifted operations, in order
    after: Array  # the list in order of calls; place n is both of its ends
    before: Array
    returns: Array  # operations that returned, in order of their returns
    lifted: Array
    info_ops: Array  # writes of unknown outcome by value, in order of calls
    pair_ops: Array  # compare-and-sets of unknown outcome, by value set, then by value expected
    pair_of: Array  # the pair of values of such an operation
    gets: Array  # strings: gets in order of returns,
    puts: Array  # puts in order of calls,
    infos: Array  # operations of unknown outcome in order of calls
    # by pair of values
    pair_source: Array  # the value expected,
    pair_first: Array  # begin of its operations in `pair_ops`,
    pair_used: Array  # number of them that are used
    # by value
    wanted_tick: Array  # the tick in which an operation needed to observe it
    wanted: Array  # the values needed in this tick
    writes: Candidates  # pending writes
    cas: Candidates  # pending compare-and-sets that are possible now
    goal_tick: Array  # the tick in which a pending compare-and-set to it was met
    info_start: Array  # begin of its writes of unknown outcome in `info_ops`,
    info_used: Array  # number of them that are used
    pair_start: Array  # begin of the pairs that set it
    # used operations of unknown outcome, as lists that share their tails
    node_op: Array
    node_next: Array
    node_depth: Array
    at_rank: Array
    failed: Array


@lru_cache(maxsize=8)
def zobrist_numbers(count: int, seed: int) -> Array:
    """Return two random 64-bit numbers for each of `count` things, the same for each seed."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return np.random.default_rng(seed).integers(low, high, (count, 2))


def power_of_two(count: int) -> int:
    """Return the least power of two that is at least `count`, and at least 16."""
    return 1 << max(4, (int(count) - 1).bit_length())


def allocate(
    n: int, values: int, ranks: int, failures: int, choices: int, seed: int
) -> SearchState:
    """Return memory for keys of at most `n` operations, and for at most `failures` failures."""
    ops = iter(np.empty((14, n + 2), np.int32))
    by_value = iter(np.zeros((12, values + 1), np.int64))
    nodes = iter(np.empty((3, 1 + n + max_steps(n, failures)), np.int32))
    return SearchState(
        now=np.zeros(len(NOW), np.int64),
        frames=np.empty((n + 2, WIDTH), np.int64),
        choices=np.empty(choices, np.int32),
        zobrist=zobrist_numbers(power_of_two(n + values), seed),
        trailed=next(ops),
        after=next(ops),
        before=next(ops),
        returns=next(ops),
        lifted=next(ops),
        info_ops=next(ops),
        pair_ops=next(ops),
        pair_of=next(ops),
        gets=next(ops),
        puts=next(ops),
        infos=next(ops),
        pair_source=next(ops),
        pair_first=next(ops),
        pair_used=next(ops),
        wanted_tick=next(by_value),
        wanted=next(by_value),
        writes=Candidates(next(by_value), next(by_value), next(by_value)),
        cas=Candidates(next(by_value), next(by_value), next(by_value)),
        goal_tick=next(by_value),
        info_start=next(by_value),
        info_used=next(by_value),
        pair_start=next(by_value),
        node_op=next(nodes),
        node_next=next(nodes),
        node_depth=next(nodes),
        at_rank=np.empty(ranks + 1, np.int32),
        failed=np.zeros((power_of_two(2 * failures), len(FAILED)), np.int64),
    )


@kernel
def extent(batch: OperationBatch, which: Array) -> tuple[int, int, int]:
    """Return the maximum number of operations and of values of these keys, and of ranks."""
    n, values, ranks, ops = 1, 1, 1, batch.ops
    for k in which:
        first, last = batch.starts[k], batch.starts[k + 1]
        n = max(n, last - first)
        values = max(values, batch.value_starts[k + 1] - batch.value_starts[k])
        for i in range(first, last):
            ranks = max(ranks, ops[i, CALL] + 1)
            if ops[i, RET] != NEVER:
                ranks = max(ranks, ops[i, RET] + 1)
    return n, values, ranks


def max_steps(n: int, failures: int) -> int:
    """Return the number of steps that a search with this budget of failures may take."""
    return n + 4 * failures


@part
def prepare(s: SearchState, ops: Array) -> int:
    """Reset the memory and link a key's operations; return how many of them returned."""
    n, now = len(ops), s.now
    for at in range(len(now)):
        if at != NOW.tick and at != NOW.generation:
            now[at] = 0
    now[NOW.generation] += 1
    now[NOW.horizon] = -1  # no write has been ordered yet
    s.node_depth[0] = 0
    ranks, last = 0, n
    for i in range(n):
        s.lifted[i] = 0
        if ops[i, STATUS] == OK:
            s.after[last], s.before[i] = i, last
            last = i
            ranks = max(ranks, ops[i, RET] + 1)
    s.after[last], s.before[n] = n, last
    for rank in range(ranks):
        s.at_rank[rank] = -1
    for i in range(n):
        if ops[i, STATUS] == OK:
            s.at_rank[ops[i, RET]] = i
    count = 0
    for rank in range(ranks):
        if s.at_rank[rank] >= 0:
            s.returns[count] = s.at_rank[rank]
            count += 1
    return count


@part
def lift(s: SearchState, i: int) -> None:
    """Order operation i next."""
    now = s.now
    s.after[s.before[i]] = s.after[i]
    s.before[s.after[i]] = s.before[i]
    s.lifted[i] = 1
    s.trailed[now[NOW.trail]] = i
    now[NOW.trail] += 1
    now[NOW.first] ^= s.zobrist[i, 0]
    now[NOW.second] ^= s.zobrist[i, 1]


@part
def lower(s: SearchState, length: int) -> None:
    """Put operations back until `length` of them are lifted."""
    for at in range(s.now[NOW.trail] - 1, length - 1, -1):
        i = s.trailed[at]
        s.after[s.before[i]] = i
        s.before[s.after[i]] = i
        s.lifted[i] = 0
    s.now[NOW.trail] = length


@part
def pass_returns(s: SearchState, returned: int) -> None:
    """Move the front past all returns whose operations are lifted."""
    front = s.now[NOW.front]
    while front < returned and s.lifted[s.returns[front]]:
        front += 1
    s.now[NOW.front] = front
    s.now[NOW.deepest] = max(s.now[NOW.deepest], front)


@part
def note_use(s: SearchState, i: int) -> None:
    """Add operation i, of unknown outcome, to the list of used operations."""
    now = s.now
    now[NOW.nodes] += 1
    here = now[NOW.nodes]
    s.node_op[here], s.node_next[here] = i, now[NOW.used]
    s.node_depth[here] = s.node_depth[now[NOW.used]] + 1
    now[NOW.used] = here


@part
def _includes(s: SearchState, more: int, less: int) -> bool:
    """Return whether the list `more` has each operation of the list `less`; False if undecided."""
    mine, its, left = more, less, MAX_COMPARED
    while mine != its and left:  # shared tails are equal
        deeper = s.node_depth[mine] - s.node_depth[its]
        if deeper >= 0:
            mine = s.node_next[mine]
        if deeper <= 0:
            its = s.node_next[its]
        left -= 1
    if mine != its:
        return False
    common, its = mine, less
    while its != common:
        mine = more
        while mine != common and s.node_op[mine] != s.node_op[its]:
            mine = s.node_next[mine]
        if mine == common:
            return False
        its = s.node_next[its]
    return True


@part
def has_failed(s: SearchState, first: int, second: int) -> bool:
    """Return whether a configuration that can do all this one can has failed; both by its sums."""
    now, failed = s.now, s.failed
    mask = len(failed) - 1
    slot = first & mask
    for _ in range(MAX_COMPARED):
        if failed[slot, FAILED.generation] != now[NOW.generation]:
            return False
        if (
            failed[slot, FAILED.first] == first
            and failed[slot, FAILED.second] == second
            and failed[slot, FAILED.horizon] >= now[NOW.horizon]
            and _includes(s, now[NOW.used], failed[slot, FAILED.used])
        ):
            now[NOW.hits] += 1
            return True
        slot = (slot + 1) & mask
    return False


@part
def remember_failure(s: SearchState, first: int, second: int) -> None:
    """Record that all choices of this configuration failed."""
    now, failed = s.now, s.failed
    now[NOW.failures] += 1
    mask = len(failed) - 1
    slot = first & mask
    while failed[slot, FAILED.generation] == now[NOW.generation]:
        slot = (slot + 1) & mask
    failed[slot, FAILED.generation] = now[NOW.generation]
    failed[slot, FAILED.first], failed[slot, FAILED.second] = first, second
    failed[slot, FAILED.horizon], failed[slot, FAILED.used] = now[NOW.horizon], now[NOW.used]


@part
def push(s: SearchState, depth: int, top: int) -> int:
    """Save this configuration while choices up to `top` are untried; return the new depth."""
    now = s.now
    if top == now[NOW.top]:
        return depth
    now[NOW.base], now[NOW.top] = now[NOW.top], top
    for at in range(WIDTH):
        s.frames[depth, at] = now[at]
    return depth + 1


@part
def pull(s: SearchState, depth: int) -> None:
    """Restore the newest saved configuration."""
    for at in range(WIDTH):
        s.now[at] = s.frames[depth - 1, at]


@part
def report(s: SearchState, out: Array, at: int) -> None:
    """Write the numbers of a search beside its verdict: steps, returns passed, hits."""
    now = s.now
    out[at, 1], out[at, 2], out[at, 3] = now[NOW.steps], now[NOW.deepest], now[NOW.hits]
