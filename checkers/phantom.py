"""No message is received that was never sent, that certainly failed, or that is in no replica's log
at the end; and every message arrives as it was sent.

`PHANTOM_NEVER_SENT` needs a history without gaps: when a journal is damaged or its writer was
killed, the send may only be unrecorded, and the checker says so instead of convicting.
`PHANTOM_VANISHED` needs the final logs of all replicas; a message that was acknowledged and lost is
loss, and not counted here again. In an imported history, a transaction does not receive what it
sent itself: that is not in the log before it commits (`PRECOMMITTED_READ`). These demands do not
depend on the contract.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from checkers._messages.excused_rows import excused_messages
from checkers._messages.log_sweep import QueueLog
from checkers._messages.message_census import message_census
from checkers._messages.messages import MessageCensus, MessageClass
from checkers._messages.queue_log import queue_log
from checkers._messages.witness import Witness, is_certain, op_rows, witness
from checkers._run.evidence import SAMPLE, name_of, seconds, span_fields
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import faults_at
from harness.history.reader import CORRUPTED, History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY = "integrity"


@dataclass(frozen=True)
class PhantomKind:
    """A class of messages that nothing may have received, and its finding."""

    messages: MessageClass
    code: str
    meaning: str

    def sentence(self, count: int) -> str:
        one = count == 1
        meaning = self.meaning.format(its="its" if one else "their", is_="is" if one else "are")
        return f"{_messages_were(count)} {meaning}"


KINDS = (
    PhantomKind(MessageClass.REFUSED, "PHANTOM_REFUSED", "received although {its} send had failed"),
    PhantomKind(
        MessageClass.VANISHED,
        "PHANTOM_VANISHED",
        "delivered, and {is_} in no replica's log at the end",
    ),
    PhantomKind(MessageClass.NEVER_SENT, "PHANTOM_NEVER_SENT", "received and had never been sent"),
)


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    census = message_census(history, spark)
    complete = history.complete
    kinds = [kind for kind in KINDS if complete or kind.messages is not MessageClass.NEVER_SENT]
    findings = [*_corrupted(history)]
    wrong = [kind for kind in kinds if census.counts[kind.messages]]
    if wrong:
        evidence = witness(history, census, spark)
        dated = bool(unclaimed_faults(history, trial))
        for kind in wrong:
            finding = _finding(kind, census, evidence)
            if kind.messages is MessageClass.VANISHED:  # each message is excused by itself
                excused = excused_messages(history, trial, census, spark)
                finding = replace(finding, excuses=excused.excuses(excused.vanished))
            elif dated:
                finding = _dated(finding, kind, history, census, spark)
            findings.append(finding)
    if census.scope.imported:
        findings += _own(queue_log(history, spark))
    stats: dict[str, Any] = {kind.messages.value: census.counts[kind.messages] for kind in KINDS}
    stats["replicas_compared"] = census.scope.replicas
    reasons = tuple(_reasons(census, complete))
    received = max(census.counts[MessageClass.READ], census.counts[MessageClass.POLLED])
    return Result("phantom", tuple(findings), reasons, stats, {INTEGRITY: received})


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {
            "CORRUPTED",
            "PHANTOM_NEVER_SENT",
            "PHANTOM_REFUSED",
            "PHANTOM_VANISHED",
            "PRECOMMITTED_READ",
        }
    ),
    decides=frozenset({"integrity"}),
    reasons=frozenset({"SENDING_UNRECORDED"}),
    needs_clocks=False,
)


def _messages_were(count: int) -> str:
    return quantity(count, "message was", "messages were")


def _finding(kind: PhantomKind, census: MessageCensus, evidence: Witness) -> Finding:
    count = census.counts[kind.messages]
    rows = evidence.shown[kind.messages]
    times = [int(row["seen_s"] * 1e9) for row in rows if "seen_s" in row]
    faults = faults_at(evidence.faults, *times)
    return Finding(kind.code, count, kind.sentence(count), INTEGRITY, rows, faults)


def _dated(
    finding: Finding,
    kind: PhantomKind,
    history: History,
    census: MessageCensus,
    spark: "SparkSession | None",
) -> Finding:
    """Return the finding with each message's times: from its refusal, if any, to its delivery."""
    values = census.dated[kind.messages]
    rows = op_rows(history, spark, values)
    received = [row for row in rows if is_certain(row) and row.f != F.SEND]
    refused = [row for row in rows if row.type == Type.FAIL]
    first = {row.value: row for row in reversed(received)}
    since = {row.value: row.t for row in reversed(refused)}
    spans = [
        ((first[v].key,), (min(first[v].t, since.get(v, first[v].t)), first[v].t))
        for v in values
        if v in first
    ]
    return replace(finding, **span_fields(history.names, spans)) if spans else finding


def _own(log: QueueLog) -> Iterator[Finding]:
    count = log.counts.own
    if count:
        message = (
            f"{_messages_were(count)} delivered to the transaction that had sent it, before its "
            "commit"
        )
        rows = tuple(
            {"queue": log.queue(own.key), "value": own.value, "op": own.op}
            | {"process": own.process, "seen_s": seconds(own.t)}
            for own in log.own[:SAMPLE]
        )
        yield Finding("PRECOMMITTED_READ", count, message, INTEGRITY, rows)


def _corrupted(history: History) -> Iterator[Finding]:
    """Yield a finding for messages whose body or key does not match the value that they carry, as
    readers verify it. A message counts once, however many receive it."""
    rows: dict[tuple[int, Any], dict[str, Any]] = {}
    spans: dict[tuple[int, Any], tuple[int, int]] = {}
    for note in history.notes[CORRUPTED]:
        values = json.loads(note.text.partition(" ")[2])
        key = values.pop("key", -1)
        place = key, values.get("offset")
        queue = {"queue": name_of(history.names, "keys", key)}
        rows.setdefault(place, {**queue, **values, "seen_s": seconds(note.t)})
        spans[place] = spans.get(place, (note.t, 0))[0], note.t
    if not rows:
        return
    parts = " or ".join(sorted({row.get("damaged", "body") for row in rows.values()}))
    yield Finding(
        "CORRUPTED",
        len(rows),
        f"{_messages_were(len(rows))} received with another {parts} than was sent",
        INTEGRITY,
        tuple(rows.values())[:SAMPLE],
        **span_fields(history.names, (((key,), span) for (key, _), span in spans.items())),
    )


def _reasons(census: MessageCensus, complete: bool) -> Iterator[Reason]:
    never_sent = census.counts[MessageClass.NEVER_SENT]
    if never_sent and not complete:
        yield Reason(
            "SENDING_UNRECORDED",
            f"{never_sent:,} messages were read whose send is not recorded; the "
            "history has gaps, which may be the reason; run it again",
        )
