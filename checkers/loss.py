"""Every acknowledged message is in the log at the end, and reaches every consumer group. What the
fresh reader, which reads each queue from its first message to its last, does not find is lost for
certain; where it could not read everything, nothing is concluded. An imported history has no such
reader: there a message is lost that nobody ever saw, although somebody read past its offset.

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

from checkers._excused import excused, unread_instead
from checkers._final import given_up
from checkers._logbook import logbook
from checkers._messages import MOST_GROUPS
from checkers._survey import SAMPLE, Survey, survey
from checkers._witness import Witness, seconds, witness
from harness.history import History
from harness.remarks import FINAL_PHASE
from harness.trial import Trial
from harness.verdict import Finding, Reason, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PLACES = {"prefix": "at the beginning", "middle": "in the middle", "tail": "at the end"}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found = survey(history, spark)
    groups = found.groups[:MOST_GROUPS]
    unread = sum(found.count(f"unread-{number}") for number in range(len(groups)))
    findings: list[Finding] = []
    stats = _stats(found)
    if not found.count("lost") and found.count("acked") and not found.count("perhaps_lost"):
        stats["proved"] = f"all {found.count('acked'):,} acknowledged messages are in the log"
    displaced = 0 if _told_by_offsets(trial) else found.count("displaced")
    unseen = found.count("perhaps_lost") if found.scope.imported else 0
    if found.count("lost") or unread or displaced or unseen or found.count("torn"):
        evidence = witness(history, found, spark)
        over = logbook(history, spark).missed_at if found.scope.imported else {}
        findings = [*_lost(found, evidence, displaced, over), *_unread(found, evidence)]
        findings = list(_excused(findings, history, trial, found, spark))
        findings += [*_torn(found, evidence, over), *_unseen(found, evidence, unseen)]
        stats |= _rpo(found, evidence)
    reasons = [*_reasons(found)]
    if history.complete and trial.demands("at-least-once"):
        reasons += _ungiven(found)
        reasons += _given_up(history)
    return Result("loss", tuple(findings), tuple(reasons), stats)


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
    } | ({"unseen": found.count("perhaps_lost")} if found.scope.imported else {})


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
    where = ", ".join(f"{n:,} {PLACES[name]}" for name, n in found.where_lost.items() if n)
    if displaced:
        where = ", ".join(filter(None, (where, f"{displaced:,} with another at the offset")))
    values = evidence.earliest_lost
    if displaced:
        values = (*values, *found.samples["displaced"])[:SAMPLE]
    faults = (*evidence.lost.by_fault, *(number for _, number in _next_fault(evidence)))
    yield Finding(
        "LOST_ACKED",
        count,
        f"{_messages(count)} acknowledged and then lost: {_how(found, count)} (in what each "
        f"producer sent: {where})",
        "no-loss",
        tuple(_passed_over(evidence, value, over) for value in values),
        faults,
    )


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


def _torn(
    found: Survey, evidence: Witness, over: Mapping[tuple[int, int], int]
) -> Iterator[Finding]:
    count = found.count("torn")
    if count:
        what = "1 message is" if count == 1 else f"{count:,} messages are"
        yield Finding(
            "TXN_TORN",
            count,
            f"{what} gone although another part of the same transaction was seen, and others read "
            "past",
            "no-loss",
            tuple(_passed_over(evidence, value, over) for value in found.samples["torn"]),
        )


def _unseen(found: Survey, evidence: Witness, count: int) -> Iterator[Finding]:
    if count:
        what = "acknowledged, and neither seen nor read past by anybody"
        rows = tuple(evidence.told(value) for value in found.samples["perhaps_lost"])
        yield Finding("UNSEEN_ACKED", count, f"{_messages(count)} {what}", "", rows)


def _how(found: Survey, count: int) -> str:
    it = "it" if count == 1 else "them"
    if found.scope.passed:
        return f"nobody ever saw {it}, although others read past {it}"
    return (
        f"a fresh reader that read the queues from their first message to their last did not find "
        f"{it}"
    )


def _unread(found: Survey, evidence: Witness) -> Iterator[Finding]:
    for number, group in enumerate(found.groups[:MOST_GROUPS]):
        count = found.count(f"unread-{number}")
        if count:
            rows = [evidence.told(v) for v in found.samples[f"unread-{number}"]]
            yield Finding(
                "UNREAD_ACKED",
                count,
                f"{_messages(count)} acknowledged and still in the log, but never given to "
                f"{group}, although it read on to the end",
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
            f"{_messages(perhaps)} acknowledged and never seen, in queues that nobody read beyond, "
            "so nobody knows whether they are there; end the test with polls of everything",
        )
    elif perhaps:
        yield Reason(
            "NO_FINAL_READ",
            f"{_messages(perhaps)} acknowledged in queues that the fresh reader did not read to "
            "the end, so nobody knows whether they are there; let the run finish, or give it "
            "more time to recover (recover_within_s)",
        )

    if overdue := found.count("overdue"):
        yield Reason(
            "NO_FINAL_READ",
            f"{_messages(overdue)} acknowledged after the final phase had begun, when who read to "
            "the end may have come too early for them; run it again, or find out why sends take "
            "so long",
        )
    if len(found.groups) > MOST_GROUPS:
        yield Reason(
            "GROUPS_NOT_JUDGED",
            f"only the first {MOST_GROUPS} of {len(found.groups)} consumer groups were judged; "
            "use fewer groups",
        )


def _ungiven(found: Survey) -> Iterator[Reason]:
    """Who did not read to the end may have been given the rest later, or never."""
    for number, group in enumerate(found.groups[:MOST_GROUPS]):
        count = found.count(f"ungiven-{number}")
        if count:
            yield Reason(
                "NO_FINAL_READ",
                f"{_messages(count)} acknowledged and still in the log, and not given to {group}, "
                "which did not read its queues to the end, so nobody knows whether it would be; "
                "let the run finish, or give it more time to recover (recover_within_s)",
            )


def _given_up(history: History) -> Iterator[Reason]:
    """Not everybody came to the end of the final phase, and who did not may have said nothing."""
    for text in given_up(history, FINAL_PHASE):
        yield Reason(
            "NO_FINAL_READ",
            f"the runner {text}, so nobody knows whether every group would be given "
            "everything; let it have less to read, or find out why it is so slow",
        )


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{count:,} messages were"
