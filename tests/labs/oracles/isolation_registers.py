"""The dependencies of registers by definition, version by version."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from isolation_found import Found, age, end, moves
from transacting import Transaction

from checkers._cycles.arrays import NULL
from harness.operation import F, Type


@dataclass
class _Get:
    op: int
    value: int | None
    again: bool = False


def of_register(key: int, found: Found) -> None:
    history = found.history
    puts = [(m.value, t) for t in history for m in moves(t, key) if m.f is F.PUT]
    writer = dict(puts)
    last = {t.op: m.value for t in history for m in moves(t, key) if m.f is F.PUT}
    versions = {  # what others may see, and who wrote it
        value: t for value, t in writer.items() if last[t.op] == value and t.status is not Type.FAIL
    }
    gets = [get for t in history for get in _gets(t, key, found)]
    if len(writer) < len(puts):
        found.remark("NOT_UNIQUE", -1, key)
        return
    gets = [get for get in gets if _sound(get, key, writer, last, found)]
    own = {t.op: value for value, t in versions.items()}
    groups: dict[int | None, list[_Get]] = defaultdict(list)
    for get in gets:
        if get.op in own:
            groups[get.value].append(get)
    for group in groups.values():
        leader = min(group, key=lambda get: (end(found.among(get.op)), get.op)).op
        for get in group:
            if get.op != leader:
                found.remark("LOST_UPDATE", get.op, key, get.value, leader)
        for get in group if len({get.op for get in group}) > 1 else ():
            get.again = True
    for get in gets:
        if get.value is None:
            mine = age(versions[own[get.op]]) if get.op in own else None
            for value, t in versions.items() if not get.again else ():
                side = "before its own" if mine and age(t) < mine else "no value"
                found.add(get.op, t.op, "rw", key, NULL, value or 0, shared=side)
            continue
        found.add(versions[get.value].op, get.op, "wr", key, get.value)
        if get.op in own:
            _newer(get.value, own[get.op], 0, versions, gets, key, found)
    _by_process(versions, gets, own, key, found)
    _by_time(versions, gets, own, key, found)


def _gets(t: Transaction, key: int, found: Found) -> list[_Get]:
    """Reads before any own write."""
    own: list[int | None] = []
    gets = []
    for move in moves(t, key):
        if move.f is F.PUT:
            own.append(move.value)
        elif t.status is Type.OK and own and move.value != own[-1]:
            found.remark("UNSEEN_OWN", t.op, key, move.value)
        elif t.status is Type.OK and not own:
            gets.append(_Get(t.op, move.value))
    if len({get.value for get in gets}) > 1:
        for get in gets:
            get.again = True
            found.remark("READ_TWICE", t.op, key, get.value)
    return gets


def _sound(
    get: _Get,
    key: int,
    writer: dict[int | None, Transaction],
    last: dict[int, int | None],
    found: Found,
) -> bool:
    if get.value is None:
        return True
    if get.value not in writer:
        found.remark("PHANTOM", get.op, key, get.value)
        return False
    t = writer[get.value]
    if t.status is Type.FAIL:
        found.remark("ABORTED", t.op, key, get.value, get.op)
    elif t.op == get.op:
        found.remark("UNSEEN_OWN", get.op, key, get.value)
    elif last[t.op] != get.value:
        found.remark("INTERMEDIATE", t.op, key, get.value, get.op)
    else:
        return True
    return False


def _newer(
    older: int | None,
    newer: int | None,
    layer: int,
    versions: dict[int | None, Transaction],
    gets: list[_Get],
    key: int,
    found: Found,
    shared: Callable[[int], str] = lambda op: "",
) -> None:
    """One version came before another: so did its writer, and its readers."""
    told, writer = (key, older or 0, newer or 0), versions[older].op
    new = versions[newer].op
    found.add(writer, new, "ww", *told, layer=layer, shared=shared(-1))
    for get in gets:
        if get.value == older and not get.again:
            found.add(get.op, new, "rw", *told, layer=layer, shared=shared(get.op))


@dataclass
class _Touch:
    """The version that a transaction found, and the one that it left; None: unknown."""

    t: Transaction
    into: int
    out: int | None


def _touches(
    versions: dict[int | None, Transaction],
    gets: list[_Get],
    own: dict[int, int | None],
    found: Found,
) -> Iterator[_Touch]:
    read = [get for get in gets if get.value is not None]
    for get in read:
        yield _Touch(found.among(get.op), get.value or 0, own.get(get.op, get.value))
    for value, t in versions.items():
        if t.op not in {get.op for get in read}:
            yield _Touch(t, value or 0, value if t.status is Type.OK else None)


def _by_process(
    versions: dict[int | None, Transaction],
    gets: list[_Get],
    own: dict[int, int | None],
    key: int,
    found: Found,
) -> None:
    """A process that comes upon a version for the first time has gone on to a newer one."""
    touches = list(_touches(versions, gets, own, found))
    touches.sort(key=lambda o: (o.t.process, o.t.begin, age(versions[o.into])))
    met: set[tuple[int, int | None]] = set()
    for before, touch in pairwise([None, *touches]):
        assert touch is not None
        process = touch.t.process
        first = (process, touch.into) not in met
        met |= {(process, touch.into), (process, touch.out)}
        if before is None or before.t.process != process or not first:
            continue
        later = before.t.begin < touch.t.begin and end(before.t) <= touch.t.begin
        if later and before.out is not None and before.out != touch.into:
            _newer(before.out, touch.into, 1, versions, gets, key, found)


def _by_time(
    versions: dict[int | None, Transaction],
    gets: list[_Get],
    own: dict[int, int | None],
    key: int,
    found: Found,
) -> None:
    """A version first accessed after an access of another one ended is the newer one."""
    done, since = {}, {}
    for value, t in versions.items():
        users = [t, *(found.among(get.op) for get in gets if get.value == value)]
        ended, begun = min((end(user), user.begin) for user in users)
        since[value] = max(begun, t.begin), age(t)
        done[value] = max(ended, since[value][0])
    for a, b in product(versions, versions):
        if done[a] < since[b][0]:

            def shared(op: int, b: int | None = b) -> str:
                return "" if op in own and since[b] < since[own[op]] else "since then"

            _newer(a, b, 2, versions, gets, key, found, shared)
