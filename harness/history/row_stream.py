"""Streams a journal's rows from a node that has neither our files nor Arrow.

The client process there writes its rows, in portions, as JSON lines on standard output, among its
other messages to the runner; `harness.run.client_pool` receives them. A portion is sent when
it holds 8,192 rows, or 50 ms after its first row by the event loop's timer, as a batch of a journal
is:

    {"rows": "ops", "from": 1200, "count": 311, "columns": "eNpj..."}
    {"rows": "notes", "from": 3, "count": 1, "columns": [[81], [2], [7], ["no answer"]]}

`from` counts the rows before, so that a missing portion is noticed. Columns of integers are int64,
little-endian, one column after the other, zlib and base64: columns of neighbouring numbers compress
to a tenth. This file needs the standard library only.
"""

import asyncio
import base64
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

BATCH_ROWS = 8192
FLUSH_AFTER_S = 0.05
ZLIB_LEVEL = 1

Row = tuple[Any, ...]


def pack_integers(rows: Sequence[Row]) -> str:
    """Pack rows of integers as columns of int64."""
    columns = array("q", chain.from_iterable(zip(*rows, strict=True)))
    if sys.byteorder == "big":
        columns.byteswap()
    return base64.b64encode(zlib.compress(columns.tobytes(), ZLIB_LEVEL)).decode()


def pack_texts(rows: Sequence[Row]) -> list[list[Any]]:
    """Return rows as columns for JSON."""
    return [list(column) for column in zip(*rows, strict=True)]


class RowStream:
    """One table's rows: `append` them, `flush` before a message that must come after them."""

    def __init__(
        self,
        table: str,
        columns: Callable[[Sequence[Row]], Any],
        say: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._table, self._columns, self._say = table, columns, say
        self._said = 0
        self._rows: list[Row] = []
        self._timer: asyncio.TimerHandle | None = None

    def append(self, row: Row) -> None:
        """Append a row in the schema's order."""
        self._rows.append(row)
        if len(self._rows) == BATCH_ROWS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        portion = {"rows": self._table, "from": self._said, "count": len(rows)}
        self._said += len(rows)
        self._say({**portion, "columns": self._columns(rows)})

    def close(self) -> None:
        self.flush()
