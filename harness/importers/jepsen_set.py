"""Jepsen's set: `:add v`, and `:read` that gives all elements.

A read is one row for each element it saw, and one that ends it, as polls are. A read that ended
with nil has not seen the empty set: it has seen nothing.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.keyed import Keyed
from harness.importers._recording.recording import Recording, Sheet
from harness.importers._text.value_events import atom, elements, odd, written
from harness.operation import F, Type


def _said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: int) -> None:
    if f == "add":
        sheet.add(event, F.ADD, key, written(value, kind))
    elif kind == Type.OK:
        if value is None:
            raise odd(value, "what a read of a set can have seen")
        seen = [atom(each) for each in elements(value, "a vector or set of elements")]
        sheet.elements(event, F.LIST, key, seen)
    else:
        sheet.add(event, F.LIST, key)


_DECODE = Keyed(_said, ("read",))
FORMAT = Format("jepsen-set", "set", ("add", "read"), _DECODE, elect=_DECODE.elect)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
