"""Every acknowledged message is in the log at the end, and is delivered to every consumer group.
A message is lost for certain if the final reader, which reads each queue from its first message to
its last, does not find it; where that reader did not read everything, nothing is concluded. An
imported history has no such reader: there a message is lost if it was never received although a
consumer read past its offset.

A client that retries may store a message twice, in two queues where it selects the queue. The
acknowledged copy has to be there: one that an earlier attempt left elsewhere does not replace it.

A message that every replica holds at the offset of its acknowledgement is not lost: the read
omitted it (`READ_SKIPPED`). If a reader received another body at its offset, it is damaged, which
`phantom` reports. Messages before the queue's first offset were deleted, where the nodes report
that their retention deleted something; they are counted.

A lost message is counted once: that no group received it either is the same loss. Messages that
are in the log but were never delivered to a group that read to the end are `UNREAD_ACKED`; where
the group did not read to the end, at-least-once is not proven, which is a reason. Sends of unknown
outcome that are found are not an error; they are counted as recovered.

In an imported history, an acknowledged message that was never received, nor any later offset, is
`UNSEEN_ACKED`, which proves nothing. A transaction is all or nothing, so if a part of one of
unknown outcome was seen, its other parts can be lost as well (`TXN_TORN`). A message at whose
offset another was seen is left to `offsets`, if the contract demands order. A consumer's step over
what is lost is an echo: the evidence says how many there were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkers._messages.excused_rows import excused_messages, unread_instead
from checkers._messages.message_census import given_up, message_census
from checkers._messages.message_rows import MAX_GROUPS
from checkers._messages.messages import MessageCensus, MessageClass
from checkers._messages.queue_log import queue_log
from checkers._messages.witness import Witness, is_certain, op_rows, witness
from checkers._run.evidence import SAMPLE, seconds, span_fields
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import faults_at
from harness.history.notes import FINAL_PHASE
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Excuse, Finding, Reason, Result
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ENDS = "of what a producer sent"
PLACES = {"prefix": f"at the start {ENDS}", "middle": "mid-stream", "tail": f"at the end {ENDS}"}
LOSSES = (MessageClass.LOST, MessageClass.TORN, MessageClass.SKIPPED)


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    census = message_census(history, spark)
    groups, counts = census.groups[:MAX_GROUPS], census.counts
    findings: list[Finding] = []
    stats = _stats(census)
    perhaps = counts[MessageClass.PERHAPS_LOST]
    if counts[MessageClass.ACKED] and not counts[MessageClass.LOST] and not perhaps:
        stats["proved"] = _proved(census)
    unseen = perhaps if census.scope.imported else 0
    missing = unseen + sum(counts[name] for name in LOSSES) + sum(g.unread for g in groups)
    displaced = 0 if _counted_by_offsets(trial) else counts[MessageClass.DISPLACED]
    if missing or displaced:
        evidence = witness(history, census, spark)
        over = queue_log(history, spark).missed_at if census.scope.imported else {}
        excused = excused_messages(history, trial, census, spark)
        instead = unread_instead(history, trial, census, spark)
        findings += _lost(census, evidence, excused.excuses(excused.lost), displaced, over)
        for number, group in enumerate(groups):
            if group.unread:
                excuses = excused.excuses(instead.get(number, {}), held=False)
                finding = _unread(census, number, evidence)
                findings.append(replace(finding, excuses=excuses))
        findings += _skipped(census, evidence, _final_reading(census, history, trial, spark))
        findings += [*_torn(census, evidence, over), *_unseen(census, evidence, unseen)]
        stats |= _rpo(census, evidence)
    reasons = [*_reasons(census)]
    if history.complete and trial.demands("at-least-once"):
        reasons += _ungiven(census)
        reasons += _given_up(history)
    return Result("loss", tuple(findings), tuple(reasons), stats, _decided(census))


def _decided(census: MessageCensus) -> dict[str, int]:
    """Return on how many messages the demands were decided. Without consumer groups nothing is
    delivered, so at-least-once is not decided."""
    delivered = {"at-least-once": census.counts[MessageClass.POLLED]} if census.groups else {}
    return {"no-loss": census.counts[MessageClass.ACKED], **delivered}


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"LOST_ACKED", "READ_SKIPPED", "TXN_TORN", "UNREAD_ACKED", "UNSEEN_ACKED"}),
    decides=frozenset({"at-least-once", "no-loss"}),
    reasons=frozenset({"GROUPS_NOT_JUDGED", "NO_FINAL_READ"}),
    cut_short=frozenset({"NO_FINAL_READ"}),
    needs_clocks=False,
    standstill=frozenset({"NO_FINAL_READ"}),
)


def _stats(census: MessageCensus) -> dict[str, Any]:
    counts = census.counts
    stats = {
        "sent": counts[MessageClass.INVOKED],
        "acknowledged": counts[MessageClass.ACKED],
        "refused": counts[MessageClass.FAILED],
        "indeterminate": counts[MessageClass.INFO],
        "read": counts[MessageClass.READ],
        "delivered": counts[MessageClass.POLLED],
        "lost": counts[MessageClass.LOST],
        "recovered": counts[MessageClass.RECOVERED],
    }
    for name in (MessageClass.SKIPPED, MessageClass.DELETED):
        if counts[name]:
            stats[name.value] = counts[name]
    return stats | ({"unseen": counts[MessageClass.PERHAPS_LOST]} if census.scope.imported else {})


def _proved(census: MessageCensus) -> str:
    acked, deleted = census.counts[MessageClass.ACKED], census.counts[MessageClass.DELETED]
    if deleted:
        return f"{acked - deleted:,} of {acked:,} acknowledged messages are in the log, and " + (
            f"retention deleted the other {deleted:,}"
        )
    return f"all {acked:,} acknowledged messages are in the log"


def _counted_by_offsets(trial: Trial) -> bool:
    """Whether `offsets` counts two messages at one offset, as a violation of the contract."""
    runs = not trial.checkers or "offsets" in trial.checkers
    return runs and trial.demands("order-per-queue")


def _lost(
    census: MessageCensus,
    evidence: Witness,
    excuses: tuple[Excuse, ...],
    displaced: int,
    over: Mapping[tuple[int, int], int],
) -> Iterator[Finding]:
    count = census.counts[MessageClass.LOST] + displaced
    if not count:
        return
    values = evidence.earliest
    if displaced:
        values = (*values, *census.shown[MessageClass.DISPLACED])[:SAMPLE]
    left = census.counts[MessageClass.LEFT]
    copies = f"; of {left:,}, the log has a copy that an earlier attempt left elsewhere"
    yield Finding(
        "LOST_ACKED",
        count,
        f"{_acknowledged(count)} {_were(count)} lost{_where(census, displaced)}"
        f"{copies if left else ''}",
        "no-loss",
        tuple(_passed_over(evidence, value, over) for value in values),
        (*evidence.lost.by_fault, *(number for _, number in _next_fault(evidence))),
        excuses=excuses,
    )


def _where(census: MessageCensus, displaced: int) -> str:
    """Return where in their producers' sequences the lost messages were."""
    places = {PLACES[name]: n for name, n in census.where_lost.items() if n}
    places |= {"whose offset another message has": displaced} if displaced else {}
    total = sum(places.values())
    if len(places) == 1:
        return f", {'all ' if total > 1 else ''}{next(iter(places))}"
    return f" ({', '.join(f'{n:,} {place}' for place, n in places.items())})" if places else ""


def _passed_over(
    evidence: Witness, value: int, over: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """Return a lost message's story, and how often a consumer went over its offset."""
    place = evidence.places.get(value)
    times = over.get(place, 0) if place is not None else 0
    return evidence.stories[value] | ({"stepped_over": times} if times else {})


def _final_reading(
    census: MessageCensus, history: History, trial: Trial, spark: "SparkSession | None"
) -> dict[str, Any]:
    """Return the time of the final reading for each message that it omitted, if a fault was
    unclaimed."""
    phases, values = history.phases, census.dated[MessageClass.SKIPPED]
    if "drain" not in phases or not values or not unclaimed_faults(history, trial):
        return {}
    keys = {row.value: row.key for row in op_rows(history, spark, values) if is_certain(row)}
    read = (phases["drain"], max(phases.values()))
    return span_fields(history.names, (((keys.get(value, -1),), read) for value in values))


def _skipped(census: MessageCensus, evidence: Witness, times: dict[str, Any]) -> Iterator[Finding]:
    if count := census.counts[MessageClass.SKIPPED]:
        rows = evidence.shown[MessageClass.SKIPPED]
        yield Finding(
            "READ_SKIPPED",
            count,
            f"a read of the whole queue omitted {_acknowledged(count)} that every replica holds",
            "at-least-once",
            rows,
            _faults(evidence, rows),
            **times,
        )


def _torn(
    census: MessageCensus, evidence: Witness, over: Mapping[tuple[int, int], int]
) -> Iterator[Finding]:
    count = census.counts[MessageClass.TORN]
    if count:
        what = quantity(count, "message was", "messages were")
        yield Finding(
            "TXN_TORN",
            count,
            f"{what} lost although another message of the same transaction was delivered",
            "no-loss",
            tuple(_passed_over(evidence, value, over) for value in census.shown[MessageClass.TORN]),
        )


def _unseen(census: MessageCensus, evidence: Witness, count: int) -> Iterator[Finding]:
    if count:
        what = f"{_acknowledged(count)} {_were(count)} never read, nor was any later offset"
        rows = evidence.shown[MessageClass.PERHAPS_LOST]
        yield Finding("UNSEEN_ACKED", count, what, "", rows)


def _unread(census: MessageCensus, number: int, evidence: Witness) -> Finding:
    group = census.groups[number]
    more = _acknowledged(group.unread)
    if census.counts[MessageClass.LOST]:  # apart from those
        more = f"{group.unread:,} more"
    rows = evidence.unread[number]
    return Finding(
        "UNREAD_ACKED",
        group.unread,
        f"{more} {_were(group.unread)} never delivered to {group.name}",
        "at-least-once",
        tuple({**row, "group": group.name} for row in rows),
        _faults(evidence, rows),
    )


def _faults(evidence: Witness, rows: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the faults that were in force when these messages were acknowledged."""
    times = [int(row["acked_s"] * 1e9) for row in rows if "acked_s" in row]
    return faults_at(evidence.faults, *times)


def _rpo(census: MessageCensus, evidence: Witness) -> dict[str, Any]:
    """Return how far back the loss reaches: from the first lost acknowledgement to the last or,
    where no fault was in force at any of them, to the fault after the first."""
    if not census.counts[MessageClass.LOST]:
        return {}
    first, last = evidence.lost.first, evidence.lost.last
    until = min((begin for begin, _ in _next_fault(evidence)), default=last)
    return {
        "rpo_messages": census.counts[MessageClass.LOST],
        "rpo_s": seconds(until - first),
        "lost_from_s": seconds(first),
        "lost_to_s": seconds(last),
        "lost_where": dict(census.where_lost),
        "lost_by_fault": {str(number): n for number, n in evidence.lost.by_fault.items()},
    }


def _next_fault(evidence: Witness) -> list[tuple[int, int]]:
    """Return the begin and id of the fault that explains a loss outside all faults."""
    if evidence.lost.by_fault:
        return []
    first = evidence.lost.first
    later = [(f.begin, f.id) for f in evidence.faults if f.begin is not None and f.begin > first]
    return sorted(later)[:1]


def _reasons(census: MessageCensus) -> Iterator[Reason]:
    perhaps = census.counts[MessageClass.PERHAPS_LOST]
    if perhaps and census.scope.passed:
        yield Reason(
            "NO_FINAL_READ",
            f"{_acknowledged(perhaps)} {_were(perhaps)} never read, nor was any later offset, so "
            f"{_it(perhaps)} may still be stored; end the test with polls of all queues",
        )
    elif perhaps:
        yield Reason(
            "NO_FINAL_READ",
            f"the final reader did not reach the end of the queues of {_acknowledged(perhaps)}, so "
            f"{_it(perhaps)} may still be stored; let the run finish, or give the cluster more "
            "time to recover (recover_within_s)",
        )

    if overdue := census.counts[MessageClass.OVERDUE]:
        yield Reason(
            "NO_FINAL_READ",
            f"{overdue:,} sends were acknowledged after the final phase had "
            f"begun, perhaps too late for its readers; run it again, or find out why sends take "
            "so long",
        )
    if len(census.groups) > MAX_GROUPS:
        yield Reason(
            "GROUPS_NOT_JUDGED",
            f"only the first {MAX_GROUPS} of {len(census.groups)} consumer groups were judged; "
            "use fewer groups",
        )


def _ungiven(census: MessageCensus) -> Iterator[Reason]:
    """Yield a reason for each group that did not read to the end, so that messages may still be on
    their way to it."""
    for group in census.groups[:MAX_GROUPS]:
        if group.ungiven:
            yield Reason(
                "NO_FINAL_READ",
                f"{group.name} did not read to the end of its queues, and "
                f"{_acknowledged(group.ungiven)} there {_were(group.ungiven)} not delivered to it "
                "yet; let the run finish, or give the cluster more time to recover "
                "(recover_within_s)",
            )


def _given_up(history: History) -> Iterator[Reason]:
    """Yield a reason for each reader that did not finish the final phase."""
    for text in given_up(history, FINAL_PHASE):
        yield Reason(
            "NO_FINAL_READ",
            f"the runner {text}, so it is not known whether every group would have received every "
            "message; give it less to read, or find out why reading is so slow",
        )


def _acknowledged(count: int) -> str:
    return quantity(count, "acknowledged message")


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _it(count: int) -> str:
    return "it" if count == 1 else "they"
