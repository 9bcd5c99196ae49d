"""Jepsen's lock: `:acquire` and `:release`, of one lock or of many by key, held by a process.

A fencing token is the `:fence` in the value of an acquire. A failed operation did not happen, and
proves nothing. A lock that any process may release, as Knossos' mutex, is `jepsen-mutex`.
"""

from harness.importers._jepsen import Format, JepsenEvent, KeyedFs, importer
from harness.importers._recording import MAX_NUMBER, PartsBuilder
from harness.operation import F, Type


def _decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    if event.f == "release":
        parts.add(event.number, F.RELEASE, event.key)
        return
    value = event.value
    token = value.get("fence", value.get("token")) if isinstance(value, dict) else None
    known = event.type == Type.OK and type(token) is int and 0 <= token < MAX_NUMBER
    parts.add(event.number, F.ACQUIRE, event.key, offset=token if known else None)


FORMAT = Format(
    "jepsen-lock",
    "lock",
    ("acquire", "release"),
    _decode,
    keyed=KeyedFs(("acquire", "release")),
)
PLUGIN = importer(FORMAT)
