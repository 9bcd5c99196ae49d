"""Queues, sets, counters, locks and logs are linearizable: all operations on each of them fit one
order that respects real time.

The operations on a key define its kind: enqueue and dequeue, add and list, add and count, acquire
and release, append and list. Each kind has a method of its own (`_linear`); an operation of unknown
outcome may have happened at any time since its call, or never. A witness is the two or three
operations that contradict each other; each root cause counts once.

`ELEMENT_LOST` of a queue and some other codes say that something is missing, so they need a history
without gaps; otherwise they are a reason, and do not convict.

A contract without `order-per-queue` is for queues that promise no order; one without
`at-least-once` allows a queue to deliver an element again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkers._linear.object_kinds import ObjectKind
from checkers._linear.object_verdicts import SPAN, ObjectFindings, judge_objects
from checkers._linear.violations import Code
from checkers._run.evidence import SAMPLE, name_of
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALWAYS = "linearizable"  # independent of the contract
LOSS, ORDER, ONCE = "no-loss", "order-per-queue", "at-least-once"

MEANINGS: Mapping[Code, tuple[str, str, str]] = {
    Code.NOT_LINEARIZABLE: (ALWAYS, "contradiction", "that no order of the operations explains"),
    Code.PHANTOM_ELEMENT: (ALWAYS, "element", "that came out and had not been put in by then"),
    Code.DUPLICATE_ELEMENT: (ALWAYS, "element", "that was put in once and came out twice"),
    Code.ELEMENT_LOST: (LOSS, "element", "that was acknowledged and is lost"),
    Code.QUEUE_ORDER: (ORDER, "element", "that came out of its queue in the wrong order"),
    Code.NOT_EMPTY: (ORDER, 'answer "empty"', "although the queue held an element"),
    Code.STALE_READ: (ALWAYS, "read", "that did not show earlier elements"),
    Code.OFFSET_CONFLICT: (ALWAYS, "offset", "of a log that held two values"),
    Code.LOG_HOLE: (ALWAYS, "offset", "of a log at which no client can have appended"),
    Code.COUNTER_OUT_OF_RANGE: (ALWAYS, "read", "of a counter that no sum of increments explains"),
    Code.LOCK_HELD_TWICE: (ALWAYS, "hold", "of a lock that another process held at the same time"),
    Code.LOCK_NOT_HELD: (ALWAYS, "release", "that succeeded although the lock was not held"),
    Code.LOCK_LOST: (ALWAYS, "hold", "of a lock that was lost before it was released"),
    Code.FENCING_BROKEN: (ALWAYS, "fencing token", "that is not greater than the one before"),
}
DEMANDS = {(ObjectKind.QUEUE, Code.DUPLICATE_ELEMENT): ONCE}  # where it depends on the kind
NAMED = 3  # elements that a finding's sentence names
# codes that gaps in the record may explain
MISSING = {
    *((kind, Code.PHANTOM_ELEMENT) for kind in ObjectKind),
    *((ObjectKind.COUNTER, code) for code in Code),
    *((ObjectKind.LOCK, code) for code in Code if code is not Code.FENCING_BROKEN),
    *((ObjectKind.LOG, code) for code in (Code.LOG_HOLE, Code.ELEMENT_LOST, Code.NOT_LINEARIZABLE)),
    *((ObjectKind.QUEUE, code) for code in (Code.ELEMENT_LOST, Code.NOT_LINEARIZABLE)),
}
AGREES = re.compile(r"\b(that|and) (was|is)\b")  # verbs of a meaning whose subject is the noun
NOUNS = {
    ObjectKind.QUEUE: "queues",
    ObjectKind.SET: "sets",
    ObjectKind.COUNTER: "counters",
    ObjectKind.LOG: "logs",
    ObjectKind.LOCK: "locks",
}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found = judge_objects(history, spark, ordered=trial.demands(ORDER))
    findings = tuple(_findings(found, history))
    keys = sum(found.keys.values())
    stats: dict[str, Any] = {"operations": found.operations}
    stats |= {NOUNS[ObjectKind(kind)]: count for kind, count in found.keys.items() if count}
    reasons = tuple(_reasons(found, history))
    if keys and not findings and not reasons:
        stats["proved"] = f"{found.operations:,} operations on {keys:,} objects are linearizable"
    demands = {demand for demand, _, _ in MEANINGS.values()}
    decided = dict.fromkeys(sorted(demands), found.operations)
    return Result("objects", findings, reasons, stats, decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {
            "COUNTER_OUT_OF_RANGE",
            "DUPLICATE_ELEMENT",
            "ELEMENT_LOST",
            "FENCING_BROKEN",
            "LOCK_HELD_TWICE",
            "LOCK_LOST",
            "LOCK_NOT_HELD",
            "LOG_HOLE",
            "NOT_EMPTY",
            "NOT_LINEARIZABLE",
            "OFFSET_CONFLICT",
            "PHANTOM_ELEMENT",
            "QUEUE_ORDER",
            "STALE_READ",
        }
    ),
    decides=frozenset({"at-least-once", "linearizable", "no-loss", "order-per-queue"}),
    reasons=frozenset(
        {"NO_OBJECTS", "OBJECTS_NOT_DECIDED", "OBJECTS_NOT_READ", "OPERATIONS_UNRECORDED"}
    ),
    standstill=frozenset({"OBJECTS_NOT_READ"}),
)


def _findings(found: ObjectFindings, history: History) -> Iterator[Finding]:
    """Yield a finding for each code, with the witnesses of all kinds."""
    certain = [name for name in found.counts if _certain(name, history)]
    for code, (usual, noun, meaning) in MEANINGS.items():
        names = [(kind, code) for kind in ObjectKind if (kind, code) in certain]
        for demand in sorted({DEMANDS.get(name, usual) for name in names}):
            mine = [name for name in names if DEMANDS.get(name, usual) == demand]
            count = sum(found.counts[name] for name in mine)
            what = f"1 {noun}" if count == 1 else f"{count:,} {_plural(noun)}"
            words = meaning if count == 1 else AGREES.sub(_of_many, meaning)
            samples = [(name[0], row) for name in mine for row in found.samples[name]]
            spans = tuple((row[SPAN][0], row[SPAN][1]) for _, row in samples if row[SPAN])
            rows = [_row(history, kind, row) for kind, row in samples[:SAMPLE]]
            which = _which(history, rows, count) if noun == "element" else ""
            message = f"{what} {words}{which}"
            yield Finding(code, count, message, demand, tuple(rows), spans=spans)


def _which(history: History, rows: Sequence[Mapping[str, Any]], count: int) -> str:
    """Return the first elements of some rows, as the history names them."""
    values = history.names.get("values", ())
    elements = list(dict.fromkeys(row["value"] for row in rows if "value" in row))[:NAMED]
    texts = [str(values[v]) if 0 <= v < len(values) else str(v) for v in elements]
    if not texts or "imported" not in history.state:
        return ""
    return f": {', '.join(texts)}{' ...' if count > len(texts) else ''}"


def _plural(noun: str) -> str:
    return noun.replace("answer", "answers") if noun.startswith("answer") else f"{noun}s"


def _of_many(verb: re.Match[str]) -> str:
    return f"{verb[1]} {'were' if verb[2] == 'was' else 'are'}"


def _certain(name: tuple[str, str], history: History) -> bool:
    return history.complete or name not in MISSING


def _row(history: History, kind: ObjectKind, row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name != SPAN}
    return {**shown, "key": name_of(history.names, "keys", row["key"]), "kind": str(kind)}


def _unread(count: int) -> str:
    if count == 1:
        return "1 queue, set or counter holds"
    return f"{count:,} queues, sets or counters hold"


def _reasons(found: ObjectFindings, history: History) -> Iterator[Reason]:
    if not sum(found.keys.values()):
        yield Reason(
            "NO_OBJECTS",
            "the history has no operation on a queue, set, counter, lock or log; nothing is proven",
        )
    if found.unread:
        yield Reason(
            "OBJECTS_NOT_READ",
            f"{_unread(found.unread)} acknowledged elements that were never "
            "looked for afterwards and may be lost; read or drain every object at the end",
        )
    unknown = {kind: keys for kind, keys in found.unknown.items() if keys}
    if unknown:
        count = sum(len(keys) for keys in unknown.values())
        kind, keys = next(iter(sorted(unknown.items())))
        which = f"{kind} {name_of(history.names, 'keys', min(keys))}"
        yield Reason(
            "OBJECTS_NOT_DECIDED",
            f"{count:,} objects were not decided, {which} among them: a value was added twice, a "
            "counter's steps differ, or a process continued after an unknown outcome; write each "
            "value once, count in equal steps, give a process a new number after a timeout",
        )
    doubtful = [name for name in found.counts if not _certain(name, history)]
    if doubtful:
        count = sum(found.counts[name] for name in doubtful)
        yield Reason(
            "OPERATIONS_UNRECORDED",
            f"{count:,} contradictions may be caused by gaps in the recording; run it again",
        )
