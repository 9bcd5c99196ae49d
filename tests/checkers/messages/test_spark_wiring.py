"""Spark gives the same verdict as the kernels alone: on one task, and dealt over many."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from checkers import _units, duplicates, linearizable, loss, order, phantom
from harness.history import History
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKEN = """
    send 1 ok@0
    send 1.1 ok@1 q1
    send 1.2 ok@2
    send 2.3 ok@3 x2
    send 3.4 fail
    send 3.5 info
    send 1.20000 ok@7 [400..410]
    send 2.20000 ok@6 [420..430]
    poll 1@0 3.4@4
    poll 2.3@5 2.3@3
    read 1@0 2.3@3 2.3@5 3.5@6 2.20000@6 1.20000@7 9.9@8 [500..510]
    stored 1@0 2.3@3 2.20000@6 1.20000@7
    drained reader
    drained group
"""
CHECKERS = (loss, phantom, duplicates, order, linearizable)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from harness.spark import session

    with session() as spark:
        yield spark


@pytest.mark.parametrize("one_task_bytes", [16 << 20, 0], ids=["one task", "many tasks"])
def test_spark_and_the_kernels_agree(
    written: Any, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, one_task_bytes: int
) -> None:
    """A history with every kind of breakage, over three journals: equal results, evidence too."""
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", one_task_bytes)
    run = written(BROKEN, crews=3).run
    here, there = History.open(run), History.open(run)
    for checker in CHECKERS:
        alone = checker.check(here, Trial(), None)
        assert checker.check(there, Trial(), spark) == alone
        assert alone.findings, f"{checker.__name__} found nothing to compare"
