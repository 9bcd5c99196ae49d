"""The census of messages and the log of every queue from one reading of the history.

The log needs to know which messages are gone, and which of unknown outcome were seen. A task takes
the bounds of its queues before that is known, exchanges what it found out about its messages with
the other tasks, and corrects the bounds: offsets of gone messages are empty, and messages of
unknown outcome bound theirs. Where a gone message shares an offset with another, that offset's
bounds cannot be taken apart, and the task reads its queues again.

The tasks run at the same time (Spark's barrier mode), on this machine.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers._messages import log_sweep
from checkers._messages.log_bounds import LOG_FIELDS, LogBounds, LogContext
from checkers._messages.log_sweep import QUEUES, LogJob, QueueLog
from checkers._messages.message_rows import MESSAGE_FIELDS, SpillingBlocks, absorb
from checkers._messages.messages import (
    NO_MEMBERS,
    REPORT,
    CensusJob,
    CensusScope,
    Members,
    MessageCensus,
    added_up,
)
from checkers._run.evidence import rows_kept
from checkers._spark.spark_stages import (
    BYTES,
    Batches,
    Exchange,
    Share,
    Unit,
    in_shares_together,
    local_cores,
    per_history,
    shares_of,
    units_of,
)
from harness.history.reader import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER = pa.schema([("reports", BYTES), ("queues", BYTES)])  # tables of REPORT and QUEUES
EXCHANGED = ["block", "gone_bits", "late_values", "late_places"]  # of REPORT
NO_NUMBERS = np.zeros(0, np.int64)
NOTHING = LogContext(NO_MEMBERS, (NO_NUMBERS, NO_NUMBERS))


@dataclass(frozen=True)
class OneReading:
    """What one reading found; the log under what this census says is gone."""

    census: MessageCensus
    log: QueueLog


@per_history
def one_reading(
    history: History, spark: "SparkSession | None", scope: CensusScope
) -> OneReading | None:
    """Return the census and the log of a history; None if it is too large, imported or judged on a
    cluster."""
    units = units_of(history, "ops", "replicas")
    shares = shares_of(spark, units)
    apart = spark is not None and shares > 1 and not local_cores(spark)
    if scope.imported or not shares or apart:
        return None
    job = ReadingJob(CensusJob.of(scope), rows_kept(history.faults))
    table = in_shares_together(spark, units, job.judge, ANSWER, shares)
    reports, queues = (pa.concat_tables(map(table_of, c.to_pylist())) for c in table.columns)
    return OneReading(
        added_up(reports.sort_by("block"), scope),
        log_sweep.added_up(queues.sort_by("key"), history.names, job.rows),
    )


@dataclass(frozen=True)
class ReadingJob:
    """The work of the tasks. `rows`: how many rows of a kind the log keeps."""

    census: CensusJob
    rows: int

    def judge(self, units: list[Unit], share: Share, exchange: Exchange) -> Batches:
        """Report on the messages and sweep the queues of a share."""
        with (
            closing(SpillingBlocks(MESSAGE_FIELDS)) as messages,
            closing(SpillingBlocks(LOG_FIELDS)) as offsets,
        ):
            writers = list(self._observed(units, share, messages, offsets))
            reports = pa.Table.from_batches(self.census.reported(messages.whole(absorb)), REPORT)
            messages.clear()
            known = known_of(map(table_of, exchange(_bytes(_exchanged(reports)))))
            job = LogJob(known, self.rows)
            queues = job.judge_later(offsets, writers)
            if queues is None:
                offsets.clear()
                queues = job.judge([unit for unit in units if unit[0] == "ops"], share)
            tables = reports, pa.Table.from_batches(queues, QUEUES)
        yield pa.record_batch([[_bytes(table)] for table in tables], schema=ANSWER)

    def _observed(
        self, units: list[Unit], share: Share, messages: SpillingBlocks, offsets: SpillingBlocks
    ) -> Iterator[LogBounds]:
        """Add all rows, and yield the bounds of each writer."""
        for unit in units:
            bounds = LogBounds(NOTHING, offsets, share)
            columns = log_sweep.READ_COLUMNS
            for rows in self.census.messages.observed(messages, unit, share, columns):
                messages.spill()
                if unit[0] == "ops":
                    bounds.observe(rows)
                    offsets.spill()
            yield bounds


def _exchanged(reports: pa.Table) -> pa.Table:
    """Return what other tasks need to know of a task's messages."""
    late = pc.fill_null(pc.list_value_length(reports.column("late_values")), 0)
    needed = pc.or_(pc.is_valid(reports.column("gone_bits")), pc.greater(late, 0))
    return reports.select(EXCHANGED).filter(needed)


def known_of(reports: Iterable[pa.Table]) -> LogContext:
    """Return what the reports of all tasks say is gone, and late."""
    known = pa.concat_tables(reports).sort_by("block")
    numbers, gone = (known.column(name).to_pylist() for name in EXCHANGED[:2])
    values, places = (known.column(n).combine_chunks().flatten().to_numpy() for n in EXCHANGED[2:])
    return LogContext(Members.of_blocks(zip(numbers, gone, strict=True)), (values, places))


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_of(data: bytes) -> pa.Table:
    """Return a table that a task sent."""
    return pa.ipc.open_stream(data).read_all()
