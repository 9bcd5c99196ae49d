"""Each queue is a linearizable append-only log: all appends and reads fit one order that respects
real time. An entry can not have been read, or acknowledged, before one at a lower or equal offset
was even invoked (`NOT_LINEARIZABLE`); each witness is the two entries that contradict each other.

Sends of unknown outcome take part as soon as anybody saw them. That a consumer saw *no* entry is
never held against a log: consumers are only shown what is confirmed. Registers and other objects
are judged by `registers` and `objects`.
"""

from typing import TYPE_CHECKING

from checkers._messages.message_census import SAMPLE, survey
from checkers._messages.queue_log import compared, logbook
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.run.broker_sets import sets_of
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    book = logbook(history, spark)
    count = book.count("impossible")
    stats = {"entries": book.count("length")}
    decided = {"order-per-queue": compared(history, book)}
    if not count:
        reasons = _nothing(history, spark)
        return Result("linearizable", reasons=reasons, stats=stats, decided=decided)
    what = "1 entry was" if count == 1 else f"{count:,} entries were"
    finding = Finding(
        "NOT_LINEARIZABLE",
        count,
        f"{what} acknowledged or read before an entry at the same or a lower offset was invoked, "
        "so no order of the log explains the history",
        "order-per-queue",
        tuple(book.told(key, inversion) for key, inversion in book.contradictions[:SAMPLE]),
        spans=tuple((one.until, one.since) for _, one in book.contradictions),
        broker_sets=sets_of(book.names, [key for key, _ in book.contradictions]),
    )
    return Result("linearizable", (finding,), stats=stats, decided=decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"NOT_LINEARIZABLE"}),
    decides=frozenset({"order-per-queue"}),
    reasons=frozenset({"NO_MESSAGES"}),
)


def _nothing(history: History, spark: "SparkSession | None") -> tuple[Reason, ...]:
    """A history without a single message proves nothing about logs."""
    found = survey(history, spark)
    if any(found.count(name) for name in ("invoked", "read", "polled")):
        return ()
    why = "nothing was sent or read, so no log is proven; see which checkers are for such histories"
    return (Reason("NO_MESSAGES", why),)
