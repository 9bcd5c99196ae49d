"""Knossos' mutex: `:acquire` and `:release` of one lock, or of many by key. Anybody may release it.

An acquire is a compare-and-set from free to held, a release one from held to free. What failed did
not happen, and tells nothing. A lock that only its holder can release is `jepsen-lock`.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.keyed import Keyed
from harness.importers._recording.recording import Recording, Sheet
from harness.operation import F

FREE, HELD = ":free", ":held"


def _said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: int) -> None:
    old, new = (FREE, HELD) if f == "acquire" else (HELD, FREE)
    sheet.add(event, F.CAS, key, old, new)


_DECODE = Keyed(_said, ("acquire", "release"))
FORMAT = Format(
    "jepsen-mutex",
    "mutex",
    ("acquire", "release"),
    _DECODE,
    elect=_DECODE.elect,
    initial=FREE,
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
