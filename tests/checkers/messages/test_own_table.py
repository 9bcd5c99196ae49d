"""Classes that only runs of our own have, in 20,000 small histories: those that need a fresh
reader, a group that read to the end, or the replicas' logs."""

from pathlib import Path
from typing import TYPE_CHECKING

import kafka_table
import own_table
import pytest

from checkers import _units
from harness.history import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORIES, EACH = 20_000, 200


@pytest.mark.spark
@pytest.mark.parametrize("replicas", [True, False])
def test_runs_of_our_own_have_what_the_definitions_say(
    replicas: bool, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message, with Spark and without; an offset that is in no replica's log is told once,
    and where nobody read the replicas, holes are counted."""
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    table = own_table.table(tmp_path / "run", 41, HISTORIES, replicas)
    expected = dict(table.expected)
    if not replicas:
        expected["OFFSET_HOLE"] = {sum(holes for _, holes in expected["OFFSET_HOLE"])}
    for session in (None, spark):
        found = own_table.judged(History.open(table.history.run), session)
        assert kafka_table.differences(found, expected) == {}
    print(f"\nhistories of each class: {dict(sorted(table.histories.items()))}")
    asked = own_table.WITH_REPLICAS if replicas else own_table.WITHOUT_REPLICAS
    assert table.histories.keys() == asked
    assert min(table.histories.values()) >= EACH
