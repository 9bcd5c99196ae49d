"""Jepsen's registers: `:read`, `:write v` and `:cas [old new]`, of one register or of many by key.

A cas that fails without an error was refused by the comparison itself, and so tells that the
register did not hold the old value; with an error it did not happen, and tells nothing. In a file
whose failed reads name no error either it tells nothing.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.keyed import Keyed
from harness.importers._recording.recording import Recording, Sheet
from harness.importers._text.value_events import atom, pair
from harness.operation import F, Type

REFUSED = 0


def said(sheet: Sheet, event: int, kind: int, f: str, key: Any, value: Any, error: int) -> None:
    """What one event says of a register."""
    if f == "read":
        sheet.add(event, F.GET, key, atom(value) if kind == Type.OK else None)
    elif kind > Type.OK and (f == "write" or error):
        return  # it may carry its error as value, and says no more than its invocation
    elif f == "write":
        sheet.add(event, F.PUT, key, atom(value))
    else:
        old, new = pair(value, "the old value and the new one")
        refused = REFUSED if kind == Type.FAIL else None
        sheet.add(event, F.CAS, key, atom(old), atom(new), pos=refused)


_DECODE = Keyed(said, ("read",), ("write",), ("cas",))
FORMAT = Format(
    "jepsen-register", "registers", ("read", "write", "cas"), _DECODE, elect=_DECODE.elect
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
