"""No message is stored twice, except by a retry. A send of several attempts, or of unknown
outcome, may leave two copies, and at-least-once delivery permits that: `DUPLICATED_BY_RETRY` only
informs. A message stored twice whose one attempt was acknowledged has no such excuse: `DUPLICATED`.

Stored twice means that the fresh reader found it at two places, in one queue or, where the client
selects the queue of each attempt, in two. How often clients took another queue than the next one is
counted. Being delivered to one group more often than once is normal after a failover, and only
counted: messages, not deliveries.
"""

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from checkers._messages.message_census import Survey, survey
from checkers._messages.witness import Witness, dated, grouped, is_told, rows_of, turn, witness
from harness.contracts import CheckerPlugin
from harness.history.notes import SELECTIONS
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Result
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = {
    "doubled": ("DUPLICATED", "stored twice although sent once", "at-least-once"),
    "retried": ("DUPLICATED_BY_RETRY", "stored twice by a retry of the client", ""),
}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found = survey(history, spark)
    wrong = [name for name in KINDS if found.count(name)]
    findings: tuple[Finding, ...] = ()
    if wrong:
        evidence = witness(history, found, spark)
        times = _dated(history, found, spark) if unclaimed_faults(history, trial) else {}
        findings = tuple(_finding(name, found, evidence, times) for name in wrong)
    stats = {
        "stored_twice": sum(found.count(name) for name in KINDS),
        "given_twice": found.count("given_twice"),
        **_selections(history),
    }
    return Result("duplicates", findings, stats=stats)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"DUPLICATED", "DUPLICATED_BY_RETRY"}),
    decides=frozenset(),
    needs_clocks=False,
)


def _selections(history: History) -> Counter[str]:
    """Add up what the clients that select queues counted."""
    counts: Counter[str] = Counter()
    for note in history.notes(SELECTIONS):
        counts.update(json.loads(note.text.partition(" ")[2]))
    return counts


def _dated(history: History, found: Survey, spark: "SparkSession | None") -> dict[str, Any]:
    """Return when each message was first known to be at one place, and when at another."""
    values = found.offenders.get("doubled", ())
    of = grouped(filter(is_told, rows_of(history, spark, values)), lambda row: row.value)
    rows = [of.get(value, ()) for value in values]
    turns = [turn(some, lambda row: row.place) for some in rows]
    keys = [{row.key for row in some} for some in rows]
    return dated(history.names, zip(keys, turns, strict=True))


def _finding(name: str, found: Survey, evidence: Witness, times: dict[str, Any]) -> Finding:
    code, meaning, demand = KINDS[name]
    count = found.count(name)
    what = "1 message was" if count == 1 else f"{count:,} messages were"
    rows = tuple(evidence.told(value) for value in found.samples[name])
    return Finding(code, count, f"{what} {meaning}", demand, rows, **(times if demand else {}))
