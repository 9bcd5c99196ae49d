"""Each message is given to one consumer of a group at a time, until it is acknowledged.

A message is lost to the group (`POP_LOST`) if no consumer acknowledged it, and it was not given
again, or never, although consumers popped from its queue until it was overdue by `late_s`, a load
option of the workload. A message that producers sent twice is two messages, by their offsets. An
acknowledgement of unknown outcome counts as one. A message that was never given counts if a final
reader found it. It may be given again, and acknowledged, in another queue than before: acting
masters send messages that are due to other broker sets. So one that is missing in its queue is
looked for in all queues.

`POP_TOO_SOON`: two consumers were given a message, the second one more than ROUNDING_S before the
time of the first was certainly over; that time runs from the invocation of its POP, or of a HIDE
that was acknowledged. `POP_ACKED_AGAIN`: a message was given by a POP that began after its
acknowledgement was answered. Both are judged within a queue. If the load option `exclusive` is
false they only inform, and are of all queues together: systems may promise at least once alone.
Where a fault moved clocks, `POP_TOO_SOON` only informs, and both do where messages escaped to
another broker set (events `escaped`), which does not know all that the first one did.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkers._linear.buckets import Rows, Select, map_buckets, rows_of
from checkers._run.evidence import (
    FAULT_ROWS,
    OP_ROWS,
    SAMPLE,
    UNRECORDED,
    name_of,
    rows_kept,
    seconds,
    span_fields,
    without_gaps,
)
from checkers.delays import LATE_S, MS, ROUNDING_S, clocks_moved
from harness.contracts import CheckerPlugin
from harness.history.notes import DRAINED, NOT_DRAINED
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOST, SOON, AGAIN = "POP_LOST", "POP_TOO_SOON", "POP_ACKED_AGAIN"
COLUMNS = ("t", "process", "op", "type", "f", "key", "value", "arg", "offset", "pos", "queue")
COUNTS = ("given", "acknowledged", "again", "undecided")
FINDINGS = {  # demand, and what it says of so many messages
    LOST: ("at-least-once", "not acknowledged, and not given again"),
    SOON: ("at-least-once", "given while another consumer's time ran"),
    AGAIN: ("keeps-metadata", "given again after an acknowledgement"),
}
ESCAPED, EVENT_ROWS = "escaped", frozenset({"events"})  # an event, and its table
NEVER = 1 << 62


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    most = rows_kept(history.faults)
    late_ns = round(float(trial.load.get("late_s", LATE_S)) * 1e9)
    exclusive = bool(trial.load.get("exclusive", True))
    lines = _judged(history, spark, late_ns, most, exclusive)
    totals = {name: sum(line[name] for line in lines) for name in COUNTS}
    twice = not exclusive or any(event.kind == ESCAPED for event in history.events)
    waived = {SOON: twice or clocks_moved(history), AGAIN: twice, LOST: False}
    found = list[Finding]()
    for code, (demand, what) in FINDINGS.items():
        count = sum(line["counts"][code] for line in lines)
        rows = sorted(row for line in lines for row in line[code])[:most]
        if count:
            of = quantity(count, "message was", "messages were")
            evidence = tuple(_row(history, *row) for row in rows[:SAMPLE])
            times = (((row[4],), (row[0], row[1])) for row in rows)
            fields = span_fields(history.names, times)
            demanded = "" if waived[code] else demand
            found.append(Finding(code, count, f"{of} {what}", demanded, evidence, **fields))
    found, doubts = without_gaps(
        found,
        history,
        {LOST: OP_ROWS | {"notes"}, SOON: OP_ROWS | FAULT_ROWS | EVENT_ROWS, AGAIN: EVENT_ROWS},
    )
    stats: dict[str, Any] = dict(totals)
    if totals["acknowledged"] and not (found or doubts) and not totals["undecided"]:
        stats["proved"] = f"all {totals['given']:,} messages were given until acknowledged"
    decided = {"at-least-once": totals["given"], "keeps-metadata": totals["acknowledged"]}
    return Result("pops", tuple(found), (*_reasons(totals), *doubts), stats, decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(FINDINGS),
    decides=frozenset({"at-least-once", "keeps-metadata"}),
    reasons=frozenset({"NO_POPS_ACKNOWLEDGED", "NO_FINAL_POP", UNRECORDED}),
    cut_short=frozenset({"NO_FINAL_POP"}),
    standstill=frozenset({"NO_FINAL_POP"}),
    needs_clocks=False,
)


def _judged(
    history: History, spark: "SparkSession | None", late_ns: int, most: int, exclusive: bool
) -> list[dict[str, Any]]:
    """Return what `judge` returns for groups of queues, with losses that were looked for in all."""
    until = popped_until(history)
    everywhere = together(until, len(history.names["keys"]))

    def run(select: Select, until: Mapping[int, int]) -> list[dict[str, Any]]:
        return map_buckets(history, spark, COLUMNS, select, _bucket_judge((until, late_ns, most)))

    if not exclusive:
        return run(_select_all_rows, everywhere)
    lines = run(_select_rows, until)
    if not any(line["undecided"] or line["counts"][LOST] for line in lines):
        return lines
    (whole,) = run(_select_all_rows, everywhere)
    nothing = {"undecided": 0, "counts": {LOST: 0}, LOST: []}
    for line, losses in zip(lines, chain([whole], repeat(nothing)), strict=False):
        counts = {**line["counts"], LOST: losses["counts"][LOST]}
        line |= {"undecided": losses["undecided"], "counts": counts, LOST: losses[LOST]}
    return lines


def _reasons(totals: Mapping[str, int]) -> Sequence[Reason]:
    if not totals["acknowledged"]:
        why = "no acknowledgement of a message was answered, so nothing is proven"
        return [Reason("NO_POPS_ACKNOWLEDGED", why)]
    if not totals["undecided"]:
        return []
    what = quantity(totals["undecided"], "message")
    why = f"consumers did not pop from the queues of {what} until all were acknowledged"
    return [Reason("NO_FINAL_POP", f"{why}; let the run finish, or raise recover_within_s")]


def popped_until(history: History) -> Mapping[int, int]:
    """Return, for each key from which all consumers popped until nothing came any more, when the
    first of them ended."""
    found: dict[int, int] = {}
    broken: set[int] = set()
    for word in (DRAINED, NOT_DRAINED):
        for note in history.notes[word]:
            fields = json.loads(note.text.partition(" ")[2])
            if "group" in fields and word == NOT_DRAINED:
                broken.add(fields["key"])
            elif "group" in fields:
                found[fields["key"]] = min(found.get(fields["key"], NEVER), note.t)
    return {key: t for key, t in found.items() if key not in broken}


def together(until: Mapping[int, int], keys: int) -> Mapping[int, int]:
    """Return when consumers ended to pop from all keys, for a message that may be in any; nothing
    unless they did so."""
    return dict.fromkeys(until, min(until.values())) if len(until) == keys else {}


def _select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    """Return rows that are judged queue by queue."""
    rows = rows_of(batch, COLUMNS[:-1], (F.POP, F.ACK, F.HIDE, F.READ))
    return {**rows, "queue": rows["key"]}


def _select_all_rows(batch: pa.RecordBatch, place: int) -> Rows:
    """Return rows that are judged all at once."""
    rows = _select_rows(batch, place)
    return {**rows, "key": 0 * rows["key"]}


Limits = tuple[Mapping[int, int], int, int]


def _bucket_judge(limits: Limits) -> Callable[[], Callable[[Rows], dict[str, Any]]]:
    return lambda: lambda rows: judge(rows, *limits)


@dataclass
class _Popped:
    """What a history has of one message. Deliveries: when they ended, when they began, for how long
    it was invisible, operation, process."""

    key: int = -1
    given: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    hidden: list[tuple[int, int, int]] = field(default_factory=list)  # asked, answered, for
    asked_at: list[int] = field(default_factory=list)  # HIDE and ACK
    acked: int = NEVER
    may_be_acked: bool = False
    read: int = -1
    due: int = -1


def judge(
    rows: Mapping[str, Any], popped_until: Mapping[int, int], late_ns: int, most: int
) -> dict[str, Any]:
    """Return counts, and rows of each finding: from when to when it happened, queue, value,
    operation and process.

    popped_until  when the first consumer found a queue empty for good
    late_ns       how late a message may be
    """
    messages: dict[tuple[int, int], _Popped] = defaultdict(_Popped)
    begun: dict[int, tuple[int, int]] = {}  # operation: when, its arg in ns
    columns = (rows[name].tolist() for name in COLUMNS)
    for t, process, op, type_, f, _, value, arg, offset, pos, key in zip(*columns, strict=True):
        if type_ == Type.INVOKE:
            begun[op] = t, arg * MS
        if value < 0:
            continue
        message, (asked, for_ns) = messages[value, offset], begun.get(op, (t, 0))
        message.key = key
        if f == F.POP and type_ == Type.OK and pos >= 0:
            message.given.append((t, asked, for_ns, op, process))
            message.due = max(message.due, t + for_ns)
        elif f == F.READ and type_ == Type.OK and pos >= 0:
            message.read = t
        elif f in (F.ACK, F.HIDE) and type_ == Type.INVOKE:
            message.asked_at.append(t)
        elif f == F.ACK and type_ == Type.OK:
            message.acked = min(message.acked, t)
        elif f == F.HIDE and type_ == Type.OK:
            message.hidden.append((asked, t, for_ns))
        if f == F.HIDE and type_ in (Type.OK, Type.INFO):
            message.due = max(message.due, t + for_ns)
        message.may_be_acked |= f == F.ACK and type_ in (Type.OK, Type.INFO)
    found: dict[str, list[list[int]]] = {code: [] for code in FINDINGS}
    undecided = 0
    for (value, _), message in messages.items():
        message.given.sort()
        _contradict(value, message, found)
        base = max(message.due, message.read)
        if message.may_be_acked or base < 0:
            continue
        if base + late_ns > popped_until.get(message.key, -1):
            undecided += 1
        else:
            *_, op, process = message.given[-1] if message.given else (-1, -1)
            found[LOST].append([base, base + late_ns, message.key, value, op, process])
    return {
        "given": sum(bool(each.given) for each in messages.values()),
        "acknowledged": sum(each.acked < NEVER for each in messages.values()),
        "again": sum(len(each.given) > 1 for each in messages.values()),
        "undecided": undecided,
        "counts": {code: len(some) for code, some in found.items()},
        **{code: sorted(some)[:most] for code, some in found.items()},
    }


def _contradict(value: int, message: _Popped, found: dict[str, list[list[int]]]) -> None:
    """Add rows of a message that was given although it was invisible, or acknowledged."""
    slack = round(ROUNDING_S * 1e9)
    for t, began, _, op, process in message.given:
        if message.acked < began:
            found[AGAIN].append([message.acked, t, message.key, value, op, process])
            break
    pairs = zip(message.given, message.given[1:], strict=False)
    for (first, began, for_ns, *_), (second, began_2, for_ns_2, op, process) in pairs:
        both = second < began + for_ns - slack and first < began_2 + for_ns_2 - slack
        if both and not any(began < t < second for t in message.asked_at):
            found[SOON].append([first, second, message.key, value, op, process])
            return
    for asked, answered, for_ns in message.hidden:
        for t, began, _, op, process in message.given:
            certain = answered < began and t < asked + for_ns - slack
            if certain and not any(asked < other < t for other in message.asked_at):
                found[SOON].append([answered, t, message.key, value, op, process])
                return


def _row(
    history: History, begun: int, at: int, key: int, value: int, op: int, process: int
) -> Mapping[str, Any]:
    return {
        "queue": name_of(history.names, "keys", key),
        "value": value,
        "from_s": seconds(begun),
        "to_s": seconds(at),
        "op": op,
        "process": process,
    }
