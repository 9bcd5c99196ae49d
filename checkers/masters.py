"""A broker set has one master at a time, elected when needed, from the eligible replicas.

One broker acknowledges in an epoch (`EPOCH_SHARED`); that another one acknowledges in a later epoch
before the last answer of the earlier one is lawful as long as nothing is lost, so it is measured
(`overlap_s`). A master comes from the SyncStateSet before it (`ELECTED_OUTSIDE`). A silent master
is replaced while anybody may be elected and most controllers are well (`HEADLESS`). Nobody is
elected while nothing is wrong (`NEEDLESS_ELECTION`; it only informs where time is real, for a
machine may stall unseen). A nameserver shows no older master after a newer one (`ROUTE_WENT_BACK`).

The laws that are watched in simulated worlds (`invariants`) say some of this too: what they are
asked about there is left to them, where they are judged.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkers._run.epoch_writers import Writer, writers
from checkers._run.leader_terms import Incident, headless, needless, outside, set_of_node, went_back
from checkers._run.run_facts import broker_sets, outline
from checkers.invariants import WATCHED
from harness.campaign.swarm import HOSTS as OVERSEEN
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import Event, FaultInterval, faults_at
from harness.history.reader import History
from harness.judge.verdict import Finding, Result
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY, RECOVERS = "integrity", "recovers"
SAMPLE = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    seen = outline(history, trial)
    told, faults = seen.events, seen.faults
    patience = round(trial.recover_within_s * 1e9)
    names, set_of_key = broker_sets(history.names, told)
    acked = placed(writers(history, set_of_key, spark), names, told, history)
    stats: dict[str, Any] = {"writers": len(acked), "overlap_s": round(overlap(acked) / 1e9, 6)}
    laws = _told_by_laws(trial)
    known = _mastered_twice(told) if laws and len(names) == 1 else frozenset()
    found = [*_shared(acked, names, known, history)]
    if not laws or not any(event.kind == WATCHED for event in told):
        found += _finding("ELECTED_OUTSIDE", outside(told), faults, INTEGRITY)
    if "events" not in history.gaps:  # it may have started again in between
        found += _finding("ROUTE_WENT_BACK", went_back(told), faults, INTEGRITY)
    if seen.load and history.complete:
        alone = headless(told, faults, seen.roles, patience, seen.load.end)
        found += _finding("HEADLESS", alone, faults, RECOVERS)
        demand = RECOVERS if trial.hosts == OVERSEEN else ""
        calm = needless(told, faults, seen.load, patience)
        found += _finding("NEEDLESS_ELECTION", calm, faults, demand)
    return Result("masters", tuple(found), stats=stats)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {"ELECTED_OUTSIDE", "EPOCH_SHARED", "HEADLESS", "NEEDLESS_ELECTION", "ROUTE_WENT_BACK"}
    ),
    decides=frozenset(),
)


MEANING = {
    "ELECTED_OUTSIDE": "a master was elected from outside the SyncStateSet",
    "ROUTE_WENT_BACK": "a nameserver showed an older master after a newer one",
    "HEADLESS": "an unresponsive master was not replaced in time",
    "NEEDLESS_ELECTION": "an election was held while nothing was wrong",
}


def _finding(
    code: str, incidents: Iterable[Incident], faults: Sequence[FaultInterval], demand: str
) -> Iterator[Finding]:
    told = list(incidents)
    if told:
        times = "once" if len(told) == 1 else f"{len(told):,} times"
        message = f"{MEANING[code]} ({times}); first: {told[0].why}"
        evidence = tuple(
            {"node": one.node, "at_s": round(one.t / 1e9, 3), "why": one.why}
            for one in told[:SAMPLE]
        )
        active = {number for one in told for number in faults_at(faults, one.t)}
        yield Finding(
            code,
            len(told),
            message,
            demand,
            evidence,
            tuple(sorted(active)),
            spans=tuple((one.t, one.t) for one in told),
            broker_sets=tuple(one.set for one in told),
        )


# --------------------------------------------------------------------------- who acknowledged


def placed(
    acked: Sequence[Writer], names: Sequence[str], told: Sequence[Event], history: History
) -> list[Writer]:
    """Each broker in its own set, if that was told: each set counts its epochs from 1."""
    nodes, sets = history.names.get("nodes", ()), set_of_node(told)
    found = []
    for writer in acked:
        name = sets.get(nodes[writer.node] if writer.node < len(nodes) else "", "")
        found.append(replace(writer, set=names.index(name)) if name in names else writer)
    return found


def _shared(
    acked: Sequence[Writer], names: Sequence[str], known: frozenset[int], history: History
) -> Iterator[Finding]:
    """Epochs in which several brokers acknowledged; not those that are `known` already."""
    by_epoch: dict[tuple[int, int], list[Writer]] = defaultdict(list)
    for writer in acked:
        by_epoch[writer.set, writer.epoch].append(writer)
    shared = [e for e, who in by_epoch.items() if len(who) > 1 and e[1] not in known]
    if not shared:
        return
    nodes = history.names.get("nodes", ())
    rows = tuple(
        {
            "set": names[number],
            "epoch": epoch,
            "brokers": ", ".join(nodes[w.node] for w in by_epoch[number, epoch]),
            "acks": ", ".join(str(w.acks) for w in by_epoch[number, epoch]),
        }
        for number, epoch in shared[:SAMPLE]
    )
    what = "1 epoch" if len(shared) == 1 else f"{len(shared):,} epochs"
    message = f"more than one broker acknowledged messages in {what}"
    firsts = (sorted(writer.first for writer in by_epoch[which]) for which in shared)
    spans = tuple((first, second) for first, second, *_ in firsts)
    whose = tuple(names[number] if number >= 0 else "" for number, _ in shared)
    yield Finding(
        "EPOCH_SHARED", len(shared), message, INTEGRITY, rows, spans=spans, broker_sets=whose
    )


def _told_by_laws(trial: Trial) -> bool:
    """Will what the nodes themselves tell be judged elsewhere?"""
    return not trial.checkers or "invariants" in trial.checkers


def _mastered_twice(told: Sequence[Event]) -> frozenset[int]:
    """Epochs of which two brokers say that they were its master: the law ONE_MASTER."""
    masters: dict[int, set[str]] = defaultdict(set)
    for event in told:
        if event.kind == "role" and event.fields.get("role") == "master":
            masters[int(event.fields["epoch"])].add(event.node)
    return frozenset(epoch for epoch, who in masters.items() if len(who) > 1)


def overlap(acked: Sequence[Writer]) -> int:
    """The longest time in ns in which a broker still acknowledged in an epoch after another one
    did in a later one."""
    longest = 0
    for earlier in acked:
        for later in acked:
            if (
                later.set == earlier.set
                and later.epoch > earlier.epoch
                and later.node != earlier.node
            ):
                longest = max(longest, earlier.last - later.first)
    return longest
