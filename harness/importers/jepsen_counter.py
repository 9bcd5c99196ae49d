"""Jepsen's counter: `:add n`, also below zero, and `:read` that returns the sum."""

from harness.importers._jepsen import Format, JepsenEvent, KeyedFs, importer, unexpected
from harness.importers._recording import MAX_NUMBER, PartsBuilder
from harness.operation import F, Type


def _decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    f, value = F.COUNT if event.f == "read" else F.ADD, event.value
    if f is F.COUNT and event.type != Type.OK:
        parts.add(event.number, f, event.key)
        return
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > MAX_NUMBER:
        raise unexpected(value, f"a whole number, or it is beyond {MAX_NUMBER:,}")
    parts.add(event.number, f, event.key, -value if event.f == "decrement" else value)


FORMAT = Format(
    "jepsen-counter",
    "counter",
    ("add", "decrement", "read"),
    _decode,
    keyed=KeyedFs(("read",)),
)
PLUGIN = importer(FORMAT)
