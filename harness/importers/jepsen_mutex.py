"""Knossos' mutex: `:acquire` and `:release` of one lock, or of many by key, by any process.

An acquire is a compare-and-set from free to held, a release one from held to free. A failed
operation did not happen, and proves nothing. A lock that only its holder can release is
`jepsen-lock`.
"""

from harness.importers._jepsen import Format, JepsenEvent, KeyedFs, importer
from harness.importers._recording import PartsBuilder
from harness.operation import F

FREE, HELD = ":free", ":held"


def _decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    old, new = (FREE, HELD) if event.f == "acquire" else (HELD, FREE)
    parts.add(event.number, F.CAS, event.key, old, new)


FORMAT = Format(
    "jepsen-mutex",
    "mutex",
    ("acquire", "release"),
    _decode,
    keyed=KeyedFs(("acquire", "release")),
    initial=FREE,
)
PLUGIN = importer(FORMAT)
