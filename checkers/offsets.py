"""Offsets of a queue are assigned once each, without gaps, and never change, over failovers too.

An offset holds one message forever (`OFFSET_CONFLICT`), according to clients and to each replica's
own log. A message acknowledged at the first attempt is where the acknowledgement said
(`OFFSET_MOVED`). In no replica's log is an offset missing between the first and the last one of a
queue (`OFFSET_GAP`). The epoch and the store time of the message at an offset are the same in every
answer (`RECORD_CHANGED`). Offsets that only the final reader did not receive are counted as holes.

A new master has to number messages from the end of its whole log, seen by consumers or not, before
it takes the first one; RocketMQ got that wrong three times (apache/rocketmq#6344, #6609, #7689).
Messages that are lost or vanished are left out of what clients say: what happened to their offsets
is an echo of the loss. An imported history has no final reader: there a message at whose offset
another was seen is not lost, but one of two at that offset.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from checkers._messages.excused_rows import conflict_spans
from checkers._messages.log_sweep import QueueLog
from checkers._messages.message_census import message_census
from checkers._messages.messages import MessageCensus, MessageClass
from checkers._messages.queue_log import queue_log
from checkers._messages.replica_logs import ReplicaLogs, replica_logs
from checkers._messages.witness import (
    OpRow,
    contradiction,
    group_by,
    is_certain,
    op_rows,
    place_changes,
    witness,
)
from checkers._run.evidence import MAX_DATED, SAMPLE, name_of, span_fields
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Result
from harness.operation import F
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND, INTEGRITY = "order-per-queue", "integrity"
MAX_GAPS = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    census, log = message_census(history, spark), queue_log(history, spark)
    replicas = replica_logs(history, spark)
    times = OffsetTimes.of_run(history, trial, census, log, replicas, spark)
    gaps = list(_gaps(history, replicas, times)) if history.complete else []
    findings = [
        *_conflicts(log, replicas, census, times),
        *_restamped(log, times),
        *_moved(history, census, times, spark),
        *(gaps or _holes(log)),
    ]
    stats: dict[str, Any] = {"entries": log.counts.length, "holes": log.counts.holes}
    return Result("offsets", tuple(findings), stats=stats)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {"OFFSET_CONFLICT", "OFFSET_GAP", "OFFSET_HOLE", "OFFSET_MOVED", "RECORD_CHANGED"}
    ),
    decides=frozenset(),
)


@dataclass(frozen=True)
class OffsetTimes:
    """The answers to clients about some offsets and messages. Without a fault that may excuse
    something, only that of conflicts that are shown.

    at         by key and offset
    of         by value
    conflicts  key and offset -> when clients learned of the first message, and of another
    end        when the replicas' logs were read
    """

    at: Mapping[tuple[int, int], Sequence[OpRow]]
    of: Mapping[int, Sequence[OpRow]]
    conflicts: Mapping[tuple[int, int], tuple[int, int]]
    end: int
    excusable: bool

    @classmethod
    def of_run(
        cls,
        history: History,
        trial: Trial,
        census: MessageCensus,
        log: QueueLog,
        replicas: ReplicaLogs,
        spark: "SparkSession | None",
    ) -> "OffsetTimes":
        excusable = bool(unclaimed_faults(history, trial))
        places = [*log.conflicts[:SAMPLE], *(log.restamped if excusable else ())]
        places += [(row.key, row.offset) for row in replicas.doubled_rows] if excusable else []
        values = census.dated[MessageClass.MOVED] if excusable else ()
        rows = _rows_about(history, census, spark, values, places)
        certain = [row for row in rows if is_certain(row, frozenset(census.late[0].tolist()))]
        end = max(history.phases.values(), default=0)
        return cls(
            group_by(certain, lambda row: row.place),
            group_by(certain, lambda row: row.value),
            conflict_spans(history, trial, census, spark),
            end,
            excusable,
        )

    def span_fields(
        self,
        names: Mapping[str, Any],
        spans: Iterable[tuple[Iterable[int], tuple[int, int] | None]],
    ) -> dict[str, Any]:
        """Return a finding's times, with the rows' keys, where a fault may excuse them."""
        return span_fields(names, spans) if self.excusable else {}


def _rows_about(
    history: History,
    census: MessageCensus,
    spark: "SparkSession | None",
    values: Sequence[int],
    places: Sequence[tuple[int, int]],
) -> list[OpRow]:
    """Return the rows about messages and places: witnesses read those of shown conflicts."""
    if places and not values:
        known = witness(history, census, spark).placed
        if known.keys() >= set(places):
            return sorted(row for at in set(places) for row in known[at])
    return op_rows(history, spark, values, places)


def _unseen_first(values: Collection[int], census: MessageCensus) -> tuple[int, ...]:
    """Return messages at one offset; first those that were acknowledged there and never seen."""
    known = sorted(values)
    unseen = census.scope.displaced.holds(np.array(known, np.int64))
    return tuple(v for _, v in sorted(zip(~unseen, known, strict=True)))


def _conflicts(
    log: QueueLog, replicas: ReplicaLogs, census: MessageCensus, times: OffsetTimes
) -> Iterator[Finding]:
    """Yield a finding of answers to clients and of a log: both show one error."""
    reported, stored = log.counts.conflicts, replicas.doubled
    count = max(reported, stored)
    if not count:
        return
    what = quantity(count, "offset held", "offsets held")
    by = {"in clients' answers": reported, "in a replica's own log": stored}
    where = " and ".join(f"{n:,} {words}" for words, n in by.items() if n)
    stored_at = [(row.key, row.offset) for row in replicas.doubled_rows]
    rows = (log.conflicts or stored_at)[:SAMPLE]
    values = {at: {row.value for row in times.at.get(at, ())} for at in rows}
    by_place = times.conflicts
    if stored > reported:  # from the first message to the reading of the logs
        by_place = {at: (times.at[at][0].t, times.end) for at in stored_at if at in times.at}
    yield Finding(
        "OFFSET_CONFLICT",
        count,
        f"{what} two different messages ({where})",
        DEMAND,
        tuple(
            {"queue": log.queue(at[0]), "offset": at[1]}
            | dict(zip(("value", "other_value"), _unseen_first(values[at], census), strict=False))
            for at in rows
        ),
        **times.span_fields(log.names, (((key,), span) for (key, _), span in by_place.items())),
    )


def _restamped(log: QueueLog, times: OffsetTimes) -> Iterator[Finding]:
    count = log.counts.restamped
    if count:
        what = quantity(count, "message has", "messages have")
        message = f"{what} one epoch or store time for some clients and another for others"
        rows = tuple({"queue": log.queue(key), "offset": at} for key, at in log.restamped[:SAMPLE])
        spans = [((at[0],), _changed(times.at.get(at, ()))) for at in log.restamped]
        known = times.span_fields(log.names, spans)
        yield Finding("RECORD_CHANGED", count, message, INTEGRITY, rows, **known)


def _changed(rows: Sequence[OpRow]) -> tuple[int, int] | None:
    """Return when a message first had one epoch or store time, and when another."""
    reads = [row for row in rows if row.f != F.SEND]  # only answers to readers have a store time
    spans = (
        contradiction(rows, lambda row: _known(row.epoch)),
        contradiction(reads, lambda row: _known(row.arg)),
    )
    return min((span for span in spans if span), key=lambda span: span[1], default=None)


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _moved(
    history: History, census: MessageCensus, times: OffsetTimes, spark: "SparkSession | None"
) -> Iterator[Finding]:
    count = census.counts[MessageClass.MOVED]
    if count:
        evidence = witness(history, census, spark)
        rows = evidence.shown[MessageClass.MOVED]
        what = quantity(count, "message was", "messages were")
        message = f"{what} acknowledged at one offset and found at another"
        spans = place_changes(times.of, census.dated[MessageClass.MOVED])
        known = times.span_fields(history.names, spans)
        yield Finding("OFFSET_MOVED", count, message, DEMAND, rows, **known)


def _gaps(history: History, replicas: ReplicaLogs, times: OffsetTimes) -> Iterator[Finding]:
    """Yield a finding of the worst replica of each queue: a gap that all replicas have is one."""
    worst: dict[int, tuple[int, int]] = {}
    for gap in replicas.gaps:
        worst[gap.key] = max(worst.get(gap.key, (0, -1)), (gap.missing, gap.node))
    if not worst:
        return
    count = sum(missing for missing, _ in worst.values())
    what = quantity(count, "offset is", "offsets are")
    rows = tuple(
        {
            "queue": name_of(history.names, "keys", key),
            "missing": missing,
            "node": name_of(history.names, "nodes", node),
        }
        for key, (missing, node) in sorted(worst.items())[:MAX_GAPS]
    )
    message = f"{what} missing within a replica's log at the end"
    each = chain.from_iterable(repeat((key,), missing) for key, (missing, _) in worst.items())
    spans = [(keys_of, (times.end, times.end)) for keys_of in islice(each, MAX_DATED)]
    known = times.span_fields(history.names, spans)
    yield Finding("OFFSET_GAP", count, message, DEMAND, rows, **known)


def _holes(log: QueueLog) -> Iterator[Finding]:
    count = log.counts.holes
    if count:
        what = quantity(count, "offset")
        yield Finding(
            "OFFSET_HOLE", count, f"the final reader received nothing at {what} between others", ""
        )
