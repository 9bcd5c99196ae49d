"""Comma-separated values of any origin: one row for each event, in the history's own columns.

The first line names the columns (`_table`). A quoted empty string is a value, an empty cell is
absent. A row with too few or too many cells is dropped.
"""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers._recording import Ints, Recording, Slip, Slips
from harness.importers._source import whole
from harness.importers._table import COLUMNS, recording


def read(path: Path) -> Recording:
    slips = Slips()
    data = whole(path, slips)
    try:
        data.decode()
    except UnicodeDecodeError as e:
        line = 1 + data.count(b"\n", 0, e.start)
        raise BadRequest(f"{path} cannot be read as CSV: line {line} is not UTF-8") from e
    convert = pv.ConvertOptions(
        column_types=dict.fromkeys(COLUMNS, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    odd: list[pv.InvalidRow] = []

    def skip(row: pv.InvalidRow) -> str:
        odd.append(row)
        return "skip"

    try:
        table = pv.read_csv(
            BytesIO(data),
            pv.ReadOptions(use_threads=False),
            pv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert,
        )
    except pa.ArrowInvalid as e:
        raise BadRequest(f"{path} cannot be read as CSV: {str(e).splitlines()[0]}") from e
    lines = _lines(data, table.num_rows + len(odd))
    for row in odd:
        what = f"{row.actual_columns} cells, where the first line names {row.expected_columns}"
        slips.add(Slip("ODD_LINE", int(lines[row.number - 2]), what, gap=True))
    good = np.delete(lines, [row.number - 2 for row in odd])
    return recording(table, path, good, slips)


PLUGIN = ImporterPlugin(read=read)


def _lines(data: bytes, rows: int) -> Ints:
    """Return the line of each row after the first. Empty lines are no rows; where a text spans
    lines, rows are counted instead."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    ends = np.append(ends, len(data))
    long = np.diff(ends, prepend=-1) - 1
    returns = np.frombuffer(data + b"\n", np.uint8)[ends - 1] == ord("\r")
    full = np.flatnonzero(long > (returns & (long > 0))) + 1
    return full[1:] if len(full) == rows + 1 else np.arange(2, rows + 2)
