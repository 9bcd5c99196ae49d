"""Offsets of a queue are given out once each, without gaps, and stay what they are, over failovers
too.

An offset holds one message for ever (`OFFSET_CONFLICT`), whether clients say otherwise, or a
replica's own log does. A message acknowledged at the first attempt is where the acknowledgement
said (`OFFSET_MOVED`). In no replica's log is an offset missing between the first and the last one
of a queue (`OFFSET_GAP`). The epoch and the store time of the message at an offset are the same in
every answer (`RECORD_CHANGED`). Offsets that only the fresh reader was not given are counted as
holes.

A new master has to number messages from the end of its whole log, seen by consumers or not, before
it takes the first one; the original got that wrong three times (apache/rocketmq#6344, #6609,
#7689). Messages that are lost or vanished are left out of what clients say: what became of their
offsets is an echo of the loss. An imported history has no fresh reader: there a message at whose
offset another was seen is not lost, but one of two at that offset.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from checkers._messages.excused_rows import conflict_spans
from checkers._messages.message_census import MOST_DATED, SAMPLE, Survey, survey
from checkers._messages.queue_log import Logbook, logbook
from checkers._messages.replica_logs import Copies, copies
from checkers._messages.witness import OpRow, dated, grouped, is_told, rows_of, turn, witness
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Result
from harness.operation import F
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND, INTEGRITY = "order-per-queue", "integrity"
MOST_GAPS = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found, book, held = survey(history, spark), logbook(history, spark), copies(history, spark)
    times = OffsetTimes.of_run(history, trial, found, book, held, spark)
    gaps = list(_gaps(history, held, times)) if history.complete else []
    findings = [
        *_conflicts(book, held, found, times),
        *_restamped(book, times),
        *_moved(history, found, times, spark),
        *(gaps or _holes(book)),
    ]
    stats: dict[str, Any] = {"entries": book.count("length"), "holes": book.count("holes")}
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
    """What clients were told at the offsets that are wrong, and of the messages that moved: only of
    those that are shown, unless a fault may excuse them."""

    at: Mapping[tuple[int, int], Sequence[OpRow]]
    of: Mapping[int, Sequence[OpRow]]
    conflicts: Mapping[tuple[int, int], tuple[int, int]]
    end: int  # when the replicas' logs were read
    excusable: bool

    @classmethod
    def of_run(
        cls, history: History, trial: Trial, found: Survey, book: Logbook, held: Copies, spark: Any
    ) -> "OffsetTimes":
        excusable = bool(unclaimed_faults(history, trial))
        places = [*book.conflicts[:SAMPLE], *(book.restamped if excusable else ())]
        places += [row[:2] for row in held.doubled_rows] if excusable else []
        values = found.offenders.get("moved", ()) if excusable else ()
        rows = rows_of(history, spark, values, places)
        told = [row for row in rows if is_told(row, frozenset(found.late[0].tolist()))]
        end = max(history.phases().values(), default=0)
        return cls(
            grouped(told, lambda row: row.place),
            grouped(told, lambda row: row.value),
            conflict_spans(history, trial, found, spark),
            end,
            excusable,
        )

    def known(
        self,
        names: Mapping[str, Any],
        found: Iterable[tuple[Iterable[int], tuple[int, int] | None]],
    ) -> dict[str, Any]:
        """Return the times that are known, with the rows' keys, where a fault may excuse them."""
        return dated(names, found) if self.excusable else {}


def _unseen_first(values: Collection[int], found: Survey) -> tuple[int, ...]:
    """Of messages at one offset, those that were acknowledged there and seen by nobody first."""
    known = sorted(values)
    unseen = found.scope.displaced.holds(np.array(known, np.int64))
    return tuple(v for _, v in sorted(zip(~unseen, known, strict=True)))


def _conflicts(book: Logbook, held: Copies, found: Survey, times: OffsetTimes) -> Iterator[Finding]:
    """What clients were told and what a log holds are two looks at the same mistake."""
    told, stored = book.count("conflicts"), held.doubled
    count = max(told, stored)
    if not count:
        return
    what = "1 offset held" if count == 1 else f"{count:,} offsets held"
    by = {"in clients' answers": told, "in a replica's own log": stored}
    where = " and ".join(f"{n:,} {words}" for words, n in by.items() if n)
    stored_at = [row[:2] for row in held.doubled_rows]
    rows = (book.conflicts or stored_at)[:SAMPLE]
    values = {where: {row.value for row in times.at.get(where, ())} for where in rows}
    by_place = times.conflicts
    if stored > told:  # from the first message to the look at the logs
        by_place = {at: (times.at[at][0].t, times.end) for at in stored_at if at in times.at}
    yield Finding(
        "OFFSET_CONFLICT",
        count,
        f"{what} two different messages ({where})",
        DEMAND,
        tuple(
            {"queue": book.queue(key), "offset": at}
            | dict(
                zip(("value", "other_value"), _unseen_first(values[key, at], found), strict=False)
            )
            for key, at in rows
        ),
        **times.known(book.names, (((key,), span) for (key, _), span in by_place.items())),
    )


def _restamped(book: Logbook, times: OffsetTimes) -> Iterator[Finding]:
    count = book.count("restamped")
    if count:
        what = "1 message has" if count == 1 else f"{count:,} messages have"
        message = f"{what} one epoch or store time for some clients and another for others"
        rows = tuple(
            {"queue": book.queue(key), "offset": at} for key, at in book.restamped[:SAMPLE]
        )
        spans = [((at[0],), _changed(times.at.get(at, ()))) for at in book.restamped]
        known = times.known(book.names, spans)
        yield Finding("RECORD_CHANGED", count, message, INTEGRITY, rows, **known)


def _changed(rows: Sequence[OpRow]) -> tuple[int, int] | None:
    """Return when a message first had one epoch or store time, and when another."""
    stored = [row for row in rows if row.f != F.SEND]  # only readers are told the store time
    turns = (turn(rows, lambda row: _known(row.epoch)), turn(stored, lambda row: _known(row.arg)))
    return min((span for span in turns if span), key=lambda span: span[1], default=None)


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _moved(
    history: History, found: Survey, times: OffsetTimes, spark: "SparkSession | None"
) -> Iterator[Finding]:
    count = found.count("moved")
    if count:
        evidence = witness(history, found, spark)
        rows = tuple(evidence.told(value) for value in found.samples["moved"])
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        message = f"{what} acknowledged at one offset and found at another"
        told = [times.of.get(value, ()) for value in found.offenders.get("moved", ())]
        spans = [({row.key for row in some}, turn(some, lambda row: row.place)) for some in told]
        known = times.known(history.names, spans)
        yield Finding("OFFSET_MOVED", count, message, DEMAND, rows, **known)


def _gaps(history: History, held: Copies, times: OffsetTimes) -> Iterator[Finding]:
    """A gap that all replicas have is one; so of each queue the worst replica is counted."""
    worst: dict[int, tuple[int, int]] = {}
    for key, node, missing in held.missing:
        worst[key] = max(worst.get(key, (0, -1)), (missing, node))
    if not worst:
        return
    count = sum(missing for missing, _ in worst.values())
    what = "1 offset is" if count == 1 else f"{count:,} offsets are"
    keys, nodes = history.names.get("keys", ()), history.names.get("nodes", ())
    rows = tuple(
        {
            "queue": keys[key] if key < len(keys) else "?",
            "missing": missing,
            "node": nodes[node] if node < len(nodes) else "?",
        }
        for key, (missing, node) in sorted(worst.items())[:MOST_GAPS]
    )
    message = f"{what} missing within a replica's log at the end"
    each = chain.from_iterable(repeat((key,), missing) for key, (missing, _) in worst.items())
    spans = [(keys_of, (times.end, times.end)) for keys_of in islice(each, MOST_DATED)]
    known = times.known(history.names, spans)
    yield Finding("OFFSET_GAP", count, message, DEMAND, rows, **known)


def _holes(book: Logbook) -> Iterator[Finding]:
    count = book.count("holes")
    if count:
        what = "1 offset" if count == 1 else f"{count:,} offsets"
        yield Finding(
            "OFFSET_HOLE", count, f"the final reader received nothing at {what} between others", ""
        )
