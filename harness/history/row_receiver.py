"""Writes the rows that a remote client process streams to the journal of the run.

The stream's format is in `harness.history.row_stream`. The files are those that a local client
process would write itself: the same names, batches, counters. A portion that is missing between two
others ends the run, since nothing can be judged without it.

Where the node's clock may be off, invocations are stamped early and completions late
(`harness.run.client_process`), so rows do not come in the order of their times. A row is held back
until no earlier one can come any more: for twice the error.
"""

import base64
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import BedFailed
from harness.history.journal import TableJournal
from harness.history.row_stream import BATCH_ROWS
from harness.history.schema import NOTES, OPS

Ints = npt.NDArray[np.int64]


class RowReceiver:
    """The journals of one client process; `receive` its portions, `close` at the end."""

    def __init__(self, folder: Path, writer: str, error_ns: int) -> None:
        self._writer, self._spread_ns = writer, 2 * error_ns
        self._ops = TableJournal(folder, "ops", writer)
        self._notes = TableJournal(folder, "notes", writer)
        self._taken = {"ops": 0, "notes": 0}
        self._held: Ints = np.empty((len(OPS), 0), np.int64)  # in the order of their times

    def receive(self, portion: Mapping[str, Any]) -> None:
        """Write a portion. Raises BedFailed if rows before it are missing, or the disk refuses it;
        ValueError, or another error of malformed data, before any of it is written."""
        table, before, count = portion["rows"], portion["from"], portion["count"]
        if not 0 < count <= BATCH_ROWS:
            raise ValueError("a portion cannot have so many rows")
        if before != self._taken[table]:
            raise BedFailed(
                f"rows {self._taken[table]} to {before} of {table} did not arrive from "
                f"{self._writer}, so the history has a gap; run it again"
            )
        if table == "ops":
            self._take_ops(unpack_ops(portion["columns"], count))
        else:
            notes = dict(zip(NOTES.names, portion["columns"], strict=True))
            if any(len(column) != count for column in notes.values()):
                raise ValueError("its columns are not equally long")
            self._notes.append_columns(notes)
        self._taken[table] += count

    def close(self) -> None:
        self._write(self._held)
        self._ops.close()
        self._notes.close()

    def _take_ops(self, rows: Ints) -> None:
        if not self._spread_ns:
            self._write(rows)
            return
        rows = np.concatenate([self._held, rows], axis=1)
        rows = rows[:, np.argsort(rows[0], kind="stable")]
        ready = np.searchsorted(rows[0], rows[0, -1] - self._spread_ns, side="right")
        self._write(rows[:, :ready])
        self._held = rows[:, ready:]

    def _write(self, rows: Ints) -> None:
        if rows.shape[1]:
            self._ops.append_columns(dict(zip(OPS.names, rows, strict=True)))


def unpack_ops(columns: str, count: int) -> Ints:
    """Return the columns of a portion of ops, as rows of an array. Raises ValueError if it is
    malformed."""
    inflate = zlib.decompressobj()
    size = len(OPS) * count * np.dtype("<i8").itemsize
    packed = inflate.decompress(base64.b64decode(columns), size)
    if inflate.unconsumed_tail:
        raise ValueError("it holds more rows than its count")
    return np.frombuffer(packed, "<i8").reshape(len(OPS), count)
