"""Whether the run proved anything: load, faults that took effect, answers around them.

A trial in which nothing happened must never be *valid*. The plan says what is needed. Without
faults: load and a final read. With faults: every planned one has an outcome; at least 80 % of them,
and one of each kind, were observed, and operations were invoked while they were in force; and
something was acknowledged before the first fault, after the last one, and in each gap that is long
enough to recover. A fault that should silence a master counts only if the cluster noticed, unless
no broker was eligible. Everything else is *unknown*, with advice. This checker never convicts the
cluster.

A run in which nothing succeeded for more than half of its load carries a warning, whatever its
verdict. So does offered load that was never invoked, since clients had no free slot.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers._run.fault_effects import links_of, was_hidden
from checkers._run.run_facts import Outline, RunFacts, facts
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import (
    ClusterEvent,
    FaultInterval,
    TimeWindow,
    in_force,
)
from harness.history.reader import ClientErrors, History
from harness.judge.verdict import Reason, Result
from harness.operation import DELIVERIES, SENDS, F, Type
from harness.run.broker_sets import data_nodes, voting_nodes
from harness.trial import Trial

ENOUGH = 0.8  # of the planned faults
NAMESERVERS_MASTER_ID = 0  # in a route the master is broker 0; controllers use its own id
MIN_IDLE_S, RHYTHMS = 1.0, 20  # an idle time: this long, and this many times the usual interval
NO_ERRORS: Mapping[str, ClientErrors] = {}
MANY_CALLS = 10
MISTAKES = frozenset(
    f"{name}Error"
    for name in (
        *("Assertion", "Attribute", "Import", "Index", "JSONDecode", "Key", "ModuleNotFound"),
        *("Name", "NotImplemented", "Recursion", "Type", "UnboundLocal", "UnicodeDecode"),
        *("Value", "ZeroDivision"),
    )
)
OPERATIONS = tuple(f for f in F if f not in (*SENDS, *DELIVERIES, F.READ, F.WATCH))
LONG_GAP = 0.9  # of the rhythm's recovery time; observing the healing takes a part of it

FINAL_READS = {  # operations that read what was written
    F.SEND: (F.READ,),
    F.DELAY: (F.READ,),
    F.PREPARE: (F.READ,),
    F.ADD: (F.LIST, F.COUNT),
    F.APPEND: (F.LIST, F.GET),
}
INSTALLED, HIDDEN, MISSING, UNOBSERVED, IDLE, UNNOTICED = (
    "counts",
    "was hidden by another fault",
    "has no outcome",
    "was not observed",
    "saw no operations",
    "was not detected by the cluster",
)
ADVICE = {
    MISSING: ("FAULTS_MISSING", "see harness.log for what stopped the nemesis"),
    UNOBSERVED: (
        "FAULT_NOT_OBSERVED",
        "see each fault's `observation` in the report for what was observed instead",
    ),
    IDLE: ("IDLE_FAULTS", "raise the load's rate or make the faults longer"),
    UNNOTICED: ("MASTER_FAULT_UNSEEN", "make it last three times the detection time"),
}


@dataclass(frozen=True)
class FaultOutcome:
    """Whether a planned fault counts, and why not."""

    id: int
    kind: str
    worth: str
    error: str = ""  # why it was not carried out, if that is known


def check(history: History, trial: Trial, spark: Any) -> Result:
    known = facts(history, trial, spark)
    return judge(known, history.client_errors if _never_worked(known) else NO_ERRORS)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(),
    decides=frozenset(),
    reasons=frozenset(
        {
            "CLIENT_BROKEN",
            "FAULTS_MISSING",
            "FAULT_NOT_OBSERVED",
            "IDLE_AFTER",
            "IDLE_FAULTS",
            "INTERRUPTED",
            "MASTER_FAULT_UNSEEN",
            "NO_FINAL_READ",
            "NO_LOAD",
            "NO_OK_AFTER",
            "NO_OK_BEFORE",
            "NO_OK_BETWEEN",
            "NO_OPERATIONS",
        }
    ),
    cut_short=frozenset(
        {
            "FAULTS_MISSING",
            "IDLE_AFTER",
            "IDLE_FAULTS",
            "NO_FINAL_READ",
            "NO_LOAD",
            "NO_OK_AFTER",
            "NO_OK_BEFORE",
            "NO_OK_BETWEEN",
            "NO_OPERATIONS",
        }
    ),
    standstill=frozenset({"NO_FINAL_READ", "NO_LOAD", "NO_OK_AFTER", "NO_OPERATIONS"}),
    unobserved=frozenset(
        {"FAULTS_MISSING", "FAULT_NOT_OBSERVED", "IDLE_FAULTS", "MASTER_FAULT_UNSEEN"}
    ),
    spacing=frozenset({"NO_OK_BEFORE", "NO_OK_BETWEEN"}),
)


def judge(known: RunFacts, errors: Mapping[str, ClientErrors] = NO_ERRORS) -> Result:
    """Judge the run itself. `errors`: exceptions in which calls of clients ended."""
    outcomes = tuple(_outcomes(known))
    reasons = (*_reasons(known, outcomes), *_broken(known, errors))
    stats = _stats(known, outcomes) | {"effective": effective(known)}
    if (load := _loaded(known.outline)) and (warning := _warning(known, load)):
        stats["warning"] = warning
    if outcomes and not reasons:
        stats["proved"] = _proved(outcomes)
    return Result("coverage", reasons=reasons, stats=stats)


def _never_worked(known: RunFacts) -> list[F]:
    """Return the kinds of calls of which there were many, and none succeeded."""
    total = known.timeline.total
    return [f for f in F if total(f, Type.INVOKE) >= MANY_CALLS and not total(f, Type.OK)]


def _broken(known: RunFacts, errors: Mapping[str, ClientErrors]) -> Iterator[Reason]:
    """Yield a reason if no call of one kind ever succeeded, and calls ended in exceptions that are
    mistakes in a client's code."""
    mistakes = {name: errors[name] for name in errors if name in MISTAKES}
    never = _never_worked(known)
    if not never or sum(each.calls for each in mistakes.values()) < MANY_CALLS:
        return
    name, first = next(iter(mistakes.items()))
    total = known.timeline.total
    calls = ", ".join(f"{total(f, Type.INVOKE):,} of {f.name.lower()}" for f in never)
    yield Reason(
        "CLIENT_BROKEN",
        f"No call succeeded of {calls}, and {first.calls:,} calls of the client ended in {name}: "
        f"{first.example or 'without a text'}; correct the client",
    )


def _loaded(outline: Outline) -> TimeWindow | None:
    """Return the load up to where the runner began to wait for the recovery."""
    if outline.load is None:
        return None
    until = min(outline.load.end, outline.phases.get("healed", outline.load.end))
    return TimeWindow(outline.load.begin, max(outline.load.begin, until))


def _warning(known: RunFacts, load: TimeWindow) -> str:
    """Say for how much of the load nothing succeeded, if that is more than half of it."""
    sends = known.timeline.sends(Type.INVOKE)
    invoked = sends or sum(known.timeline.total(f, Type.INVOKE) for f in OPERATIONS)
    if not invoked or load.end <= load.begin:
        return ""
    idle = known.timeline.silences(load) if sends else known.timeline.idle(load, OPERATIONS)
    least_s = max(MIN_IDLE_S, RHYTHMS * load.length_s / invoked)
    idle_s = sum(window.length_s for window in idle if window.length_s > least_s)
    if idle_s <= load.length_s / 2:
        return ""
    what = "no send was acknowledged" if sends else "no operation succeeded"
    return f"{what} for {idle_s:.0f} of {load.length_s:.0f} s"


def _proved(outcomes: tuple[FaultOutcome, ...]) -> str:
    planned, worth = len(outcomes), Counter(o.worth for o in outcomes)
    if worth[INSTALLED] == planned:
        what = f"all {planned} planned faults" if planned > 1 else "the planned fault"
        return f"{what} took effect"
    some = f"{worth[INSTALLED]} of {planned} planned faults took effect"
    return f"{some}, {worth[HIDDEN]} {_plural(HIDDEN, worth[HIDDEN])}" if worth[HIDDEN] else some


def _reasons(known: RunFacts, outcomes: tuple[FaultOutcome, ...]) -> Iterator[Reason]:
    if known.outline.cut_short:
        yield from known.outline.cut_short  # what else is missing follows from that
        return
    if known.outline.interrupted:
        yield Reason("INTERRUPTED", "The run was stopped early; run it again to the end")
    if known.outline.load is None:
        yield Reason("NO_LOAD", "The load never started; see harness.log for what happened before")
        return
    if not any(known.timeline.total(f, Type.INVOKE) for f in F):
        yield Reason("NO_OPERATIONS", "No operation was invoked; check the load's options")
        return
    needed = SENDS if known.timeline.sends(Type.INVOKE) else F
    if not any(known.timeline.total(f, Type.OK) for f in needed):
        yield Reason(
            "NO_OPERATIONS",
            "No operation was acknowledged; check whether the cluster was healthy, and whether "
            "its clients work",
        )
    if not _final_read(known):
        yield Reason(
            "NO_FINAL_READ", "No final read completed, so it is not known whether messages are lost"
        )
    yield from _fault_reasons(outcomes)
    yield from _stretch_reasons(known)


def _final_read(known: RunFacts) -> bool:
    """Whether everything that was written was read at the end."""
    total = known.timeline.total
    return all(
        any(total(read, Type.OK) for read in reads)
        for write, reads in FINAL_READS.items()
        if total(write, Type.INVOKE)
    )


def _fault_reasons(outcomes: tuple[FaultOutcome, ...]) -> Iterator[Reason]:
    """Yield a reason for each cause for which too many faults do not count. A fault that others
    hid was observed: it is no evidence, and no reason to doubt the rest."""
    worthless: Counter[str] = Counter(o.worth for o in outcomes if o.worth in ADVICE)
    seen = [o for o in outcomes if o.worth in (INSTALLED, HIDDEN)]
    enough = len(seen) >= ENOUGH * len(outcomes)
    kinds = {o.kind for o in outcomes} - {o.kind for o in seen}
    for worth, (code, advice) in ADVICE.items():
        guilty = [o for o in outcomes if o.worth == worth]
        alone = any(o.kind in kinds for o in guilty)
        if guilty and (worth == MISSING or not enough or alone):
            which = ", ".join(f"{o.kind} ({o.id})" for o in guilty[:5])
            more = f" and {worthless[worth] - 5} more" if worthless[worth] > 5 else ""
            errors = (f"; fault {o.id} failed: {o.error}" for o in guilty if o.error)
            yield Reason(
                code,
                f"{len(guilty)} of {len(outcomes)} planned faults {_plural(worth, len(guilty))}: "
                f"{which}{more}{next(errors, '')}; {advice}",
            )


def _plural(worth: str, count: int) -> str:
    return worth if count == 1 else worth.replace("was ", "were ", 1).replace("has ", "have ", 1)


def _stretch_reasons(known: RunFacts) -> Iterator[Reason]:
    """Yield reasons if nothing was acknowledged before, after or between faults."""
    stretches = known.outline.quiet
    if len(stretches) < 2:
        return
    for number, stretch in enumerate(stretches):
        first, last = number == 0, number == len(stretches) - 1
        if _acknowledged(known, number):
            continue
        long = stretch.length_s >= LONG_GAP * known.outline.trial.rhythm.recovery_s
        if first:
            yield Reason(
                "NO_OK_BEFORE",
                "Nothing was acknowledged before the first fault; start the faults later",
            )
        elif last and not _tried(known, number):
            advice = "increase the load's rate" if long else "end the faults earlier"
            yield Reason(
                "IDLE_AFTER",
                f"Nothing was tried in the {stretch.length_s:.1f} s after the last fault, so it is "
                f"not known whether the cluster serves again; {advice}",
            )
        elif last:
            yield Reason(
                "NO_OK_AFTER",
                "Nothing was acknowledged after the last fault; end the faults earlier",
            )
        elif long:
            yield Reason(
                "NO_OK_BETWEEN",
                f"Nothing was acknowledged in the {stretch.length_s:.1f} s gap at "
                f"{(stretch.begin - stretches[0].begin) / 1e9:.1f} s after the load began; "
                "increase rhythm.recovery_s",
            )


def _acknowledged(known: RunFacts, stretch: int) -> bool:
    return known.timeline.in_window(known.quiet_number(stretch), _writes(known), Type.OK) > 0


def _tried(known: RunFacts, stretch: int) -> bool:
    """Whether an operation that would count was open at some moment."""
    return known.timeline.open_during(known.quiet_number(stretch), _writes(known)) > 0


def _writes(known: RunFacts) -> tuple[F, ...] | None:
    """Return the operations whose success shows that the cluster serves; None: any."""
    return SENDS if known.timeline.sends(Type.INVOKE) else None


def _outcomes(known: RunFacts) -> Iterator[FaultOutcome]:
    """Yield the outcome of every fault in the plan or the history."""
    recorded = {fault.id: fault for fault in known.outline.faults}
    kinds = dict(enumerate(known.outline.planned))
    idle = known.outline.idle
    for number in sorted(recorded.keys() | kinds.keys()):
        fault = recorded.get(number)
        kind = fault.kind if fault else kinds[number]
        worth = _worth(known, fault)
        error = str(fault.observation.get("error", "")) if fault else ""
        worth = HIDDEN if worth == INSTALLED and number in idle else worth
        yield FaultOutcome(number, kind, worth, error)


def _worth(known: RunFacts, fault: FaultInterval | None) -> str:
    if fault is None or fault.state not in ("installed", "partial", "failed"):
        return MISSING
    window = known.force_number(fault)
    if window is None:
        return UNOBSERVED
    if fault.state != "installed":
        return HIDDEN if was_hidden(fault) else UNOBSERVED
    if not known.timeline.in_window(window, kind=Type.INVOKE):
        return IDLE
    return UNNOTICED if _missed_by_all(fault, known.outline) else INSTALLED


def _missed_by_all(fault: FaultInterval, outline: Outline) -> bool:
    """Whether no node noticed a silent master, though another could have been elected."""
    if not outline.fails_over or not silences_master(fault) or noticed(fault, outline):
        return False
    return not _unwatched(fault, outline) and not unelectable(fault, outline)


def effective(known: RunFacts) -> dict[str, int]:
    """Return how many faults of each kind had an effect of their own while an operation was open. A
    consumer that waits at the end of its queue has none."""
    counted: Counter[str] = Counter()
    in_flight, idle = known.timeline.in_flight, known.outline.idle
    for number, fault in enumerate(known.outline.applied):
        if fault.state == "installed" and in_flight[number] > 0 and fault.id not in idle:
            counted[fault.kind] += 1
    return dict(sorted(counted.items()))


def _unwatched(fault: FaultInterval, outline: Outline) -> bool:
    """Whether the run ended during the fault, or before the nodes' events were collected: then it
    is not known whether the cluster noticed."""
    return outline.interrupted and (fault.heal is None or "events" in outline.gaps)


def silences_master(fault: FaultInterval) -> bool:
    """Whether a fault keeps a master's messages from the controllers, so that they must notice.

    Masters that are killed, stopped or without network are silent. A partition silences a master if
    it is the target and its messages no longer reach the controllers: not if only its slaves or
    clients lose it, nor if it only receives nothing. The controllers need not notice a link with
    loss, delay or flapping.
    """
    if fault.silences:
        return "master" in fault.targets
    if fault.kind != "partition" or "master" not in fault.selector.split():
        return False
    shape = fault.params.get("shape")
    if shape == "clients" or fault.params.get("off_s"):
        return False
    whom = str(fault.params.get("from") or ("client" if shape == "answers" else "controller"))
    deaf = shape == "one-way" and fault.params.get("direction") == "in"
    return not deaf and any(word in whom for word in ("controller", "cluster", "server"))


def unelectable(fault: FaultInterval, outline: Outline) -> bool:
    """Whether no master could be elected for at least half of the time, because this fault and
    others had taken the majority of the controllers, or all brokers: then no broker is eligible,
    and controllers do not treat the silence of all brokers as their death. A node is taken if it is
    silent, or has lost its links to half of the controllers."""
    window = in_force(fault, outline.end)
    if window is None:
        return False
    there = [fault] + [
        other
        for other in outline.overlapping(window, (window.end - window.begin) / 2)
        if other.id != fault.id
    ]
    silent = {name for each in there if each.silences for name in each.names}
    cut = {link for each in there if each.kind == "partition" for link in links_of(each)}
    controllers = set(voting_nodes(outline.roles))
    brokers = set(data_nodes(outline.roles))
    if hit := sets_of_master(fault, outline):
        brokers = {node for name in hit for node in outline.dealt[name].nodes}

    def speaks(node: str) -> bool:
        """Whether a node reaches most controllers, including itself, in both directions."""
        heard = {c for c in controllers - silent if not {(node, c), (c, node)} & cut}
        return node not in silent and 2 * len(heard) > len(controllers)

    able = sum(map(speaks, controllers))
    return 2 * able <= len(controllers) or (bool(brokers) and not any(map(speaks, brokers)))


def sets_of_master(fault: FaultInterval, outline: Outline) -> frozenset[str]:
    """Return the broker sets whose master a fault hit, if the run's names have sets."""
    masters = set(fault.targets.get("master", ()))
    return frozenset(name for name, of in outline.dealt.items() if masters & set(of.nodes))


def noticed(fault: FaultInterval, outline: Outline) -> bool:
    """Whether the cluster noticed that a master was missing, or its set elected another one,
    between the fault's begin and its healing. Of several masters, one is enough."""
    begin = fault.begin or 0
    end = fault.healed if fault.healed is not None else fault.heal
    hit = sets_of_master(fault, outline)
    names = hit if len(outline.dealt) > 1 else frozenset()
    events = [outline.events_by_set[name] for name in names] or [outline.events]
    return any(_missed(begin, end, some) for some in events)


def _missed(begin: int, end: int | None, events: Sequence[ClusterEvent]) -> bool:
    """Whether the events of one set show that its master was missed."""
    master = NAMESERVERS_MASTER_ID
    for event in events:
        if end is not None and event.t > end:
            break
        if event.kind == "expired" and event.t >= begin:
            if event.fields.get("brokerId") in (master, NAMESERVERS_MASTER_ID):
                return True
        elif event.kind == "election":
            if event.t >= begin:
                return True
            master = event.fields.get("masterId", master)
    return False


def _stats(known: RunFacts, outcomes: tuple[FaultOutcome, ...]) -> dict[str, Any]:
    counted = Counter(o.kind for o in outcomes if o.worth == INSTALLED)
    return {
        "planned": len(outcomes),
        "counted": sum(counted.values()),
        "counted_by_kind": dict(sorted(counted.items())),
        "worth": {str(o.id): o.worth for o in outcomes},
        "operations": {
            f.name.lower(): {
                kind.name.lower(): known.timeline.total(f, kind)
                for kind in Type
                if known.timeline.total(f, kind)
            }
            for f in F
            if known.timeline.total(f, Type.INVOKE)
        },
        "offered": _offered(known),
        "quiet_stretches": len(known.outline.quiet),
    }


def _offered(known: RunFacts) -> dict[str, int]:
    """Count the load's arrivals: those that were invoked, and those that found no free slot."""
    sends = known.timeline.sends(Type.INVOKE)
    invoked = sends or sum(known.timeline.total(f, Type.INVOKE) for f in OPERATIONS)
    skipped = known.outline.skipped
    return {"arrivals": invoked + skipped, "invoked": invoked, "skipped": skipped}
