"""Jepsen's lock: `:acquire` and `:release`, of one lock or of many by key, held by a process.

A fencing token is the `:fence` in the value of an acquire. What failed did not happen, and tells
nothing. A lock that anybody may release, as Knossos' mutex, is `jepsen-mutex`.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.keyed import Keyed
from harness.importers._recording.recording import LARGEST, Recording, Sheet
from harness.operation import F, Type


def _said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: int) -> None:
    if f == "release":
        sheet.add(event, F.RELEASE, key)
        return
    token = value.get("fence", value.get("token")) if isinstance(value, dict) else None
    known = type(token) is int and 0 <= token < LARGEST
    sheet.add(event, F.ACQUIRE, key, offset=token if known and kind == Type.OK else None)


_DECODE = Keyed(_said, ("acquire", "release"))
FORMAT = Format("jepsen-lock", "lock", ("acquire", "release"), _DECODE, elect=_DECODE.elect)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
