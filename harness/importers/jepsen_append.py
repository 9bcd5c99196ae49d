"""Jepsen's list-append transactions: `[[:append k v] [:r k [v ...]]]`, in the manner of Elle.

Each micro-operation is rows of its own, numbered by `mop`; a read list is a row for each element,
and one that ends it. A key that was never appended to reads as nil, the empty list. A line needs no
`:f`: in Elle's own histories it has none.
"""

from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.importers._jepsen.history import Format, recording
from harness.importers._jepsen.transactions import operation, said
from harness.importers._recording.recording import Recording, Sheet
from harness.importers._text.value_events import by_rows, elements
from harness.operation import F


def _one(sheet: Sheet, event: int, kind: int, f: str, value: Any, error: int) -> None:
    for mop, part in enumerate(elements(value, "a vector of micro-operations")):
        said(sheet, event, kind, mop, part)
    operation(sheet, event, F.APPEND)


FORMAT = Format(
    "jepsen-append", "transactions", ("txn",), by_rows(_one, "append", "r"), nameless="txn"
)


def read(path: Path) -> Recording:
    return recording(path, FORMAT)


PLUGIN = ImporterPlugin(read=read)
