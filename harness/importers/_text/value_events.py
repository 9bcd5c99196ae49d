"""Values of a Jepsen history as parts, one event after the other.

A format gives one small function: what an event of this kind, with this value, says. A value that
has not the shape it must have is a slip; its event then says nothing. A completion that is not ok
need not say anything: what it has instead of its value, such as an error, is passed over.
"""

import re
from collections.abc import Callable
from typing import Any

from harness.importers._jepsen.history import Decode, Decoded, Lines
from harness.importers._recording.recording import Sheet, Slip, Slips
from harness.importers._text import edn as _edn
from harness.operation import Type

One = Callable[[Sheet, int, int, str, Any, int], None]  # sheet, event, type, f, value, error


class Odd(ValueError):
    """A value is not of the shape that its kind of operation has."""


def by_rows(one: One, *heads: str) -> Decode:
    """A decoder that asks `one` about each event; `heads`: words that begin its vectors."""
    found = rf"\[:({'|'.join(map(re.escape, heads))})(?=[ \]])" if heads else ""
    return _ByRows(one, re.compile(found) if heads else None)


class _ByRows:
    """A function that another process can be sent."""

    def __init__(self, one: One, heads: re.Pattern[str] | None) -> None:
        self._one, self._heads = one, heads

    def __call__(self, lines: Lines, slips: Slips) -> Decoded:
        sheet = Sheet()
        for event, (kind, f, error) in enumerate(
            zip(lines.type.tolist(), lines.f.tolist(), lines.error.tolist(), strict=True)
        ):
            name, before = lines.names[f], len(sheet)
            try:
                text = lines.value[event]
                value = _edn.read_vectors(text, self._heads) if text is not None else None
                self._one(sheet, event, kind, name, value, error)
            except (Odd, _edn.Malformed) as e:
                sheet.cut(before)
                if kind > Type.OK:
                    continue
                message = f":value is not what :f :{name} has: {e}"
                slips.add(Slip("ODD_VALUE", int(lines.line[event]), message, gap=True))
        return Decoded(sheet.table())


def atom(form: Any) -> int | str | None:
    """A key or a value: numbers as they are, nil as nothing, all else as its text."""
    if form is None or (isinstance(form, int) and not isinstance(form, bool)):
        return form
    if isinstance(form, list | dict | _edn.Unreadable) and (odd := _edn.unreadable(form)):
        raise Odd(f"{_shown(odd)} cannot be read")
    return _edn.canonical(form)


def written(form: Any, kind: int) -> int | str | None:
    """What an operation puts somewhere: nil is how reads say that there is nothing."""
    if form is None and kind == Type.INVOKE:
        raise Odd("nil cannot be distinguished from a missing value")
    return atom(form)


def pair(form: Any, what: str) -> tuple[Any, Any]:
    """Two elements of a vector."""
    if not isinstance(form, list) or len(form) != 2:
        raise Odd(f"{_shown(form)} is not {what}")
    return form[0], form[1]


def elements(form: Any, what: str) -> list[Any]:
    """The elements of a vector, list or set; none of nil."""
    if form is None:
        return []
    if not isinstance(form, list):
        raise Odd(f"{_shown(form)} is not {what}")
    return form


def _shown(form: Any) -> str:
    text = _edn.write(form)
    return text if len(text) <= 60 else f"{text[:57]}..."


def odd(form: Any, what: str) -> Odd:
    return Odd(f"{_shown(form)} is not {what}")
