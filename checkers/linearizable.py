"""Each queue is a linearizable append-only log: all appends and reads fit one order that respects
real time. An entry cannot have been read, or acknowledged, before one at a lower or equal offset
was invoked (`NOT_LINEARIZABLE`); each witness is the two entries that contradict each other.

Sends of unknown outcome count as soon as a client saw them. An answer *without* entries is no
violation: consumers only receive what is confirmed. Registers and other objects are judged by
`registers` and `objects`.
"""

from typing import TYPE_CHECKING

from checkers._messages.message_census import message_census
from checkers._messages.messages import MessageClass
from checkers._messages.queue_log import compared_pairs, queue_log
from checkers._run.evidence import SAMPLE
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.run.broker_sets import set_name_by_key
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN = (MessageClass.INVOKED, MessageClass.READ, MessageClass.POLLED)


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    log = queue_log(history, spark)
    count = log.counts.impossible
    stats = {"entries": log.counts.length}
    decided = {"order-per-queue": compared_pairs(history, log)}
    if not count:
        reasons = _no_messages(history, spark)
        return Result("linearizable", reasons=reasons, stats=stats, decided=decided)
    what = quantity(count, "entry was", "entries were")
    finding = Finding(
        "NOT_LINEARIZABLE",
        count,
        f"{what} acknowledged or read before an entry at the same or a lower offset was invoked, "
        "so no order of the log explains the history",
        "order-per-queue",
        tuple(log.inversion_row(inversion) for inversion in log.contradictions[:SAMPLE]),
        spans=tuple((one.until, one.since) for one in log.contradictions),
        broker_sets=set_name_by_key(log.names, [one.key for one in log.contradictions]),
    )
    return Result("linearizable", (finding,), stats=stats, decided=decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"NOT_LINEARIZABLE"}),
    decides=frozenset({"order-per-queue"}),
    reasons=frozenset({"NO_MESSAGES"}),
)


def _no_messages(history: History, spark: "SparkSession | None") -> tuple[Reason, ...]:
    """Return a reason if the history has no messages, so that it proves nothing about logs."""
    census = message_census(history, spark)
    if any(census.counts[name] for name in SEEN):
        return ()
    why = "nothing was sent or read, so no log is proven; see which checkers are for such histories"
    return (Reason("NO_MESSAGES", why),)
