"""Every anomaly class of Jepsen's kafka workload against its definition, in plain sets and loops.

Small histories with planted anomalies are written as Jepsen writes them, many to a file, each with
keys and processes of its own; a file is imported and judged as a whole. What the checkers show, by
message, offset or step, is just what the definitions give, and its count is exact.

These are of 8 to 16 operations; 20,000 of at most 8 are in tests/checkers/test_agreement.py.
"""

from pathlib import Path
from typing import Any

import kafka_table
import pytest
from table_sizes import at_least, share

from harness.importers import _run_folder as _folder

BATCHES, BATCH, EACH = 3, share(1_670), at_least(200)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_checkers_find_what_the_definitions_say(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Each class, by message, offset or step: all that is there, and nothing else."""
    if batch == 2:  # processes of one history are in different files
        monkeypatch.setattr(_folder, "ROWS_OF_A_FILE", 80_000)
    table = kafka_table.table(tmp_path / "table", batch, BATCH, small=False)
    assert kafka_table.differences(kafka_table.judged(table.history), table.expected) == {}
    with capsys.disabled():
        print(f"\n{BATCH} histories: {dict(sorted(table.histories.items()))}")
    assert min(table.histories.values()) >= EACH / BATCHES
