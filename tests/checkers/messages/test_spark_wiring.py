"""Spark gives the same verdict as the kernels alone: on one task, and dealt over many."""

from typing import TYPE_CHECKING, Any

import pytest

from checkers import duplicates, linearizable, loss, order, phantom
from checkers._spark import spark_stages as _units
from harness.history.reader import History
from harness.importers import _run_folder as _folder
from harness.judge.judge import conclude, judge_small
from harness.registry import load
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


@pytest.mark.usefixtures("one_task_or_many")
def test_spark_and_the_kernels_agree(written: Any, spark: "SparkSession") -> None:
    """A history with every kind of breakage, over three journals: equal results, evidence too."""
    run = written(BROKEN, crews=3).run
    here, there = History.open(run), History.open(run)
    for checker in CHECKERS:
        alone = checker.check(here, Trial(), None)
        assert checker.check(there, Trial(), spark) == alone
        assert alone.findings, f"{checker.__name__} found nothing to compare"


STEPS = """\
0 assign ok [7]
2 assign ok [7]
0 send ok [[:send 7 [0 1]]]
0 send ok [[:send 7 [1 2]]]
0 send ok [[:send 7 [2 3]]]
0 send ok [[:send 7 [2 9]]]
1 poll ok [[:poll {7 [[0 1] [1 2] [2 3]]}]]
2 poll ok [[:poll {7 [[0 1]]}]]
2 poll ok [[:poll {7 [[2 3]]}]]
2 poll ok [[:poll {7 [[1 2]]}]]
0 send ok [[:send 8 [0 1]]]
3 send ok [[:send 8 [1 2]]]
1 poll ok [[:poll {8 [[1 2]]}]]
3 txn ok [[:send 8 [2 3]] [:poll {8 [[2 3]]}]]
"""


def test_spark_and_the_kernels_agree_on_steps(
    imported: Any, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files, a task each: the steps meet the blocks of their queue."""
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    monkeypatch.setattr(_folder, "ROWS_OF_A_FILE", 10)
    run = imported(STEPS)
    history, trial = History.open(run), run.trial()
    assert len(history.files["ops"]) > 2
    spread = [load("checker", name)(history, trial, spark) for name in trial.checkers]
    verdict = conclude(spread, history, trial)
    assert verdict == judge_small(History.open(run))
    assert {f.code for result in verdict.checkers for f in result.findings} == {
        *("LOST_ACKED", "OFFSET_CONFLICT", "PRECOMMITTED_READ"),
        *("CONSUMER_SKIPPED", "CONSUMER_WENT_BACK"),
    }
