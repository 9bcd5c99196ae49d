"""Delayed messages come after their delay, each once, and none is lost.

A reader that got a message before its delay was over got it early (`DELIVERED_EARLY`). The delay
runs from the invocation, so that much is certain: systems may round by ROUNDING_S, and nodes' wall
clocks may differ by that. Where a fault moved clocks, it only informs.

An accepted message is lost (`DELAY_LOST`) if the final readers do not find it in any queue, since a
system may put it into another one than it was sent to. They begin when it is overdue by `late_s`, a
load option of the workload. That proves nothing unless they read every queue from its first message
to its end, nor does a message that was accepted too late for them.

A message that is stored twice although it was sent in one attempt was put twice by the system's
scan for messages that are due, as after a failover. At-least-once permits that, so
`DUPLICATED_BY_SCAN` only informs. `late_s_p99`: how much later than their time the groups got
messages, during the load; detection and failover are a part of it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from checkers._linear.buckets import Rows, map_buckets, rows_of
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
from harness import registry
from harness.contracts import CheckerPlugin, FaultPlugin
from harness.history.notes import DRAINED
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARLY, LOST, TWICE = "DELIVERED_EARLY", "DELAY_LOST", "DUPLICATED_BY_SCAN"
ROUNDING_S = 1.0
LATE_S = 5.0  # if the trial's load does not say
MS = 1_000_000  # in ns
STEP_MS = 10  # to which figures are exact
COLUMNS = (
    *("t", "process", "op", "type", "f", "key", "value", "arg", "offset", "pos", "attempts"),
    "queue",
)
COUNTS = ("accepted", "delivered", "early", "lost", "undecided", "twice")


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    most = rows_kept(history.faults)
    limits = (read_at(history), _late_ns(trial), history.phases.get("drain", -1), most)
    lines = map_buckets(history, spark, COLUMNS, _select_rows, _bucket_judge(limits))
    totals = {name: sum(line[name] for line in lines) for name in COUNTS}
    rows = {code: _rows(lines, code)[:most] for code in (EARLY, LOST)}
    clocked = clocks_moved(history)
    found = list[Finding]()
    if totals["early"]:
        what = quantity(totals["early"], "delayed message was", "delayed messages were")
        why = f"{what} delivered more than {ROUNDING_S:g} s before the delay was over"
        demand = "" if clocked else "order-per-queue"
        found.append(_finding(EARLY, totals["early"], why, demand, rows[EARLY], history))
    if totals["lost"]:
        what = quantity(totals["lost"], "delayed message was", "delayed messages were")
        why = f"{what} accepted, and not found by the final readers"
        found.append(_finding(LOST, totals["lost"], why, "no-loss", rows[LOST], history))
    if totals["twice"]:
        what = quantity(totals["twice"], "delayed message was", "delayed messages were")
        found.append(Finding(TWICE, totals["twice"], f"{what} stored twice by the system", ""))
    found, doubts = without_gaps(found, history, {EARLY: FAULT_ROWS, LOST: OP_ROWS})
    stats: dict[str, Any] = {**totals, "late_s_p99": _p99(lines)}
    if totals["accepted"] and not totals["lost"] and not totals["undecided"]:
        stats["proved"] = f"all {totals['accepted']:,} accepted messages were delivered"
    decided = totals["accepted"] - totals["undecided"]
    reasons = (*_reasons(totals), *doubts)
    return Result("delays", tuple(found), reasons, stats, {"no-loss": decided})


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({EARLY, LOST, TWICE}),
    decides=frozenset({"no-loss"}),
    reasons=frozenset({"NO_DELAYED_MESSAGES", "NO_FINAL_READ", UNRECORDED}),
    cut_short=frozenset({"NO_FINAL_READ"}),
    standstill=frozenset({"NO_FINAL_READ"}),
    needs_clocks=False,
)


def _reasons(totals: Mapping[str, int]) -> Sequence[Reason]:
    if not totals["accepted"]:
        why = "no delayed message was accepted, so nothing is proven"
        return [Reason("NO_DELAYED_MESSAGES", why)]
    if not totals["undecided"]:
        return []
    what = quantity(totals["undecided"], "delayed message")
    why = f"the final readers did not read the queues of {what} to the end after their time"
    return [Reason("NO_FINAL_READ", f"{why}; let the run finish, or raise recover_within_s")]


def _late_ns(trial: Trial) -> int:
    late_s = trial.load.get("late_s", LATE_S)
    return round(float(late_s) * 1e9)


def clocks_moved(history: History) -> bool:
    """Whether a fault that was applied sets the clocks of nodes."""
    kinds = {fault.kind for fault in history.faults if fault.applied is not None}
    plugins = (cast(FaultPlugin, registry.plugin("fault", kind)) for kind in kinds)
    return any("clock" in plugin.needs for plugin in plugins)


def read_at(history: History) -> Mapping[int, int]:
    """Return when final readers had read all keys from the first message to the last, for each key;
    nothing unless they did so."""
    found: dict[int, int] = {}
    for note in history.notes[DRAINED]:
        fields = json.loads(note.text.partition(" ")[2])
        if "group" not in fields and fields.get("from") == 0:
            found[fields["key"]] = note.t
    if len(found) < len(history.names["keys"]):
        return {}
    return dict.fromkeys(found, min(found.values(), default=-1))


def _select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    """Return the rows of messages by value, wherever they were put."""
    rows = dict(rows_of(batch, COLUMNS[:-1], (F.DELAY, F.POLL, F.READ)))
    mine = rows["value"] >= 0
    rows = {name: values[mine] for name, values in rows.items()}
    return {**rows, "key": rows["value"], "queue": rows["key"]}


Limits = tuple[Mapping[int, int], int, int, int]


def _bucket_judge(limits: Limits) -> Callable[[], Callable[[Rows], dict[str, Any]]]:
    return lambda: lambda rows: judge(rows, *limits)


def judge(
    rows: Mapping[str, Any], read_at: Mapping[int, int], late_ns: int, drain_at: int, most: int
) -> dict[str, Any]:
    """Return counts, rows of what was early and lost, and how often messages were so late.

    read_at   when the final readers had read all queues to their ends, for each queue
    late_ns   how late a message may be
    drain_at  when the final phase began; what came in it tells nothing of how late the system is
    """
    asked: dict[int, tuple[int, int, int, int, int]] = {}  # value: t, key, delay in ns, op, process
    accepted: dict[int, tuple[int, int]] = {}  # value: when that was certain, attempts
    seen: dict[int, int] = {}  # value: when it came first
    places: dict[int, set[tuple[int, int]]] = {}
    stored: set[int] = set()
    columns = (rows[name].tolist() for name in COLUMNS)
    for t, process, op, type_, f, _, value, arg, offset, pos, attempts, key in zip(
        *columns, strict=True
    ):
        if f == F.DELAY and type_ == Type.INVOKE:
            asked[value] = t, key, arg * MS, op, process
        elif f == F.DELAY and type_ == Type.OK:
            accepted[value] = t, attempts
        elif f != F.DELAY and type_ == Type.OK and pos >= 0:
            seen[value] = min(seen.get(value, t), t)
            places.setdefault(value, set()).add((key, offset))
            if f == F.READ:
                stored.add(value)
    early, lost, undecided, late = list[list[int]](), list[list[int]](), 0, Counter[int]()
    for value, (t, key, delay_ns, op, process) in asked.items():
        due = t + delay_ns
        row = [t, due, key, value, op, process]
        if value in seen and seen[value] < due - ROUNDING_S * 1e9:
            early.append([seen[value], *row])
        if value in seen and (drain_at < 0 or seen[value] < drain_at):
            late[max(seen[value] - due, 0) // (STEP_MS * MS)] += 1
        if value in accepted and value not in stored:
            acked, _ = accepted[value]
            if read_at.get(key, -1) < max(due, acked) + late_ns:
                undecided += 1
            else:
                lost.append([acked, *row])
    once = (value for value, (_, attempts) in accepted.items() if attempts == 1)
    return {
        "accepted": len(accepted),
        "delivered": sum(value in seen for value in asked),
        "early": len(early),
        "lost": len(lost),
        "undecided": undecided,
        "twice": sum(len(places.get(value, ())) > 1 for value in once),
        "late": sorted(late.items()),
        EARLY: sorted(early)[:most],
        LOST: sorted(lost)[:most],
    }


def _rows(lines: Sequence[Mapping[str, Any]], code: str) -> list[list[int]]:
    return sorted(row for line in lines for row in line[code])


def _p99(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how late 99 in 100 messages were at most, in seconds."""
    counts: Counter[int] = Counter()
    for line in lines:
        counts.update(dict(line["late"]))
    left = -(-counts.total() * 99 // 100)
    for step, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return (step + 1) * STEP_MS / 1000
    return None


def _finding(
    code: str, count: int, why: str, demand: str, rows: Sequence[Sequence[int]], history: History
) -> Finding:
    """`rows`: when it was seen, or accepted, then what `judge` puts into a row."""
    times = ((row[3:4], (row[1], max(row[0], row[2]))) for row in rows)
    evidence = tuple(_row(history, code, row) for row in rows[:SAMPLE])
    return Finding(code, count, why, demand, evidence, **span_fields(history.names, times))


def _row(history: History, code: str, row: Sequence[int]) -> Mapping[str, Any]:
    at, sent, due, key, value, op, process = row
    return {
        "queue": name_of(history.names, "keys", key),
        "value": value,
        "sent_s": seconds(sent),
        "due_s": seconds(due),
        "seen_s" if code == EARLY else "acked_s": seconds(at),
        "op": op,
        "process": process,
    }
