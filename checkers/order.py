"""Each queue keeps its order. Real time decides: when one send was acknowledged before another to
the same queue was even invoked, the other has the higher offset (`REORDERED`); sends that
overlapped may land either way, so pipelining convicts nobody. One poll returns rising offsets
(`NONMONOTONIC_POLL`). What stands at an offset is a matter of `offsets`.

In an imported history each process is followed through the queues that it reads and sends to. An
answer leaves out nothing that others were given (`POLL_SKIPPED`), and the next answer goes on where
the one before it ended (`CONSUMER_WENT_BACK`, `CONSUMER_SKIPPED`); but a consumer that shares its
queues with a group may begin anywhere (`CONSUMER_MOVED`). What one transaction sends to a queue
stands there in the order of its sending (`NONMONOTONIC_SEND`).

Messages that are lost or vanished are left out, so a loss and its echoes are one finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkers._messages.message_census import SAMPLE
from checkers._messages.queue_log import Logbook, Odd, compared, logbook
from checkers._messages.witness import seconds
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Result
from harness.run.broker_sets import sets_of
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND, DELIVERY = "order-per-queue", "at-least-once"


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    book = logbook(history, spark)
    findings = (*_reordered(book), *_backwards(book), *_steps(book))
    stats = {"entries": book.count("length")}
    if book.count("echoes"):
        stats["steps_over_what_is_lost"] = book.count("echoes")
    return Result("order", findings, stats=stats, decided={DEMAND: compared(history, book)})


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {
            "CONSUMER_MOVED",
            "CONSUMER_SKIPPED",
            "CONSUMER_WENT_BACK",
            "NONMONOTONIC_POLL",
            "NONMONOTONIC_SEND",
            "POLL_SKIPPED",
            "REORDERED",
        }
    ),
    decides=frozenset({"order-per-queue"}),
)


@dataclass(frozen=True)
class Wrong:
    """A kind of wrong steps: as the logbook calls them, and as a finding does."""

    names: tuple[str, ...]
    code: str
    demand: str
    words: str


STEPS = (
    Wrong(
        ("skipped",),
        "POLL_SKIPPED",
        DELIVERY,
        "a poll omitted messages that other consumers received",
    ),
    Wrong(
        ("went_back",),
        "CONSUMER_WENT_BACK",
        DEMAND,
        "a consumer received messages again, or earlier ones",
    ),
    Wrong(
        ("went_over",),
        "CONSUMER_SKIPPED",
        DELIVERY,
        "a consumer skipped messages that other consumers received",
    ),
    Wrong(
        ("moved",),
        "CONSUMER_MOVED",
        "",
        "a consumer of a group did not continue where it had stopped",
    ),
    Wrong(
        ("sent_back",),
        "NONMONOTONIC_SEND",
        DEMAND,
        "a later message of a transaction is stored before an earlier one of the same queue",
    ),
)


def _steps(book: Logbook) -> Iterator[Finding]:
    for wrong in STEPS:
        count = sum(book.count(name) for name in wrong.names)
        if count:
            odd = [odd for name in wrong.names for odd in book.odd[name]]
            rows = tuple(_told(book, one) for one in odd[:SAMPLE])
            message = f"{wrong.words}, {_times(count)}"
            spans = tuple((one.t, one.t) for one in odd)
            yield Finding(wrong.code, count, message, wrong.demand, rows, spans=spans)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _told(book: Logbook, odd: Odd) -> dict[str, Any]:
    row = {"queue": book.queue(odd.key), "offset": odd.offset, "after": odd.before, "op": odd.op}
    row |= {"process": odd.process, "seen_s": seconds(odd.t)}
    return row | ({"skipped": odd.skipped} if odd.skipped else {})


def _reordered(book: Logbook) -> Iterator[Finding]:
    count = book.count("reordered")
    own = book.count("sent_before")
    if count or own:
        count = max(count, own)
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        by_one = f" (within one process {_times(own)})" if own else ""
        yield Finding(
            "REORDERED",
            count,
            f"{what} acknowledged before another message to the same queue was sent, and the "
            f"other has the lower offset{by_one}",
            DEMAND,
            tuple(book.told(key, inversion) for key, inversion in book.reorderings[:SAMPLE])
            or tuple(_told(book, odd) for odd in book.odd["sent_before"][:SAMPLE]),
            spans=tuple((one.until, one.since) for _, one in book.reorderings)
            or tuple((odd.t, odd.t) for odd in book.odd["sent_before"]),
            broker_sets=sets_of(book.names, [key for key, _ in book.reorderings]),
        )


def _backwards(book: Logbook) -> Iterator[Finding]:
    count = book.count("backwards")
    if count:
        rows = tuple(
            {"queue": book.queue(b.key), "offset": b.offset, "after": b.before, "op": b.op}
            | {"process": b.process, "seen_s": seconds(b.t)}
            for b in book.backwards[:SAMPLE]
        )
        message = f"offsets went back within one poll, {_times(count)}"
        spans = tuple((b.t, b.t) for b in book.backwards)
        groups = sets_of(book.names, [b.key for b in book.backwards])
        yield Finding(
            "NONMONOTONIC_POLL", count, message, DEMAND, rows, spans=spans, broker_sets=groups
        )
