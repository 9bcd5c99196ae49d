"""The naive judgement of small histories of transactions: all orders, and the definitions.

`serializable` tries each order of the transactions, with or without those of unknown outcome.
`weakest` builds the dependencies of lists one by one, walks all simple cycles and returns the
weakest level that a history violates. Neither uses the checker's code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from transacting import Move, Transaction

from harness.operation import F, Type
from harness.trial import ISOLATION

UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE, SESSION, STRICT = ISOLATION
State = tuple[tuple[int, tuple[int, ...]], ...]


# ------------------------------------------------------------------------------------- all orders


def serializable(history: list[Transaction], level: str = SERIALIZABLE) -> bool:
    """Return whether some order explains all reads and keeps what the level promises to keep."""
    live = [t for t in history if t.status is not Type.FAIL]
    before = [
        sum(1 << i for i, first in enumerate(live) if _precedes(first, second, level))
        for second in live
    ]
    needed = sum(1 << i for i, t in enumerate(live) if t.status is Type.OK)
    dead: set[tuple[int, State]] = set()

    def possible(placed: int, state: State) -> bool:
        if placed & needed == needed:
            return True
        if (placed, state) in dead:
            return False
        for i, one in enumerate(live):
            if not placed >> i & 1 and before[i] & needed & ~placed == 0:
                after = applied(one, dict(state))
                if after is not None and possible(placed | 1 << i, after):
                    return True
        dead.add((placed, state))
        return False

    return possible(0, ())


def _precedes(first: Transaction, second: Transaction, level: str) -> bool:
    if first is second or first.status is not Type.OK:
        return False
    if level == STRICT and first.end < second.begin:
        return True
    return level in (SESSION, STRICT) and (
        first.process == second.process and first.end <= second.begin
    )


def applied(one: Transaction, state: dict[int, tuple[int, ...]]) -> State | None:
    """The state after a transaction; None when it committed and saw something else."""
    known = one.status is Type.OK
    for move in one.moves:
        now = state.get(move.key, ())
        if move.f is F.APPEND:
            state[move.key] = (*now, move.value or 0)
        elif move.f is F.PUT:
            state[move.key] = (move.value or 0,)
        elif known and not _fits(move, now):
            return None
    return tuple(sorted(state.items()))


def _fits(move: Move, now: tuple[int, ...]) -> bool:
    return move.seen == now if move.f is F.LIST else (move.value,) == (now or (None,))


def snapshot_isolated(history: list[Transaction]) -> bool:
    """Return whether every transaction of a history of lists can have read a snapshot, and have
    committed while what it wrote was unchanged since. Tries all orders of starts and commits
    (Berenson and others 1995)."""
    live = [t for t in history if t.status is not Type.FAIL]
    needed = sum(1 << i for i, t in enumerate(live) if t.status is Type.OK)
    dead: set[tuple[int, State, tuple[tuple[int, State], ...]]] = set()

    def possible(done: int, state: State, open_: dict[int, State]) -> bool:
        if done & needed == needed:
            return True
        mark = (done, state, tuple(sorted(open_.items())))
        if mark in dead:
            return False
        for i, one in enumerate(live):
            if done >> i & 1:
                continue
            if i not in open_:
                if applied(one, dict(state)) is not None and possible(
                    done, state, open_ | {i: state}
                ):
                    return True
            elif (after := _committed(one, dict(open_[i]), dict(state))) is not None:
                rest = {j: snapshot for j, snapshot in open_.items() if j != i}
                if possible(done | 1 << i, after, rest):
                    return True
        dead.add(mark)
        return False

    return possible(0, (), {})


def _committed(
    one: Transaction, snapshot: dict[int, tuple[int, ...]], now: dict[int, tuple[int, ...]]
) -> State | None:
    """Return the state after a commit; None if what it wrote has changed since its snapshot."""
    written = {move.key for move in one.moves if move.f is F.APPEND}
    if any(snapshot.get(key, ()) != now.get(key, ()) for key in written):
        return None
    after = dict(applied(one, snapshot) or ())
    return tuple(sorted((now | {key: after[key] for key in written}).items()))


# ------------------------------------------------------------------------------------ definitions


@dataclass
class Dependencies:
    """Between operations: the kinds of edge of each pair; and what is wrong without a cycle."""

    kinds: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    offends: set[str] = field(default_factory=set)

    def add(self, src: int, dst: int, kind: str) -> None:
        if src != dst:
            self.kinds.setdefault((src, dst), set()).add(kind)


def weakest(history: list[Transaction]) -> str:
    """The weakest level that a history of lists offends, by what was read alone; else nothing."""
    found = dependencies(history)
    offends = set(found.offends)
    for cycle in cycles(sorted(found.kinds)):
        kinds = [found.kinds[pair] for pair in cycle]
        if all("ww" in kind for kind in kinds):
            offends.add(UNCOMMITTED)
        if all(kind & {"ww", "wr"} for kind in kinds):
            offends.add(COMMITTED)
        anti = [not kind & {"ww", "wr"} for kind in kinds]
        if not any(a and b for a, b in zip(anti, [*anti[1:], anti[0]], strict=True)):
            offends.add(SNAPSHOT)
        offends.add(SERIALIZABLE)
    return next((level for level in ISOLATION if level in offends), "")


def cycles(pairs: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """All simple cycles, each once."""
    following: dict[int, list[int]] = {}
    for src, dst in pairs:
        following.setdefault(src, []).append(dst)

    def walk(path: list[int]) -> Iterator[list[tuple[int, int]]]:
        for node in following.get(path[-1], ()):
            if node == path[0]:
                yield list(zip(path, [*path[1:], node], strict=True))
            elif node > path[0] and node not in path:
                yield from walk([*path, node])

    for start in sorted(following):
        yield from walk([start])


def dependencies(history: list[Transaction]) -> Dependencies:
    found = Dependencies()
    for key in sorted({move.key for t in history for move in t.moves}):
        _of_key(key, history, found)
    return found


@dataclass(frozen=True)
class _Read:
    """What a transaction saw of others: the list before its own appends, which were `own`."""

    op: int
    seen: tuple[int, ...]
    own: int


def _of_key(key: int, history: list[Transaction], found: Dependencies) -> None:
    writer = {m.value: t for t in history for m in t.moves if m.key == key and m.f is F.APPEND}
    last = {t.op: m.value for t in history for m in t.moves if m.key == key and m.f is F.APPEND}
    reads = [_cleaned(r, writer, found) for t in history for r in _reads(t, key, found)]
    first = min(reads, key=lambda r: (-len(r.seen), r.op, r.seen), default=None)
    main = first.seen if first else ()
    owners = [writer[value].op for value in main]
    sound = []
    for read in reads:
        n = len(read.seen)
        torn = n and owners[n - 1] != read.op and last[owners[n - 1]] != main[n - 1]
        apart = read.own and n < len(main) and owners[n] != read.op
        if read.seen == main[:n] and read.op in owners[:n]:
            found.offends.add(UNCOMMITTED)
        elif read.seen != main[:n] or torn or apart:
            found.offends.add(COMMITTED)
        else:
            sound.append(read)
    if any(a > b for a, b in pairwise(main) if writer[a] is writer[b]):
        found.offends.add(UNCOMMITTED)
    updates = [(len(r.seen), r.op) for r in sound if r.op in last]
    if len(set(updates)) > len({n for n, _ in updates}):
        found.offends.add(SNAPSHOT)  # two replaced the same version, whichever came first
    shown = {value for read in reads for value in read.seen}
    missing = [
        t.op for v, t in writer.items() if v not in shown and t.status is not Type.FAIL and reads
    ]
    for first, second in pairwise(owners):
        found.add(first, second, "ww")
    for op in missing if main else ():
        found.add(owners[-1], op, "ww")
    states = {op: {len(r.seen) for r in sound if r.op == op} for op in last}
    enders = sorted(op for op, lengths in states.items() if lengths == {len(main)})
    if enders and enders[0] in missing:  # who replaced the last known version comes before others
        for op in missing:
            found.add(enders[0], op, "ww")
    for read in sound:
        n = len(read.seen)
        if n:
            found.add(owners[n - 1], read.op, "wr")
        if n < len(main):
            found.add(read.op, owners[n], "rw")
        else:
            for op in missing:
                found.add(read.op, op, "rw")


def _reads(one: Transaction, key: int, found: Dependencies) -> Iterator[_Read]:
    own: tuple[int, ...] = ()
    for move in one.moves if one.status is Type.OK else ():
        if move.key != key:
            continue
        if move.f is F.APPEND:
            own = (*own, move.value or 0)
        elif own and move.seen[-len(own) :] != own:
            found.offends.add(UNCOMMITTED)
        else:
            yield _Read(one.op, move.seen[: len(move.seen) - len(own)], len(own))


def _cleaned(read: _Read, writer: dict[int | None, Transaction], found: Dependencies) -> _Read:
    kept: list[int] = []
    for value in read.seen:
        if value not in writer or value in kept:
            found.offends.add(UNCOMMITTED)
        elif writer[value].status is Type.FAIL:
            found.offends.add(COMMITTED)
        else:
            kept.append(value)
    return _Read(read.op, tuple(kept), read.own)
