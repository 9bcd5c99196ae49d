"""The common shapes of Jepsen's kafka values, for whole columns at once.

    [[:send k v]]  [[:send k [offset v]]]  [[:poll]]  [[:poll {k [[offset v] ...], ...}]]

with whole numbers throughout. Such a value is its numbers and what stands between them. In a poll
that is one of four things, and each says what the number before it was and what the next one is:

    k` [[`offset    offset` `v    v`] [`offset    v`]], `k

So a value is a poll exactly when each of its gaps is one of these and they fit one another. A value
that is anything else is left to the reader.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness.importers._jepsen.history import Lines
from harness.importers._recording.recording import PARTS, SAME, Bools, Ints
from harness.importers._text.line_bytes import (
    MOST_DIGITS,
    ZERO,
    Bytes,
    digit_runs,
    numbers,
    padded,
    ranges,
    says,
)
from harness.operation import F, Type

KEY, OFFSET, VALUE, NOTHING = 0, 1, 2, 3
GAPS = (  # between two numbers: what stands there, what is before it, what comes after it
    (b" [[", KEY, OFFSET),
    (b" ", OFFSET, VALUE),
    (b"] [", VALUE, OFFSET),
    (b"]], ", VALUE, KEY),
)


@dataclass(frozen=True)
class _Some:
    """Parts of some events."""

    event: Ints
    f: F
    key: Ints | None = None
    value: Ints | None = None
    offset: Ints | None = None
    pos: Ints | None = None

    def table(self) -> pa.Table:
        n = len(self.event)
        kind = SAME if self.pos is None else Type.OK
        columns = {
            "event": self.event,
            "f": np.full(n, self.f),
            "type": np.full(n, kind),
            "key": self.key,
            "value": self.value,
            "offset": self.offset,
            "pos": self.pos,
        }
        return pa.table({name: _column(columns.get(name), n, PARTS[name]) for name in PARTS})


@dataclass(frozen=True)
class _Numbers:
    """The numbers in the values of a piece: spans, and the first and how many in each value."""

    text: Bytes
    start: Ints
    end: Ints
    first: Ints
    count: Ints

    def at(self, index: Ints) -> Ints:
        return numbers(self.text, self.start[index], self.end[index])[0]


def columns(lines: Lines) -> tuple[pa.Table, Ints]:
    """The parts of all events whose values have a common shape, in order; and the other events."""
    text = padded(lines.value.data)
    start, end = lines.value.start, lines.value.end
    asked = lines.named("send", "poll", "txn") & (start >= 0)
    runs = digit_runs(text)
    first = np.searchsorted(runs[0], start)
    there = _Numbers(text, *runs, first, np.searchsorted(runs[0], end) - first)
    sends = asked & says(text, np.maximum(start, 0), b"[[:send ")
    polls = asked & says(text, np.maximum(start, 0), b"[[:poll")
    found = [
        _send(there, start, end, np.flatnonzero(sends & (there.count == 2))),
        _sent(there, start, end, np.flatnonzero(sends & (there.count == 3))),
        *_bare(text, start, end, np.flatnonzero(polls & (there.count == 0))),
        *_polled(there, start, end, np.flatnonzero(polls & (there.count > 2))),
    ]
    covered = np.zeros(len(lines), np.bool_)
    for some in found:
        covered[some.event] = True
    table = pa.concat_tables([some.table() for some in found])
    order = np.argsort(table.column("event").to_numpy(), kind="stable")
    return table.take(pa.array(order)).combine_chunks(), np.flatnonzero(~covered)


def _send(there: _Numbers, start: Ints, end: Ints, at: Ints) -> _Some:
    """[[:send k v]]"""
    key, value = there.first[at], there.first[at] + 1
    good = there.start[key] == start[at] + 8
    good &= _between(there, key, b" ") & _closed(there, value, end[at], b"]]")
    key, value = key[good], value[good]
    return _Some(at[good], F.SEND, there.at(key), there.at(value))


def _sent(there: _Numbers, start: Ints, end: Ints, at: Ints) -> _Some:
    """[[:send k [offset v]]]"""
    key = there.first[at]
    good = there.start[key] == start[at] + 8
    good &= _between(there, key, b" [") & _between(there, key + 1, b" ")
    good &= _closed(there, key + 2, end[at], b"]]]")
    key = key[good]
    return _Some(at[good], F.SEND, there.at(key), there.at(key + 2), there.at(key + 1))


def _bare(text: Bytes, start: Ints, end: Ints, at: Ints) -> list[_Some]:
    """[[:poll]] and [[:poll {}]]"""
    empty = (b"[[:poll]]", b"[[:poll {}]]")
    same = [says(text, start[at], word) & (end[at] - start[at] == len(word)) for word in empty]
    return [_Some(at[same[0] | same[1]], F.POLL)]


def _polled(there: _Numbers, start: Ints, end: Ints, at: Ints) -> list[_Some]:
    """[[:poll {k [[offset v] ...], ...}]]"""
    last = there.first[at] + there.count[at] - 1
    good = says(there.text, start[at], b"[[:poll {") & (
        there.start[there.first[at]] == start[at] + 9
    )
    good &= _closed(there, last, end[at], b"]]}]]")
    at = at[good]
    index, owner = ranges(there.first[at], there.count[at])
    role, fits = _roles(there, index, owner)
    bad = np.unique(owner[~fits])
    if len(bad):
        keep = np.ones(len(at), np.bool_)
        keep[bad] = False
        return _polled(there, start, end, at[keep])
    key = there.at(index[role == KEY])
    offset, value = index[role == OFFSET], index[role == VALUE]
    whose = owner[role == OFFSET]
    heads = np.flatnonzero(np.diff(whose, prepend=-1))
    pos = np.arange(len(whose)) - np.repeat(heads, np.diff(np.append(heads, len(whose))))
    keys = key[np.cumsum(role == KEY)[role == OFFSET] - 1]
    messages = _Some(at[whose], F.POLL, keys, there.at(value), there.at(offset), pos)
    return [messages, _Some(at, F.POLL)]


def _roles(there: _Numbers, index: Ints, owner: Ints) -> tuple[Ints, Bools]:
    """What each number of some polls is, and whether what follows it allows that."""
    after = np.full(len(index), NOTHING)  # what the gap behind a number says that it is
    next_ = np.full(len(index), NOTHING)  # and the one after it
    for word, before, following in GAPS:
        here = _between(there, index, word)
        after[here], next_[here] = before, following
    ends = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    after[ends] = VALUE
    role = np.roll(next_, 1)
    role[np.flatnonzero(np.roll(ends, 1))] = KEY
    return role, role == after


def _between(there: _Numbers, index: Ints, word: bytes) -> Bools:
    """Whether just this stands between a number and the next one."""
    following = np.minimum(index + 1, len(there.start) - 1)
    near = (there.start[following] - there.end[index] == len(word)) & _small(there, index)
    stands: Bools = near & says(there.text, there.end[index], word)
    return stands


def _closed(there: _Numbers, last: Ints, end: Ints, word: bytes) -> Bools:
    """Whether the value ends with just this after its last number."""
    at = there.end[last]
    closed: Bools = (end - at == len(word)) & says(there.text, at, word) & _small(there, last)
    return closed


def _small(there: _Numbers, index: Ints) -> Bools:
    """Numbers that fit; longer ones, and octal ones, are for the reader."""
    length = there.end[index] - there.start[index]
    small: Bools = (length <= MOST_DIGITS) & (
        (length == 1) | (there.text[there.start[index]] != ZERO)
    )
    return small


def _column(cells: Ints | None, n: int, kind: pa.DataType) -> pa.Array:
    if cells is None:
        return pa.nulls(n, kind)
    return pa.array(cells).cast(kind)
