"""Comma-separated values of any origin: one row for each event, in the history's own columns.

The first line names the columns; `_table` says which there are. A quoted empty string is a value,
an empty cell is absent.
"""

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pv

from harness.errors import BadRequest
from harness.importers._recording import Recording, Slips
from harness.importers._source import blocks
from harness.importers._table import KNOWN, recording


def read(path: Path) -> Recording:
    slips = Slips()
    data = b"".join(blocks(path, slips))
    convert = pv.ConvertOptions(
        column_types=dict.fromkeys(KNOWN, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    try:
        table = pv.read_csv(
            BytesIO(data), pv.ReadOptions(use_threads=False), convert_options=convert
        )
    except pa.ArrowInvalid as e:
        raise BadRequest(f"{path} can not be read as CSV: {str(e).splitlines()[0]}") from e
    return recording(table, path, 2, slips)
