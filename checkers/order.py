"""Each queue keeps its order. Real time decides: when one send was acknowledged before another to
the same queue was invoked, the other has the higher offset (`REORDERED`); sends that overlapped may
be stored in either order, so pipelining is no violation. One poll returns rising offsets
(`NONMONOTONIC_POLL`). What is at an offset is checked by `offsets`.

In an imported history each process is followed through the queues that it reads and sends to. An
answer omits nothing that others received (`POLL_SKIPPED`), and the next answer continues where the
one before it ended (`CONSUMER_WENT_BACK`, `CONSUMER_SKIPPED`); but a consumer that shares its
queues with a group may begin anywhere (`CONSUMER_MOVED`). What one transaction sends to a queue is
stored in the order of sending (`NONMONOTONIC_SEND`).

Messages that are lost or vanished are left out, so a loss and its echoes are one finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkers._messages.log_sweep import QueueLog
from checkers._messages.poll_steps import PollStep, StepKind
from checkers._messages.queue_log import compared_pairs, queue_log
from checkers._run.evidence import SAMPLE, seconds
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Result
from harness.run.broker_sets import set_name_by_key
from harness.text.plurals import how_often, quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMAND, DELIVERY = "order-per-queue", "at-least-once"


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    log = queue_log(history, spark)
    findings = (*_reordered(log), *_backwards(log), *_steps(log))
    stats = {"entries": log.counts.length}
    if log.counts.echoes:
        stats["steps_over_what_is_lost"] = log.counts.echoes
    return Result("order", findings, stats=stats, decided={DEMAND: compared_pairs(history, log)})


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
class StepCode:
    """The finding of a kind of wrong steps."""

    kind: StepKind
    code: str
    demand: str
    meaning: str


STEPS = (
    StepCode(
        StepKind.SKIPPED,
        "POLL_SKIPPED",
        DELIVERY,
        "a poll omitted messages that other consumers received",
    ),
    StepCode(
        StepKind.WENT_BACK,
        "CONSUMER_WENT_BACK",
        DEMAND,
        "a consumer received messages again, or earlier ones",
    ),
    StepCode(
        StepKind.WENT_OVER,
        "CONSUMER_SKIPPED",
        DELIVERY,
        "a consumer skipped messages that other consumers received",
    ),
    StepCode(
        StepKind.MOVED,
        "CONSUMER_MOVED",
        "",
        "a consumer of a group did not continue where it had stopped",
    ),
    StepCode(
        StepKind.SENT_BACK,
        "NONMONOTONIC_SEND",
        DEMAND,
        "a later message of a transaction is stored before an earlier one of the same queue",
    ),
)


def _steps(log: QueueLog) -> Iterator[Finding]:
    for wrong in STEPS:
        count, steps = log.steps[wrong.kind]
        if count:
            rows = tuple(_step_row(log, step) for step in steps[:SAMPLE])
            message = f"{wrong.meaning}, {how_often(count)}"
            spans = tuple((step.t, step.t) for step in steps)
            yield Finding(wrong.code, count, message, wrong.demand, rows, spans=spans)


def _step_row(log: QueueLog, step: PollStep) -> dict[str, Any]:
    row = {"queue": log.queue(step.key), "offset": step.offset, "after": step.before, "op": step.op}
    row |= {"process": step.process, "seen_s": seconds(step.t)}
    return row | ({"skipped": step.skipped} if step.skipped else {})


def _reordered(log: QueueLog) -> Iterator[Finding]:
    own = log.steps[StepKind.SENT_BEFORE]
    count = max(log.counts.reordered, own.total)
    if count:
        what = quantity(count, "message was", "messages were")
        by_one = f" (within one process {how_often(own.total)})" if own.total else ""
        yield Finding(
            "REORDERED",
            count,
            f"{what} acknowledged before another message to the same queue was sent, and the "
            f"other has the lower offset{by_one}",
            DEMAND,
            tuple(log.inversion_row(inversion) for inversion in log.reorderings[:SAMPLE])
            or tuple(_step_row(log, step) for step in own.rows[:SAMPLE]),
            spans=tuple((one.until, one.since) for one in log.reorderings)
            or tuple((step.t, step.t) for step in own.rows),
            broker_sets=set_name_by_key(log.names, [one.key for one in log.reorderings]),
        )


def _backwards(log: QueueLog) -> Iterator[Finding]:
    count, steps = log.steps[StepKind.BACKWARDS]
    if count:
        steps = tuple(sorted(steps, key=lambda step: (step.t, step.op, step.offset)))
        rows = tuple(_step_row(log, step) for step in steps[:SAMPLE])
        message = f"offsets went back within one poll, {how_often(count)}"
        spans = tuple((step.t, step.t) for step in steps)
        groups = set_name_by_key(log.names, [step.key for step in steps])
        yield Finding(
            "NONMONOTONIC_POLL", count, message, DEMAND, rows, spans=spans, broker_sets=groups
        )
