"""Parquet tables of any origin: one row for each event, in the history's own columns.

The columns are those of `_table`. A row's number, from 1, is its line.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.history.reader import is_text, size_of
from harness.importers._recording import Recording, Slips
from harness.importers._source import max_bytes, refuse_pipe, too_large
from harness.importers._table import COLUMNS, recording

CELL_BYTES = 8


def read(path: Path) -> Recording:
    refuse_pipe(path)
    try:
        with pq.ParquetFile(path) as file:
            fields = [field for field in file.schema_arrow if field.name in COLUMNS]
            _refuse_large(path, file.metadata, fields)
            table = file.read([field.name for field in fields])
            table.validate(full=True)  # texts are UTF-8
    except (pa.ArrowException, OSError, MemoryError, ValueError) as e:
        why = (str(e).splitlines() or [type(e).__name__])[0]
        raise BadRequest(f"{path} cannot be read as Parquet: {why}") from e
    return recording(table, path, np.arange(1, table.num_rows + 1), Slips())


PLUGIN = ImporterPlugin(read=read)


def _refuse_large(path: Path, metadata: pq.FileMetaData, fields: Sequence[pa.Field]) -> None:
    """Raise BadRequest if the unpacked columns exceed MAX_UNPACKED_MB, or a column is a list."""
    for field in fields:
        if pa.types.is_nested(field.type):
            raise BadRequest(f"{path}: column {field.name!r} must contain numbers or texts")
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    stated = sum(group.total_byte_size for group in groups)
    size = max(stated, metadata.num_rows * len(fields) * CELL_BYTES)
    texts = [field.name for field in fields if is_text(field.type)]
    if (
        size <= max_bytes() and texts
    ):  # equal texts are stored once, so their sizes are not in the metadata
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(columns=texts):
                size += size_of(batch).text
                if size > max_bytes():
                    break
    if size > max_bytes():
        raise too_large()
