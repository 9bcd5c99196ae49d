"""Nobody is given a message that was never sent, that was certainly refused, or that is in no
replica's log at the end; and every message arrives as it was sent.

`PHANTOM_NEVER_SENT` needs a history without gaps: when a journal is damaged or its writer was
killed, the sending may only be unrecorded, and the checker says so instead of convicting.
`PHANTOM_VANISHED` needs the final logs of all replicas; a message that was acknowledged and lost is
loss, and not counted here again. In an imported history of transactions, none is given what it has
sent itself: that is not there for anybody before it commits (`PRECOMMITTED_READ`). These demands
are not the contract's to waive.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkers._messages.excused_rows import excused
from checkers._messages.message_census import SAMPLE, Survey, survey
from checkers._messages.queue_log import Logbook, logbook
from checkers._messages.witness import Witness, dated, is_told, rows_of, seconds, witness
from harness.contracts import CheckerPlugin
from harness.history.reader import CORRUPTED, History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY = "integrity"
MEANINGS = {
    "refused": ("PHANTOM_REFUSED", "received although {its} send had failed"),
    "vanished": ("PHANTOM_VANISHED", "delivered, and {is_} in no replica's log at the end"),
    "never_sent": ("PHANTOM_NEVER_SENT", "received and had never been sent"),
}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found = survey(history, spark)
    convicting = [name for name in MEANINGS if history.complete or name != "never_sent"]
    findings = [*_corrupted(history)]
    if any(found.count(name) for name in convicting):
        evidence = witness(history, found, spark)
        findings += [_finding(n, found, evidence) for n in convicting if found.count(n)]
        findings = [*_excused(findings, history, trial, found, spark)]
        if unclaimed_faults(history, trial):
            findings = [*_dated(findings, history, found, spark)]
    if found.scope.imported:
        findings += _own(logbook(history, spark))
    stats: dict[str, Any] = {name: found.count(name) for name in MEANINGS}
    stats["replicas_compared"] = found.scope.replicas
    reasons = tuple(_reasons(found, history.complete))
    decided = {INTEGRITY: max(found.count("read"), found.count("polled"))}
    return Result("phantom", tuple(findings), reasons, stats, decided)


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


def _finding(name: str, found: Survey, evidence: Witness) -> Finding:
    code, meaning = MEANINGS[name]
    count = found.count(name)
    rows = tuple(evidence.told(value) for value in found.samples[name])
    times = [int(row["seen_s"] * 1e9) for row in rows if "seen_s" in row]
    faults = {number for t in times for number in evidence.faults_at(t)}
    one = count == 1
    what = "1 message was" if one else f"{count:,} messages were"
    meaning = meaning.format(its="its" if one else "their", is_="is" if one else "are")
    return Finding(code, count, f"{what} {meaning}", INTEGRITY, rows, tuple(sorted(faults)))


def _excused(
    findings: list[Finding],
    history: History,
    trial: Trial,
    found: Survey,
    spark: "SparkSession | None",
) -> Iterator[Finding]:
    """The findings; of what vanished each message is excused singly."""
    for finding in findings:
        if finding.code != MEANINGS["vanished"][0]:
            yield finding
            continue
        known = excused(history, trial, found, spark)
        yield replace(finding, excuses=known.excuses(known.vanished))


def _dated(
    findings: list[Finding], history: History, found: Survey, spark: "SparkSession | None"
) -> Iterator[Finding]:
    """The findings with the times of each message: from its refusal, if any, to its delivery."""
    of_code = {code: name for name, (code, _) in MEANINGS.items() if name != "vanished"}
    values = {name: found.offenders.get(name, ()) for name in of_code.values()}
    rows = rows_of(history, spark, [value for some in values.values() for value in some])
    given = [row for row in rows if is_told(row) and row.f != F.SEND]
    refused = [row for row in rows if row.type == Type.FAIL]
    first = {row.value: row.t for row in reversed(given)}
    key = {row.value: row.key for row in reversed(given)}
    since = {row.value: row.t for row in reversed(refused)}
    for finding in findings:
        some = values.get(of_code.get(finding.code, ""), ())
        spans = [
            ((key[v],), (min(first[v], since.get(v, first[v])), first[v]))
            for v in some
            if v in first
        ]
        yield replace(finding, **dated(history.names, spans)) if spans else finding


def _own(book: Logbook) -> Iterator[Finding]:
    count = book.count("own")
    if count:
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        message = f"{what} delivered to the transaction that had sent it, before its commit"
        rows = tuple(
            {"queue": book.queue(own.key), "value": own.value, "op": own.op}
            | {"process": own.process, "seen_s": seconds(own.t)}
            for own in book.own[:SAMPLE]
        )
        yield Finding("PRECOMMITTED_READ", count, message, INTEGRITY, rows)


def _corrupted(history: History) -> Iterator[Finding]:
    """Readers verify body and key of each message against the value it claims. A message counts
    once, however many receive it."""
    keys = history.names.get("keys", ())
    rows: dict[tuple[int, Any], dict[str, Any]] = {}
    spans: dict[tuple[int, Any], tuple[int, int]] = {}
    for note in history.notes(CORRUPTED):
        said = json.loads(note.text.partition(" ")[2])
        key = said.pop("key", -1)
        place = key, said.get("offset")
        queue = keys[key] if 0 <= key < len(keys) else "?"
        rows.setdefault(place, {"queue": queue, **said, "seen_s": seconds(note.t)})
        spans[place] = spans.get(place, (note.t, 0))[0], note.t
    if not rows:
        return
    what = "1 message was" if len(rows) == 1 else f"{len(rows):,} messages were"
    parts = " or ".join(sorted({row.get("damaged", "body") for row in rows.values()}))
    yield Finding(
        "CORRUPTED",
        len(rows),
        f"{what} received with another {parts} than was sent",
        INTEGRITY,
        tuple(rows.values())[:SAMPLE],
        **dated(history.names, (((key,), span) for (key, _), span in spans.items())),
    )


def _reasons(found: Survey, complete: bool) -> Iterator[Reason]:
    if found.count("never_sent") and not complete:
        yield Reason(
            "SENDING_UNRECORDED",
            f"{found.count('never_sent'):,} messages were read whose send is not recorded; the "
            "history has gaps, which may be the reason; run it again",
        )
