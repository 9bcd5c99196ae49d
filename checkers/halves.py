"""Readers get a message of a transaction once it is committed, and never otherwise.

A message that was seen before its commit was even asked for is `HALF_SEEN`, or `ROLLED_BACK_SEEN`
if a producer rolled it back: from then on no producer commits it. Whether producers decided by
themselves, or because the system asked (`ASKED`), makes no difference. A decision of unknown
outcome may take effect at any later time.

A message is lost (`COMMIT_LOST`) if its commit was acknowledged before the final readers began, and
they did not find it, although they read every queue from its first message to its last. A message
that was prepared, that no producer decided, and about which the system never asked, is
`HALF_STUCK`: in the final phase it had `asked_within_s` for that, a load option of the workload.

Messages that were stored twice, as by a commit that a new master did not know of, are counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkers._linear.buckets import Rows, map_buckets, rows_of
from checkers._run.evidence import (
    OP_ROWS,
    SAMPLE,
    UNRECORDED,
    name_of,
    rows_kept,
    seconds,
    span_fields,
    without_gaps,
)
from checkers.delays import read_at
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN, ROLLED_BACK, LOST, STUCK = "HALF_SEEN", "ROLLED_BACK_SEEN", "COMMIT_LOST", "HALF_STUCK"
ASKED_WITHIN_S = 45.0  # if the trial's load does not say
COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "arg", "offset", "pos", "queue")
COUNTS = ("prepared", "committed", "asked", "undecided", "twice")
FINDINGS = {  # demand, and what it says of so many messages
    SEEN: ("integrity", "read before any producer asked to commit"),
    ROLLED_BACK: ("integrity", "read although producers rolled back"),
    LOST: ("no-loss", "committed, and not found by the final readers"),
    STUCK: ("recovers", "prepared, never decided, and never asked about"),
}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    most = rows_kept(history.faults)
    within_s = float(trial.load.get("asked_within_s", ASKED_WITHIN_S))
    limits = (read_at(history), _readers_begin(history, within_s), most)
    lines = map_buckets(history, spark, COLUMNS, _select_rows, _bucket_judge(limits))
    totals = {name: sum(line[name] for line in lines) for name in COUNTS}
    found = list[Finding]()
    for code, (demand, what) in FINDINGS.items():
        count = sum(line["counts"][code] for line in lines)
        if count:
            rows = sorted(row for line in lines for row in line[code])[:most]
            found.append(_finding(code, count, what, demand, rows, history))
    found, doubts = without_gaps(found, history, dict.fromkeys(FINDINGS, OP_ROWS))
    stats: dict[str, Any] = dict(totals)
    if totals["committed"] and not (found or doubts) and not totals["undecided"]:
        stats["proved"] = f"all {totals['committed']:,} committed messages were delivered"
    decided = {
        "no-loss": totals["committed"] - totals["undecided"],
        "integrity": totals["prepared"],
        "recovers": totals["asked"],
    }
    return Result("halves", tuple(found), (*_reasons(totals), *doubts), stats, decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({SEEN, ROLLED_BACK, LOST, STUCK}),
    decides=frozenset({"no-loss", "integrity"}),
    reasons=frozenset({"NO_COMMITS", "NO_FINAL_READ", UNRECORDED}),
    cut_short=frozenset({"NO_FINAL_READ"}),
    standstill=frozenset({"NO_FINAL_READ"}),
)


def _reasons(totals: Mapping[str, int]) -> Sequence[Reason]:
    if not totals["committed"]:
        return [Reason("NO_COMMITS", "no commit was acknowledged, so nothing is proven")]
    if not totals["undecided"]:
        return []
    what = quantity(totals["undecided"], "committed message")
    why = f"the final readers did not read the queues of {what} to the end"
    return [Reason("NO_FINAL_READ", f"{why}; let the run finish, or raise recover_within_s")]


def _readers_begin(history: History, within_s: float) -> int:
    """Return a time before any final reader began: answerers go on for so long before."""
    drain = history.phases.get("drain")
    return -1 if drain is None else drain + round(within_s * 1e9)


def _select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    """Return the rows of messages by value: who answers does not know the queue of a message."""
    kinds = (F.PREPARE, F.DECIDE, F.ASKED, F.POLL, F.READ)
    rows = dict(rows_of(batch, COLUMNS[:-1], kinds))
    mine = rows["value"] >= 0
    rows = {name: values[mine] for name, values in rows.items()}
    return {**rows, "key": rows["value"], "queue": rows["key"]}


Limits = tuple[Mapping[int, int], int, int]


def _bucket_judge(limits: Limits) -> Callable[[], Callable[[Rows], dict[str, Any]]]:
    return lambda: lambda rows: judge(rows, *limits)


class _Half:
    """What a history has of one message; times are -1 if it has none."""

    def __init__(self) -> None:
        self.queue = self.prepared = self.accepted = self.seen = self.stored = -1
        self.asked_to_commit = self.committed = self.op = self.process = -1
        self.rolled_back = self.decided = self.asked = False
        self.places: set[int] = set()


def judge(
    rows: Mapping[str, Any], read_at: Mapping[int, int], readers_begin: int, most: int
) -> dict[str, Any]:
    """Return counts, and the rows of each finding: when, of which queue, value, operation, process.

    read_at        when the final readers had read a queue to its end
    readers_begin  a time before they began; -1: there was no final phase
    """
    halves: dict[int, _Half] = {}
    for t, process, op, type_, f, _, value, arg, offset, pos, queue in zip(
        *(rows[name].tolist() for name in COLUMNS), strict=True
    ):
        half = halves.setdefault(value, _Half())
        if f == F.PREPARE:
            if type_ == Type.INVOKE:
                half.queue, half.prepared, half.op, half.process = queue, t, op, process
            elif type_ == Type.OK:
                half.accepted = t
        elif f == F.DECIDE:
            _decide(half, t, type_, arg)
        elif f == F.ASKED:
            half.asked = True
        elif type_ == Type.OK and pos >= 0:
            half.seen = _first(half.seen, t)
            if f == F.READ:
                half.stored = t
                half.places.add(offset)
    found: dict[str, list[list[int]]] = {code: [] for code in FINDINGS}
    undecided = 0
    for value, half in halves.items():
        if half.prepared < 0:
            continue
        row = [half.queue, value, half.op, half.process]
        if half.seen >= 0 and not 0 <= half.asked_to_commit <= half.seen:
            found[ROLLED_BACK if half.rolled_back else SEEN].append([half.seen, *row])
        if half.committed >= 0 and half.stored < 0:
            if half.queue in read_at and half.committed <= readers_begin:
                found[LOST].append([half.committed, *row])
            else:
                undecided += 1
        if 0 <= half.accepted < readers_begin and not (half.decided or half.asked):
            found[STUCK].append([half.accepted, *row])
    return {
        "prepared": sum(half.accepted >= 0 for half in halves.values()),
        "committed": sum(half.committed >= 0 for half in halves.values()),
        "asked": sum(half.asked for half in halves.values()),
        "undecided": undecided,
        "twice": sum(len(half.places) > 1 for half in halves.values() if half.prepared >= 0),
        "counts": {code: len(some) for code, some in found.items()},
        **{code: sorted(some)[:most] for code, some in found.items()},
    }


def _decide(half: _Half, t: int, type_: int, arg: int) -> None:
    if type_ == Type.INVOKE:
        half.decided = True
        if arg:
            half.asked_to_commit = _first(half.asked_to_commit, t)
        else:
            half.rolled_back = True
    elif type_ == Type.OK and half.asked_to_commit >= 0:
        half.committed = _first(half.committed, t)


def _first(known: int, t: int) -> int:
    return t if known < 0 else min(known, t)


def _finding(
    code: str, count: int, what: str, demand: str, rows: Sequence[list[int]], history: History
) -> Finding:
    of = quantity(count, "message was", "messages were")
    evidence = tuple(_row(history, code, *row) for row in rows[:SAMPLE])
    times = (((row[1],), (row[0], row[0])) for row in rows)
    fields = span_fields(history.names, times)
    return Finding(code, count, f"{of} {what}", demand, evidence, **fields)


def _row(
    history: History, code: str, at: int, queue: int, value: int, op: int, process: int
) -> Mapping[str, Any]:
    when = "seen_s" if code in (SEEN, ROLLED_BACK) else "acked_s"
    named = name_of(history.names, "keys", queue)
    return {"queue": named, "value": value, when: seconds(at), "op": op, "process": process}
