"""Small random histories of transactions, most of them with an error.

A history is made by executing transactions one after another, each at an instant inside its
interval. Then one of `SPOILERS` changes a read, the outcome of a transaction, or its time.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from transacting import Move, Transaction, parsed

from harness.operation import F, Type

MOST, LONGEST = 6, 8
KEYS_OF_ONE = 3
KEYS_DRAWN = 2
OFTEN = {
    "elsewhere": 8,
    "longer": 3,
    "shorter": 2,
    "sequential": 4,
    "moved": 2,
    "by the book": 6,
    "by the clock": 4,
    "twice": 2,
}  # what rarely comes of itself
OFTEN_OF_REGISTERS = OFTEN | {"elsewhere": 1, "sequential": 9}  # no list is longer, or elsewhere


def drawn(dice: Random, registers: bool) -> tuple[str, list[Transaction]]:
    """A history, and what was done to it; operations from 0, keys from 0, times from 0 to 99."""
    history = _executed(dice, registers)
    often = OFTEN_OF_REGISTERS if registers else OFTEN
    name = dice.choices(sorted(SPOILERS), [often.get(name, 1) for name in sorted(SPOILERS)])[0]
    return name, SPOILERS[name](dice, history)


def drawn_spoilt(dice: Random, registers: bool) -> list[Transaction]:
    """The same of up to eight transactions, with up to three things wrong that need a closer look,
    and often by a clock that many instants have in common."""
    history = _executed(dice, registers, LONGEST)
    if dice.random() < 0.3:
        history = _by_the_book(dice, history)
    for name in dice.choices(sorted(CLOSER), k=dice.randint(1, 3)):
        history = CLOSER[name](dice, history)
    if dice.random() < 0.5:
        history = [replace(t, begin=t.begin // 12, end=t.end // 12) for t in history]
    return history


def placed(history: list[Transaction], number: int) -> list[Transaction]:
    """The history as the number-th of a table: with operations, keys, processes, times of its
    own."""
    return [
        replace(
            t,
            op=t.op + 10 * number,
            process=t.process + LONGEST * number,
            begin=t.begin + 1000 * number,
            end=t.end + 1000 * number,
            moves=tuple(replace(m, key=m.key + KEYS_OF_ONE * number) for m in t.moves),
        )
        for t in history
    ]


def _executed(dice: Random, registers: bool, most: int = MOST) -> list[Transaction]:
    state: dict[int, tuple[int, ...]] = {}
    older: list[dict[int, tuple[int, ...]]] = [{}]
    free: dict[int, int] = {}
    history: list[Transaction] = []
    values = iter(range(1, 1000))
    lag = dice.random() < 0.5
    for op in range(dice.randint(2, most)):
        at = 10 + 12 * op
        begin, end = at - dice.randint(0, 24), at + dice.randint(1, 24)
        process = dice.choice([p for p in range(MOST) if free.get(p, -99) < at])
        begin = max(begin, free.get(process, -99) + 1)
        free[process] = end
        status = dice.choices([Type.OK, Type.INFO, Type.FAIL], [8, 1, 1])[0]
        seen = dict(dice.choice(older[-3:]) if lag and dice.random() < 0.5 else state)
        own: dict[int, tuple[int, ...]] = {}
        moves = []
        for _ in range(dice.randint(1, 3)):
            key = dice.randrange(KEYS_DRAWN)
            if dice.random() < 0.5:
                value = next(values)
                own[key] = (value,) if registers else (*own.get(key, ()), value)
                moves.append(Move(F.PUT if registers else F.APPEND, key, value))
            elif registers:
                now = own.get(key) or seen.get(key) or (None,)
                moves.append(Move(F.GET, key, now[-1]))
            else:
                moves.append(Move(F.LIST, key, seen=(*seen.get(key, ()), *own.get(key, ()))))
        if status is Type.OK or (status is Type.INFO and dice.random() < 0.5):
            for key, new in own.items():
                state[key] = new if registers else (*state.get(key, ()), *new)
        older.append(dict(state))
        history.append(Transaction(op, process, begin, end, status, tuple(moves)))
    return history


def _reads(history: list[Transaction]) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i, t in enumerate(history)
        for j, move in enumerate(t.moves)
        if move.f in (F.LIST, F.GET) and t.status is Type.OK
    ]


def _changed(history: list[Transaction], where: tuple[int, int], move: Move) -> list[Transaction]:
    i, j = where
    one = history[i]
    moves = (*one.moves[:j], move, *one.moves[j + 1 :])
    return [*history[:i], replace(one, moves=moves), *history[i + 1 :]]


def _one_read(
    change: Callable[[Random, Move, list[Transaction]], Move],
) -> Callable[[Random, list[Transaction]], list[Transaction]]:
    def spoil(dice: Random, history: list[Transaction]) -> list[Transaction]:
        reads = _reads(history)
        if not reads:
            return history
        i, j = dice.choice(reads)
        return _changed(history, (i, j), change(dice, history[i].moves[j], history))

    return spoil


def _values(history: list[Transaction], key: int) -> list[int]:
    moves = (move for t in history for move in t.moves)
    return [m.value or 0 for m in moves if m.key == key and m.f in (F.APPEND, F.PUT)]


def _shorter(dice: Random, move: Move, history: list[Transaction]) -> Move:
    if move.f is F.GET:
        return replace(move, value=dice.choice([None, *_values(history, move.key)]))
    return replace(move, seen=move.seen[: dice.randint(0, len(move.seen))])


def _longer(dice: Random, move: Move, history: list[Transaction]) -> Move:
    if move.f is F.GET:
        return _shorter(dice, move, history)
    more = [v for v in _values(history, move.key) if v not in move.seen]
    return replace(move, seen=(*move.seen, *more[: dice.randint(1, 2)]))


def _swapped(dice: Random, move: Move, history: list[Transaction]) -> Move:
    if move.f is F.GET or len(move.seen) < 2:
        return _shorter(dice, move, history)
    i = dice.randrange(len(move.seen) - 1)
    a, b = move.seen[i : i + 2]
    return replace(move, seen=(*move.seen[:i], b, a, *move.seen[i + 2 :]))


def _twice(dice: Random, move: Move, history: list[Transaction]) -> Move:
    if move.f is F.GET or not move.seen:
        return _shorter(dice, move, history)
    return replace(move, seen=(*move.seen, dice.choice(move.seen)))


def _phantom(dice: Random, move: Move, history: list[Transaction]) -> Move:
    value = 5000 + dice.randrange(99)
    return (
        replace(move, value=value) if move.f is F.GET else replace(move, seen=(*move.seen, value))
    )


def _everywhere(
    change: Callable[[Random, int, tuple[int, ...], list[int]], tuple[int, ...]],
) -> Callable[[Random, list[Transaction]], list[Transaction]]:
    """The same change to all reads of a key."""

    def spoil(dice: Random, history: list[Transaction]) -> list[Transaction]:
        key = dice.randrange(KEYS_DRAWN)
        values = _values(history, key)
        if not values:
            return history
        value, seed = dice.choice(values), dice.randrange(1 << 30)
        for i, j in _reads(history):
            move = history[i].moves[j]
            if move.key == key and move.f is F.LIST:
                seen = change(Random(seed), value, move.seen, values)
                history = _changed(history, (i, j), replace(move, seen=seen))
        return history

    return spoil


def _without(dice: Random, value: int, seen: tuple[int, ...], values: list[int]) -> tuple[int, ...]:
    return tuple(v for v in seen if v != value)


def _elsewhere(
    dice: Random, value: int, seen: tuple[int, ...], values: list[int]
) -> tuple[int, ...]:
    """Move a value a place or two further on, for all reads that have it."""
    if value not in seen or seen[-1] == value:
        return seen
    rest = [v for v in seen if v != value]
    return (*rest[: seen.index(value) + 1], value, *rest[seen.index(value) + 1 :])


def _status(to: Type) -> Callable[[Random, list[Transaction]], list[Transaction]]:
    def spoil(dice: Random, history: list[Transaction]) -> list[Transaction]:
        i = dice.randrange(len(history))
        return [*history[:i], replace(history[i], status=to), *history[i + 1 :]]

    return spoil


def _moved(dice: Random, history: list[Transaction]) -> list[Transaction]:
    """Two transactions change their times, and their processes."""
    i, j = dice.randrange(len(history)), dice.randrange(len(history))
    a, b = history[i], history[j]
    history = list(history)
    history[i] = replace(a, begin=b.begin, end=b.end, process=b.process)
    if i != j:
        history[j] = replace(b, begin=a.begin, end=a.end, process=a.process)
    return history


def _sequential(dice: Random, history: list[Transaction]) -> list[Transaction]:
    """All by one process, one after the other, in any order, or by many."""
    order = list(range(len(history)))
    dice.shuffle(order)
    one = dice.random() < 0.5
    return [
        replace(t, begin=10 * at, end=10 * at + 5, process=0 if one else t.op)
        for t, at in zip(history, order, strict=True)
    ]


def _both(dice: Random, history: list[Transaction]) -> list[Transaction]:
    for name in dice.sample(sorted(set(SPOILERS) - {"two"}), 2):
        history = SPOILERS[name](dice, history)
    return history


# What goes wrong by the book, in the words of `transacting`; times and processes are drawn.
BY_THE_BOOK = (
    "append x 1, append y 1; append x 2, append y 2; list x 1 2, list y 2 1",  # G0
    "append x 1, list y 2; append y 2, list x 1",  # G1c
    "append x 1, list z 3; list x 1, append y 2; append z 3, list y 2",
    "list x, append x 1; list x, append x 2; list x 1 2",  # a lost update
    "list x, list y 2; append x 1, append y 2; list x 1",  # read skew
    "list x, append y 1; list y, append x 2; list x 2, list y 1",  # write skew
    "append x 1; append y 2; list x 1, list y; list x, list y 2",  # long fork
    "append x 1; list x; list x 1",  # stale
)


BOOK_OF_REGISTERS = (
    "put x 1, get y 2, put y 1; get x 1, put x 2, put y 2",  # G0
    "put x 1, get y 2; put y 2, get x 1",  # G1c
    "put x 1, put x 2; get x 1",  # G1b
    "get x none, put x 1; get x none, put x 2",  # a lost update
    "get x none, get y 2; put x 1, put y 2",  # read skew
    "get x none, put y 1; get y none, put x 2",  # write skew
    "put x 1; put y 2; get x 1, get y none; get x none, get y 2",  # long fork
)


def _by_the_book(dice: Random, history: list[Transaction]) -> list[Transaction]:
    texts = dice.choice(BOOK_OF_REGISTERS if _of_registers(history) else BY_THE_BOOK).split(";")
    if dice.random() < 0.5:
        dice.shuffle(texts)
    planted = parsed("\n".join(f"T{op}: {text}" for op, text in enumerate(texts)))
    if dice.random() < 0.4:
        return [replace(t, process=0) for t in planted]
    free: dict[int, int] = {}
    drawn_anew = []
    for t in planted:
        begin, end = 10 * t.op - dice.randint(0, 9), 10 * t.op + dice.randint(1, 19)
        process = dice.choice([p for p in range(MOST) if free.get(p, -99) < begin])
        free[process] = end
        drawn_anew.append(replace(t, process=process, begin=begin, end=end))
    return drawn_anew


def _of_registers(history: list[Transaction]) -> bool:
    return any(move.f in (F.GET, F.PUT) for t in history for move in t.moves)


# What is wrong because one transaction was over when another began, and would not be otherwise:
# write skew, and a long fork. The first two of each are the two; they may be of one process.
BY_THE_CLOCK = (
    "[0..10]: append y 2; [20..30]: list x; [5..25]: append x 1, list y",
    "[0..10]: append y 2; [20..40]: list x; [0..50]: append x 1; [5..45]: list x 1, list y",
)
IN_REGISTERS = (("append", "put"), ("list x 1", "get x 1"), ("list x", "get x none"))


def _by_the_clock(dice: Random, history: list[Transaction]) -> list[Transaction]:
    text = dice.choice(BY_THE_CLOCK)
    for word, other in (*IN_REGISTERS, ("list y", "get y none")) if _of_registers(history) else ():
        text = text.replace(word, other)
    lines = [f"T{op} {words.strip()}" for op, words in enumerate(text.split(";"))]
    planted = parsed("\n".join(lines))
    if dice.random() < 0.5:
        planted[1] = replace(planted[1], process=planted[0].process)
    return [_with_more(dice, t) for t in _stretched(dice, planted)]


def _stretched(dice: Random, history: list[Transaction]) -> list[Transaction]:
    """The same instants in the same order, and other times between them; operations in another."""
    instants = sorted({t for one in history for t in (one.begin, one.end)})
    now, at = 0, {}
    for instant in instants:
        now += dice.randint(1, 30)
        at[instant] = now
    ops, processes = (dice.sample(range(MOST), len(history)) for _ in range(2))
    return [
        replace(t, op=op, process=processes[t.process], begin=at[t.begin], end=at[t.end])
        for t, op in zip(history, ops, strict=True)
    ]


def _with_more(dice: Random, one: Transaction) -> Transaction:
    """Add writes of its own to a transaction, first or last."""
    f = F.PUT if any(move.f in (F.GET, F.PUT) for move in one.moves) else F.APPEND
    more = [Move(f, KEYS_OF_ONE - 1, 900 + one.op)] * (dice.random() < 0.3)
    moves = (*more, *one.moves) if dice.random() < 0.5 else (*one.moves, *more)
    return replace(one, moves=moves)


def _in_two_orders(dice: Random, history: list[Transaction]) -> list[Transaction]:
    """A transaction that reads a list reads it again, with two elements the other way around."""
    reads = _reads(history)
    if not reads:
        return history
    i, j = dice.choice(reads)
    one, again = history[i], _swapped(dice, history[i].moves[j], history)
    moves = (*one.moves[: j + 1], again, *one.moves[j + 1 :])
    return [*history[:i], replace(one, moves=moves), *history[i + 1 :]]


def _not_unique(dice: Random, history: list[Transaction]) -> list[Transaction]:
    """Let one transaction write a value of another."""
    key = dice.randrange(KEYS_DRAWN)
    values = _values(history, key)
    writes = [
        (i, j)
        for i, t in enumerate(history)
        for j, move in enumerate(t.moves)
        if move.f in (F.APPEND, F.PUT) and move.key == key
    ]
    if dice.random() < 0.7 or not writes:
        return history
    i, j = dice.choice(writes)
    move = history[i].moves[j]
    return _changed(history, (i, j), replace(move, value=dice.choice(values)))


SPOILERS: dict[str, Callable[[Random, list[Transaction]], list[Transaction]]] = {
    "nothing": lambda dice, history: history,
    "shorter": _one_read(_shorter),
    "longer": _one_read(_longer),
    "swapped": _one_read(_swapped),
    "twice": _one_read(_twice),
    "phantom": _one_read(_phantom),
    "lost": _everywhere(_without),
    "elsewhere": _everywhere(_elsewhere),
    "by the book": _by_the_book,
    "by the clock": _by_the_clock,
    "aborted": _status(Type.FAIL),
    "unknown": _status(Type.INFO),
    "moved": _moved,
    "sequential": _sequential,
    "two": _both,
}
CLOSER = {
    "shorter": _one_read(_shorter),
    "swapped": _one_read(_swapped),
    "in two orders": _in_two_orders,
    "elsewhere": _everywhere(_elsewhere),
    "without": _everywhere(_without),
    "phantom": _one_read(_phantom),
    "aborted": _status(Type.FAIL),
    "unknown": _status(Type.INFO),
    "not unique": _not_unique,
    "moved": _moved,
    "sequential": _sequential,
}
