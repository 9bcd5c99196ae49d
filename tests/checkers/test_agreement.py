"""Spark on this machine comes to the verdicts of the naive truth and of the kernels without it.

The tables have 2,000 small histories each, 20,000 in an exhaustive run. Tests on a cluster are in
tests/history/test_spark_masters.py.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_table
import pytest
import small_histories
from register_dice import all_orders
from table_sizes import at_least

from checkers._linear.registers import judge_registers
from checkers._spark import spark_stages as _units
from harness import registry
from harness.history.reader import History
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORIES, MANY, EACH = small_histories.HISTORIES, at_least(2_000), at_least(200)


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)


@pytest.mark.spark
@pytest.mark.parametrize("name", small_histories.TABLES)
def test_with_spark_and_without(
    name: str, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole answer: findings, how many of each, which of them are shown, and why; by many tasks
    and, as for small histories, by one."""
    history = small_histories.run_of(tmp_path / "run", small_histories.TABLES[name](HISTORIES))
    check = registry.load("checker", name)
    alone = check(history, Trial(), None)
    assert check(History.open(history.run), Trial(), spark) == alone
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 1 << 40)
    assert check(History.open(history.run), Trial(), spark) == alone
    counts: Counter[str] = Counter()
    for finding in alone.findings:  # a code may have several, each with a demand of its own
        counts[finding.code] += finding.count
    print(f"\n{name}: {dict(counts)}")
    assert counts.total() > MANY


@pytest.mark.spark
def test_registers_on_spark_are_what_all_orders_say(tmp_path: Path, spark: "SparkSession") -> None:
    rows, games = small_histories.registers()
    history = small_histories.run_of(tmp_path / "run", rows)
    illegal = tuple(game.key for game in games if not all_orders(game.ops))
    assert judge_registers(history, spark).illegal == illegal
    assert MANY < len(illegal) < len(games) - MANY


@pytest.mark.spark
def test_messages_on_spark_are_what_the_definitions_say(
    small_messages: kafka_table.Table, spark: "SparkSession"
) -> None:
    """Histories of at most 8 operations, each with queues of its own, many of which went
    wrong: every finding of six checkers, by message, offset or step, and no other."""
    found = kafka_table.judged(History.open(small_messages.history.run), spark)
    assert kafka_table.differences(found, small_messages.expected) == {}
    print(f"\nmessages, histories of each class: {dict(sorted(small_messages.histories.items()))}")
    assert small_messages.histories.keys() >= kafka_table.CLASSES
    assert min(small_messages.histories.values()) >= EACH
