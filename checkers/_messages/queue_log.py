"""The log of every queue, as order, linearizable and offsets ask for it."""

from typing import TYPE_CHECKING

from checkers._messages.log_bounds import LogContext
from checkers._messages.log_sweep import (
    PARTIALS,
    QUEUES,
    LogJob,
    QueueLog,
    added_up,
)
from checkers._messages.message_census import message_census
from checkers._messages.one_reading import one_reading
from checkers._messages.poll_steps import assignments_of
from checkers._run.evidence import rows_kept
from checkers._spark.spark_stages import in_shares, per_history, reduced, shares_of, units_of
from harness.history.reader import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@per_history
def queue_log(history: History, spark: "SparkSession | None") -> QueueLog:
    """Return the sweep of all queues of a history. It follows the census, which may have been read
    together with it."""
    census = message_census(history, spark)
    both = one_reading(history, spark, census.scope)
    if both and both.census is census:
        return both.log
    imported = census.scope.imported
    assignments = assignments_of(history, census.gone, census.unsure) if imported else None
    known = LogContext(census.gone, census.late, census.unsure, assignments)
    job, by, within = LogJob(known, rows_kept(history.faults)), ("key",), ("key", "block")
    units = units_of(history, "ops")
    if shares := shares_of(spark, units):
        table = in_shares(spark, units, job.judge, QUEUES, shares)
    else:
        table = reduced(spark, units, job.scan, PARTIALS, job.merge, QUEUES, by, within)
    return added_up(table.sort_by("key"), history.names, job.rows)


def compared_pairs(history: History, log: QueueLog) -> int:
    """Return how many pairs of neighbours were compared. An imported history may be about a single
    message, which is in order by itself."""
    return log.counts.length if "imported" in history.state else log.counts.pairs
