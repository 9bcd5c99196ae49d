"""The cluster recovers by itself once every fault is healed, and no node crashes.

Within `recover_within_s` after the last fault was observed healed, each broker set must have its
master, its full SyncStateSet, an acknowledged send and a message read: otherwise `NOT_RECOVERED`.
In workloads without sends, any other operation must be acknowledged, such as a register's. A set
owes an answer to operations that were invoked in that time, or that still wait at its end. If the
cluster's events do not say when a set was full, it must have been full when the runner asked the
nodes, after the plan.

A set is not blamed for a load that its replicas cannot copy. If a replica was missing at the
deadline, but gained all the time, became a member whenever it had caught up, and the set was full
once the load had ended, the run does not show whether the set recovers: `TOO_MUCH_LOAD`, which is a
reason and no finding.

A node that exits unplanned, writes a fatal event or does not start again is `NODE_CRASHED`,
whatever the rest of the run looks like.

If a healing was done but not observed, a reason says so, and recovery is demanded from the moment
at which everything had been undone. If undoing a fault failed, nothing is demanded, because the
fault may still be there.

A node whose disk the nemesis spoils may exit, as nodes should that can no longer keep a promise:
until the fault was healed, and after damage to its files at any time.

Missing parts of the record are assumed to favour the cluster: they may be an event of a full set,
an answer, a fault that could not be undone or that excuses a crash. What no missing row can explain
convicts all the same: a set that was not full when the runner asked, unanswered sends where all
operations are there, a crash under a plan without faults of disks or memory.

A node that the test environment lost, because its host died or its disk was full, is no crash, and
the run was ended before the cluster had its time to recover. A dying host ends its processes first,
and is reported only when it has been silent for long, so events of the node within a minute before
the report do not count either.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from checkers._run.evidence import seconds
from checkers._run.run_facts import Outline, RunFacts, facts, full_set_at, latest
from checkers._run.timeline import NO_SET
from harness.contracts import CheckerPlugin, DataLoss, ProcessEnd
from harness.history.faults_and_events import ClusterEvent, FaultInterval, faults_at
from harness.history.reader import History
from harness.history.roles import SetChange
from harness.judge.effects import effects_of
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import DELIVERIES, SENDS, F, Type
from harness.text.plurals import quantity
from harness.trial import Trial

DEMAND, UNRECORDED, OVERLOADED = "recovers", "RECOVERY_UNRECORDED", "TOO_MUCH_LOAD"
ALL = "all"  # name of a set that has none
FULL_SET = "master with its full SyncStateSet"
EVIDENCE_ROWS = 10
KILLED, TERMINATED = (-9, 137), (0, -15, 143)
ONE_CRASH_NS = 5_000_000_000  # a fatal event and the exit that follows it are one crash
MISSED_WITHIN_NS = 60_000_000_000  # a node that is gone may have been alive so long ago
READS = (*DELIVERIES, F.READ)
# of workloads without sends
OWN: tuple[F, ...] = tuple(f for f in F if f not in (*SENDS, *READS, F.WATCH))
LEASES = (F.LOCK, F.UNLOCK, F.ACQUIRE, F.RELEASE)


def check(history: History, trial: Trial, spark: Any) -> Result:
    return judge(facts(history, trial, spark))


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"NODE_CRASHED", "NOT_RECOVERED"}),
    decides=frozenset({"recovers"}),
    reasons=frozenset({"HEALING_NOT_OBSERVED", "RECOVERY_UNRECORDED", "TOO_MUCH_LOAD"}),
)


def judge(known: RunFacts) -> Result:
    """Judge crashes, and recovery if the run got that far."""
    crashes = list(_crashes(known.outline))
    doubtful = _excusable(known.outline)
    findings = [] if doubtful else list(crashes)
    reasons = [_perhaps_excused(crash) for crash in crashes] if doubtful else []
    stats: dict[str, Any] = {"crashes": sum(f.count for f in findings)}
    if not known.outline.interrupted and known.outline.load is not None:
        if known.outline.healed is None:
            reasons.append(_healing_unseen(known.outline))
        if (since := known.outline.alone_since) is not None:
            certain, perhaps = _lacking(known, since)
            slow = [lack for lack in certain if _overloaded(known.outline, lack, since)]
            certain = [lack for lack in certain if lack not in slow]
            reasons += _too_much_load(known.outline, slow)
            findings += _unrecovered(known, since, certain)
            reasons += _unrecorded(perhaps)
            stats |= _times(known, since)
            if not findings and not reasons and known.outline.applied and _ever_answered(known):
                stats["proved"] = "the cluster recovered by itself after every fault was healed"
    loaded = known.outline.load is not None and _ever_answered(known)
    judged = loaded and known.outline.alone_since is not None
    decided = {DEMAND: len(known.outline.sets) if judged else 0}
    return Result("recovery", tuple(findings), tuple(reasons), stats, decided)


def _healing_unseen(outline: Outline) -> Reason:
    open_ids = [str(f.id) for f in outline.faults if f.begin is not None and f.healed is None]
    what = f"Healing of fault {', '.join(open_ids[:5])} was not observed, so "
    if outline.alone_since is None:
        doubt = "it is not known whether the cluster recovers by itself"
    else:
        doubt = "recovery was judged from when all faults had been undone"
    return Reason("HEALING_NOT_OBSERVED", f"{what}{doubt}; see harness.log for the cause")


# ------------------------------------------------------------------------------------ recovery


@dataclass(frozen=True)
class MissingRecovery:
    """What a broker set lacked at the deadline. `rests_on`: tables that have to be complete."""

    set: str
    what: str
    came: int | None
    rests_on: frozenset[str]


def _lacking(known: RunFacts, healed: int) -> tuple[list[MissingRecovery], list[MissingRecovery]]:
    """Return what the broker sets lacked for certain, and what a gap in the record may hide. A
    fault that could not be undone would excuse everything."""
    outline, found = known.outline, list[MissingRecovery]()
    deadline = _deadline(known, healed)
    for number, name in enumerate(outline.sets):
        found += _no_full_set(outline, name, healed, deadline)
        group = number if outline.set_of_key else None
        found += _unanswered(known, name or ALL, group, deadline)
    if NO_SET in outline.set_of_key:
        found += _unanswered(known, "none", NO_SET, deadline)
    elif outline.set_of_key and _was_requested(known, SENDS, NO_SET):  # clients selected the queues
        found += _unanswered(known, "all", None, deadline)
    if list(_unhealed(outline)):
        return [], found
    certain = [lack for lack in found if not lack.rests_on & outline.gaps]
    return certain, [lack for lack in found if lack not in certain]


def _deadline(known: RunFacts, healed: int) -> int:
    return healed + round(known.outline.trial.recover_within_s * 1e9)


def _unhealed(outline: Outline) -> Iterator[tuple[str, FaultInterval | None]]:
    """Yield the kinds of planned faults whose healing is not recorded, where the record of faults
    has gaps, and what is known of each; one without a kind if the plan is not known."""
    if "faults" not in outline.gaps:
        return
    recorded = {fault.id: fault for fault in outline.faults}
    for number, kind in enumerate(outline.planned):
        fault = recorded.get(number)
        if fault is None or fault.healed is None:
            yield kind, fault
    if not outline.planned:
        yield "", None


def _unrecovered(
    known: RunFacts, healed: int, lacking: Sequence[MissingRecovery]
) -> Iterator[Finding]:
    """Yield one finding for all broker sets that did not recover."""
    if lacking:
        rows = (
            {
                "set": lack.set,
                "missing": lack.what,
                "healed_s": seconds(healed, 3),
                **_at(lack.came),
            }
            for lack in lacking
        )
        yield Finding(
            code="NOT_RECOVERED",
            count=len({lack.set for lack in lacking}),
            message=(
                f"{_did_not_recover(lacking)} within {known.outline.trial.recover_within_s:g} s "
                f"after every fault was healed: no {_parts(lacking)}"
            ),
            demand=DEMAND,
            evidence=tuple(islice(rows, EVIDENCE_ROWS)),
            faults=tuple(f.id for f in known.outline.faults if f.begin is not None)[-1:],
            spans=((healed, _deadline(known, healed)),) * len({lack.set for lack in lacking}),
            broker_sets=tuple(
                "" if name == ALL else name for name in sorted({lack.set for lack in lacking})
            ),
        )


def _unrecorded(lacking: Sequence[MissingRecovery]) -> Iterator[Reason]:
    if lacking:
        yield Reason(
            UNRECORDED,
            f"{_did_not_recover(lacking)} in time (no {_parts(lacking)}), but the record has gaps "
            "that may explain it; run it again",
        )


def _did_not_recover(lacking: Sequence[MissingRecovery]) -> str:
    sets = len({lack.set for lack in lacking})
    return f"{quantity(sets, 'broker set')} did not recover"


def _parts(lacking: Sequence[MissingRecovery]) -> str:
    return ", ".join(dict.fromkeys(lack.what for lack in lacking))


def _no_full_set(
    outline: Outline, name: str, healed: int, deadline: int
) -> Iterator[MissingRecovery]:
    full, seen = redundant_at(outline, name, healed), _was_redundant(outline)
    if (full is None and not seen) or (full or 0) > deadline:
        asked = full is None and seen is False  # according to the nodes
        rests_on = frozenset() if asked else frozenset({"events"})
        yield MissingRecovery(name or ALL, FULL_SET, full, rests_on)


def _unanswered(
    known: RunFacts, name: str, group: int | None, deadline: int
) -> Iterator[MissingRecovery]:
    """Yield what was requested of this broker set in time, and not answered in time. Readers
    receive nothing if nothing was sent that is delivered at once. A workload without sends has
    other operations. If nothing ever succeeded, the clients may be wrong: NO_OPERATIONS."""
    if not _ever_answered(known):
        return
    demands = [("acknowledged operation", OWN, OWN)]
    if known.timeline.sends(Type.INVOKE):
        demands = [("acknowledged send", SENDS, SENDS), ("message read", READS, (F.SEND,))]
    for what, fs, needed in demands:
        came = known.timeline.answer(known.healed_mark, fs, group)
        late = came is None or came > deadline
        if late and _was_requested(known, fs, group) and _was_requested(known, needed, group):
            yield MissingRecovery(name, what, came, frozenset({"ops"}))


def _ever_answered(known: RunFacts) -> bool:
    return any(known.timeline.total(f, Type.OK) for f in F)


def redundant_at(outline: Outline, name: str, since: int) -> int | None:
    """Return when the broker set first had its master and its full SyncStateSet, at or after
    `since`; None if it never had, or the time is not known.

    The runner asks the nodes at the end of the plan: sets that are not redundant then never were.
    Only the cluster's own events say how early they were.
    """
    if _was_redundant(outline) is False and name in _short(outline):
        return None
    return full_set_at(outline, name, since)


def _short(outline: Outline) -> Sequence[str]:
    """Return the broker sets that were not full at the end, by their events; if none, all of them:
    then something else was missing, such as a slave that follows."""
    last = {step.set: len(step.members) for step in outline.set_sizes}
    dealt = outline.dealt.items()
    return [name for name, of in dealt if last.get(name, 0) < of.full] or outline.sets


def _was_redundant(outline: Outline) -> bool | None:
    """Whether the runner saw all sets redundant when it asked, at any time after the healing; None
    if it did not ask."""
    asked = [event for event in _redundancy_checks(outline) if not event.fields.get("without_load")]
    return bool(asked[-1].fields.get("redundant")) if asked else None


def _redundancy_checks(outline: Outline) -> list[ClusterEvent]:
    return [event for event in outline.events if event.kind == "recovery"]


# ---------------------------------------------------------------------------------------- load


def _overloaded(outline: Outline, lack: MissingRecovery, healed: int) -> bool:
    """Return whether a full set was lacking only because its replicas could not copy as fast as
    clients sent: the runner saw the set full once the load had ended."""
    caught_up = any(
        event.fields.get("without_load") and event.fields.get("redundant")
        for event in _redundancy_checks(outline)
    )
    if lack.what != FULL_SET or not caught_up:
        return False
    deadline = healed + round(outline.trial.recover_within_s * 1e9)
    steps = [step for step in outline.set_sizes if lack.set in (step.set, ALL)]
    members = next((step.members for step in reversed(steps) if step.t <= deadline), ())
    acks = _acks(outline, lack.set, healed, deadline)
    missing = {peer for peer in acks if peer not in members}
    return bool(missing) and all(
        _gains(acks[peer]) and _rejoined(peer, acks[peer], steps, deadline) for peer in missing
    )


def _acks(
    outline: Outline, name: str, healed: int, deadline: int
) -> Mapping[int, list[tuple[int, int, int]]]:
    """Return by replica (time, its acknowledged offset, the log's end), as masters report them
    while the set had to recover."""
    nodes = outline.dealt[name].nodes if name in outline.dealt else None
    found: dict[int, list[tuple[int, int, int]]] = {}
    for event in outline.events:
        if event.kind != "replication" or not healed <= event.t <= deadline:
            continue
        for peer, ack in (
            event.fields["acks"].items() if nodes is None or event.node in nodes else ()
        ):
            row = event.t, -1 if ack is None else int(ack), int(event.fields["end"])
            found.setdefault(int(peer), []).append(row)
    return found


def _gains(acks: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether a replica copied in each half of the time."""
    half = len(acks) // 2
    return half > 0 and acks[0][1] < acks[half][1] < acks[-1][1]


def _rejoined(
    peer: int, acks: Sequence[tuple[int, int, int]], steps: Sequence[SetChange], deadline: int
) -> bool:
    """Return whether a replica became a member each time after it had caught up with the log."""
    joined = [step.t for step in steps if peer in step.members and step.t <= deadline]
    return all(any(t <= at for at in joined) for t, ack, end in acks if ack >= end)


def _too_much_load(outline: Outline, slow: Sequence[MissingRecovery]) -> Iterator[Reason]:
    if slow:
        sets = len({lack.set for lack in slow})
        yield Reason(
            OVERLOADED,
            f"{quantity(sets, 'broker set')} had no full SyncStateSet within "
            f"{outline.trial.recover_within_s:g} s after every fault was healed, because replicas "
            "copied more slowly than clients sent; all were in step once the load had ended; lower "
            "the load's rate or body_bytes",
        )


def _was_requested(known: RunFacts, fs: Sequence[F], group: int | None) -> bool:
    """Whether one of these operations was invoked in the time to recover, so that it could succeed,
    or is still open at its end, so that its client hangs. If a part of the record is missing, so
    may be its answer. A lock may be refused because another client holds it, which shows
    nothing."""
    window, answers = known.recovery_number, known.timeline
    if any(answers.in_window(window, (f,), Type.FAIL, group) for f in fs if f in LEASES):
        return False
    if answers.in_window(window, fs, Type.INVOKE, group):
        return True
    return "ops" not in known.outline.gaps and any(
        answers.left_open(window, f, group) > 0 for f in fs
    )


def _times(known: RunFacts, healed: int) -> Mapping[str, Any]:
    """Return how long the recovery of all broker sets took, for the report."""
    outline, mark = known.outline, known.healed_mark
    groups: Sequence[int | None] = sorted(set(outline.set_of_key)) or [None]

    def answered(fs: Sequence[F]) -> int | None:
        first = {group: known.timeline.answer(mark, fs, group) for group in groups}
        return latest(t for g, t in first.items() if t is not None or _was_requested(known, fs, g))

    moments = {
        "full_set_s": latest(redundant_at(outline, name, healed) for name in outline.sets),
        "send_s": answered(SENDS),
        "read_s": answered(READS),
    }
    if not known.timeline.sends(Type.INVOKE):
        moments = {"operation_s": answered(OWN)} | moments
    took = {name: None if t is None else seconds(t - healed, 3) for name, t in moments.items()}
    within_s = known.outline.trial.recover_within_s
    return {"healed_s": seconds(healed, 3), "within_s": within_s, **took}


# ------------------------------------------------------------------------------------- crashes


def _crashes(outline: Outline) -> Iterator[Finding]:
    crashes = _merged([e for e in outline.events if _is_crash(e, outline)])
    if not crashes:
        return
    rows = [_evidence(event, outline.faults) for event in crashes]
    nodes = ", ".join(sorted({event.node for event in crashes}))
    yield Finding(
        code="NODE_CRASHED",
        count=len(crashes),
        message=f"{quantity(len(crashes), 'node')} crashed or did not start: {nodes}",
        demand=DEMAND,
        evidence=tuple(rows[:EVIDENCE_ROWS]),
        faults=faults_at(outline.faults, *(event.t for event in crashes)),
        spans=tuple((event.t, event.t) for event in crashes),
        broker_sets=tuple(_set_of(event.node, outline) for event in crashes),
    )


def _set_of(node: str, outline: Outline) -> str:
    """Return the broker set of a node; empty if it is in none, or none is known."""
    return next((name for name, of in outline.dealt.items() if node in of.nodes), "")


def _is_crash(event: ClusterEvent, outline: Outline) -> bool:
    if event.kind not in ("exit", "fatal", "start-failed"):
        return False
    if event.kind == "exit" and _planned_exit(event, outline):
        return False
    return not _lost_by_environment(event, outline) and not _excused_by_disk_fault(event, outline)


def _excusable(outline: Outline) -> bool:
    """Whether a part of the record is missing that may excuse a crash: the begin of a fault under
    which a node may exit, or the event that the test environment lost it."""
    unbegun = {kind for kind, fault in _unhealed(outline) if fault is None or fault.begin is None}
    excusing = {kind for kind in unbegun if not kind or effects_of(kind).excuses_exit}
    return bool(excusing) or bool(outline.cut_short and "events" in outline.gaps)


def _perhaps_excused(crash: Finding) -> Reason:
    but = "the record has gaps, and a fault that explains it may be in one; run it again"
    return Reason(UNRECORDED, f"{crash.message}; but {but}")


def _lost_by_environment(event: ClusterEvent, outline: Outline) -> bool:
    """Whether an event is within a minute before its node was lost, or later."""
    return any(
        lost.node == event.node and event.t >= lost.t - MISSED_WITHIN_NS for lost in outline.lost
    )


def _excused_by_disk_fault(event: ClusterEvent, outline: Outline) -> bool:
    """Whether the node may exit because the nemesis spoiled its disk, or the files on it."""
    return any(
        fault.effects.excuses_exit
        and event.node in fault.names
        and fault.begin is not None
        and fault.begin <= event.t <= _excused_until(fault, outline)
        for fault in outline.faults
    )


def _excused_until(fault: FaultInterval, outline: Outline) -> int:
    """Return until when a fault excuses an exit: damage that is not repaired may be met later."""
    if fault.effects.destroys is not DataLoss.NONE or fault.healed is None:
        return outline.end
    return fault.healed


def _planned_exit(event: ClusterEvent, outline: Outline) -> bool:
    """Whether the nemesis killed the node, or the runner stopped it at the end."""
    code = event.fields.get("code", 0)
    stopping = "drain" in outline.phases and event.t >= outline.phases["drain"]
    if outline.gaps & {"faults", "notes"} and code in (*TERMINATED, *KILLED):
        return True  # the cause may be what is missing
    if code in TERMINATED or (stopping and code in KILLED):
        return stopping or _asked_to_exit(event, outline)
    killed = outline.killings.get(event.node, ())
    return code in KILLED and any(window.begin <= event.t <= window.end for window in killed)


def _asked_to_exit(event: ClusterEvent, outline: Outline) -> bool:
    """Whether a fault that announces the end asked the node to exit."""
    return any(
        fault.effects.ends is ProcessEnd.TERMINATED
        and event.node in fault.names
        and fault.begin is not None
        and fault.begin <= event.t <= (outline.end if fault.healed is None else fault.healed)
        for fault in outline.faults
    )


def _merged(events: Sequence[ClusterEvent]) -> list[ClusterEvent]:
    """Return the first event of each crash."""
    last: dict[str, int] = {}
    crashes: list[ClusterEvent] = []
    for event in events:
        if event.node not in last or event.t - last[event.node] > ONE_CRASH_NS:
            crashes.append(event)
        last[event.node] = event.t
    return crashes


def _evidence(event: ClusterEvent, faults: Sequence[FaultInterval]) -> Mapping[str, Any]:
    active = faults_at(faults, event.t)
    why = {k: v for k, v in event.fields.items() if isinstance(v, str | int | float)}
    during = {"during": ", ".join(map(str, active))} if active else {}
    return {"node": event.node, "at_s": seconds(event.t, 3), "event": event.kind, **why, **during}


def _at(t: int | None) -> Mapping[str, Any]:
    return {} if t is None else {"came_at_s": seconds(t, 3)}
