"""Parquet tables of any origin: one row for each event, in the history's own columns.

`_table` says which columns there are. A row's number, from 1, stands for its line.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers._cells import KNOWN
from harness.importers._recording import Recording, Slips
from harness.importers._table import recording


def read(path: Path) -> Recording:
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in KNOWN]
            table = file.read(names)
    except (pa.ArrowInvalid, OSError) as e:
        why = str(e).splitlines()[0]
        raise BadRequest(f"{path} cannot be read as Parquet: {why}") from e
    return recording(table, path, np.arange(1, table.num_rows + 1), Slips())


PLUGIN = ImporterPlugin(read=read)
