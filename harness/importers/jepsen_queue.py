"""Jepsen's queue: `:enqueue v`, `:dequeue` that gives v, and `:drain` that gives all that is left.

A dequeue that fails took nothing; that the queue was empty it says with an error such as `:empty`.
A drain is as many dequeues as it took, numbered by `pos`, and a last one that found nothing. A word
such as `:exhausted` in place of the elements says that it came to the end, and gave what it took in
dequeues of its own, which stand between its two lines. A drain of unknown outcome may have taken
everything that was there since: its invocation has a `pos` of 0.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.fields import is_end
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.keyed import Keyed
from harness.importers._recording.recording import EMPTY, Recording, Sheet
from harness.importers._text.value_events import atom, elements, written
from harness.operation import F, Type

DONE = ("done", "complete", "completed", "finished", "end", "ok")
DRAIN = 0


def _said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: int) -> None:
    if f == "enqueue":
        sheet.add(event, F.ENQUEUE, key, written(value, kind))
    elif f == "drain" and kind == Type.OK:
        sheet.elements(event, F.DEQUEUE, key, [] if _is_done(value) else _taken(value))
    elif f == "drain":
        sheet.add(event, F.DEQUEUE, key, pos=DRAIN if kind == Type.INVOKE else None)
    elif kind == Type.OK:
        sheet.add(event, F.DEQUEUE, key, None if is_end(value) else atom(value))
    elif kind == Type.FAIL and error == EMPTY:
        sheet.add(event, F.DEQUEUE, key, type=Type.OK)
    else:
        sheet.add(event, F.DEQUEUE, key)


def _is_done(value: Any) -> bool:
    """Whether a drain says that it came to the end, and not what it took."""
    word = value.removeprefix(":").lower() if isinstance(value, str) else ""
    return value is None or is_end(value) or word in DONE


def _taken(value: Any) -> list[Any]:
    return [atom(each) for each in elements(value, "a vector of values")]


_DECODE = Keyed(_said, ("dequeue", "drain"))
FORMAT = Format(
    "jepsen-queue", "queue", ("enqueue", "dequeue", "drain"), _DECODE, elect=_DECODE.elect
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
