"""Every acknowledged message is in the log at the end, and reaches every consumer group. What the
fresh reader, which reads each queue from its first message to its last, does not find is lost for
certain; where it could not read everything, nothing is concluded. An imported history has no such
reader: there a message is lost that nobody ever saw, although somebody read past its offset.

A client that tries again may store a message twice, in two queues where it selects them. The one
that was acknowledged has to be there: a copy that an earlier attempt left elsewhere does not
replace it.

What every replica holds at the offset of its acknowledgement is not lost: the read left it out
(`READ_SKIPPED`). At whose offset a reader was given another body is damaged, which `phantom`
reports. What stands before the queue's first offset was deleted, where the nodes report that their
retention deleted something; it is counted.

A lost message is counted once: that no group received it either is the same loss. Messages that
are in the log but were never given to a group that read on to the end are `UNREAD_ACKED`; where it
did not get there, at-least-once is not proven, which is a reason. Sends of unknown outcome that
turn up are not an error; they are counted as recovered.

In an imported history, what was acknowledged and nobody saw or read past is `UNSEEN_ACKED`, which
proves nothing. A transaction is all or nothing, so when a part of one of unknown outcome was seen,
its other parts can be lost as well (`TXN_TORN`). A message at whose offset another was seen is a
matter of `offsets`, as long as the contract demands that. A consumer's step over what is lost is an
echo: the evidence says how many there were.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkers._messages.excused_rows import excused, unread_instead
from checkers._messages.final_reads import given_up
from checkers._messages.message_census import SAMPLE, Survey, survey
from checkers._messages.messages import MOST_GROUPS
from checkers._messages.queue_log import logbook
from checkers._messages.witness import Witness, dated, is_told, rows_of, seconds, witness
from harness.contracts import CheckerPlugin
from harness.history.notes import FINAL_PHASE
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Reason, Result
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ENDS = "of what a producer sent"
PLACES = {"prefix": f"at the start {ENDS}", "middle": "mid-stream", "tail": f"at the end {ENDS}"}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found = survey(history, spark)
    groups = found.groups[:MOST_GROUPS]
    unread = sum(found.count(f"unread-{number}") for number in range(len(groups)))
    findings: list[Finding] = []
    stats = _stats(found)
    if not found.count("lost") and found.count("acked") and not found.count("perhaps_lost"):
        stats["proved"] = _proved(found)
    displaced = 0 if _told_by_offsets(trial) else found.count("displaced")
    unseen = found.count("perhaps_lost") if found.scope.imported else 0
    if any((*map(found.count, ("lost", "torn", "skipped")), unread, displaced, unseen)):
        evidence = witness(history, found, spark)
        over = logbook(history, spark).missed_at if found.scope.imported else {}
        findings = [*_lost(found, evidence, displaced, over), *_unread(found, evidence)]
        findings = list(_excused(findings, history, trial, found, spark))
        findings += _skipped(found, evidence, _reading(found, history, trial, spark))
        findings += [*_torn(found, evidence, over), *_unseen(found, evidence, unseen)]
        stats |= _rpo(found, evidence)
    reasons = [*_reasons(found)]
    if history.complete and trial.demands("at-least-once"):
        reasons += _ungiven(found)
        reasons += _given_up(history)
    return Result("loss", tuple(findings), tuple(reasons), stats, _decided(found))


def _decided(found: Survey) -> dict[str, int]:
    """Messages that the demands were decided on. Without consumer groups none is delivered, so
    that nothing is demanded of it."""
    delivered = {"at-least-once": found.count("polled")} if found.groups else {}
    return {"no-loss": found.count("acked"), **delivered}


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"LOST_ACKED", "READ_SKIPPED", "TXN_TORN", "UNREAD_ACKED", "UNSEEN_ACKED"}),
    decides=frozenset({"at-least-once", "no-loss"}),
    reasons=frozenset({"GROUPS_NOT_JUDGED", "NO_FINAL_READ"}),
    cut_short=frozenset({"NO_FINAL_READ"}),
    needs_clocks=False,
    standstill=frozenset({"NO_FINAL_READ"}),
)


def _excused(
    findings: Iterable[Finding],
    history: History,
    trial: Trial,
    found: Survey,
    spark: "SparkSession | None",
) -> Iterator[Finding]:
    """The findings with their rows excused singly."""
    known = excused(history, trial, found, spark)
    unread = unread_instead(history, trial, found, spark)
    numbers = {name: number for number, name in enumerate(found.groups)}
    for finding in findings:
        excuses = known.excuses(known.lost)
        if finding.code == "UNREAD_ACKED":
            group = numbers[finding.evidence[0]["group"]]
            excuses = known.excuses(unread.get(group, {}), held=False)
        yield replace(finding, excuses=excuses)


def _stats(found: Survey) -> dict[str, Any]:
    return {
        "sent": found.count("invoked"),
        "acknowledged": found.count("acked"),
        "refused": found.count("failed"),
        "indeterminate": found.count("info"),
        "read": found.count("read"),
        "delivered": found.count("polled"),
        "lost": found.count("lost"),
        "recovered": found.count("recovered"),
        **{name: n for name in ("skipped", "deleted") if (n := found.count(name))},
    } | ({"unseen": found.count("perhaps_lost")} if found.scope.imported else {})


def _proved(found: Survey) -> str:
    acked, deleted = found.count("acked"), found.count("deleted")
    if deleted:
        return f"{acked - deleted:,} of {acked:,} acknowledged messages are in the log, and " + (
            f"retention deleted the other {deleted:,}"
        )
    return f"all {acked:,} acknowledged messages are in the log"


def _told_by_offsets(trial: Trial) -> bool:
    """Will two messages at one offset be counted, and count, elsewhere?"""
    asked = not trial.checkers or "offsets" in trial.checkers
    return asked and trial.demands("order-per-queue")


def _lost(
    found: Survey, evidence: Witness, displaced: int, over: Mapping[tuple[int, int], int]
) -> Iterator[Finding]:
    count = found.count("lost") + displaced
    if not count:
        return
    values = evidence.earliest_lost
    if displaced:
        values = (*values, *found.samples["displaced"])[:SAMPLE]
    faults = (*evidence.lost.by_fault, *(number for _, number in _next_fault(evidence)))
    yield Finding(
        "LOST_ACKED",
        count,
        f"{_acknowledged(count)} {_were(count)} lost{_where(found, displaced)}{_left(found)}",
        "no-loss",
        tuple(_passed_over(evidence, value, over) for value in values),
        faults,
    )


def _left(found: Survey) -> str:
    """Say of how many lost messages the copy of an earlier attempt is in the log."""
    count = found.count("left")
    words = f"; of {count:,}, the log has a copy that an earlier attempt left elsewhere"
    return words if count else ""


def _where(found: Survey, displaced: int) -> str:
    """Say where in its producer's sequence each lost message stood."""
    places = {PLACES[name]: n for name, n in found.where_lost.items() if n}
    places |= {"whose offset another message has": displaced} if displaced else {}
    total = sum(places.values())
    if len(places) == 1:
        return f", {'all ' if total > 1 else ''}{next(iter(places))}"
    return f" ({', '.join(f'{n:,} {place}' for place, n in places.items())})" if places else ""


def _passed_over(
    evidence: Witness, value: int, over: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """A lost message's story, and how often a consumer went over its offset."""
    row = evidence.told(value)
    place = next(
        ((r["key"], r["offset"]) for r in evidence.rows.get(value, ()) if r["offset"] >= 0), None
    )
    times = over.get(place, 0) if place is not None else 0
    return row | ({"stepped_over": times} if times else {})


def _reading(
    found: Survey, history: History, trial: Trial, spark: "SparkSession | None"
) -> dict[str, Any]:
    """The time of the final reading for each message that it omitted, if a fault was unclaimed."""
    phases, values = history.phases(), found.offenders.get("skipped", ())
    if "drain" not in phases or not values or not unclaimed_faults(history, trial):
        return {}
    keys = {row.value: row.key for row in rows_of(history, spark, values) if is_told(row)}
    read = (phases["drain"], max(phases.values()))
    return dated(history.names, (((keys.get(value, -1),), read) for value in values))


def _skipped(found: Survey, evidence: Witness, times: dict[str, Any]) -> Iterator[Finding]:
    if count := found.count("skipped"):
        rows = [evidence.told(value) for value in found.samples["skipped"]]
        yield Finding(
            "READ_SKIPPED",
            count,
            f"a read of the whole queue omitted {_acknowledged(count)} that every replica holds",
            "at-least-once",
            tuple(rows),
            _faults(evidence, rows),
            **times,
        )


def _torn(
    found: Survey, evidence: Witness, over: Mapping[tuple[int, int], int]
) -> Iterator[Finding]:
    count = found.count("torn")
    if count:
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        yield Finding(
            "TXN_TORN",
            count,
            f"{what} lost although another message of the same transaction was delivered",
            "no-loss",
            tuple(_passed_over(evidence, value, over) for value in found.samples["torn"]),
        )


def _unseen(found: Survey, evidence: Witness, count: int) -> Iterator[Finding]:
    if count:
        what = f"{_acknowledged(count)} {_were(count)} never read, nor was any later offset"
        rows = tuple(evidence.told(value) for value in found.samples["perhaps_lost"])
        yield Finding("UNSEEN_ACKED", count, what, "", rows)


def _unread(found: Survey, evidence: Witness) -> Iterator[Finding]:
    for number, group in enumerate(found.groups[:MOST_GROUPS]):
        count = found.count(f"unread-{number}")
        if count:
            rows = [evidence.told(v) for v in found.samples[f"unread-{number}"]]
            yield Finding(
                "UNREAD_ACKED",
                count,
                f"{_more(found, count)} never delivered to {group}",
                "at-least-once",
                tuple({**row, "group": group} for row in rows),
                _faults(evidence, rows),
            )


def _faults(evidence: Witness, rows: list[dict[str, Any]]) -> tuple[int, ...]:
    times = [int(row["acked_s"] * 1e9) for row in rows if "acked_s" in row]
    return tuple(sorted({number for t in times for number in evidence.faults_at(t)}))


def _rpo(found: Survey, evidence: Witness) -> dict[str, Any]:
    """How far back the loss reaches: from the first lost acknowledgement to the last or, where no
    fault lasted at any of them, to the fault after the first."""
    if not found.count("lost"):
        return {}
    first, last = evidence.lost.first, evidence.lost.last
    until = min((begin for begin, _ in _next_fault(evidence)), default=last)
    return {
        "rpo_messages": found.count("lost"),
        "rpo_s": seconds(until - first),
        "lost_from_s": seconds(first),
        "lost_to_s": seconds(last),
        "lost_where": dict(found.where_lost),
        "lost_by_fault": {str(number): n for number, n in evidence.lost.by_fault.items()},
    }


def _next_fault(evidence: Witness) -> list[tuple[int, int]]:
    """When the fault began that explains a loss in which none lasted, and which it is."""
    if evidence.lost.by_fault:
        return []
    first = evidence.lost.first
    later = [(f.begin, f.id) for f in evidence.faults if f.begin is not None and f.begin > first]
    return sorted(later)[:1]


def _reasons(found: Survey) -> Iterator[Reason]:
    perhaps = found.count("perhaps_lost")
    if perhaps and found.scope.passed:
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

    if overdue := found.count("overdue"):
        yield Reason(
            "NO_FINAL_READ",
            f"{overdue:,} sends were acknowledged after the final phase had "
            f"begun, perhaps too late for its readers; run it again, or find out why sends take "
            "so long",
        )
    if len(found.groups) > MOST_GROUPS:
        yield Reason(
            "GROUPS_NOT_JUDGED",
            f"only the first {MOST_GROUPS} of {len(found.groups)} consumer groups were judged; "
            "use fewer groups",
        )


def _ungiven(found: Survey) -> Iterator[Reason]:
    """Yield a reason for each group that did not read to the end, so may yet have been given it."""
    for number, group in enumerate(found.groups[:MOST_GROUPS]):
        count = found.count(f"ungiven-{number}")
        if count:
            yield Reason(
                "NO_FINAL_READ",
                f"{group} did not read to the end of its queues, and {_acknowledged(count)} there "
                f"{_were(count)} not delivered to it yet; let the run finish, or give the cluster "
                "more time to recover (recover_within_s)",
            )


def _given_up(history: History) -> Iterator[Reason]:
    """Yield a reason for each reader that did not come to the end of the final phase."""
    for text in given_up(history, FINAL_PHASE):
        yield Reason(
            "NO_FINAL_READ",
            f"the runner {text}, so it is not known whether every group would have received every "
            "message; give it less to read, or find out why reading is so slow",
        )


def _acknowledged(count: int) -> str:
    return "1 acknowledged message" if count == 1 else f"{count:,} acknowledged messages"


def _more(found: Survey, count: int) -> str:
    """Count messages that were not delivered, apart from those that were lost."""
    if found.count("lost"):
        return f"{count:,} more {_were(count)}"
    return f"{_acknowledged(count)} {_were(count)}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _it(count: int) -> str:
    return "it" if count == 1 else "they"
