"""Porcupine's key-value histories: `:put`, `:append` to a string, and `:get`, by key.

    {:process 0, :type :invoke, :f :append, :key "4", :value "x 0 1 y"}

The maps may be EDN or JSON, one on each line or all in one vector. Strings are numbered;
`names.json` has them under "values", so `append` and `get` are about texts. A key that holds the
empty string was never written. There are no times, so a line counts as a microsecond.
"""

from harness.importers._jepsen import Format, JepsenEvent, importer, unexpected
from harness.importers._recording import PartsBuilder
from harness.operation import F, Type

FS = {"get": F.GET, "put": F.PUT, "append": F.APPEND}


def _decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    if type(event.key) not in (str, int):
        raise unexpected(event.key, "a :key, which must be a string")
    if type(event.value) not in (str, type(None)):
        raise unexpected(event.value, "a string")
    f = FS[event.f]
    if f is F.GET:
        value = event.value if event.type == Type.OK else None
        parts.add(event.number, f, event.key, value or None)
    elif event.type <= Type.OK:
        parts.add(event.number, f, event.key, event.value or None)


FORMAT = Format("porcupine-kv", "registers", tuple(FS), _decode, beside="key")
PLUGIN = importer(FORMAT)
