"""Each queue keeps its order. Real time decides: when one send was acknowledged before another to
the same queue was even invoked, the other has the higher offset (`REORDERED`); sends that
overlapped may land either way, so pipelining convicts nobody. One poll returns rising offsets
(`NONMONOTONIC_POLL`). What stands at an offset is a matter of `offsets`.

Messages that are lost or vanished are left out, so a loss and its echoes are one finding.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkers._logbook import Logbook, logbook
from checkers._witness import seconds
from harness.history import History
from harness.trial import Trial
from harness.verdict import Finding, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND = "order-per-queue"


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    book = logbook(history, spark)
    findings = (*_reordered(book), *_backwards(book))
    return Result("order", findings, stats={"entries": book.count("length")})


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
