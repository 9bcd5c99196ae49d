"""Jepsen's kafka: `[[:send k [offset v]]]`, `[[:poll {k [[offset v] ...]}]]`, both in one `:txn`.

A message is a key and a value. A poll has a row for each message that it returned, numbered by
`pos`, and a last one without a key, since it reads all keys that its process has. Sends and polls
of one transaction have a number, `mop`, and the transaction ends with a row of its own. What a
process reads from is a note: `ASSIGN {"keys": [0, 5]}`, `SUBSCRIBE ...`, `REBALANCE ...` when its
client lost keys, `CRASH` when the client was replaced.

To prove a loss needs no final reader: messages of a key have offsets, so a process that read an
offset has all lower ones behind it. A note `PASSED {"key": 3, "to": 1200}` gives for each key how
far any process read; a message acknowledged below that and never read is lost.

In large files values of whole numbers are read by compiled functions (`_message_scanner`), all
others one by one:

    [[:send k v]]  [[:send k [offset v]]]  [[:poll]]  [[:poll {k [[offset v] ...], ...}]]
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

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
from harness.importers._lines import is_worth_compiling, text_at
from harness.importers._recording import (
    MAX_NUMBER,
    NO_ERROR,
    PARTS,
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
    if not is_worth_compiling(lines.value.nbytes):
        return DecodedPiece(*one_by_one(lines, np.arange(len(lines)), slips))
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


def common_shapes(lines: OperationLines) -> tuple[pa.Table, Ints]:
    """Return the parts of events whose values have a common shape, and the other events."""
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
