"""No message is stored twice, except by a retry. A send of several attempts, or of unknown outcome,
may leave two copies, and at-least-once delivery permits that: `DUPLICATED_BY_RETRY` only informs. A
message that is stored twice although its only attempt was acknowledged has no such cause:
`DUPLICATED`.

A message is stored twice if the final reader found it at two places, in one queue or, where the
client selects the queue of each attempt, in two. How often clients took another queue than the next
one is counted. Repeated delivery to one group is normal after a failover, and only counted:
messages, not deliveries.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkers._messages.message_census import message_census
from checkers._messages.messages import MessageCensus, MessageClass
from checkers._messages.witness import group_by, is_certain, op_rows, place_changes, witness
from checkers._run.evidence import span_fields
from harness.contracts import CheckerPlugin
from harness.history.notes import SELECTIONS
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Result
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class DuplicateKind:
    """A class of messages that are stored twice, and its finding."""

    messages: MessageClass
    code: str
    meaning: str
    demand: str


KINDS = (
    DuplicateKind(
        MessageClass.DOUBLED, "DUPLICATED", "stored twice although sent once", "at-least-once"
    ),
    DuplicateKind(
        MessageClass.RETRIED, "DUPLICATED_BY_RETRY", "stored twice by a retry of the client", ""
    ),
)


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    census = message_census(history, spark)
    findings: list[Finding] = []
    for kind in KINDS:
        count = census.counts[kind.messages]
        if not count:
            continue
        evidence = witness(history, census, spark)
        dated = kind.demand and unclaimed_faults(history, trial)
        times = _times(history, census, kind, spark) if dated else {}
        what = quantity(count, "message was", "messages were")
        rows = evidence.shown[kind.messages]
        message = f"{what} {kind.meaning}"
        findings.append(Finding(kind.code, count, message, kind.demand, rows, **times))
    stats = {
        "stored_twice": sum(census.counts[kind.messages] for kind in KINDS),
        "given_twice": census.counts[MessageClass.GIVEN_TWICE],
        **_selections(history),
    }
    return Result("duplicates", tuple(findings), stats=stats)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"DUPLICATED", "DUPLICATED_BY_RETRY"}),
    decides=frozenset(),
    needs_clocks=False,
)


def _selections(history: History) -> Counter[str]:
    """Add up the counts of the clients that select queues."""
    counts: Counter[str] = Counter()
    for note in history.notes[SELECTIONS]:
        counts.update(json.loads(note.text.partition(" ")[2]))
    return counts


def _times(
    history: History, census: MessageCensus, kind: DuplicateKind, spark: "SparkSession | None"
) -> dict[str, Any]:
    """Return when each message was first known to be at one place, and when at another."""
    values = census.dated[kind.messages]
    of = group_by(filter(is_certain, op_rows(history, spark, values)), lambda row: row.value)
    return span_fields(history.names, place_changes(of, values))
