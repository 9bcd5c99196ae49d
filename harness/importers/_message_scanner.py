"""Compiled search for the messages in values of Jepsen's kafka workload.

    [[:send 4 17]]  [[:send 4 [0 17]]]  [[:poll]]  [[:poll {4 [[0 17] [1 18]], 5 [[7 1]]}]]

A value is taken if it consists of such micro-operations, one or several, with whole numbers from 0;
as JSON writes them, too: `[["send" "4" [0 17]]]`. `jepsen_kafka` reads all others, with the same
result.
"""

from threading import local
from typing import Any

import numpy as np

from harness.compiled import kernel, part
from harness.importers._recording import SAME, Bools, Ints
from harness.importers._scanner import MAX_DIGITS
from harness.operation import F, Type

ABSENT = -2
COLUMNS = ("event", "f", "type", "key", "value", "offset", "pos", "mop")
MAX_KEPT = 1 << 18  # rows for which a thread keeps its room
MAX_UNSORTED = 1_000  # keys of a poll that are not in order: each is compared with all before it

_EVENT, _F, _TYPE, _KEY, _VALUE, _OFFSET, _POS, _MOP = range(len(COLUMNS))
_SEND, _POLL, _OK, _SAME = int(F.SEND), int(F.POLL), int(Type.OK), SAME
_OPEN, _CLOSE, _OPEN_MAP, _CLOSE_MAP, _QUOTE, _COLON, _ZERO, _NINE = b'[]{}":09'
_BLANKS = b" ,\t\r\n"
_IS_BLANK = np.array([c in _BLANKS for c in range(256)])
_HEADS = np.frombuffer(b"sendpoll", np.uint8)


class _Room(local):
    """Each thread's room for the rows of a piece: new memory for each of them would take as long as
    the search."""

    rows = np.empty((len(COLUMNS), 0), np.int64)


_room = _Room()


def scan(data: Any, offsets: Any, wanted: Bools) -> dict[str, Ints]:
    """Return the columns of all parts of the wanted events that have a common shape, valid until
    this thread's next scan. `offsets`: in `data`, of the value of each event."""
    size = int(np.count_nonzero(data == _OPEN)) + len(wanted)
    rows = _room.rows if size <= _room.rows.shape[1] else np.empty((len(COLUMNS), size), np.int64)
    if size <= MAX_KEPT:
        _room.rows = rows
    used = _scan_values(data, offsets, wanted, rows)
    return {name: rows[n, :used] for n, name in enumerate(COLUMNS)}


@part
def _skip(data: Any, at: Any, end: Any) -> Any:
    while at < end and _IS_BLANK[data[at]]:
        at += 1
    return at


@part
def _is(data: Any, at: Any, end: Any, byte: Any) -> Any:
    return at < end and data[at] == byte


@part
def _number(data: Any, at: Any, end: Any) -> Any:
    """Return the whole number that is here, and its end; -1 if there is none."""
    first = at
    number: Any = 0
    while at < end and _ZERO <= data[at] <= _NINE:
        number = number * 10 + np.int64(data[at]) - _ZERO
        at += 1
        if at - first > MAX_DIGITS:
            return -1, -1
    if at == first or (data[first] == _ZERO and at - first > 1):
        return -1, -1
    closed = at < end and (_IS_BLANK[data[at]] or data[at] == _CLOSE or data[at] == _QUOTE)
    return (number, at) if closed else (-1, -1)


@part
def _key_of(data: Any, at: Any, end: Any) -> Any:
    """Return the key that is here, a number or a text of digits, and its end; -1 if it is none."""
    if not _is(data, at, end, _QUOTE):
        key, at = _number(data, at, end)
        return (key, at) if at < 0 or data[at] != _QUOTE else (-1, -1)
    key, at = _number(data, at + 1, end)
    return (key, at + 1) if at >= 0 and _is(data, at, end, _QUOTE) else (-1, -1)


@part
def _plain(data: Any, at: Any, end: Any) -> Any:
    """Return the whole number that is here, no text, and its end with the blanks after it."""
    number, at = _number(data, at, end)
    if at < 0 or data[at] == _QUOTE:
        return -1, -1
    return number, _skip(data, at, end)


@part
def _pair(data: Any, at: Any, end: Any) -> Any:
    """Return both numbers of a vector that begins here, and its end; -1 if it is none."""
    if not _is(data, at, end, _OPEN):
        return -1, -1, -1
    first, at = _plain(data, _skip(data, at + 1, end), end)
    if at < 0:
        return -1, -1, -1
    second, at = _plain(data, at, end)
    if at < 0 or not _is(data, at, end, _CLOSE):
        return -1, -1, -1
    return first, second, at + 1


@part
def _row(rows: Any, n: Any, event: Any, f: Any, mop: Any) -> Any:
    rows[_EVENT, n], rows[_F, n], rows[_TYPE, n], rows[_MOP, n] = event, f, _SAME, mop
    rows[_KEY, n] = rows[_VALUE, n] = rows[_OFFSET, n] = rows[_POS, n] = ABSENT


@part
def _head(data: Any, at: Any, end: Any) -> Any:
    """Return which operation begins here, its name's end included; -1 if it is none."""
    quoted = _is(data, at, end, _QUOTE)
    if not quoted and not _is(data, at, end, _COLON):
        return -1, -1
    at += 1
    if at + 5 >= end or (quoted and data[at + 4] != _QUOTE):
        return -1, -1
    found = -1
    for which in range(2):
        same = True
        for n in range(4):
            same = same and data[at + n] == _HEADS[4 * which + n]
        if same:
            found = _SEND if which == 0 else _POLL
    at += 5 if quoted else 4
    closed = _IS_BLANK[data[at]] or data[at] == _CLOSE
    return (found, _skip(data, at, end)) if closed else (-1, -1)


@part
def _sent(data: Any, at: Any, end: Any, rows: Any, n: Any) -> Any:
    """Store key, value and offset of a send; return where they end, or -1."""
    key, at = _key_of(data, at, end)
    if at < 0:
        return -1
    at = _skip(data, at, end)
    offset = ABSENT
    if _is(data, at, end, _OPEN):
        offset, value, at = _pair(data, at, end)
    else:
        value, at = _plain(data, at, end)
    rows[_KEY, n], rows[_VALUE, n], rows[_OFFSET, n] = key, value, offset
    return at


@part
def _is_new(key: Any, count: Any, keys: Any) -> Any:
    """Remember a key, at `count` of them; return whether it was not there before."""
    if count == 0 or key > keys[0]:  # the largest one
        keys[0] = key
    else:
        if count >= MAX_UNSORTED:
            return False
        for n in range(count):
            if keys[n + 1] == key:
                return False
    if count < MAX_UNSORTED:
        keys[count + 1] = key
    return True


@part
def _polled(
    data: Any, at: Any, end: Any, rows: Any, n: Any, event: Any, mop: Any, keys: Any
) -> Any:
    """Store the messages of a map that begins here; return the next row, and the map's end."""
    count, pos, at = 0, 0, _skip(data, at + 1, end)
    while not _is(data, at, end, _CLOSE_MAP):
        key, at = _key_of(data, at, end)
        if at < 0 or not _is_new(key, count, keys):
            return n, -1
        count, at = count + 1, _skip(data, at, end)
        if not _is(data, at, end, _OPEN):
            return n, -1
        at = _skip(data, at + 1, end)
        while not _is(data, at, end, _CLOSE):
            offset, value, at = _pair(data, at, end)
            if at < 0:
                return n, -1
            at = _skip(data, at, end)
            _row(rows, n, event, _POLL, mop)
            rows[_TYPE, n], rows[_KEY, n], rows[_VALUE, n] = _OK, key, value
            rows[_OFFSET, n], rows[_POS, n] = offset, pos
            n, pos = n + 1, pos + 1
        at = _skip(data, at + 1, end)
    return n, at + 1


@part
def _micros(data: Any, at: Any, end: Any, rows: Any, n: Any, event: Any, keys: Any) -> Any:
    """Store micro-operations; return the next row, their number, and whether any sends. The number
    is -1 if one has another shape."""
    count, sends = 0, False
    if not _is(data, at, end, _OPEN):
        return n, -1, sends
    at = _skip(data, at + 1, end)
    while _is(data, at, end, _OPEN):
        f, at = _head(data, _skip(data, at + 1, end), end)
        if f == _SEND:
            _row(rows, n, event, _SEND, count)
            at, sends = _sent(data, at, end, rows, n), True
        elif f == _POLL:
            if _is(data, at, end, _OPEN_MAP):
                n, at = _polled(data, at, end, rows, n, event, count, keys)
            _row(rows, n, event, _POLL, count)
        if f < 0 or at < 0:
            return n, -1, sends
        at = _skip(data, at, end)
        if not _is(data, at, end, _CLOSE):
            return n, -1, sends
        n, count, at = n + 1, count + 1, _skip(data, at + 1, end)
    return n, count if _is(data, at, end, _CLOSE) and at + 1 == end else -1, sends


@kernel
def _scan_values(data: Any, offsets: Any, wanted: Any, rows: Any) -> Any:
    """Store the parts of values; return the number of rows."""
    used = 0
    keys = np.empty(MAX_UNSORTED + 1, np.int64)
    for event in range(len(wanted)):
        if not wanted[event]:
            continue
        at, end = np.int64(offsets[event]), np.int64(offsets[event + 1])
        n, count, sends = _micros(data, at, end, rows, used, event, keys)
        if count == 1:  # it is the operation itself, and has no number
            for row in range(used, n):
                rows[_MOP, row] = ABSENT
        elif count > 1:  # the operation has a row of its own
            _row(rows, n, event, _SEND if sends else _POLL, ABSENT)
            n += 1
        if count > 0:
            used = n
    return used
