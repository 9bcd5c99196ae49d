"""Topics and locks outlive every failover: a topic whose making was acknowledged is there until
somebody deletes it (`METADATA_LOST`), one whose deletion was acknowledged does not come back
(`METADATA_RETURNED`), and no queue has two owners in a group (`QUEUE_OWNED_TWICE`).

Each topic is changed by one process, so its last acknowledged change says what must be there. One
key may have many topics, which its operations' values tell apart. A change of unknown outcome may
happen at any later time and excuses what it would bring about. A lock is held for certain from the
moment its holder knows of it until its lease ends, counted from the request, or until the holder
requests to give it back; the shortest overlap of two convicts.
Group offsets are the checker `groups`'s. With gaps among the operations nobody is convicted, since
a change that is missing explains whatever is seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from checkers._run.metadata_changes import DEMAND, Breach, Did, changes, unseen
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
    found = changes(history)
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
    yield from unseen(history, topics, F.SEE, "topics")


def _acknowledged(rows: Any, *kinds: F) -> int:
    return sum(did.f in kinds and did.type is Type.OK for row in rows for did in row)


def _by_topic(rows: Iterable[Sequence[Did]]) -> Mapping[tuple[int, int], Sequence[Did]]:
    """The operations on each topic: by key, and by value where a key has several."""
    topics: dict[tuple[int, int], list[Did]] = {}
    for row in rows:
        for did in row:
            topics.setdefault((did.key, did.value), []).append(did)
    return topics


def of_topic(row: Sequence[Did], began: int = 0) -> Iterator[Breach]:
    """One topic, changed by one process, an operation at a time. `began`: when the load did."""
    there, since = False, 0
    perhaps: set[bool] = set()
    for did in row:
        if did.f is F.SEE:
            seen = did.offset > 0
            if did.type is Type.OK and seen != there and seen not in perhaps:
                code = RETURNED if seen else LOST
                what = "deletion" if seen else "creation"
                at_s = (since - began) / 1e9
                why = f"{_which(did.value)} {what} was acknowledged at {at_s:.3f} s"
                yield Breach(code, did.ended or 0, did.process, did.key, why, value=did.value)
                there = seen
        elif did.type is Type.OK:
            there, since = did.f is F.CREATE, did.ended or 0
        elif did.type is Type.INFO:
            perhaps.add(did.f is F.CREATE)


def _which(value: int) -> str:
    """The topic that a sentence is about; `its` where the key has only one."""
    return "its" if value == NONE else f"topic {producer_of(value)}-{sequence_of(value)}: its"


def of_lock(row: Sequence[Did]) -> Iterator[Breach]:
    """One lock, which several processes want."""
    held: dict[int, tuple[int, int]] = {}  # process -> from, to
    for begin, end, process in sorted(stretches(row)):
        for other, (since, until) in held.items():
            if other != process and until > begin and end > since:
                both_ms = (min(until, end) - begin) / 1e6
                why = f"process {other} held it for another {both_ms:.0f} ms"
                yield Breach(TWICE, begin, process, row[0].key, why)
        held[process] = (begin, end)


def stretches(row: Sequence[Did]) -> Iterator[tuple[int, int, int]]:
    """The same without a break: a lease that is taken again in time goes on, as long as the newer
    one says, so that two owners are found once, however often they renew."""
    last: dict[int, tuple[int, int]] = {}
    for begin, end, process in sorted(_holds(row)):
        since, until = last.get(process, (begin, begin))
        if begin > until:
            yield since, until, process
            since = begin
        last[process] = (since, end)
    yield from ((since, until, process) for process, (since, until) in last.items())


def _holds(row: Sequence[Did]) -> Iterator[tuple[int, int, int]]:
    """When each holder held it for certain."""
    for did in row:
        if did.f is not F.LOCK or did.type is not Type.OK or did.ended is None:
            continue
        given_back = (
            other.begun
            for other in row
            if other.f is F.UNLOCK and other.process == did.process and other.begun >= did.begun
        )
        end = min([did.begun + did.offset * NS_IN_MS, *given_back])
        if end > did.ended:
            yield did.ended, end, did.process
