"""Keys whose values are strings that are put, got, and grow by appending.

The same walk along the returns as in `search`, with other means, since the order of appends shows.
A state is known by its length and a rolling hash (Karp and Rabin 1987), so that appending costs one
multiplication and asking whether it is the beginning of some other string one look at a table.

1. A get of the present state is ordered at once.
2. *Looking ahead*: if no put can come before the get that returns next, the state only grows until
   then, so it has to be a beginning of what that get saw. This leaves few orders of appends.
3. When no get is left, whatever remains can happen in any order: the key is legal.

A wrong hash could only call two strings equal that are not; an illegal key is searched again with
other hashes before it is believed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkers._linear.batch import (
    ABSENT,
    APPEND,
    CALL,
    ILLEGAL,
    INFO,
    KIND,
    LEGAL,
    OK,
    READ,
    RET,
    STATUS,
    UNKNOWN,
    WRITE,
    A,
    Array,
    Batch,
)
from checkers._linear.room import (
    AFTER,
    BASE,
    FAILURES,
    FIRST,
    FRONT,
    INFO_OPS,
    LENGTH,
    LIFTED,
    NODE_NEXT,
    NODE_OP,
    PAIR_OF,
    PAIR_OPS,
    PUT,
    RETURNS,
    SECOND,
    SEEN,
    STATE,
    STEPS,
    TOP,
    TRAIL,
    USED,
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
from checkers._linear.search import NO_ROOM
from checkers._spark.compiled import kernel, part

_MODULUS = (1 << 31) - 1
_SHIFT = 31
_POLL = 1023
MAX_LETTERS = 1 << 23  # of the reads of a key, and lengths of what was appended, that are compared

# rows of `op` that the search of registers uses for other things
GETS, PUTS, INFOS = INFO_OPS, PAIR_OPS, PAIR_OF


class Texts(NamedTuple):
    """Every value's string: `hashes[starts[v]]` is of nothing of it, the last one of all of it.

    A hash is two numbers below 2^31, in one; `powers` are those of the two bases, by length.
    """

    starts: Array
    hashes: Array
    powers: Array


def texts_of(batch: Batch, strings: Sequence[str], seed: int) -> Texts:
    """The strings behind a batch's values; no value is the empty string."""
    bodies = [b"" if v == ABSENT else strings[v].encode() for v in batch.values.tolist()]
    starts = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum([len(body) + 1 for body in bodies], out=starts[1:])
    letters = np.frombuffer(b"".join(bodies), np.uint8)
    bases = np.random.default_rng(seed).integers(1 << 16, _MODULUS, 2)
    longest = int(np.diff(starts).max(initial=1))
    hashes, powers = np.zeros(int(starts[-1]), np.int64), np.ones((longest, 2), np.int64)
    _roll(letters, starts, bases, hashes, powers)
    return Texts(starts, hashes, powers)


def never_written(batch: Batch, strings: Sequence[str], key: int) -> int:
    """The place of a read of a key whose string no puts and appends, in whatever order, can give;
    -1: none was found."""
    first, last = int(batch.starts[key]), int(batch.starts[key + 1])
    at = int(batch.value_starts[key])

    def text(place: int) -> str:
        value = int(batch.values[at + int(batch.ops[place, A])])
        return "" if value == ABSENT else strings[value]

    kinds = batch.ops[first:last, KIND]
    whole = {"", *(text(first + n) for n in np.flatnonzero(kinds == WRITE).tolist())}
    pieces = {text(first + n) for n in np.flatnonzero(kinds == APPEND).tolist()} - {""}
    lengths = sorted({len(piece) for piece in pieces})
    reads = [(text(first + n), first + n) for n in np.flatnonzero(kinds == READ).tolist()]
    if sum(len(words) for words, _ in reads) * max(1, len(lengths)) > MAX_LETTERS:
        return -1
    known = ""
    for words, place in sorted(reads, key=lambda read: (len(read[0]), read)):
        begins = {len(known)} if words.startswith(known) else set[int]()
        starts = {len(start) for start in whole if words.startswith(start)}
        if not (
            _composed(words, begins, pieces, lengths) or _composed(words, starts, pieces, lengths)
        ):
            return place
        known = words
    return -1


def _composed(words: str, starts: set[int], pieces: set[str], lengths: Sequence[int]) -> bool:
    """Whether a text, from one of these places on, is made of pieces."""
    reached = set(starts)
    for at in range(min(starts, default=0), len(words)):
        if at in reached:
            reached.update(at + n for n in lengths if words[at : at + n] in pieces)
    return len(words) in reached


@kernel
def _roll(letters: Array, starts: Array, bases: Array, hashes: Array, powers: Array) -> None:
    for length in range(1, len(powers)):
        for which in range(2):
            powers[length, which] = powers[length - 1, which] * bases[which] % _MODULUS
    at = 0
    for v in range(len(starts) - 1):
        low, high = 0, 0
        for place in range(starts[v] + 1, starts[v + 1]):
            letter = np.int64(letters[at]) + 1
            low = (low * bases[0] + letter) % _MODULUS
            high = (high * bases[1] + letter) % _MODULUS
            hashes[place] = low | (high << _SHIFT)
            at += 1


@part
def _joined(texts: Texts, state: int, v: int) -> int:
    """The hash of the state with string v appended."""
    length = texts.starts[v + 1] - texts.starts[v] - 1
    tail = texts.hashes[texts.starts[v + 1] - 1]
    low = ((state & _MODULUS) * texts.powers[length, 0] + (tail & _MODULUS)) % _MODULUS
    high = ((state >> _SHIFT) * texts.powers[length, 1] + (tail >> _SHIFT)) % _MODULUS
    return int(low | (high << _SHIFT))


@part
def _begins(texts: Texts, state: int, length: int, v: int) -> bool:
    """The state is a beginning of string v."""
    at = texts.starts[v] + length
    return bool(at < texts.starts[v + 1] and texts.hashes[at] == state)


@part
def _list(op: Array, ops: Array, returned: int) -> tuple[int, int, int]:
    """Gets by their returns; puts, and what is of unknown outcome, by their calls. How many."""
    gets, puts, infos = 0, 0, 0
    for at in range(returned):
        if ops[op[RETURNS, at], KIND] == READ:
            op[GETS, gets] = op[RETURNS, at]
            gets += 1
    for i in range(len(ops)):
        if ops[i, KIND] == WRITE:
            op[PUTS, puts] = i
            puts += 1
        if ops[i, STATUS] == INFO:
            op[INFOS, infos] = i
            infos += 1
    return gets, puts, infos


@part
def _next_get(now: Array, op: Array, gets: int) -> int:
    """The get that returns next; or -1."""
    at = now[SEEN]
    while at < gets and op[LIFTED, op[GETS, at]]:
        at += 1
    now[SEEN] = at
    return int(op[GETS, at]) if at < gets else -1


@part
def _put_before(now: Array, op: Array, ops: Array, puts: int, limit: int) -> bool:
    """Some put that is still to come was called before the limit."""
    at = now[PUT]
    while at < puts and op[LIFTED, op[PUTS, at]]:
        at += 1
    now[PUT] = at
    return bool(at < puts and ops[op[PUTS, at], CALL] < limit)


@part
def _advance(now: Array, op: Array, ops: Array, texts: Texts, dice: Array, returned: int) -> None:
    """Order every get of the present state."""
    n = len(ops)
    pass_returns(now, op, returned)
    i = op[AFTER, n]
    while now[FRONT] < returned and i != n and ops[i, CALL] < ops[op[RETURNS, now[FRONT]], RET]:
        following = op[AFTER, i]
        if ops[i, KIND] == READ:
            end = texts.starts[ops[i, A] + 1] - 1
            length = end - texts.starts[ops[i, A]]
            if length == now[LENGTH] and texts.hashes[end] == now[STATE]:
                lift(now, op, dice, i)
                pass_returns(now, op, returned)
        i = following


@part
def _choose(now: Array, op: Array, choices: Array, ops: Array, infos: int) -> int:
    """Lay out the choices, the best last: unknown outcomes come last. Where they end, or -1."""
    n = len(ops)
    top = int(now[TOP])
    if top + n + 2 > len(choices):
        return -1
    limit = ops[op[RETURNS, now[FRONT]], RET]
    for at in range(infos):
        i = op[INFOS, at]
        if ops[i, CALL] >= limit:
            break
        if not op[LIFTED, i]:
            choices[top] = i
            top += 1
    i = op[AFTER, n]
    while i != n and ops[i, CALL] < limit:
        if ops[i, KIND] != READ:
            choices[top] = i
            top += 1
        i = op[AFTER, i]
    return top


@part
def _take(
    now: Array, op: Array, node: Array, ops: Array, texts: Texts, dice: Array, choice: int
) -> None:
    if ops[choice, STATUS] == OK:
        lift(now, op, dice, choice)
    else:
        note_use(now, node, choice)
        op[LIFTED, choice] = 1
    v = ops[choice, A]
    length = texts.starts[v + 1] - texts.starts[v] - 1
    if ops[choice, KIND] == APPEND:
        now[STATE] = _joined(texts, now[STATE], v)
        now[LENGTH] += length
    else:
        now[STATE], now[LENGTH] = texts.hashes[texts.starts[v + 1] - 1], length


@part
def _restore(now: Array, op: Array, node: Array, frames: Array, depth: int) -> None:
    """Go back to the newest of the configurations kept."""
    lower(now, op, frames[depth - 1, TRAIL])
    at = now[USED]
    while at != frames[depth - 1, USED]:
        op[LIFTED, node[NODE_OP, at]] = 0
        at = node[NODE_NEXT, at]
    pull(now, frames, depth)


@part
def _one(room: Room, ops: Array, texts: Texts, dice: Array, failures: int, stop: Array) -> int:
    """Search one key."""
    now, op, node = room.now, room.op, room.node
    frames, choices, failed = room.frames, room.choices, room.failed
    returned = prepare(now, op, node, room.at_rank, ops)  # the state: no letters, and a hash of 0
    gets, puts, infos = _list(op, ops, returned)
    depth, steps = 0, len(ops) + 4 * failures
    while True:
        now[STEPS] += 1
        if now[FAILURES] >= failures or now[STEPS] > steps:
            return UNKNOWN
        if now[STEPS] & _POLL == 0 and stop[0]:
            return UNKNOWN
        _advance(now, op, ops, texts, dice, returned)
        get = _next_get(now, op, gets)
        if get < 0:
            return LEGAL
        alive = _begins(texts, now[STATE], now[LENGTH], ops[get, A])
        alive = alive or _put_before(now, op, ops, puts, ops[get, RET])
        first, second = now[FIRST] ^ now[STATE], now[SECOND] ^ now[LENGTH]
        if alive and not hopeless(now, node, failed, first, second):
            top = _choose(now, op, choices, ops, infos)
            if top < 0:
                return NO_ROOM
            depth = push(now, frames, depth, top)
        while True:
            if depth == 0:
                return ILLEGAL
            _restore(now, op, node, frames, depth)
            if now[TOP] > now[BASE]:
                break
            remember(now, failed, now[FIRST] ^ now[STATE], now[SECOND] ^ now[LENGTH])
            depth -= 1
        now[TOP] -= 1
        frames[depth - 1, TOP] = now[TOP]
        _take(now, op, node, ops, texts, dice, choices[now[TOP]])


@kernel
def search(
    room: Room,
    batch: Batch,
    which: Array,
    texts: Texts,
    dice: Array,
    failures: int,
    stop: Array,
    out: Array,
) -> None:
    """Search some keys, as `search.search` does."""
    for at in range(len(which)):
        k = which[at]
        out[at, 0] = UNKNOWN
        if not stop[0]:
            mine = Texts(texts.starts[batch.value_starts[k] :], texts.hashes, texts.powers)
            ops = batch.ops[batch.starts[k] : batch.starts[k + 1]]
            out[at, 0] = _one(room, ops, mine, dice, failures, stop)
            report(room.now, out, at)
