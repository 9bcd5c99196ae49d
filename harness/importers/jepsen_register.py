"""Jepsen's registers: `:read`, `:write v` and `:cas [old new]`, of one register or of many by key.

In a history of many (`jepsen.independent`) every value is a pair of key and value; a file is one of
those when most of its reads are invoked with a vector. A cas that fails without an error was
refused by the comparison itself, and so tells that the register did not hold the old value; with an
error it did not happen, and tells nothing.
"""

from pathlib import Path
from typing import Any

import numpy as np

from harness.importers._decoding import atom, by_rows, pair
from harness.importers._jepsen import Decoded, Format, Lines, recording
from harness.importers._recording import Recording, Sheet, Slips
from harness.operation import F, Type

REFUSED = 0


def _single(sheet: Sheet, event: int, kind: int, f: str, value: Any, error: bool) -> None:
    said(sheet, event, kind, f, 0, value, error)


def _keyed(sheet: Sheet, event: int, kind: int, f: str, value: Any, error: bool) -> None:
    key, inner = pair(value, "a pair of key and value")
    said(sheet, event, kind, f, atom(key), inner, error)


def said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: bool) -> None:
    """What one event says of a register."""
    if f == "read":
        sheet.add(event, F.GET, key, atom(value) if kind == Type.OK else None)
    elif kind > Type.OK and (f == "write" or error):
        return  # it may carry its error as value, and says no more than its invocation
    elif f == "write":
        sheet.add(event, F.PUT, key, atom(value))
    else:
        old, new = pair(value, "the old value and the new one")
        refused = REFUSED if kind == Type.FAIL else None
        sheet.add(event, F.CAS, key, atom(old), atom(new), pos=refused)


_one_register, _many = by_rows(_single), by_rows(_keyed)


def _decode(lines: Lines, slips: Slips) -> Decoded:
    return (_many if _keyed_by(lines) else _one_register)(lines, slips)


def _keyed_by(lines: Lines) -> bool:
    """Most reads have a vector as value, or most writes where nothing is read: one line that is
    odd says nothing about the others."""
    for name in ("read", "write"):
        asked = np.flatnonzero(lines.named(name) & (lines.type == Type.INVOKE)).tolist()
        values = [lines.value[event] or "nil" for event in asked]
        vectors = sum(value.startswith("[") for value in values)
        others = values.count("nil") if name == "read" else len(values) - vectors
        if vectors or others:
            return vectors > others
    return False


FORMAT = Format("jepsen-register", "registers", ("read", "write", "cas"), _decode)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)
