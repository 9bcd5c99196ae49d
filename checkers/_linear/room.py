"""What a depth-first search over orders of operations works with, and its elementary moves.

A *configuration* is what has been ordered so far: which operations, the object's state, and which
operations of unknown outcome were used. To *lift* an operation is to take it out of the linked list
of those still to be ordered (Wing and Gong 1993, Lowe 2017); the list is in the order of calls, so
those that may come next are at its head.

Configurations that failed are remembered by two 64-bit sums of random numbers, one for each lifted
operation and one for the state (Zobrist 1970): a step costs the same however long the history is.
Of two configurations that differ only in the operations of unknown outcome that they have used, the
one with fewer can do whatever the other can, so a failure also ends every configuration that has
used more (a superset): these are kept as lists that share their tails, so the comparison is short.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from checkers._linear.batch import CALL, NEVER, OK, RET, STATUS, Array, Batch
from checkers._spark.compiled import kernel, part

# columns of `now` and of a frame: one configuration
STATE = 0
HORIZON = 1  # writes called before it can be put before the latest write, unseen
USED = 2  # the newest node of its list of used operations
FRONT = 3  # how many returns have been passed
TRAIL = 4  # how many operations are lifted
FIRST = 5
SECOND = 6
BASE = 7  # its choices lie from here ...
TOP = 8  # ... to here
LENGTH = 9  # strings: how long the state is,
SEEN = 10  # how many gets are passed,
PUT = 11  # and how many puts
WIDTH = 12

# more columns of `now`: what goes on, whatever is taken back
TICK, STEPS, FAILURES, NODES, DEEPEST, HITS, GENERATION, HANDS = range(WIDTH, WIDTH + 8)

_COMPARED = 64  # steps of one comparison with failures: more would cost more than they save


# rows of `op`, by operation
TRAILED = 0  # lifted operations, in order
AFTER = 1  # the list by calls; place n is both its ends
BEFORE = 2
RETURNS = 3  # operations that returned, by their returns
LIFTED = 4
INFO_OPS = 5  # writes of unknown outcome by value, in order of calls
PAIR_OPS = 6  # compare-and-sets of unknown outcome by what they set, then by what they expect
PAIR_OF = 7  # the pair of values of such an operation; and by pair:
PAIR_SOURCE = 8  # what it expects,
PAIR_FIRST = 9  # where its operations begin,
PAIR_USED = 10  # and how many of them are used
OP_ROWS = 11

# rows of `value`, by value
WANTED = 0  # the tick at which somebody wanted to see it
WANTS = 1  # those values, listed
WRITE_TICK = 2  # the tick at which a pending write of it was met,
WRITE_BEST = 3  # the one that returns first,
WRITES = 4  # and those values, listed
CAS_TICK = 5  # the same for pending compare-and-sets that can go now, by what they set
CAS_BEST = 6
CASES = 7
GOAL_TICK = 8  # the tick at which any pending compare-and-set to it was met
INFO_START = 9  # where its writes of unknown outcome begin,
INFO_USED = 10  # and how many of them are used
PAIR_START = 11  # where the pairs begin that set it
VALUE_ROWS = 12

# rows of `node`: used operations of unknown outcome, as lists that share their tails
NODE_OP, NODE_NEXT, NODE_DEPTH = range(3)
# columns of the table of failures; BORN is the search that it belongs to
KEY_FIRST, KEY_SECOND, KEY_HORIZON, KEY_USED, KEY_BORN = range(5)


class Room(NamedTuple):
    """Memory for one search after the other.

    `now` is the configuration at hand; `frames` are those whose choices are not all tried yet.
    """

    now: Array
    frames: Array
    choices: Array
    op: Array
    value: Array
    node: Array
    at_rank: Array
    failed: Array


@lru_cache(maxsize=8)
def dice(count: int, seed: int) -> Array:
    """Two random 64-bit numbers for each of so many things, the same ones for a seed."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return np.random.default_rng(seed).integers(low, high, (count, 2))


def power(count: int) -> int:
    """The power of two that is not less."""
    return 1 << max(4, (int(count) - 1).bit_length())


def room_for(n: int, values: int, ranks: int, failures: int, choices: int) -> Room:
    """Room for keys of at most so many operations, values and ranks, and for so many failures."""
    return Room(
        now=np.zeros(HANDS, np.int64),
        frames=np.empty((n + 2, WIDTH), np.int64),
        choices=np.empty(choices, np.int32),
        op=np.empty((OP_ROWS, n + 2), np.int32),
        value=np.zeros((VALUE_ROWS, values + 1), np.int64),
        node=np.empty((3, 1 + n + steps_allowed(n, failures)), np.int32),
        at_rank=np.empty(ranks + 1, np.int32),
        failed=np.zeros((power(2 * failures), 5), np.int64),
    )


@kernel
def extent(batch: Batch, which: Array) -> tuple[int, int, int]:
    """The most operations and values of any of these keys, and one more than the last rank."""
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


def steps_allowed(n: int, failures: int) -> int:
    """How many steps a search may take that may fail so often."""
    return n + 4 * failures


@part
def prepare(now: Array, op: Array, node: Array, at_rank: Array, ops: Array) -> int:
    """Empty the room and hang up a key's operations. How many returned."""
    n = len(ops)
    for at in range(HANDS):
        if at != TICK and at != GENERATION:
            now[at] = 0
    now[GENERATION] += 1
    now[HORIZON] = -1  # nothing was written yet
    node[NODE_DEPTH, 0] = 0
    ranks, last = 0, n
    for i in range(n):
        op[LIFTED, i] = 0
        if ops[i, STATUS] == OK:
            op[AFTER, last], op[BEFORE, i] = i, last
            last = i
            ranks = max(ranks, ops[i, RET] + 1)
    op[AFTER, last], op[BEFORE, n] = n, last
    for rank in range(ranks):
        at_rank[rank] = -1
    for i in range(n):
        if ops[i, STATUS] == OK:
            at_rank[ops[i, RET]] = i
    count = 0
    for rank in range(ranks):
        if at_rank[rank] >= 0:
            op[RETURNS, count] = at_rank[rank]
            count += 1
    return count


@part
def lift(now: Array, op: Array, dice: Array, i: int) -> None:
    """Order operation i next."""
    op[AFTER, op[BEFORE, i]] = op[AFTER, i]
    op[BEFORE, op[AFTER, i]] = op[BEFORE, i]
    op[LIFTED, i] = 1
    op[TRAILED, now[TRAIL]] = i
    now[TRAIL] += 1
    now[FIRST] ^= dice[i, 0]
    now[SECOND] ^= dice[i, 1]


@part
def lower(now: Array, op: Array, length: int) -> None:
    """Put operations back until only so many are lifted."""
    for at in range(now[TRAIL] - 1, length - 1, -1):
        i = op[TRAILED, at]
        op[AFTER, op[BEFORE, i]] = i
        op[BEFORE, op[AFTER, i]] = i
        op[LIFTED, i] = 0
    now[TRAIL] = length


@part
def pass_returns(now: Array, op: Array, returned: int) -> None:
    """Move the front over everything that is lifted."""
    front = now[FRONT]
    while front < returned and op[LIFTED, op[RETURNS, front]]:
        front += 1
    now[FRONT] = front
    now[DEEPEST] = max(now[DEEPEST], front)


@part
def note_use(now: Array, node: Array, i: int) -> None:
    """Operation i of unknown outcome is used now."""
    now[NODES] += 1
    here = now[NODES]
    node[NODE_OP, here], node[NODE_NEXT, here] = i, now[USED]
    node[NODE_DEPTH, here] = node[NODE_DEPTH, now[USED]] + 1
    now[USED] = here


@part
def _includes(node: Array, more: int, less: int) -> bool:
    """The list `more` holds every operation of the list `less`; False if that costs too much."""
    mine, its, left = more, less, _COMPARED
    while mine != its and left:  # where the tails are shared, nothing differs
        deeper = node[NODE_DEPTH, mine] - node[NODE_DEPTH, its]
        if deeper >= 0:
            mine = node[NODE_NEXT, mine]
        if deeper <= 0:
            its = node[NODE_NEXT, its]
        left -= 1
    if mine != its:
        return False
    common, its = mine, less
    while its != common:
        mine = more
        while mine != common and node[NODE_OP, mine] != node[NODE_OP, its]:
            mine = node[NODE_NEXT, mine]
        if mine == common:
            return False
        its = node[NODE_NEXT, its]
    return True


@part
def hopeless(now: Array, node: Array, failed: Array, first: int, second: int) -> bool:
    """A configuration that can do whatever this one can has failed. `first`, `second`: its sums."""
    mask = len(failed) - 1
    slot = first & mask
    for _ in range(_COMPARED):
        if failed[slot, KEY_BORN] != now[GENERATION]:
            return False
        if (
            failed[slot, KEY_FIRST] == first
            and failed[slot, KEY_SECOND] == second
            and failed[slot, KEY_HORIZON] >= now[HORIZON]
            and _includes(node, now[USED], failed[slot, KEY_USED])
        ):
            now[HITS] += 1
            return True
        slot = (slot + 1) & mask
    return False


@part
def remember(now: Array, failed: Array, first: int, second: int) -> None:
    """All choices of this configuration have failed."""
    now[FAILURES] += 1
    mask = len(failed) - 1
    slot = first & mask
    while failed[slot, KEY_BORN] == now[GENERATION]:
        slot = (slot + 1) & mask
    failed[slot, KEY_BORN] = now[GENERATION]
    failed[slot, KEY_FIRST], failed[slot, KEY_SECOND] = first, second
    failed[slot, KEY_HORIZON], failed[slot, KEY_USED] = now[HORIZON], now[USED]


@part
def push(now: Array, frames: Array, depth: int, top: int) -> int:
    """Keep this configuration as long as its choices, up to `top`, are not all tried."""
    if top == now[TOP]:
        return depth
    now[BASE], now[TOP] = now[TOP], top
    for at in range(WIDTH):
        frames[depth, at] = now[at]
    return depth + 1


@part
def pull(now: Array, frames: Array, depth: int) -> None:
    """Become the newest of the configurations kept."""
    for at in range(WIDTH):
        now[at] = frames[depth - 1, at]


@part
def report(now: Array, out: Array, at: int) -> None:
    """What a search has to say beside its verdict: steps, returns passed, hits of the table."""
    out[at, 1], out[at, 2], out[at, 3] = now[STEPS], now[DEEPEST], now[HITS]
