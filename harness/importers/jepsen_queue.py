"""Jepsen's queue: `:enqueue v`, `:dequeue` that returns v, and `:drain` that returns all the rest.

A dequeue that fails took nothing; an error such as `:empty` says that the queue was empty. A drain
is as many dequeues as it returned elements, numbered by `pos`, and a last one that found nothing. A
word such as `:exhausted` in place of the elements says that the drain reached the end, and that its
elements are in dequeues of their own between its two lines. A drain of unknown outcome may have
taken everything that was there since its invocation, which has a `pos` of 0.
"""

from typing import Any

from harness.importers._jepsen import (
    Format,
    JepsenEvent,
    KeyedFs,
    atom,
    elements,
    importer,
    written_value,
)
from harness.importers._lines import means_empty
from harness.importers._recording import EMPTY, PartsBuilder
from harness.operation import F, Type

DONE = ("done", "complete", "completed", "finished", "end", "ok")
DRAIN = 0


def _decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    number, kind, f, key, value, error = event
    if f == "enqueue":
        parts.add(number, F.ENQUEUE, key, written_value(value, kind))
    elif f == "drain" and kind == Type.OK:
        taken = [] if _is_done(value) else elements(value, "a vector of values")
        parts.add_read(number, F.DEQUEUE, key, [atom(each) for each in taken])
    elif f == "drain":
        parts.add(number, F.DEQUEUE, key, pos=DRAIN if kind == Type.INVOKE else None)
    elif kind == Type.OK:
        parts.add(number, F.DEQUEUE, key, None if means_empty(value) else atom(value))
    elif kind == Type.FAIL and error == EMPTY:
        parts.add(number, F.DEQUEUE, key, type=Type.OK)
    else:
        parts.add(number, F.DEQUEUE, key)


def _is_done(value: Any) -> bool:
    """Return whether a drain says that it reached the end, instead of what it took."""
    word = value.removeprefix(":").lower() if isinstance(value, str) else ""
    return value is None or means_empty(value) or word in DONE


FORMAT = Format(
    "jepsen-queue",
    "queue",
    ("enqueue", "dequeue", "drain"),
    _decode,
    keyed=KeyedFs(("dequeue", "drain")),
)
PLUGIN = importer(FORMAT)
