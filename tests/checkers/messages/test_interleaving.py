"""Cycles of transactions over messages: what the definitions say, and what the checker finds."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import interleaving_table
import numpy as np
import pytest
from table_sizes import at_least, share

from checkers import interleaving
from checkers._cycles import anomalies, cycle_findings, logs
from checkers._cycles.rows import FAIL, OK
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Finding, Result
from harness.trial import DEMANDS, ISOLATION, Trial
from reports._stories.story import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Import = Callable[..., RunDir]
HISTORIES, EACH = share(20_000), at_least(200)
STRICT = Trial(contract=(*DEMANDS, ISOLATION[-1]))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> interleaving_table.Table:
    return interleaving_table.table(tmp_path_factory.mktemp("table"), 41, HISTORIES)


@pytest.fixture(autouse=True)
def _all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomalies, "MAX_EXAMPLES", 1 << 30)
    monkeypatch.setattr(cycle_findings, "SAMPLE", 1 << 30)


def of_histories(result: Result, table: interleaving_table.Table) -> list[Counter[str]]:
    """Causes by code, of each history."""
    found: list[Counter[str]] = [Counter() for _ in table.expected]
    for finding in result.findings:
        assert finding.count == len(finding.evidence)
        for row in finding.evidence:
            first = int(row["cycle"].split()[0].removeprefix("T"))
            found[table.of_op[first]][finding.code] += 1
    return found


def test_the_definitions_agree(table: interleaving_table.Table) -> None:
    """On every history of a table, how many causes there are of each kind."""
    found = of_histories(interleaving.check(table.history, Trial(), None), table)
    assert found == table.expected
    counts = Counter(code for each in found for code in each)
    print("histories with", dict(counts))
    assert min(counts["G0"], counts["G1C"]) >= EACH


def test_only_what_no_order_explains_offends_the_strictest_contract(
    table: interleaving_table.Table,
) -> None:
    """Real time counts where the contract promises it, and nothing else is told then."""
    found = of_histories(interleaving.check(table.history, STRICT, None), table)
    assert [not each for each in found] == table.ordered
    late = sum(code.endswith("_REALTIME") for each in found for code in each)
    assert late >= EACH, f"{late} causes by real time"


@pytest.mark.spark
def test_spark_finds_the_same(table: interleaving_table.Table, spark: "SparkSession") -> None:
    """Whatever shares the work."""
    here = interleaving.check(table.history, STRICT, None)
    assert interleaving.check(table.history, STRICT, spark) == here


def test_a_value_that_two_sent_has_no_place() -> None:
    """Nobody can tell whose it is, whatever became of the other."""
    columns = [[1, 2, 3], [7, 7, 7], [10, 20, 10], [OK, OK, FAIL]]
    sends = logs.Sends(*(np.array(column, np.int64) for column in columns))
    places = logs.Places(*(np.array(c, np.int64) for c in ([10, 20], [7, 7], [0, 1])))
    polls = logs.FurthestPolls(*[np.empty(0, np.int64)] * 3)
    assert not len(logs.dependencies(sends, polls, places))
    assert len(logs.dependencies(sends.at(np.array([0, 1])), polls, places)) == 1


CYCLE = """0 txn ok [[:send 1 [0 10]] [:send 2 [1 20]]]
1 txn ok [[:send 1 [1 11]] [:send 2 [0 21]]]
2 poll ok [[:poll {1 [[0 10] [1 11]] 2 [[0 21] [1 20]]}]]
"""


def only(run: RunDir) -> Finding:
    verdict = judge_small(History.open(run))
    (result,) = (r for r in verdict.checkers if r.checker == "interleaving")
    (finding,) = result.findings
    return finding


def test_two_transactions_whose_sends_interleave(imported: Import) -> None:
    """That is told, and offends nobody: it was not promised that they do not."""
    finding = only(imported(CYCLE))
    assert (finding.code, finding.count, finding.demand) == ("G0", 1, "")
    told = finding.evidence[0]["explanation"]
    assert "T1 sent the message at 0 of 1 and T3 the one at 1, so T1 came before T3" in told
    assert "T3 sent the message at 0 of 2 and T1 the one at 1, so T3 came before T1" in told
    assert told.endswith("No serial order explains all of this.")


def test_a_contract_may_forbid_it(imported: Import) -> None:
    """Then it is the weakest level's that does."""
    finding = only(imported(CYCLE, contract=(*DEMANDS, "read-committed")))
    assert (finding.demand, finding.permitted) == ("read-uncommitted", False)


def test_what_was_polled_is_in_the_words(imported: Import) -> None:
    """Also when it stands behind what the other sent."""
    text = """0 txn ok [[:send 1 [0 10]] [:poll {2 [[1 21]]}]]
1 txn ok [[:send 2 [0 20]] [:poll {1 [[0 10]]}]]
2 send ok [[:send 2 [1 21]]]
"""
    finding = only(imported(text))
    assert (finding.code, finding.demand) == ("G1C", "")
    told = finding.evidence[0]["explanation"]
    assert "T3 polled the message at 0 of 1 and T1 had sent it, so" in told
    assert "T1 polled the message at 1 of 2 and T3 had sent the earlier one at 0, so" in told


def test_its_story_is_told_in_the_words_of_the_file(imported: Import) -> None:
    """Values are those that clients sent, not numbers of ours."""
    run = imported(
        """0 txn ok [[:send 1 [0 10]] [:poll {2 [[1 21]]}]]
1 txn ok [[:send 2 [0 20]] [:poll {1 [[0 10]]}]]
2 send ok [[:send 2 [1 21]]]
"""
    )
    run.verdict_file.write_text(judge_small(History.open(run)).to_json())
    told = explain(run, "G1C")
    assert told is not None
    words = "\n".join(told.lines())
    assert "T1: send 10 to key 1" in words
    assert "offset 0; [21]" in words


def test_without_transactions_nobody_asks(imported: Import) -> None:
    """What each operation did by itself is judged by others."""
    run = imported("0 send ok [[:send 7 [0 1]]]\n1 poll ok [[:poll {7 [[0 1]]}]]\n")
    verdict = judge_small(History.open(run))
    assert "interleaving" not in [result.checker for result in verdict.checkers]
