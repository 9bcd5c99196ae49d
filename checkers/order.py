"""Each queue keeps its order. Real time decides: when one send was acknowledged before another to
the same queue was even invoked, the other has the higher offset (`REORDERED`); sends that
overlapped may land either way, so pipelining convicts nobody.

An offset holds one message for ever (`OFFSET_CONFLICT`), a message acknowledged at the first
attempt is where the acknowledgement said (`OFFSET_MOVED`), and one poll returns rising offsets
(`NONMONOTONIC_POLL`). Offsets that the fresh reader was not given are counted as holes. Messages
that are lost or vanished are left out, so a loss and its echoes are one finding.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from checkers._logbook import Logbook, logbook
from checkers._survey import Survey, survey
from checkers._witness import seconds, witness
from harness.history import History
from harness.trial import Trial
from harness.verdict import Finding, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND = "order-per-queue"


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found, book = survey(history, spark), logbook(history, spark)
    findings = [*_reordered(book), *_conflicts(book), *_moved(history, found, spark)]
    findings += [*_backwards(book), *_holes(book)]
    stats: dict[str, Any] = {"entries": book.count("length"), "holes": book.count("holes")}
    return Result("order", tuple(findings), stats=stats)


def _reordered(book: Logbook) -> Iterator[Finding]:
    count = book.count("reordered")
    if count:
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        yield Finding(
            "REORDERED",
            count,
            f"{what} acknowledged before another to the same queue was even sent, and yet the "
            "other has the lower offset",
            DEMAND,
            tuple(book.told(key, inversion) for key, inversion in book.reorderings),
        )


def _conflicts(book: Logbook) -> Iterator[Finding]:
    count = book.count("conflicts")
    if count:
        what = "1 offset held" if count == 1 else f"{count:,} offsets held"
        rows = tuple({"queue": book.queue(key), "offset": at} for key, at in book.conflicts)
        yield Finding("OFFSET_CONFLICT", count, f"{what} two different messages", DEMAND, rows)


def _moved(history: History, found: Survey, spark: "SparkSession | None") -> Iterator[Finding]:
    count = found.count("moved")
    if count:
        evidence = witness(history, found, spark)
        rows = tuple(evidence.told(value) for value in found.samples["moved"])
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        message = f"{what} acknowledged at one offset at the first attempt, and found at another"
        yield Finding("OFFSET_MOVED", count, message, DEMAND, rows)


def _backwards(book: Logbook) -> Iterator[Finding]:
    count = book.count("backwards")
    if count:
        times = "once" if count == 1 else f"{count:,} times"
        rows = tuple(
            {"queue": book.queue(b.key), "offset": b.offset, "after": b.before, "op": b.op}
            | {"process": b.process, "seen_s": seconds(b.t)}
            for b in book.backwards
        )
        message = f"offsets went back within the answer to one poll, {times}"
        yield Finding("NONMONOTONIC_POLL", count, message, DEMAND, rows)


def _holes(book: Logbook) -> Iterator[Finding]:
    count = book.count("holes")
    if count:
        what = "1 offset" if count == 1 else f"{count:,} offsets"
        yield Finding("OFFSET_HOLE", count, f"the fresh reader was not given {what} in between", "")
