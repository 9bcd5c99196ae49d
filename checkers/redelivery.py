"""A message that a consumer group has acknowledged is not given to the group again: a fetch that
began after the acknowledgement was answered must not return it (`ACKED_AGAIN`).

An acknowledgement of unknown outcome proves nothing, nor does a fetch that was under way. Messages
that came again before they were acknowledged are counted: `redelivered`. Whether each message is
delivered at all is judged by `loss`.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkers._linear.buckets import Rows, map_buckets, rows_of
from checkers._run.evidence import SAMPLE, name_of, rows_kept, seconds
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGAIN, DEMAND = "ACKED_AGAIN", "keeps-metadata"
Place = tuple[int, int, int]  # key, group, offset
COLUMNS = ("t", "process", "op", "type", "f", "key", "arg", "offset", "pos")


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    most = rows_kept(history.faults)
    lines = map_buckets(
        history, spark, COLUMNS, _select_rows, lambda: lambda rows: judge(rows, most)
    )
    names = ("acknowledged", "redelivered", "again")
    totals = {name: sum(line[name] for line in lines) for name in names}
    again, acknowledged = totals.pop("again"), totals["acknowledged"]
    stats: dict[str, Any] = totals
    found, reasons = [], []
    if again:
        rows = sorted(row for line in lines for row in line["rows"])
        found.append(_finding(again, rows[:most], history))
    elif acknowledged:
        stats["proved"] = f"none of {quantity(acknowledged, 'acknowledged message')} came again"
    if not acknowledged:
        why = "no acknowledgement of a message was answered, so nothing is proven"
        reasons.append(Reason("NO_ACKNOWLEDGEMENTS", why))
    return Result("redelivery", tuple(found), tuple(reasons), stats, {DEMAND: acknowledged})


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"ACKED_AGAIN"}),
    decides=frozenset({"keeps-metadata"}),
    reasons=frozenset({"NO_ACKNOWLEDGEMENTS"}),
)


def _finding(count: int, rows: list[list[int]], history: History) -> Finding:
    evidence = tuple(_row(history, *row) for row in rows[:SAMPLE])
    what = quantity(count, "message was", "messages were")
    spans = tuple((acked, seen) for seen, acked, *_ in rows)
    message = f"{what} given to a group again that had acknowledged it"
    return Finding(AGAIN, count, message, DEMAND, evidence, spans=spans)


def _row(
    history: History, seen: int, acked: int, key: int, group: int, offset: int, op: int, by: int
) -> Mapping[str, Any]:
    return {
        "queue": name_of(history.names, "keys", key),
        "offset": offset,
        "group": f"group-{group}",
        "acked_s": seconds(acked),
        "seen_s": seconds(seen),
        "op": op,
        "process": by,
    }


def _select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    return rows_of(batch, COLUMNS, (F.POLL, F.ACKNOWLEDGE))


def judge(rows: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return counts, and rows of messages that came again: when, when it had been acknowledged,
    key, group, offset, operation and process."""
    invoked: dict[int, tuple[int, int]] = {}  # operation -> time, group
    acked: dict[Place, int] = {}  # when that was certain
    given: list[tuple[int, int, Place, int, int]] = []  # also: when the fetch began
    for op, t, group in _columns(rows, rows["type"] == Type.INVOKE, "op", "t", "arg"):
        invoked[op] = t, group
    messages = (rows["type"] == Type.OK) & (rows["pos"] >= 0)
    of_messages = _columns(rows, messages, "t", "process", "op", "f", "key", "offset")
    for t, process, op, f, key, offset in of_messages:
        begun, group = invoked.get(op, (t, -1))
        if group < 0:
            continue
        place = key, group, offset
        if f == F.ACKNOWLEDGE:
            acked[place] = min(acked.get(place, t), t)
        else:
            given.append((t, begun, place, op, process))
    seen: set[Place] = set()
    again: dict[Place, list[int]] = {}
    redelivered = 0
    for t, begun, place, op, process in sorted(given):
        redelivered += place in seen
        seen.add(place)
        if place not in again and acked.get(place, begun) < begun:
            again[place] = [t, acked[place], *place, op, process]
    some = sorted(again.values())[:most]
    counts = {"acknowledged": len(acked), "redelivered": redelivered, "again": len(again)}
    return {**counts, "rows": some}


def _columns(rows: Mapping[str, Any], mine: Any, *names: str) -> Iterator[tuple[int, ...]]:
    """Yield these columns of some rows."""
    return zip(*(rows[name][mine].tolist() for name in names), strict=True)
