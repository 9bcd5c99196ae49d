"""The dependencies of lists by definition, read by read."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from isolation_found import Edge, Found, Lost, moves
from transacting import Transaction

from checkers._cycles.arrays import NULL
from harness.operation import F, Type


@dataclass
class _Read:
    """What a transaction saw of others: the list before its own appends, which were `own`."""

    op: int
    seen: list[int]
    own: int
    again: bool = False


def of_list(key: int, found: Found) -> None:
    history = found.history
    appends = [(m.value or 0, t) for t in history for m in moves(t, key) if m.f is F.APPEND]
    writer = dict(appends)
    reads = [read for t in history for read in _reads(t, key, found)]
    if len(writer) < len(appends):
        found.remark("NOT_UNIQUE", -1, key)
        return
    read_at_all = bool(reads)
    for read in reads:
        read.seen = _cleaned(read, key, writer, found)
    best = min(reads, key=lambda r: (-len(r.seen), r.op, r.seen), default=_Read(-1, [], 0))
    main, owners = best.seen, [writer[value].op for value in best.seen]
    aside = {value for read in reads for value in read.seen if read.seen != main[: len(read.seen)]}
    sound = []
    for read in reads:
        if read.seen == main[: len(read.seen)]:
            sound.append(read)
        else:
            found.remark("INCOMPATIBLE", read.op, key, other=best.op)
    for a, b in pairwise(main):
        made = [value for value, t in appends if t is writer[a]]
        if writer[a] is writer[b] and made.index(a) > made.index(b):
            found.remark("SHUFFLED", writer[a].op, key, a)
    known: set[int] = set()
    sound = [r for r in sound if _itself(r, key, main, owners, found)]
    sound = [r for r in sound if _kept(r, key, main, owners, aside - {*main}, known, found)]
    last = {t.op: value for value, t in appends}
    sound = [r for r in sound if _entire(r, key, main, owners, last, found)]
    _replaced(sound, key, owners, {t.op for _, t in appends}, found)
    _of_list(sound, key, main, owners, found)
    shown = {*main, *aside}
    rest = [(v, t) for v, t in appends if v not in shown and t.status is not Type.FAIL]
    lacking = {t.op for _, t in rest}
    for value, t in rest if read_at_all else ():
        _missing(sound, key, main, owners, (value, t, value in known), lacking, found)


def _reads(t: Transaction, key: int, found: Found) -> list[_Read]:
    own: list[int] = []
    reads = []
    for move in moves(t, key) if t.status is Type.OK else ():
        if move.f is F.APPEND:
            own.append(move.value or 0)
        elif list(move.seen[len(move.seen) - len(own) :]) != own or len(move.seen) < len(own):
            found.remark("UNSEEN_OWN", t.op, key)
        else:
            reads.append(_Read(t.op, list(move.seen[: len(move.seen) - len(own)]), len(own)))
    if len({len(read.seen) for read in reads}) > 1:
        found.remark("READ_TWICE", t.op, key)
        for read in reads:
            read.again = True
    return reads


def _cleaned(read: _Read, key: int, writer: dict[int, Transaction], found: Found) -> list[int]:
    """Committed appends, each of them once."""
    kept: list[int] = []
    for value in read.seen:
        if value not in writer:
            found.remark("PHANTOM", read.op, key, value)
        elif writer[value].status is Type.FAIL:
            found.remark("ABORTED", writer[value].op, key, value, read.op)
        elif value in kept:
            found.remark("DUPLICATE", read.op, key, value)
        else:
            kept.append(value)
    return kept


def _itself(read: _Read, key: int, main: list[int], owners: list[int], found: Found) -> bool:
    """It shows nothing that its own transaction has yet to append."""
    good = read.op not in owners[: len(read.seen)]
    if not good:
        found.remark("UNSEEN_OWN", read.op, key)
    return good


def _kept(
    read: _Read,
    key: int,
    main: list[int],
    owners: list[int],
    aside: set[int],
    known: set[int],
    found: Found,
) -> bool:
    """Its own appends, which it read, are where it read them, as far as others have read."""
    n = len(read.seen)
    if not read.own or n == len(main) or owners[n] == read.op:
        return True
    for move in moves(found.among(read.op), key):
        value = move.value or 0
        if move.f is F.APPEND and value not in main and value not in aside:
            known.add(value)
            found.remark("LOST_OWN", read.op, key, value)
        elif move.f is F.APPEND:
            found.remark("INCOMPATIBLE", read.op, key)
    return False


def _entire(
    read: _Read,
    key: int,
    main: list[int],
    owners: list[int],
    last: dict[int, int],
    found: Found,
) -> bool:
    """It does not end between two appends of another transaction."""
    n = len(read.seen)
    torn = n > 0 and owners[n - 1] != read.op and last[owners[n - 1]] != main[n - 1]
    if torn:
        found.remark("INTERMEDIATE", owners[n - 1], key, main[n - 1], read.op)
    return not torn


def _replaced(
    reads: list[_Read], key: int, owners: list[int], writers: set[int], found: Found
) -> None:
    """Of the transactions that read one version and appended to it, all but one lost an update."""
    groups: dict[int, list[_Read]] = defaultdict(list)
    for read in reads:
        if read.op in writers:
            groups[len(read.seen)].append(read)
    for group in groups.values():
        place = {r.op: owners.index(r.op) if r.op in owners else len(owners) for r in group}
        leader = min(place, key=lambda op: (place[op], op))
        for read in group:
            if read.op != leader:
                read.again = True
                found.remark("LOST_UPDATE", read.op, key, other=leader)


def _of_list(
    reads: list[_Read], key: int, main: list[int], owners: list[int], found: Found
) -> None:
    for n, (a, b) in enumerate(pairwise(owners)):
        found.add(a, b, "ww", key, main[n], main[n + 1])
    for read in reads:
        n = len(read.seen)
        before = main[n - 1] if n else NULL
        if n:
            found.add(owners[n - 1], read.op, "wr", key, before)
        if n < len(main) and not read.again:
            found.add(read.op, owners[n], "rw", key, before, main[n])


def _missing(
    reads: list[_Read],
    key: int,
    main: list[int],
    owners: list[int],
    append: tuple[int, Transaction, bool],
    lacking: set[int],
    found: Found,
) -> None:
    """All that know the end of the list came before an append that is not in it."""
    value, t, known = append
    number, last = len(found.missing), main[-1] if main else NULL
    readers = [read.op for read in reads if len(read.seen) == len(main) and not read.again]
    next_ = sorted({op for op in readers if op in lacking})
    writers = (*owners[-1:], *next_)
    for op, kind in (*((op, "rw") for op in readers), *((op, "ww") for op in writers)):
        if op != t.op:
            side = "before its own" if op in lacking and t.op < op else "the list's end"
            found.edges.add(Edge(op, t.op, kind, 0, key, last, value, number, side))
    found.missing.append(Lost(t.op, known, tuple(readers), writers))
