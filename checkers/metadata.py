"""Topics and locks survive every failover: a topic whose creation was acknowledged exists until it
is deleted (`METADATA_LOST`), one whose deletion was acknowledged does not come back
(`METADATA_RETURNED`), and no queue has two owners in a group (`QUEUE_OWNED_TWICE`).

Each topic is changed by one process, so its last acknowledged change says whether it exists. One
key may have many topics, which the values of its operations distinguish. A change of unknown
outcome may happen at any later time, and excuses its result. A lock is held for certain from the
moment its holder knows of it until its lease ends, counted from the request, or until the holder
requests its release; any overlap of two convicts.

Group offsets are checked by `groups`. With gaps among the operations nothing is concluded, since a
missing change explains any answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from checkers._run.metadata_changes import (
    DEMAND,
    MetadataBreach,
    MetadataOp,
    metadata_changes,
    unread_at_end,
)
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Reason, Result
from harness.operation import NONE, F, Type, producer_of, sequence_of
from harness.trial import Trial

LOST, RETURNED, TWICE = "METADATA_LOST", "METADATA_RETURNED", "QUEUE_OWNED_TWICE"
NS_IN_MS = 1_000_000
MEANING = {
    LOST: "a topic was missing whose creation had been acknowledged ({times})",
    RETURNED: "a topic was back whose deletion had been acknowledged ({times})",
    TWICE: "two consumers of a group held the lock of one queue at the same time ({times})",
}


def check(history: History, trial: Trial, spark: Any) -> Result:
    found = metadata_changes(history)
    topics = _by_topic(found.of(F.CREATE, F.DELETE, F.SEE).values())
    locks = found.of(F.LOCK, F.UNLOCK)
    began = int(history.state.get("load_began_ns", 0))
    breaches = [breach for row in topics.values() for breach in of_topic(row, began)]
    breaches += [breach for row in locks.values() for breach in of_lock(row)]
    findings, reasons = found.judged(breaches, MEANING)
    changed = _acknowledged(topics.values(), F.CREATE, F.DELETE)
    stats: dict[str, Any] = {
        "topics_changed": changed,
        "locked": _acknowledged(locks.values(), F.LOCK),
    }
    if changed and not breaches:
        stats["proved"] = f"{changed:,} acknowledged changes of topics survived every failover"
    reasons += _reasons(history, topics, changed)
    return Result("metadata", tuple(findings), tuple(reasons), stats, {DEMAND: changed})


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"METADATA_LOST", "METADATA_RETURNED", "QUEUE_OWNED_TWICE"}),
    decides=frozenset({"keeps-metadata"}),
    reasons=frozenset({"NO_CHANGES", "NO_FINAL_LOOK", "OPERATIONS_UNRECORDED"}),
    standstill=frozenset({"NO_FINAL_LOOK"}),
)


def _reasons(history: History, topics: Any, changed: int) -> Iterator[Reason]:
    if not changed:
        yield Reason("NO_CHANGES", "no change of a topic was acknowledged, so none could be lost")
    yield from unread_at_end(history, topics, F.SEE, "topics")


def _acknowledged(rows: Any, *kinds: F) -> int:
    return sum(op.f in kinds and op.type is Type.OK for row in rows for op in row)


def _by_topic(
    rows: Iterable[Sequence[MetadataOp]],
) -> Mapping[tuple[int, int], Sequence[MetadataOp]]:
    """Return the operations on each topic, by key and value."""
    topics: dict[tuple[int, int], list[MetadataOp]] = {}
    for row in rows:
        for op in row:
            topics.setdefault((op.key, op.value), []).append(op)
    return topics


def of_topic(row: Sequence[MetadataOp], began: int = 0) -> Iterator[MetadataBreach]:
    """Yield the breaches of one topic, which one process changes, one operation after the other.
    `began`: when the load began."""
    there, since = False, 0
    perhaps: set[bool] = set()
    for op in row:
        if op.f is F.SEE:
            seen = op.offset > 0
            if op.type is Type.OK and seen != there and seen not in perhaps:
                code = RETURNED if seen else LOST
                what = "deletion" if seen else "creation"
                at_s = (since - began) / 1e9
                why = f"{_which(op.value)} {what} was acknowledged at {at_s:.3f} s"
                yield MetadataBreach(code, op.ended or 0, op.process, op.key, why, value=op.value)
                there = seen
        elif op.type is Type.OK:
            there, since = op.f is F.CREATE, op.ended or 0
        elif op.type is Type.INFO:
            perhaps.add(op.f is F.CREATE)


def _which(value: int) -> str:
    """Return the subject of a sentence about a topic; `its` if the key has only one."""
    return "its" if value == NONE else f"topic {producer_of(value)}-{sequence_of(value)}: its"


def of_lock(row: Sequence[MetadataOp]) -> Iterator[MetadataBreach]:
    """Yield the breaches of one lock, which several processes request."""
    held: dict[int, tuple[int, int]] = {}  # process -> from, to
    for begin, end, process in sorted(held_spans(row)):
        for other, (since, until) in held.items():
            if other != process and until > begin and end > since:
                both_ms = (min(until, end) - begin) / 1e6
                why = f"process {other} held it for another {both_ms:.0f} ms"
                yield MetadataBreach(TWICE, begin, process, row[0].key, why)
        held[process] = (begin, end)


def held_spans(row: Sequence[MetadataOp]) -> Iterator[tuple[int, int, int]]:
    """Yield when each holder held the lock without a break (begin, end, process). A lease that is
    renewed in time goes on until the newer one ends, so that two owners are found once, however
    often they renew."""
    last: dict[int, tuple[int, int]] = {}
    for begin, end, process in sorted(_holds(row)):
        since, until = last.get(process, (begin, begin))
        if begin > until:
            yield since, until, process
            since = begin
        last[process] = (since, end)
    yield from ((since, until, process) for process, (since, until) in last.items())


def _holds(row: Sequence[MetadataOp]) -> Iterator[tuple[int, int, int]]:
    """Yield each time for which a holder held the lock for certain: begin, end, process."""
    for op in row:
        if op.f is not F.LOCK or op.type is not Type.OK or op.ended is None:
            continue
        given_back = (
            other.begun
            for other in row
            if other.f is F.UNLOCK and other.process == op.process and other.begun >= op.begun
        )
        end = min([op.begun + op.offset * NS_IN_MS, *given_back])
        if end > op.ended:
            yield op.ended, end, op.process
