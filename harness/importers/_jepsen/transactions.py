"""Micro-operations of transactions over lists and registers.

    [:append k v]  [:r k [v ...]]     a list
    [:w k v]       [:r k v]           a register

What a transaction read counts only when it ended ok.
"""

from typing import Any

from harness.importers._recording.recording import Sheet
from harness.importers._text.value_events import atom, elements, odd, written
from harness.operation import F, Type


def said(sheet: Sheet, event: int, kind: int, mop: int, part: Any) -> None:
    """One micro-operation of a transaction over lists."""
    name, key, value = three(part)
    if name == "append":
        sheet.add(event, F.APPEND, atom(key), written(value, kind), mop=mop)
    elif name == "r" and kind == Type.OK:
        seen = [atom(each) for each in elements(value, "a vector of elements")]
        sheet.elements(event, F.LIST, atom(key), seen, mop)
    elif name == "r":
        sheet.add(event, F.LIST, atom(key), mop=mop)
    else:
        raise odd(part, "[:append k v] or [:r k v]")


def said_of_register(sheet: Sheet, event: int, kind: int, mop: int, part: Any) -> None:
    """One micro-operation of a transaction over registers."""
    name, key, value = three(part)
    if name == "w":
        sheet.add(event, F.PUT, atom(key), written(value, kind), mop=mop)
    elif name == "r":
        sheet.add(event, F.GET, atom(key), atom(value) if kind == Type.OK else None, mop=mop)
    else:
        raise odd(part, "[:w k v] or [:r k v]")


def operation(sheet: Sheet, event: int, f: F) -> None:
    """The transaction itself: the row with neither key nor `mop`, after those of its parts."""
    sheet.add(event, f)


def three(part: Any) -> tuple[Any, Any, Any]:
    if not isinstance(part, list) or len(part) != 3:
        raise odd(part, "a micro-operation of three elements")
    if part[1] is None:
        raise odd(part, "a micro-operation with a key")
    return part[0], part[1], part[2]
