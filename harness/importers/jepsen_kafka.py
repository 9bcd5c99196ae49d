"""Jepsen's kafka: `[[:send k [offset v]]]`, `[[:poll {k [[offset v] ...]}]]`, both in one `:txn`.

A message is a key and a value. A poll has a row for each message that it returned, numbered by
`pos`, and a last one without a key, since it reads all keys that its process has. Sends and polls
of one transaction have a number, `mop`, and the transaction ends with a row of its own. What a
process reads from is a note: `ASSIGN {"keys": [0, 5]}`, `SUBSCRIBE ...`, `REBALANCE ...` when its
client lost keys, `CRASH` when the client was replaced.

To prove a loss needs no final reader: messages of a key have offsets, so a process that read an
offset has all lower ones behind it. A note `PASSED {"key": 3, "to": 1200}` gives for each key how
far any process read; a message acknowledged below that and never read is lost.

Values of whole numbers are read as columns, in large files by compiled functions
(`_message_scanner`); all others one by one:

    [[:send k v]]  [[:send k [offset v]]]  [[:poll]]  [[:poll {k [[offset v] ...], ...}]]
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.notes import ASSIGN, CRASH, REBALANCE, SUBSCRIBE
from harness.importers import _edn
from harness.importers._jepsen import (
    ODD_VALUE,
    DecodedPiece,
    Format,
    JepsenEvent,
    OperationLines,
    UnexpectedValue,
    atom,
    elements,
    importer,
    merged,
    pair,
    unexpected,
)
from harness.importers._lines import NUMBER, is_true, is_worth_compiling, text_at
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
)
from harness.operation import F, Type

OPERATIONS = {"send": F.SEND, "poll": F.POLL, "txn": F.SEND}
READING = {"assign": ASSIGN, "subscribe": SUBSCRIBE, "crash": CRASH}


def decode(lines: OperationLines, slips: Slips) -> DecodedPiece:
    """Decode common shapes as columns, and the others one by one."""
    fast, rest = common_shapes(lines)
    slow, notes = one_by_one(lines, rest, slips)
    if not slow.num_rows:
        return DecodedPiece(fast, notes)
    return DecodedPiece(merged([fast, slow]), notes)


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
            slips.add(Slip(ODD_VALUE, int(lines.line[event]), message, gap=True))
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


SENDS = (
    rf"^\[\[:send (?P<key>{NUMBER}) (?P<value>{NUMBER})\]\]$",
    rf"^\[\[:send (?P<key>{NUMBER}) \[(?P<offset>{NUMBER}) (?P<value>{NUMBER})\]\]\]$",
)
EMPTY_POLLS = pa.array(["[[:poll]]", "[[:poll {}]]"])
MESSAGE = rf"\[{NUMBER} {NUMBER}\]"
OF_KEY = rf"{NUMBER} \[{MESSAGE}(?: {MESSAGE})*\]"
POLL = rf"^\[\[:poll \{{{OF_KEY}(?:, {OF_KEY})*\}}\]\]$"


def common_shapes(lines: OperationLines) -> tuple[pa.Table, Ints]:
    """Return the parts of events whose values have a common shape, and the other events."""
    if is_worth_compiling(lines.value.nbytes):
        return _scanned(lines)
    events = np.flatnonzero(lines.of_kinds(*OPERATIONS))
    values = lines.value.take(pa.array(events)).view(pa.string())
    found = []
    for shape in SENDS:
        fields = pc.extract_regex(values, shape)
        sent = fields.drop_null()
        columns = {each.name: sent.field(n) for n, each in enumerate(sent.type)}
        found.append(_parts(events[is_true(fields.is_valid())], F.SEND, columns))
    filled = is_true(pc.match_substring_regex(values, POLL))
    of_keys = _of_keys(values.filter(pa.array(filled)))
    once = ~_has_a_key_twice(of_keys)
    filled[filled] = once
    empty = is_true(pc.is_in(values, value_set=EMPTY_POLLS))
    messages = _messages(of_keys.filter(pa.array(once)), events[filled])
    found += [messages, _parts(events[filled | empty], F.POLL, {})]
    table = pa.concat_tables(found)
    event = table.column("event").to_numpy()
    order = np.argsort(event, kind="stable")
    others = np.setdiff1d(np.arange(len(lines)), event)
    return table.take(pa.array(order)).combine_chunks(), others


def _of_keys(polls: pa.StringArray) -> pa.ListArray:
    """Return for each poll of the common shape a text for each key: `3 [[0 17] [1 18]]`."""
    return pc.split_pattern(pc.utf8_slice_codeunits(polls, len("[[:poll {"), -len("}]]")), ", ")


def _has_a_key_twice(of_keys: pa.ListArray) -> Bools:
    """Return which polls name a key twice, of which the last counts."""
    poll = pc.list_parent_indices(of_keys).to_numpy()
    texts = pc.split_pattern(of_keys.flatten(), " ", max_splits=1).flatten()
    key = texts.take(pa.array(np.arange(0, len(texts), 2))).cast(pa.int64()).to_numpy()
    order = np.lexsort((key, poll))
    again = (np.diff(key[order]) == 0) & (np.diff(poll[order]) == 0)
    twice = np.zeros(len(of_keys), np.bool_)
    twice[poll[order][1:][again]] = True
    return twice


def _messages(of_keys: pa.ListArray, events: Ints) -> pa.Table:
    """Return the messages of polls, of which `of_keys` has a text for each key."""
    texts = pc.split_pattern(of_keys.flatten(), " [")  # a key, and its messages
    poll, entry = (pc.list_parent_indices(each).to_numpy() for each in (of_keys, texts))
    is_key = np.diff(entry, prepend=-1) > 0
    keys, messages = (texts.flatten().filter(pa.array(some)) for some in (is_key, ~is_key))
    pairs = pc.split_pattern(pc.utf8_trim(messages, "[]"), " ").flatten().cast(pa.int64())
    entry = entry[~is_key]
    owner = poll[entry]
    heads = np.flatnonzero(np.diff(owner, prepend=-1))
    columns = {
        "key": keys.cast(pa.int64()).take(pa.array(entry)),
        "value": pairs.to_numpy()[1::2],
        "offset": pairs.to_numpy()[0::2],
        "pos": np.arange(len(owner)) - np.repeat(heads, np.diff(np.append(heads, len(owner)))),
    }
    return _parts(events[owner], F.POLL, columns)


def _parts(events: Ints, f: F, columns: Mapping[str, Any]) -> pa.Table:
    """Return parts; an absent column is null. Rows with a `pos` ended ok."""
    n = len(events)
    kind = Type.OK if "pos" in columns else SAME
    columns = {**columns, "event": events, "f": np.full(n, f), "type": np.full(n, kind)}
    return pa.table(
        {
            name: pa.array(columns[name]).cast(type_) if name in columns else pa.nulls(n, type_)
            for name, type_ in PARTS.items()
        }
    )


def _scanned(lines: OperationLines) -> tuple[pa.Table, Ints]:
    """Return the same, found by compiled functions, which know more shapes."""
    from harness.importers import _message_scanner

    wanted = lines.of_kinds(*OPERATIONS) & lines.value.is_valid().to_numpy(zero_copy_only=False)
    _, ends, data = lines.value.buffers()
    offsets = np.frombuffer(ends, np.int32)[lines.value.offset :][: len(lines) + 1]
    rows = _message_scanner.scan(np.frombuffer(data, np.uint8), offsets, wanted)
    other = np.ones(len(lines), np.bool_)
    other[rows["event"]] = False
    count = len(rows["event"])
    columns = {
        name: _column(rows[name], type_, _message_scanner.ABSENT)
        if name in rows
        else pa.nulls(count, type_)
        for name, type_ in PARTS.items()
    }
    return pa.table(columns), np.flatnonzero(other)


def _column(numbers: Ints, type_: pa.DataType, absent: int) -> pa.Array:
    """Return a copy of numbers as a column, null where they are `absent`."""
    there = numbers != absent
    known = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    copy = pa.py_buffer(numbers.astype(type_.to_pandas_dtype()))
    return pa.Array.from_buffers(type_, len(numbers), [known, copy])


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
