"""Jepsen's transactions over registers: `[[:w k v] [:r k v]]`, in the manner of Elle's rw-register.

Each micro-operation is a row of its own, numbered by `mop`. A line needs no `:f`: in Elle's own
histories it has none.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.transactions import operation, said_of_register
from harness.importers._recording.recording import Recording, Sheet
from harness.importers._text.value_events import by_rows, elements
from harness.operation import F


def _one(sheet: Sheet, event: int, kind: int, f: str, value: Any, error: int) -> None:
    for mop, part in enumerate(elements(value, "a vector of micro-operations")):
        said_of_register(sheet, event, kind, mop, part)
    operation(sheet, event, F.PUT)


FORMAT = Format("jepsen-wr", "transactions", ("txn",), by_rows(_one, "w", "r"), nameless="txn")


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
