"""Rows of operations as the sealed files of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import OPS


def ops_run(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    writers: int = 1,
    gaps: bool = False,
    **names: Any,
) -> History:
    """The rows in this order, their processes shared out among the writers; keys are k0, k1 and
    so on. A column that a row lacks is null."""
    run = RunDir(folder)
    run.history.mkdir(parents=True)
    absent: dict[str, Any] = dict.fromkeys(OPS.names)
    for writer in range(writers):
        mine = [absent | row for row in rows if int(row["process"]) % writers == writer]
        path = run.history / f"ops-w{writer}-000.parquet"
        pq.write_table(pa.Table.from_pylist(mine, OPS), path)
    keys = 1 + max((int(row["key"]) for row in rows if row.get("key") is not None), default=0)
    run.write_names({"keys": [f"k{n}" for n in range(keys)], **names})
    run.update_state(ended=True, gaps=gaps)
    return History.open(run)
