"""Jepsen's kafka: `[[:send k [offset v]]]`, `[[:poll {k [[offset v] ...]}]]`, both in one `:txn`.

A message is a key and a value. A poll is a row for each message it returned, numbered by `pos`, and
one that ends it, without a key, since it asks about all keys that its process has. What is sent
and polled in one transaction has a number, `mop`, and the transaction ends with a row of its own.
What a process reads from is a note: `ASSIGN {"keys": [0, 5]}`, `SUBSCRIBE ...`, `REBALANCE ...`
when its client lost keys, `CRASH` when the client was replaced.

What a history proves lost needs no final reader: messages of a key have offsets, so whoever read
an offset had all lower ones behind it. A note `PASSED {"key": 3, "to": 1200}` says of each key how
far somebody read; what was acknowledged below that and was never seen by anybody is lost.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.contracts import ImporterPlugin
from harness.history.notes import ASSIGN, CRASH, REBALANCE, SUBSCRIBE
from harness.importers._jepsen.history import Decoded, Format, Lines, recording
from harness.importers._jepsen.kafka_columns import columns
from harness.importers._recording.recording import (
    LARGEST,
    Ints,
    Recording,
    Remark,
    Sheet,
    Slip,
    Slips,
    together,
)
from harness.importers._text import edn as _edn
from harness.importers._text.value_events import Odd, atom, elements, odd, pair
from harness.operation import F, Type

OPERATIONS = ("send", "poll", "txn")
READING = {"assign": ASSIGN, "subscribe": SUBSCRIBE, "crash": CRASH}


def decode(lines: Lines, slips: Slips) -> Decoded:
    """Common shapes as columns, the others one by one."""
    fast, rest = columns(lines)
    slow, remarks = one_by_one(lines, rest, slips)
    if not slow.num_rows:
        return Decoded(fast, remarks)
    both = together([fast, slow], [0, 0])
    order = np.argsort(both.column("event").to_numpy(), kind="stable")
    return Decoded(both.take(pa.array(order)), remarks)


def one_by_one(lines: Lines, events: Ints, slips: Slips) -> tuple[pa.Table, list[Remark]]:
    """Any shapes, through the reader."""
    sheet = Sheet()
    remarks = [*_rebalances(lines)]
    for event in events.tolist():
        kind, f, before = int(lines.type[event]), lines.names[lines.f[event]], len(sheet)
        try:
            value = _edn.read(lines.value[event] or "nil")
            if f in READING:
                remarks += _reading(event, kind, f, value)
            elif f in OPERATIONS:
                _operation(sheet, event, kind, f, value)
        except (Odd, _edn.Malformed) as e:
            sheet.cut(before)
            message = f":value is not what :f :{f} has: {e}"
            slips.add(Slip("ODD_VALUE", int(lines.line[event]), message, gap=True))
    return sheet.table(), remarks


def _operation(sheet: Sheet, event: int, kind: int, f: str, value: Any) -> None:
    """One or several micro-operations; a single one is the operation itself. What did not end ok
    and has no value did what was asked, or nothing of it: its invocation tells."""
    if kind > Type.OK and not value and f != "poll":
        return
    if value is None and f != "poll":
        raise odd(value, "a vector of micro-operations")
    parts = elements(value, "a vector of micro-operations")
    for mop, part in enumerate(parts):
        _micro(sheet, event, kind, part, mop if len(parts) > 1 else None)
    if len(parts) != 1:
        sheet.add(event, F.SEND if _sends(parts) else F.POLL)


def _sends(parts: list[Any]) -> bool:
    return any(isinstance(part, list) and part[:1] == ["send"] for part in parts)


def _micro(sheet: Sheet, event: int, kind: int, part: Any, mop: int | None) -> None:
    if not isinstance(part, list) or not part:
        raise odd(part, "[:send k v] or [:poll]")
    if part[0] == "send" and len(part) == 3:
        value, offset = part[2], None
        if isinstance(value, list):
            offset, value = pair(value, "a pair of offset and value")
        known = offset if _is_offset(offset) else None
        key = _key(part[1])
        if key is None or value is None:
            raise odd(part, "a message with a key and a value")
        sheet.add(event, F.SEND, key, atom(value), offset=known, mop=mop)
    elif part[0] == "poll" and len(part) <= 2:
        _polled(sheet, event, part[1] if len(part) == 2 else None, mop)
    else:
        raise odd(part, "[:send k v] or [:poll]")


def _key(form: Any) -> int | str | None:
    """A key. Where it is a text of digits, as all keys of JSON's objects are, it is the number."""
    if type(form) is str and form.isascii() and form.isdecimal() and str(int(form)) == form:
        return int(form)
    return atom(form)


def _is_offset(form: Any) -> bool:
    return isinstance(form, int) and 0 <= form < LARGEST


def _polled(sheet: Sheet, event: int, found: Any, mop: int | None) -> None:
    if found is not None and not isinstance(found, dict):
        raise odd(found, "a map of keys to messages")
    pos = 0
    for key, messages in (found or {}).items():
        for message in elements(messages, "a vector of messages"):
            offset, value = pair(message, "a pair of offset and value")
            if key is None or value is None or not _is_offset(offset):
                raise odd(message, "an offset and a value of a key")
            sheet.add(
                event, F.POLL, _key(key), atom(value), offset=offset, pos=pos, mop=mop, type=Type.OK
            )
            pos += 1
    sheet.add(event, F.POLL, mop=mop)


def _reading(event: int, kind: int, f: str, value: Any) -> list[Remark]:
    """What a process reads from once its request has succeeded; a crash, however it ends."""
    if f == "crash":
        return [Remark(event, CRASH)] if kind != Type.INVOKE else []
    if kind != Type.OK:
        return []
    return [Remark(event, READING[f], _keys(value))]


def _rebalances(lines: Lines) -> Iterator[Remark]:
    """Keys that a client lost while it operated."""
    for event in np.flatnonzero(lines.extra.start >= 0).tolist():
        text = lines.extra[event] or "nil"
        with suppress(_edn.Malformed, Odd):
            for each in elements(_edn.read(text), "a vector of maps"):
                if isinstance(each, dict):
                    yield Remark(event, REBALANCE, _keys(each.get("keys")))


def _keys(form: Any) -> tuple[str, ...]:
    return tuple(str(_key(key)) for key in elements(form, "a vector of keys"))


FORMAT = Format(
    "jepsen-kafka", "messages", OPERATIONS, decode, (*READING, "debug-topic-partitions")
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
