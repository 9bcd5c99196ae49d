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

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from checkers._copies import Copies, copies
from checkers._logbook import Logbook, logbook
from checkers._survey import Survey, survey
from checkers._witness import values_at, witness
from harness.contracts import CheckerPlugin
from harness.history import History
from harness.trial import Trial
from harness.verdict import Finding, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND, INTEGRITY = "order-per-queue", "integrity"
MOST_GAPS = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found, book, held = survey(history, spark), logbook(history, spark), copies(history, spark)
    gaps = list(_gaps(history, held)) if history.complete else []
    values = values_at(history, spark, book.conflicts, found.late[0]) if book.conflicts else {}
    values = {where: _unseen_first(some, found) for where, some in values.items()}
    findings = [
        *_conflicts(book, held, values),
        *_restamped(book),
        *_moved(history, found, spark),
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


def _unseen_first(values: tuple[int, ...], found: Survey) -> tuple[int, ...]:
    """Of messages at one offset, those that were acknowledged there and seen by nobody first."""
    unseen = found.scope.displaced.holds(np.array(values, np.int64))
    return tuple(v for _, v in sorted(zip(~unseen, values, strict=True)))


def _conflicts(
    book: Logbook, held: Copies, values: Mapping[tuple[int, int], tuple[int, ...]]
) -> Iterator[Finding]:
    """What clients were told and what a log holds are two looks at the same mistake."""
    told, stored = book.count("conflicts"), held.doubled
    count = max(told, stored)
    if not count:
        return
    what = "1 offset held" if count == 1 else f"{count:,} offsets held"
    by = {"in clients' answers": told, "in a replica's own log": stored}
    where = " and ".join(f"{n:,} {words}" for words, n in by.items() if n)
    rows = [(key, at) for key, at in book.conflicts] or [row[:2] for row in held.doubled_rows]
    yield Finding(
        "OFFSET_CONFLICT",
        count,
        f"{what} two different messages ({where})",
        DEMAND,
        tuple(
            {"queue": book.queue(key), "offset": at}
            | dict(zip(("value", "other_value"), values.get((key, at), ()), strict=False))
            for key, at in rows
        ),
    )


def _restamped(book: Logbook) -> Iterator[Finding]:
    count = book.count("restamped")
    if count:
        what = "1 message has" if count == 1 else f"{count:,} messages have"
        message = f"{what} one epoch or store time for some clients and another for others"
        rows = tuple({"queue": book.queue(key), "offset": at} for key, at in book.restamped)
        yield Finding("RECORD_CHANGED", count, message, INTEGRITY, rows)


def _moved(history: History, found: Survey, spark: "SparkSession | None") -> Iterator[Finding]:
    count = found.count("moved")
    if count:
        evidence = witness(history, found, spark)
        rows = tuple(evidence.told(value) for value in found.samples["moved"])
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        message = f"{what} acknowledged at one offset and found at another"
        yield Finding("OFFSET_MOVED", count, message, DEMAND, rows)


def _gaps(history: History, held: Copies) -> Iterator[Finding]:
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
    yield Finding("OFFSET_GAP", count, message, DEMAND, rows)


def _holes(book: Logbook) -> Iterator[Finding]:
    count = book.count("holes")
    if count:
        what = "1 offset" if count == 1 else f"{count:,} offsets"
        yield Finding(
            "OFFSET_HOLE", count, f"the final reader received nothing at {what} between others", ""
        )
