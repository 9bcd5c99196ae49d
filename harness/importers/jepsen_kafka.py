"""Jepsen's kafka: `[[:send k [offset v]]]`, `[[:poll {k [[offset v] ...]}]]`, both in one `:txn`.

A message is a key and a value. A poll has a row for each message that it returned, numbered by
`pos`, and a last one without a key, since it reads all keys that its process has. Sends and polls
of one transaction have a number, `mop`, and the transaction ends with a row of its own. What a
process reads from is a note: `ASSIGN {"keys": [0, 5]}`, `SUBSCRIBE ...`, `REBALANCE ...` when its
client lost keys, `CRASH` when the client was replaced.

To prove a loss needs no final reader: messages of a key have offsets, so a process that read an
offset has all lower ones behind it. A note `PASSED {"key": 3, "to": 1200}` gives for each key how
far any process read; a message acknowledged below that and never read is lost.

Common shapes with whole numbers are read for whole columns at once, other values one by one:

    [[:send k v]]  [[:send k [offset v]]]  [[:poll]]  [[:poll {k [[offset v] ...], ...}]]

Such a value is its numbers and the text between them. In a poll the text is one of four, and each
determines what the number before it is, and what the next one is:

    k` [[`offset    offset` `v    v`] [`offset    v`]], `k

So a value is a poll exactly if each of its gaps is one of these and they fit one another.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from harness.history.notes import ASSIGN, CRASH, REBALANCE, SUBSCRIBE
from harness.importers import _edn
from harness.importers._jepsen import (
    DecodedPiece,
    Format,
    JepsenEvent,
    OperationLines,
    UnexpectedValue,
    atom,
    elements,
    importer,
    pair,
    unexpected,
)
from harness.importers._lines import (
    MAX_DIGITS,
    ZERO,
    Bytes,
    digit_runs,
    matches,
    numbers,
    padded,
    ranges,
    text_at,
)
from harness.importers._recording import (
    MAX_NUMBER,
    NO_ERROR,
    PARTS,
    SAME,
    Bools,
    HistoryNote,
    Ints,
    PartsBuilder,
    Slip,
    Slips,
    concatenated,
)
from harness.operation import F, Type

KEY, OFFSET, VALUE, NOTHING = 0, 1, 2, 3
GAPS = (  # the text between two numbers, what the number before it is, and the one after it
    (b" [[", KEY, OFFSET),
    (b" ", OFFSET, VALUE),
    (b"] [", VALUE, OFFSET),
    (b"]], ", VALUE, KEY),
)
OPERATIONS = {"send": F.SEND, "poll": F.POLL, "txn": F.SEND}
READING = {"assign": ASSIGN, "subscribe": SUBSCRIBE, "crash": CRASH}


def decode(lines: OperationLines, slips: Slips) -> DecodedPiece:
    """Decode common shapes as columns, and the others one by one."""
    fast, rest = common_shapes(lines)
    slow, notes = one_by_one(lines, rest, slips)
    if not slow.num_rows:
        return DecodedPiece(fast, notes)
    both = concatenated([fast, slow], [0, 0])
    order = np.argsort(both.column("event").to_numpy(), kind="stable")
    return DecodedPiece(both.take(pa.array(order)), notes)


def one_by_one(
    lines: OperationLines, events: Ints, slips: Slips
) -> tuple[pa.Table, list[HistoryNote]]:
    """Decode values of any shape."""
    parts = PartsBuilder()
    notes = [*_rebalances(lines)]
    for event in events.tolist():
        kind, f, before = int(lines.type[event]), lines.names[lines.f[event]], len(parts)
        try:
            value = _edn.read(text_at(lines.value, event) or "nil")
            if f in READING:
                notes += _reading(event, kind, f, value)
            elif f in OPERATIONS:
                operation(parts, JepsenEvent(event, kind, f, None, value, NO_ERROR), OPERATIONS[f])
        except (UnexpectedValue, _edn.Malformed) as e:
            parts.truncate(before)
            message = f":value is not a value of :f :{f}: {e}"
            slips.add(Slip("ODD_VALUE", int(lines.line[event]), message, gap=True))
    return parts.table(), notes


def operation(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    """Add one or several micro-operations; a single one is the operation itself. An operation that
    did not end ok and has no value has the parts of its invocation."""
    value = event.value
    if event.type > Type.OK and not value and f is not F.POLL:
        return
    if value is None and f is not F.POLL:
        raise unexpected(value, "a vector of micro-operations")
    micros = elements(value, "a vector of micro-operations")
    for mop, micro in enumerate(micros):
        _micro(parts, event.number, micro, mop if len(micros) > 1 else None)
    if len(micros) != 1:
        sends = any(isinstance(micro, list) and micro[:1] == ["send"] for micro in micros)
        parts.add(event.number, F.SEND if sends else F.POLL)


def _micro(parts: PartsBuilder, event: int, part: Any, mop: int | None) -> None:
    if not isinstance(part, list) or not part:
        raise unexpected(part, "[:send k v] or [:poll]")
    if part[0] == "send" and len(part) == 3:
        value, offset = part[2], None
        if isinstance(value, list):
            offset, value = pair(value, "a pair of offset and value")
        known = offset if _is_offset(offset) else None
        key = _key(part[1])
        if key is None or value is None:
            raise unexpected(part, "a message with a key and a value")
        parts.add(event, F.SEND, key, atom(value), offset=known, mop=mop)
    elif part[0] == "poll" and len(part) <= 2:
        _polled(parts, event, part[1] if len(part) == 2 else None, mop)
    else:
        raise unexpected(part, "[:send k v] or [:poll]")


def _key(form: Any) -> int | str | None:
    """Return a key. A text of digits, as all keys of JSON's objects are, is the number."""
    if type(form) is str and form.isascii() and form.isdecimal() and str(int(form)) == form:
        return int(form)
    return atom(form)


def _is_offset(form: Any) -> bool:
    return isinstance(form, int) and 0 <= form < MAX_NUMBER


def _polled(parts: PartsBuilder, event: int, found: Any, mop: int | None) -> None:
    if found is not None and not isinstance(found, dict):
        raise unexpected(found, "a map of keys to messages")
    pos = 0
    for key, messages in (found or {}).items():
        for message in elements(messages, "a vector of messages"):
            offset, value = pair(message, "a pair of offset and value")
            if key is None or value is None or not _is_offset(offset):
                raise unexpected(message, "an offset and a value of a key")
            parts.add(
                event, F.POLL, _key(key), atom(value), offset=offset, pos=pos, mop=mop, type=Type.OK
            )
            pos += 1
    parts.add(event, F.POLL, mop=mop)


def _reading(event: int, kind: int, f: str, value: Any) -> list[HistoryNote]:
    """Return a note of what a process reads from, once its request succeeded, or of a crash."""
    if f == "crash":
        return [HistoryNote(event, CRASH)] if kind != Type.INVOKE else []
    if kind != Type.OK:
        return []
    return [HistoryNote(event, READING[f], _keys(value))]


def _rebalances(lines: OperationLines) -> Iterator[HistoryNote]:
    """Yield notes of the keys that clients lost during an operation."""
    for event in np.flatnonzero(lines.beside.is_valid()).tolist():
        text = text_at(lines.beside, event) or "nil"
        with suppress(_edn.Malformed, UnexpectedValue):
            for each in elements(_edn.read(text), "a vector of maps"):
                if isinstance(each, dict):
                    yield HistoryNote(event, REBALANCE, _keys(each.get("keys")))


def _keys(form: Any) -> tuple[str, ...]:
    return tuple(str(_key(key)) for key in elements(form, "a vector of keys"))


# ---------------------------------------------------------------------------- columns at once


@dataclass(frozen=True)
class _PartColumns:
    """Parts of some events; an absent column is null."""

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
    """The numbers in the values of a piece: spans, and for each value the first and the count."""

    text: Bytes
    start: Ints
    end: Ints
    first: Ints
    count: Ints

    def at(self, index: Ints) -> Ints:
        return numbers(self.text, self.start[index], self.end[index])[0]


def common_shapes(lines: OperationLines) -> tuple[pa.Table, Ints]:
    """Return the parts of events whose values have a common shape, and the other events."""
    _, offsets, data = lines.value.buffers()
    bounds = np.frombuffer(offsets, np.int32)[lines.value.offset :][: len(lines) + 1]
    bounds = bounds.astype(np.int64)
    text, start, end = padded(bytes(data or b"")), bounds[:-1], bounds[1:]
    operations = lines.of_kinds(*OPERATIONS) & (end > start)
    runs = digit_runs(text)
    first = np.searchsorted(runs[0], start)
    there = _Numbers(text, *runs, first, np.searchsorted(runs[0], end) - first)
    sends = operations & matches(text, start, b"[[:send ")
    polls = operations & matches(text, start, b"[[:poll")
    found = [
        _sends(there, start, end, np.flatnonzero(sends & (there.count == 2))),
        _sends_with_offset(there, start, end, np.flatnonzero(sends & (there.count == 3))),
        *_empty_polls(text, start, end, np.flatnonzero(polls & (there.count == 0))),
        *_polls(there, start, end, np.flatnonzero(polls & (there.count > 2))),
    ]
    covered = np.zeros(len(lines), np.bool_)
    for some in found:
        covered[some.event] = True
    table = pa.concat_tables([some.table() for some in found])
    order = np.argsort(table.column("event").to_numpy(), kind="stable")
    return table.take(pa.array(order)).combine_chunks(), np.flatnonzero(~covered)


def _sends(there: _Numbers, start: Ints, end: Ints, at: Ints) -> _PartColumns:
    """[[:send k v]]"""
    key, value = there.first[at], there.first[at] + 1
    good = there.start[key] == start[at] + 8
    good &= _between(there, key, b" ") & _closed(there, value, end[at], b"]]")
    key, value = key[good], value[good]
    return _PartColumns(at[good], F.SEND, there.at(key), there.at(value))


def _sends_with_offset(there: _Numbers, start: Ints, end: Ints, at: Ints) -> _PartColumns:
    """[[:send k [offset v]]]"""
    key = there.first[at]
    good = there.start[key] == start[at] + 8
    good &= _between(there, key, b" [") & _between(there, key + 1, b" ")
    good &= _closed(there, key + 2, end[at], b"]]]")
    key = key[good]
    return _PartColumns(at[good], F.SEND, there.at(key), there.at(key + 2), there.at(key + 1))


def _empty_polls(text: Bytes, start: Ints, end: Ints, at: Ints) -> list[_PartColumns]:
    """[[:poll]] and [[:poll {}]]"""
    empty = (b"[[:poll]]", b"[[:poll {}]]")
    same = [matches(text, start[at], word) & (end[at] - start[at] == len(word)) for word in empty]
    return [_PartColumns(at[same[0] | same[1]], F.POLL)]


def _polls(there: _Numbers, start: Ints, end: Ints, at: Ints) -> list[_PartColumns]:
    """[[:poll {k [[offset v] ...], ...}]]"""
    last = there.first[at] + there.count[at] - 1
    good = matches(there.text, start[at], b"[[:poll {") & (
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
        return _polls(there, start, end, at[keep])
    key = there.at(index[role == KEY])
    offset, value = index[role == OFFSET], index[role == VALUE]
    whose = owner[role == OFFSET]
    heads = np.flatnonzero(np.diff(whose, prepend=-1))
    pos = np.arange(len(whose)) - np.repeat(heads, np.diff(np.append(heads, len(whose))))
    keys = key[np.cumsum(role == KEY)[role == OFFSET] - 1]
    messages = _PartColumns(at[whose], F.POLL, keys, there.at(value), there.at(offset), pos)
    return [messages, _PartColumns(at, F.POLL)]


def _roles(there: _Numbers, index: Ints, owner: Ints) -> tuple[Ints, Bools]:
    """Return what each number of some polls is, and whether the text after it agrees."""
    after = np.full(len(index), NOTHING)  # what the gap behind a number says it is
    next_ = np.full(len(index), NOTHING)  # ... and what the next one is
    for word, before, following in GAPS:
        here = _between(there, index, word)
        after[here], next_[here] = before, following
    ends = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    after[ends] = VALUE
    role = np.roll(next_, 1)
    role[np.flatnonzero(np.roll(ends, 1))] = KEY
    return role, role == after


def _between(there: _Numbers, index: Ints, word: bytes) -> Bools:
    """Return whether exactly `word` stands between a number and the next one."""
    following = np.minimum(index + 1, len(there.start) - 1)
    near = (there.start[following] - there.end[index] == len(word)) & _small(there, index)
    stands: Bools = near & matches(there.text, there.end[index], word)
    return stands


def _closed(there: _Numbers, last: Ints, end: Ints, word: bytes) -> Bools:
    """Return whether the value ends with exactly `word` after its last number."""
    at = there.end[last]
    closed: Bools = (end - at == len(word)) & matches(there.text, at, word) & _small(there, last)
    return closed


def _small(there: _Numbers, index: Ints) -> Bools:
    """Return which numbers are neither octal nor too long for 64 bits."""
    length = there.end[index] - there.start[index]
    small: Bools = (length <= MAX_DIGITS) & (
        (length == 1) | (there.text[there.start[index]] != ZERO)
    )
    return small


def _column(cells: Ints | None, n: int, kind: pa.DataType) -> pa.Array:
    if cells is None:
        return pa.nulls(n, kind)
    return pa.array(cells).cast(kind)


FORMAT = Format(
    "jepsen-kafka",
    "Jepsen's kafka: `[[:send k [offset v]]]`, `[[:poll {k [[offset v] ...]}]]`, both in one"
    " `:txn`.",
    "messages",
    {name: (f, operation) for name, f in OPERATIONS.items()},
    columns=decode,
    silent=(*READING, "debug-topic-partitions"),
    beside="rebalance-log",
)
PLUGIN = importer(FORMAT)
