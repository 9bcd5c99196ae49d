"""Keys whose values are strings: they are put, read, and grow by appending.

The search walks along the returns as `search` does, but by other rules, because a string shows the
order of its appends. A state is represented by its length and a rolling hash (Karp and Rabin 1987):
appending costs one multiplication, and a table shows whether the state is a prefix of another
string.

1. A get of the present state is ordered at once.
2. *Look ahead*: if no put can come before the get that returns next, the state only grows until
   then, so it must be a prefix of what that get returned. This leaves few orders of appends.
3. When no get is left, the rest can happen in any order, and the key is legal.

A hash collision can only make two different strings look equal. An illegal key is searched again
with other hashes before the verdict stands.
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
    OperationBatch,
)
from checkers._linear.search import NO_ROOM, POLL
from checkers._linear.search_state import (
    NOW,
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

_MODULUS = (1 << 31) - 1
_SHIFT = 31
MAX_LETTERS = 1 << 23  # letters of a key's reads, times the number of lengths of its appends


class Texts(NamedTuple):
    """Hashes of all prefixes of each value's string, from the empty one at `hashes[starts[v]]` on.

    A hash is two numbers below 2^31 in one. `powers`: powers of the two bases, by length.
    """

    starts: Array
    hashes: Array
    powers: Array


def texts_of(batch: OperationBatch, strings: Sequence[str], seed: int) -> Texts:
    """Hash the strings of a batch's values; an absent value is the empty string."""
    bodies = [b"" if v == ABSENT else strings[v].encode() for v in batch.values.tolist()]
    starts = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum([len(body) + 1 for body in bodies], out=starts[1:])
    letters = np.frombuffer(b"".join(bodies), np.uint8)
    bases = np.random.default_rng(seed).integers(1 << 16, _MODULUS, 2)
    longest = int(np.diff(starts).max(initial=1))
    hashes, powers = np.zeros(int(starts[-1]), np.int64), np.ones((longest, 2), np.int64)
    _roll(letters, starts, bases, hashes, powers)
    return Texts(starts, hashes, powers)


def never_written(batch: OperationBatch, strings: Sequence[str], key: int) -> int:
    """Return the place of a read whose string no order of the puts and appends gives, or -1."""
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
            _is_composed(words, begins, pieces, lengths)
            or _is_composed(words, starts, pieces, lengths)
        ):
            return place
        known = words
    return -1


def _is_composed(words: str, starts: set[int], pieces: set[str], lengths: Sequence[int]) -> bool:
    """Return whether a text is made of pieces from one of these places on."""
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
    """Return the hash of the state with string v appended."""
    length = texts.starts[v + 1] - texts.starts[v] - 1
    tail = texts.hashes[texts.starts[v + 1] - 1]
    low = ((state & _MODULUS) * texts.powers[length, 0] + (tail & _MODULUS)) % _MODULUS
    high = ((state >> _SHIFT) * texts.powers[length, 1] + (tail >> _SHIFT)) % _MODULUS
    return int(low | (high << _SHIFT))


@part
def _is_prefix(texts: Texts, state: int, length: int, v: int) -> bool:
    """Return whether the state is a prefix of string v."""
    at = texts.starts[v] + length
    return bool(at < texts.starts[v + 1] and texts.hashes[at] == state)


@part
def _list_operations(s: SearchState, ops: Array, returned: int) -> tuple[int, int, int]:
    """List gets by returns; puts and operations of unknown outcome by calls; return the counts."""
    gets, puts, infos = 0, 0, 0
    for at in range(returned):
        if ops[s.returns[at], KIND] == READ:
            s.gets[gets] = s.returns[at]
            gets += 1
    for i in range(len(ops)):
        if ops[i, KIND] == WRITE:
            s.puts[puts] = i
            puts += 1
        if ops[i, STATUS] == INFO:
            s.infos[infos] = i
            infos += 1
    return gets, puts, infos


@part
def _next_get(s: SearchState, gets: int) -> int:
    """Return the get that returns next, or -1."""
    at = s.now[NOW.gets_passed]
    while at < gets and s.lifted[s.gets[at]]:
        at += 1
    s.now[NOW.gets_passed] = at
    return int(s.gets[at]) if at < gets else -1


@part
def _put_before(s: SearchState, ops: Array, puts: int, limit: int) -> bool:
    """Return whether a put that is still to be ordered was called before the limit."""
    at = s.now[NOW.puts_passed]
    while at < puts and s.lifted[s.puts[at]]:
        at += 1
    s.now[NOW.puts_passed] = at
    return bool(at < puts and ops[s.puts[at], CALL] < limit)


@part
def _advance(s: SearchState, ops: Array, texts: Texts, returned: int) -> None:
    """Order each get of the present state."""
    n, now = len(ops), s.now
    pass_returns(s, returned)
    i = s.after[n]
    while (
        now[NOW.front] < returned and i != n and ops[i, CALL] < ops[s.returns[now[NOW.front]], RET]
    ):
        following = s.after[i]
        if ops[i, KIND] == READ:
            end = texts.starts[ops[i, A] + 1] - 1
            length = end - texts.starts[ops[i, A]]
            if length == now[NOW.length] and texts.hashes[end] == now[NOW.state]:
                lift(s, i)
                pass_returns(s, returned)
        i = following


@part
def _choose(s: SearchState, ops: Array, infos: int) -> int:
    """Write the choices, those of unknown outcome last; return their end, or -1: no room."""
    n, choices = len(ops), s.choices
    top = int(s.now[NOW.top])
    if top + n + 2 > len(choices):
        return -1
    limit = ops[s.returns[s.now[NOW.front]], RET]
    for at in range(infos):
        i = s.infos[at]
        if ops[i, CALL] >= limit:
            break
        if not s.lifted[i]:
            choices[top] = i
            top += 1
    i = s.after[n]
    while i != n and ops[i, CALL] < limit:
        if ops[i, KIND] != READ:
            choices[top] = i
            top += 1
        i = s.after[i]
    return top


@part
def _take(s: SearchState, ops: Array, texts: Texts, choice: int) -> None:
    """Order one operation."""
    now = s.now
    if ops[choice, STATUS] == OK:
        lift(s, choice)
    else:
        note_use(s, choice)
        s.lifted[choice] = 1
    v = ops[choice, A]
    length = texts.starts[v + 1] - texts.starts[v] - 1
    if ops[choice, KIND] == APPEND:
        now[NOW.state] = _joined(texts, now[NOW.state], v)
        now[NOW.length] += length
    else:
        now[NOW.state], now[NOW.length] = texts.hashes[texts.starts[v + 1] - 1], length


@part
def _restore(s: SearchState, depth: int) -> None:
    """Return to the newest saved configuration."""
    lower(s, s.frames[depth - 1, NOW.trail])
    at = s.now[NOW.used]
    while at != s.frames[depth - 1, NOW.used]:
        s.lifted[s.node_op[at]] = 0
        at = s.node_next[at]
    pull(s, depth)


@part
def _search_key(s: SearchState, ops: Array, texts: Texts, failures: int, stop: Array) -> int:
    """Return the verdict on one key, or NO_ROOM."""
    now = s.now
    returned = prepare(s, ops)  # the first state has no letters, and a hash of 0
    gets, puts, infos = _list_operations(s, ops, returned)
    depth, steps = 0, len(ops) + 4 * failures
    while True:
        now[NOW.steps] += 1
        if now[NOW.failures] >= failures or now[NOW.steps] > steps:
            return UNKNOWN
        if now[NOW.steps] & POLL == 0 and stop[0]:
            return UNKNOWN
        _advance(s, ops, texts, returned)
        get = _next_get(s, gets)
        if get < 0:
            return LEGAL
        alive = _is_prefix(texts, now[NOW.state], now[NOW.length], ops[get, A])
        alive = alive or _put_before(s, ops, puts, ops[get, RET])
        first, second = now[NOW.first] ^ now[NOW.state], now[NOW.second] ^ now[NOW.length]
        if alive and not has_failed(s, first, second):
            top = _choose(s, ops, infos)
            if top < 0:
                return NO_ROOM
            depth = push(s, depth, top)
        while True:
            if depth == 0:
                return ILLEGAL
            _restore(s, depth)
            if now[NOW.top] > now[NOW.base]:
                break
            remember_failure(s, now[NOW.first] ^ now[NOW.state], now[NOW.second] ^ now[NOW.length])
            depth -= 1
        now[NOW.top] -= 1
        s.frames[depth - 1, NOW.top] = now[NOW.top]
        _take(s, ops, texts, s.choices[now[NOW.top]])


@kernel
def search(
    s: SearchState,
    batch: OperationBatch,
    which: Array,
    texts: Texts,
    failures: int,
    stop: Array,
    out: Array,
) -> None:
    """Search some keys as `search.search` does."""
    for at in range(len(which)):
        k = which[at]
        out[at, 0] = UNKNOWN
        if not stop[0]:
            mine = Texts(texts.starts[batch.value_starts[k] :], texts.hashes, texts.powers)
            ops = batch.ops[batch.starts[k] : batch.starts[k + 1]]
            out[at, 0] = _search_key(s, ops, mine, failures, stop)
            report(s, out, at)
