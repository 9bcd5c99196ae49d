"""Jepsen's set: `:add v`, and `:read` that returns all elements.

A read has a row for each element, and a last one, as polls have. A read that ended with nil did not
see the empty set: it saw nothing.
"""

from harness.importers._jepsen import (
    Format,
    JepsenEvent,
    KeyedFs,
    atom,
    elements,
    importer,
    unexpected,
    written_value,
)
from harness.importers._recording import PartsBuilder
from harness.operation import F, Type


def _decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    number, kind, f, key, value, _ = event
    if f == "add":
        parts.add(number, F.ADD, key, written_value(value, kind))
    elif kind != Type.OK:
        parts.add(number, F.LIST, key)
    elif value is None:
        raise unexpected(value, "a set that a read can return")
    else:
        found = elements(value, "a vector or set of elements")
        parts.add_read(number, F.LIST, key, [atom(each) for each in found])


FORMAT = Format("jepsen-set", "set", ("add", "read"), _decode, keyed=KeyedFs(("read",)))
PLUGIN = importer(FORMAT)
