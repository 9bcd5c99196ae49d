"""A broker set has one master at a time, elected when needed, from the eligible replicas.

One broker acknowledges in an epoch (`EPOCH_SHARED`). If another one acknowledges in a later epoch
before the last answer of the earlier one, that is permitted as long as nothing is lost, so it is
measured (`overlap_s`). A master comes from the previous SyncStateSet (`ELECTED_OUTSIDE`). A silent
master is replaced while a broker is eligible and most controllers are well (`HEADLESS`). There is
no election while nothing is wrong (`NEEDLESS_ELECTION`; in real time it only informs, because a
machine may stall unobserved). A nameserver shows no older master after a newer one
(`ROUTE_WENT_BACK`).

The laws that are monitored in simulated worlds (`invariants`) cover a part of this: where they are
judged, it is left to them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers._run.evidence import SAMPLE, finding_at
from checkers._run.leader_terms import Incident, headless, needless, outside, set_of_node, went_back
from checkers._run.run_facts import broker_sets, outline
from checkers._spark.spark_stages import INT, Batches, Unit, arrays, reduced, units_of
from checkers.invariants import WATCHED
from harness.campaign.swarm import HOSTS as OVERSEEN
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.reader import History
from harness.judge.verdict import Finding, Result
from harness.operation import F, Type
from harness.text.plurals import how_often, quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY, RECOVERS = "integrity", "recovers"


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    known = outline(history, trial)
    event_log, faults = known.events, known.faults
    patience = round(trial.recover_within_s * 1e9)
    names, set_of_key = broker_sets(history.names, event_log)
    acked = in_sets(epoch_writers(history, set_of_key, spark), names, event_log, history)
    stats: dict[str, Any] = {"writers": len(acked), "overlap_s": round(overlap(acked) / 1e9, 6)}
    laws = _judged_by_laws(trial)
    twice = _mastered_twice(event_log) if laws and len(names) == 1 else frozenset()
    found = [*_shared(acked, names, twice, history)]
    if not laws or not any(event.kind == WATCHED for event in event_log):
        found += _finding("ELECTED_OUTSIDE", outside(event_log), faults, INTEGRITY)
    if "events" not in history.gaps:  # it may have started again in between
        found += _finding("ROUTE_WENT_BACK", went_back(event_log), faults, INTEGRITY)
    if known.load and history.complete:
        alone = headless(event_log, faults, known.roles, patience, known.load.end)
        found += _finding("HEADLESS", alone, faults, RECOVERS)
        demand = RECOVERS if trial.hosts == OVERSEEN else ""
        calm = needless(event_log, faults, known.load, patience)
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
    some = list(incidents)
    if some:
        times = how_often(len(some))
        message = f"{MEANING[code]} ({times}); first: {some[0].why}"
        rows = [
            {"node": one.node, "at_s": round(one.t / 1e9, 3), "why": one.why}
            for one in some[:SAMPLE]
        ]
        sets = [one.set for one in some]
        moments = [one.t for one in some]
        yield finding_at(moments, faults, code, len(some), message, demand, rows, sets)


# ------------------------------------------------------------- acknowledgements by epoch


class EpochWriter(NamedTuple):
    """A broker that acknowledged in an epoch of a broker set, and how often. `set`: its number;
    `first`, `last`: times of the answers in ns since the run's start."""

    set: int
    epoch: int
    node: int
    first: int
    last: int
    acks: int


WRITERS = pa.schema([(name, INT) for name in EpochWriter._fields])


def epoch_writers(
    history: History, set_of_key: Sequence[int], spark: "SparkSession | None"
) -> tuple[EpochWriter, ...]:
    """Return all brokers that acknowledged, by set, epoch and node, in one pass over the
    acknowledged sends, whose answers name the broker and its epoch. Keys without a set belong to
    the first one."""
    job, by = WriterJob(tuple(set_of_key)), EpochWriter._fields[:3]
    units = units_of(history, "ops")
    table = reduced(spark, units, job.scan, WRITERS, job.merge, WRITERS, by[:1], by)
    return tuple(sorted(EpochWriter(**row) for row in table.to_pylist()))


@dataclass(frozen=True)
class WriterJob:
    """The two stages of that pass."""

    set_of_key: tuple[int, ...]

    def scan(self, unit: Unit) -> Batches:
        sets = np.maximum(np.asarray(self.set_of_key or [0], np.int64), 0)
        for rows in arrays(unit[1], ("t", "type", "f", "key", "epoch", "node")):
            acked = (rows["f"] == F.SEND) & (rows["type"] == Type.OK)
            acked &= (rows["epoch"] >= 0) & (rows["node"] >= 0)
            t, key, epoch, node = (rows[name][acked] for name in ("t", "key", "epoch", "node"))
            place = np.where((key >= 0) & (key < len(sets)), key, 0)
            writers, inverse = np.unique(
                np.stack([sets[place], epoch, node]), axis=1, return_inverse=True
            )
            count = writers.shape[1]
            first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
            np.minimum.at(first, inverse.ravel(), t)
            np.maximum.at(last, inverse.ravel(), t)
            acks = np.bincount(inverse.ravel(), minlength=count)
            yield pa.record_batch([*writers, first, last, acks], schema=WRITERS)

    def merge(self, partials: Batches) -> Batches:
        """Merge rows of the same writer, which are neighbours."""
        rows = (EpochWriter(**row) for batch in partials for row in batch.to_pylist())
        for writer, same in groupby(rows, key=lambda row: row[:3]):
            parts = list(same)
            first, last = min(part.first for part in parts), max(part.last for part in parts)
            values = (*writer, first, last, sum(part.acks for part in parts))
            yield pa.record_batch([[value] for value in values], schema=WRITERS)


def in_sets(
    acked: Sequence[EpochWriter],
    names: Sequence[str],
    event_log: Sequence[ClusterEvent],
    history: History,
) -> list[EpochWriter]:
    """Return each writer with its own set, if it is known: each set numbers its epochs from 1."""
    nodes, sets = history.names.get("nodes", ()), set_of_node(event_log)
    found = []
    for writer in acked:
        name = sets.get(nodes[writer.node] if writer.node < len(nodes) else "", "")
        found.append(writer._replace(set=names.index(name)) if name in names else writer)
    return found


def _shared(
    acked: Sequence[EpochWriter], names: Sequence[str], known: frozenset[int], history: History
) -> Iterator[Finding]:
    """Yield a finding of epochs in which several brokers acknowledged, except `known` ones."""
    by_epoch: dict[tuple[int, int], list[EpochWriter]] = defaultdict(list)
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
    what = quantity(len(shared), "epoch")
    message = f"more than one broker acknowledged messages in {what}"
    firsts = (sorted(writer.first for writer in by_epoch[which]) for which in shared)
    spans = tuple((first, second) for first, second, *_ in firsts)
    whose = tuple(names[number] if number >= 0 else "" for number, _ in shared)
    yield Finding(
        "EPOCH_SHARED", len(shared), message, INTEGRITY, rows, spans=spans, broker_sets=whose
    )


def _judged_by_laws(trial: Trial) -> bool:
    """Whether `invariants` judges the nodes' own events."""
    return not trial.checkers or "invariants" in trial.checkers


def _mastered_twice(event_log: Sequence[ClusterEvent]) -> frozenset[int]:
    """Return epochs of which two brokers report that they were master: the law ONE_MASTER."""
    masters: dict[int, set[str]] = defaultdict(set)
    for event in event_log:
        if event.kind == "role" and event.fields.get("role") == "master":
            masters[int(event.fields["epoch"])].add(event.node)
    return frozenset(epoch for epoch, who in masters.items() if len(who) > 1)


def overlap(acked: Sequence[EpochWriter]) -> int:
    """Return the longest time in ns for which a broker acknowledged in an epoch after another one
    had acknowledged in a later epoch."""
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
