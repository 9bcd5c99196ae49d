"""Jepsen's queue: `:enqueue v`, `:dequeue` that gives v, and `:drain` that gives all that is left.

A dequeue that fails took nothing, and tells nothing more. A drain is as many dequeues as it took,
numbered by `pos`, and a last one that found nothing.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._decoding import atom, elements, written
from harness.importers._jepsen import Format, recording
from harness.importers._keyed import Keyed
from harness.importers._recording import Recording, Sheet
from harness.operation import F, Type


def _said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: bool) -> None:
    if f == "enqueue":
        sheet.add(event, F.ENQUEUE, key, written(value, kind))
    elif f == "drain" and kind == Type.OK:
        taken = [atom(each) for each in elements(value, "a vector of values")]
        sheet.elements(event, F.DEQUEUE, key, taken)
    else:
        sheet.add(event, F.DEQUEUE, key, atom(value) if kind == Type.OK else None)


_DECODE = Keyed(_said, ("dequeue", "drain"))
FORMAT = Format(
    "jepsen-queue", "queue", ("enqueue", "dequeue", "drain"), _DECODE, elect=_DECODE.elect
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
