"""Jepsen's registers: `:read`, `:write v` and `:cas [old new]`, of one register or of many by key.

In a history of many (`jepsen.independent`) every value is a pair of key and value; a file is one of
those when most of its reads are invoked with a vector. A cas that fails without an error was
refused by the comparison itself, and so tells that the register did not hold the old value; with an
error it did not happen, and tells nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.importers._decoding import atom, by_rows, pair
from harness.importers._jepsen import Decode, Decoded, Format, Lines, recording
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
    """A piece as it looks by itself, and its votes."""
    votes = _votes(lines)
    decode = _many if _by_key(votes) else _one_register
    return replace(decode(lines, slips), votes=votes)


def _elected(votes: Sequence[tuple[int, ...]]) -> Decode | None:
    """What the file is, where a piece of it looked otherwise."""
    by_key = _by_key(tuple(map(sum, zip(*votes, strict=True))))
    alike = all(_by_key(some) == by_key for some in votes)
    return None if alike else _many if by_key else _one_register


def _votes(lines: Lines) -> tuple[int, ...]:
    """How many reads are invoked with a vector and how many with nil; how many writes with a vector
    and how many with anything else."""
    votes: list[int] = []
    for name in ("read", "write"):
        asked = np.flatnonzero(lines.named(name) & (lines.type == Type.INVOKE)).tolist()
        values = [lines.value[event] or "nil" for event in asked]
        vectors = sum(value.startswith("[") for value in values)
        votes += [vectors, values.count("nil") if name == "read" else len(values) - vectors]
    return tuple(votes)


def _by_key(votes: tuple[int, ...]) -> bool:
    """Most reads have a vector as value, or most writes where nothing is read: one line that is
    odd says nothing about the others."""
    reads, writes = votes[:2], votes[2:]
    vectors, others = reads if any(reads) else writes
    return vectors > others


FORMAT = Format("jepsen-register", "registers", ("read", "write", "cas"), _decode, elect=_elected)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)
