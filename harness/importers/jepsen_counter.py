"""Jepsen's counter: `:add n`, also below zero, and `:read` that gives the sum."""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.keyed import Keyed
from harness.importers._recording.recording import LARGEST, Recording, Sheet
from harness.importers._text.value_events import odd
from harness.operation import F, Type


def _said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: int) -> None:
    if f in ("add", "decrement") or kind == Type.OK:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST:
            raise odd(value, f"a whole number, or it is beyond {LARGEST:,}")
        number = -value if f == "decrement" else value
        sheet.add(event, F.COUNT if f == "read" else F.ADD, key, number)
    else:
        sheet.add(event, F.COUNT, key)


_DECODE = Keyed(_said, ("read",))
FORMAT = Format(
    "jepsen-counter", "counter", ("add", "decrement", "read"), _DECODE, elect=_DECODE.elect
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
