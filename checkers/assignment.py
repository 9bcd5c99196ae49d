"""Every queue of a consumer group has an owner, and never two. A queue that no member owned for
longer than `recover_within_s`, although the group had members and no fault was in force, is
`QUEUE_WITHOUT_OWNER`, as is one that had no owner in the final phase; `QUEUE_OWNED_TWICE` is one
that two members held at the same time.

A member owns a queue from the moment at which it knows that it has the lock until its lease ends,
counted from the request, or until it requests the release of the lock. While a fault is in force,
and where no member is certain to belong to the group, a queue may be without an owner for any time.
With gaps among the operations nothing is concluded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers._messages.message_census import given_up
from checkers._run.metadata_changes import (
    MetadataBreach,
    MetadataOp,
    MetadataOperations,
    metadata_changes,
)
from checkers.metadata import MEANING as OF_LOCKS
from checkers.metadata import TWICE, held_spans, of_lock
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import TimeWindow, merge_windows, quiet_windows
from harness.history.notes import FINAL_PHASE
from harness.history.reader import History
from harness.judge.verdict import Reason, Result
from harness.operation import NONE, F, Type
from harness.trial import Trial

WITHOUT = "QUEUE_WITHOUT_OWNER"
MEANING = {WITHOUT: "{times} a queue of a group had no owner", TWICE: OF_LOCKS[TWICE]}
DEMANDS = {WITHOUT: "recovers"}
OF = " on "  # a lock is called "group-0 on orders-3"


@dataclass(frozen=True)
class GroupLocks:
    """Each group's members and locks, by name; times in ns since the run's start."""

    locks: Mapping[str, Sequence[int]]  # keys
    present: Mapping[str, Sequence[TimeWindow]]  # when a member belonged to it for certain
    moves: int  # joins and leaves


def check(history: History, trial: Trial, spark: Any) -> Result:
    found = metadata_changes(history)
    groups = _groups(history, found)
    bound_ns = round(trial.recover_within_s * 1e9)
    breaches = [
        breach
        for group, keys in groups.locks.items()
        for key in keys
        for breach in _of_queue(history, found, key, groups.present.get(group, ()), bound_ns)
    ]
    findings, reasons = found.judged(breaches, MEANING, DEMANDS)
    held = sum(
        op.type is Type.OK for row in found.of(F.LOCK).values() for op in row if op.f is F.LOCK
    )
    stats: dict[str, Any] = {"moves": groups.moves, "locked": held}
    reasons += _reasons(history, groups, held)
    if not findings and not reasons:
        queues = sum(map(len, groups.locks.values()))
        stats["proved"] = (
            f"each of {queues} queues had one owner, and never two, over {groups.moves:,} joins "
            "and leaves of consumers"
        )
    return Result("assignment", tuple(findings), tuple(reasons), stats)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({WITHOUT, TWICE}),
    reasons=frozenset({"NO_MEMBERS", "NO_FINAL_LOOK", "OPERATIONS_UNRECORDED"}),
    cut_short=frozenset({"NO_MEMBERS", "NO_FINAL_LOOK"}),
    decides=frozenset({"keeps-metadata"}),
)


def _reasons(history: History, groups: GroupLocks, held: int) -> Iterator[Reason]:
    if groups.moves < 2 or not held:
        why = "no member of a group joined and took a queue, so no queue could be without an owner"
        yield Reason("NO_MEMBERS", f"{why}; make the load longer, or see harness.log")
    elif not _has_final_phase(history):
        why = "the final phase, in which every queue must find its owner, op not finish"
        yield Reason("NO_FINAL_LOOK", f"{why}; let the run finish, or raise recover_within_s")


def _has_final_phase(history: History) -> bool:
    whole = "drain" in history.phases and not history.interrupted
    return whole and not given_up(history, FINAL_PHASE)


def _groups(history: History, found: MetadataOperations) -> GroupLocks:
    locks: dict[str, list[int]] = {}
    for key, name in enumerate(history.names.get("keys", ())):
        group, on, _ = str(name).partition(OF)
        if on:
            locks.setdefault(group, []).append(key)
    last: dict[int, int] = {}  # process -> its last completion
    for row in found.of_key.values():
        for op in row:
            last[op.process] = max(last.get(op.process, 0), op.ended or op.begun)
    moves = found.of(F.JOIN, F.LEAVE)
    present = {found.name(key): merge_windows(_stays(row, last)) for key, row in moves.items()}
    return GroupLocks(locks, present, sum(map(len, moves.values())))


def _stays(row: Sequence[MetadataOp], last: Mapping[int, int]) -> Iterator[TimeWindow]:
    """Yield the time from each join to the leave after it, or to the member's last operation."""
    joined: dict[int, int] = {}
    for op in row:
        if op.f is F.JOIN and op.ended is not None:
            joined[op.process] = op.ended
        elif op.f is F.LEAVE and op.process in joined:
            yield TimeWindow(joined.pop(op.process), op.begun)
    for process, since in joined.items():
        yield TimeWindow(since, max(since, last[process]))


def _of_queue(
    history: History,
    found: MetadataOperations,
    key: int,
    present: Sequence[TimeWindow],
    bound_ns: int,
) -> Iterator[MetadataBreach]:
    row = found.of_key.get(key, ())
    yield from of_lock(row)
    owned = merge_windows(TimeWindow(begin, end) for begin, end, _ in held_spans(row))
    phases = history.phases
    if "load" not in phases or "drain" not in phases:
        return
    load = TimeWindow(phases["load"], phases["drain"])
    for calm in _common(quiet_windows(history.faults, load), present):
        for gap in _without(calm, owned):
            if gap.end - gap.begin > bound_ns:
                why = f"no member owned it for {gap.length_s:.1f} s, while no fault was active"
                yield MetadataBreach(WITHOUT, gap.begin + bound_ns, NONE, key, why)
    if _has_final_phase(history) and not any(window.end > load.end for window in owned):
        why = "no member came to own it in the final phase, which all had joined"
        yield MetadataBreach(WITHOUT, load.end, NONE, key, why)


def _common(some: Iterable[TimeWindow], others: Sequence[TimeWindow]) -> Iterator[TimeWindow]:
    for one in some:
        for other in others:
            begin, end = max(one.begin, other.begin), min(one.end, other.end)
            if begin < end:
                yield TimeWindow(begin, end)


def _without(whole: TimeWindow, taken: Iterable[TimeWindow]) -> Iterator[TimeWindow]:
    """Yield the parts of a window that none of these cover; they are in order and disjoint."""
    at = whole.begin
    for window in taken:
        if window.begin > at:
            yield TimeWindow(at, min(window.begin, whole.end))
        at = max(at, window.end)
        if at >= whole.end:
            return
    yield TimeWindow(at, whole.end)
