"""Classes that only runs of our own have, in small histories: those that need a fresh
reader, a group that read to the end, or the replicas' logs."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_table
import own_table
import pytest
from table_sizes import at_least, share

from checkers._spark import spark_stages as _units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES, BATCH, EACH = 8, share(2_500), at_least(200)


def right(table: own_table.Table, spark: "SparkSession | None") -> None:
    """Every message, and no other; holes are only counted, and only where nobody has gaps."""
    expected = dict(table.expected)
    if "OFFSET_HOLE" in expected:
        expected["OFFSET_HOLE"] = {sum(holes for _, holes in expected["OFFSET_HOLE"])}
    found = own_table.judged(table.history, spark)
    assert kafka_table.differences(found, expected) == {}


@pytest.mark.parametrize("replicas", [True, False])
def test_runs_of_our_own_have_what_the_definitions_say(replicas: bool, tmp_path: Path) -> None:
    """Eight tables; without copies of the replicas, holes are counted in place of gaps."""
    histories = Counter[str]()
    for batch in range(BATCHES):
        table = own_table.table(tmp_path / str(batch), 41 + batch, BATCH, replicas)
        right(table, None)
        histories += table.histories
    print(f"\nhistories of each class: {dict(sorted(histories.items()))}")
    asked = own_table.WITH_REPLICAS if replicas else own_table.WITHOUT_REPLICAS
    assert histories.keys() == asked
    assert min(histories.values()) >= EACH


@pytest.mark.spark
@pytest.mark.parametrize("replicas", [True, False])
def test_on_spark_they_have_the_same(
    replicas: bool, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the tables, whose files go to several tasks."""
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    right(own_table.table(tmp_path / "run", 41, BATCH, replicas), spark)
